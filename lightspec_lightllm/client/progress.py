"""How far a measurement is: a bar on a terminal, a line per run elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lightspec_lightllm.bench.datasets import Dataset
from lightspec_lightllm.client.options import Load
from lightspec_lightllm.client.request import RequestOutput
from lightspec_lightllm.client.run import Run


class ClientProgress:
    """Counts answers. To be used inside ``with progress.bar:``, which takes the bar down again."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[failed]}"),
            console=console,
            transient=True,
            refresh_per_second=4,  # a frame takes time that answers are waiting for
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("starting", total=None, failed="")
        self.failed = 0

    def run_started(self, dataset: Dataset, load: Load, count: int) -> None:
        self.failed = 0
        self.bar.reset(self.task, description=f"{dataset.name}, {load}", total=count, failed="")

    def request_finished(self, output: RequestOutput) -> None:
        if not output.succeeded:
            self.failed += 1
            self.bar.update(self.task, failed=f"{self.failed} failed")
        self.bar.advance(self.task)

    def checking(self, count: int) -> None:
        self.bar.reset(self.task, description="running the answers", total=count)

    def answer_checked(self) -> None:
        self.bar.advance(self.task)

    def run_finished(self, run: Run) -> None:
        if not self.console.is_terminal:
            metrics = run.metrics
            failed = f", {metrics.failed} failed" if metrics.failed else ""
            self.console.print(
                f"{run.dataset.name}, {run.load}: {metrics.completed} answers{failed}, "
                f"{metrics.output_throughput:.1f} tok/s, {run.result.duration:.1f} s",
                highlight=False,
                markup=False,
            )
