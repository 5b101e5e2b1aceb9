"""The final table: one per dataset, a row per arm, and below it what the rows add up to."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightspec_lightllm.bench.cells import BASELINE, Cell, Spread, is_static
from lightspec_lightllm.bench.experiment import Experiment
from lightspec_lightllm.bench.results import Subject

MAX_DIFFERENCES_SHOWN = 8
UNEVEN_PROMPTS = 0.1
"""By how much more prompt tokens one arm may have read than another before that is said."""

WIDE = 118
"""Columns of text from which a dataset's table is shown in one piece."""


@dataclass(frozen=True)
class Column:
    """One column: its heading and what it shows of an arm in a cell."""

    heading: str
    show: Callable[[Cell, str], str]


def result_table(experiment: Experiment, subject: Subject, width: int) -> RenderableType:
    """Everything the benchmark found; in a narrow window each dataset's table comes in two halves."""
    halves = (SPEED + SPECULATION,) if width >= WIDE else (SPEED, SPECULATION)
    parts: list[RenderableType] = []
    for name in dict.fromkeys(cell.dataset.name for cell in experiment.cells):
        cells = [cell for cell in experiment.cells if cell.dataset.name == name]
        parts += [Text(), Text(f"{name}: {cells[0].dataset.source}", style="bold")]
        parts += [dataset_table(cells, columns) for columns in halves]
        parts.append(Text(caption(cells[0], experiment), style="dim"))
    parts += [Text(), Text("\n".join(footer(experiment, subject)))]
    return Group(*parts)


def dataset_table(cells: list[Cell], columns: tuple[Column, ...]) -> Table:
    out = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    out.add_column("in\nflight", justify="right")
    out.add_column("\narm", no_wrap=True)
    for column in columns:
        out.add_column(column.heading, justify="right")
    for cell in cells:
        best = cell.best_static()
        for number, arm in enumerate(cell.arms()):
            out.add_row(
                f"{cell.concurrency}" if number == 0 else "",
                Text(f"{arm} *" if arm == best else arm, style="" if is_static(arm) else "bold"),
                *(column.show(cell, arm) for column in columns),
                end_section=number == len(cell.arms()) - 1,
            )
    return out


def caption(cell: Cell, experiment: Experiment) -> str:
    options = experiment.options
    parts = [f"{options.max_tokens} tokens at most per answer", f"temperature {options.temperature:g}"]
    if options.repetitions > 1:
        parts.append(f"median [lowest-highest] of {options.repetitions} repetitions")
    else:
        parts.append("one run per arm: small differences are noise")
    if options.output_tokens is not None:
        parts.append(f"runs of {options.output_tokens} tokens, full to the end")
    if options.interleave:
        parts.append("arms in turns of half a second")
    if count := experiment.too_long.get(cell.dataset.name, 0):
        parts.append(f"{count} prompts left out: longer than the context")
    if count := cell.dataset.left_out:
        parts.append(f"{count} prompts left out: no user opens the conversation")
    return "; ".join(parts)


def footer(experiment: Experiment, subject: Subject) -> list[str]:
    machine = subject.machine
    commit = f" ({machine.commit})" if machine.commit else ""
    lines = ["x off, x best: paired by repetition; * and best: the fastest of off and the fixed arms in the cell"]
    lines += [ratio_line(experiment, arm) for arm in experiment.options.arms if not is_static(arm)]
    lines += fallback_lines(experiment)
    lines += prompt_lines(experiment)
    lines += text_lines(experiment)
    lines.append(
        f"{subject.model_id}, {subject.weights}, drafter {subject.drafter}, {subject.threads} engine thread(s) on "
        f"{machine.cores} x {machine.cpu}; torch {machine.torch}, lightspec {machine.lightspec}{commit}"
    )
    if experiment.interrupted:
        lines.append("Interrupted: only the runs that had finished are shown")
    return [line for line in lines if line]


def ratio_line(experiment: Experiment, arm: str) -> str:
    """How ``arm`` stands against the best static arm over all cells; empty when it was never compared."""
    ratios = [
        ratio.median
        for cell in experiment.cells
        if (best := cell.best_static()) and cell.of(arm) and (ratio := cell.ratio(arm, best))
    ]
    if not ratios:
        return ""
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
    return (
        f"{arm} against the best static arm of each cell: {mean:.3f} in the geometric mean, "
        f"lowest {min(ratios):.3f}, over {len(ratios)} cell(s)"
    )


