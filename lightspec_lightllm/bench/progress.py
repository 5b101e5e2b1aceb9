"""How far a command is: a bar on a terminal, a line per step elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lightspec_lightllm.bench.cells import Cell, Run
from lightspec_lightllm.bench.runner import RequestResult

WORTH_A_LINE = 1.0
"""Seconds that a step must take to be mentioned where there is no bar."""


class SetupProgress:
    """What happens before the first request: downloads, conversion, calibration."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.began: dict[str, float] = {}
        """When each step began that has no line yet."""

    def __enter__(self) -> "SetupProgress":  # noqa: PYI034 - typing.Self needs Python 3.11
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.stop()

    def report(self, step: str, done: int, total: int) -> None:
        """Units done of ``step``; a total of 0 means unknown."""
        now = time.monotonic()
        if step not in self.tasks:
            self.tasks[step] = self.bar.add_task(step, total=total or None)
            self.began[step] = now
        elif not self.console.is_terminal and now - self.began.get(step, now) >= WORTH_A_LINE:
            del self.began[step]
            self.console.print(step, highlight=False, markup=False)
        self.bar.update(self.tasks[step], completed=done, total=total or None)


class BenchProgress:
    """Counts finished requests, of a number that may be unknown.

    To be used inside ``with progress.bar:``, which takes the bar down again.
    """

    def __init__(self, console: Console, total_requests: int | None) -> None:
        self.console = console
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("starting", total=total_requests, last="")

    def run_started(self, cell: Cell, arm: str, repetition: int) -> None:
        self.bar.update(self.task, description=_title(cell, arm, repetition))

    def request_finished(self, _result: RequestResult, /) -> None:
        self.bar.advance(self.task)

    def run_finished(self, cell: Cell, run: Run) -> None:
        measured = f"{run.metrics.output_throughput:.1f} tok/s"
        self.bar.update(self.task, last=f"{run.arm}: {measured}")
        if not self.console.is_terminal:
            line = f"{_title(cell, run.arm, run.repetition)}: {measured}, {run.metrics.duration:.1f} s"
            self.console.print(line, highlight=False, markup=False)


def _title(cell: Cell, arm: str, repetition: int) -> str:
    return f"{cell.dataset.name}, {cell.concurrency} in flight, {arm}, repetition {repetition + 1}"