def fallback_lines(experiment: Experiment) -> list[str]:
    """Runs whose planner gave up: their numbers are those of fixed steps."""
    return [
        f"{cell.dataset.name}, {cell.concurrency} in flight, {run.arm}, repetition {run.repetition + 1}: "
        f"planning was given up for fixed steps: {run.result.fallback}"
        for cell in experiment.cells
        for run in cell.runs
        if run.result.fallback
    ]


def prompt_lines(experiment: Experiment) -> list[str]:
    """Cells whose arms read prompts of different length for the same number of tokens: runs cut between two waves.

    Without speculation answers of the greatest length end in step, and a run that ends just before has not read the
    prompts of the next wave, which the other arms have in part. In the middle of a wave they are even.
    """
    options, lines = experiment.options, []
    if options.output_tokens is None:
        return []
    for cell in experiment.cells:
        read = {arm: median_of(cell, arm, "total_input_tokens") or 0.0 for arm in cell.arms()}
        least, most = min(read, key=read.__getitem__), max(read, key=read.__getitem__)
        if read[most] > read[least] * (1.0 + UNEVEN_PROMPTS):
            wave = cell.concurrency * options.max_tokens
            even = int((options.output_tokens // wave + 0.5) * wave)
            lines.append(
                f"{cell.dataset.name}, {cell.concurrency} in flight: {most} read {read[most]:.0f} tokens of prompts, "
                f"{least} only {read[least]:.0f}; runs that end amid a wave of answers, as with --output-tokens "
                f"{even}, compare arms more evenly"
            )
    return lines


def text_lines(experiment: Experiment) -> list[str]:
    """Whether every arm wrote what the baseline wrote."""
    compared = sum(cell.compared_texts() for cell in experiment.cells)
    if not compared:
        return [f"Texts: not compared (the arm {BASELINE} was not run beside another)"]
    differing = [(cell, difference) for cell in experiment.cells for difference in cell.differences()]
    cut = ", as far as each came in its run" if experiment.options.output_tokens is not None else ""
    lines = [f"Texts: {compared - len(differing)} of {compared} are token for token those of the arm {BASELINE}{cut}"]
    for cell, difference in differing[:MAX_DIFFERENCES_SHOWN]:
        gap = "not measured" if difference.gap is None else f"{difference.gap:.1e}"
        lines.append(
            f"  {cell.dataset.name} {difference.prompt}, {cell.concurrency} in flight, {difference.arm}: first differs "
            f"at token {difference.position}; gap of the target's two best logits there: {gap}"
        )
    if len(differing) > MAX_DIFFERENCES_SHOWN:
        lines.append(f"  and {len(differing) - MAX_DIFFERENCES_SHOWN} more, in the JSON file")
    return lines


def spread(value: Spread | None, form: str) -> str:
    if value is None:
        return "-"
    if value.low == value.high:
        return f"{value.median:{form}}"
    return rf"{value.median:{form}} \[{value.low:{form}}-{value.high:{form}}]"


def number_of(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def median_of(cell: Cell, arm: str, name: str) -> float | None:
    """The median of one metric over the arm's repetitions, leaving out those that do not have it."""
    values = [value for run in cell.of(arm) if (value := getattr(run.metrics, name)) is not None]
    return statistics.median(values) if values else None


def metric(name: str, form: str) -> Callable[[Cell, str], str]:
    return lambda cell, arm: number_of(median_of(cell, arm, name), form)


def against_best(cell: Cell, arm: str) -> str:
    best = cell.best_static()
    return spread(cell.ratio(arm, best), ".2f") if best else "-"


SPEED = (
    Column("\ntok/s", lambda cell, arm: spread(cell.throughput(arm), ".1f")),
    Column("x\noff", lambda cell, arm: spread(cell.ratio(arm, BASELINE), ".2f")),
    Column("x\nbest", against_best),
    Column("\nreq/s", metric("request_throughput", ".2f")),
    Column("TTFT\np50 ms", metric("median_ttft_ms", ".0f")),
    Column("TPOT\np50 ms", metric("median_tpot_ms", ".0f")),
    Column("TPOT\np99 ms", metric("p99_tpot_ms", ".0f")),
)
SPECULATION = (
    Column("accept\nlength", metric("mean_accept_length", ".2f")),
    Column("accepted/\nverified", metric("accepted_per_verified", ".2f")),
    Column("accepted/\ndrafted", metric("accepted_per_drafted", ".2f")),
    Column("rows/\nround", metric("verify_rows_per_round", ".1f")),
    Column("steps/\nround", metric("draft_steps_per_round", ".1f")),
)
