"""What a command measured: a row per run and, below, what must be known to read it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightspec_lightllm.client.metrics import Latency
from lightspec_lightllm.client.options import ClientOptions
from lightspec_lightllm.client.run import Run

LATE_MS, BUSY = 10.0, 0.8
"""From where on times are those of the client: 99th percentile of its lag, and its share of a processor."""
SEVERAL = 1.05
"""Tokens per event from where on they are shown: ITL is then the time between events, not between tokens."""
WIDE = 125
"""Columns of text from which a dataset's table is shown in one piece."""
MAX_ERRORS_SHOWN = 10
HEADINGS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "client_queue_time": "queued"}


@dataclass(frozen=True)
class Column:
    heading: str
    show: Callable[[Run], str]


def result_table(runs: list[Run], options: ClientOptions, model: str, width: int) -> RenderableType:
    """All runs; in a narrow window each dataset's table comes in two halves."""
    load, rates, times = load_columns(runs), rate_columns(runs, options), time_columns(options)
    halves = [load + rates + times] if width >= WIDE else [load + rates, load + times]
    parts: list[RenderableType] = []
    for name in dict.fromkeys(run.dataset.name for run in runs):
        of_name = [run for run in runs if run.dataset.name == name]
        parts += [Text(), Text(f"{name}: {of_name[0].dataset.source}", style="bold")]
        parts += [dataset_table(of_name, columns) for columns in halves if columns]
    sampling = options.sampling
    parts += [
        Text(
            f"{model} at {options.base_url}, API {options.api}; {sampling.max_tokens} tokens at most per answer, "
            f"temperature {sampling.temperature:g}"
            + ("; tokens counted by the server" if all(set(run.counted_by) == {"usage"} for run in runs) else ""),
            style="dim",
        ),
        *(Text(line) for run in runs for line in notes(run)),
    ]
    return Group(*parts)


def dataset_table(runs: list[Run], columns: list[Column]) -> Table:
    out = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        out.add_column(column.heading, justify="right")
    for run in runs:
        out.add_row(*(column.show(run) for column in columns))
    return out


def load_columns(runs: list[Run]) -> list[Column]:
    columns = [Column("in\nflight", lambda run: number_of(run.load.max_concurrency, "d"))]
    if any(math.isfinite(run.load.request_rate) for run in runs):
        columns.append(Column("offered\nreq/s", lambda run: f"{run.load.request_rate:g}"))
    return columns


def rate_columns(runs: list[Run], options: ClientOptions) -> list[Column]:
    """Counts, throughput, speculation and answers: the columns in which any of the runs has something to show."""
    columns = [
        Column("\nok", lambda run: f"{run.metrics.completed}"),
        Column("\nfailed", lambda run: f"{run.metrics.failed}"),
        Column("\nreq/s", lambda run: f"{run.metrics.request_throughput:.2f}"),
    ]
    if options.goodput:
        columns.append(Column("good\nreq/s", lambda run: number_of(run.metrics.request_goodput, ".2f")))
    columns.append(Column("\ntok/s", lambda run: f"{run.metrics.output_throughput:.1f}"))
    if any((run.metrics.tokens_per_event or 1.0) > SEVERAL for run in runs):
        columns.append(Column("tokens/\nevent", lambda run: number_of(run.metrics.tokens_per_event, ".2f")))
    if any(run.speculation for run in runs):
        columns += [
            Column(
                "accept\nlength", lambda run: number_of(getattr(run.speculation, "mean_accept_length", None), ".2f")
            ),
            Column(
                "accepted/\nverified",
                lambda run: number_of(getattr(run.speculation, "accepted_per_verified", None), ".2f"),
            ),
        ]
    if any(run.answers for run in runs):
        columns.append(
            Column("\nright", lambda run: f"{run.answers.correct}/{len(run.answers.verdicts)}" if run.answers else "-")
        )
    return columns


def time_columns(options: ClientOptions) -> list[Column]:
    tail = max(options.percentiles)
    return [latency_column(name, tail) for name in options.percentile_metrics]


def latency_column(name: str, tail: float) -> Column:
    def show(run: Run) -> str:
        latency: Latency = run.metrics.latencies[name]
        return f"{milliseconds(latency.median)} / {milliseconds(latency.percentiles[tail])}"

    return Column(f"{HEADINGS[name]} ms\np50 / p{tail:g}", show)


def notes(run: Run) -> list[str]:
    """What a reader of the run's row must know, a line each."""
    return [f"{run.dataset.name}, {run.load}: {line}" for line in _notes(run)]


def _notes(run: Run) -> list[str]:
    lines = []
    if run.result.interrupted:
        lines.append(
            f"interrupted after {run.result.duration:.1f} s: {run.result.cancelled} requests in flight were given up"
        )
    shown = run.errors.most_common(MAX_ERRORS_SHOWN)
    lines += [f"{count} failed: {text}" for text, count in shown]
    if len(run.errors) > len(shown):
        lines.append(f"and {len(run.errors) - len(shown)} more kinds of failure, in the file")
    if run.retries:
        lines.append(f"{run.retries} times a request was sent again to a busy server; the wait is in its latency")
    counted = run.counted_by
    if counted["tokenizer"]:
        lines.append(
            f"output tokens of {counted['tokenizer']} answers counted by the tokenizer: the server does not say"
        )
    if counted["events"]:
        lines.append(
            f"output tokens of {counted['events']} answers counted as one per event: the server does not say, and "
            "speculation puts several into an event (--tokenizer counts them)"
        )
    if len({prompt.key for prompt in run.prompts}) < len(run.prompts):
        lines.append("the set has fewer prompts than were asked for: some were sent again (mind a prefix cache)")
    if run.answers and run.truncated:
        lines.append(f"{run.truncated} answers were cut at the limit of tokens, which makes many of them wrong")
    if run.answers and run.answers.limits:
        lines.append(f"code was run within {run.answers.limits}")
    late, share = run.result.client_lag_p99_ms, f"{100 * run.result.client_cpu:.0f} % of a processor"
    if run.result.client_cpu > BUSY:
        lines.append(f"the client was the bottleneck: it took {share}; times are late by up to {late:.0f} ms (p99)")
    elif late > LATE_MS:
        lines.append(
            f"times are late by up to {late:.0f} ms (p99): this machine let the client wait, which took {share} itself"
        )
    return lines


def milliseconds(value: float | None) -> str:
    return number_of(value, ".1f" if value is not None and value < 100 else ".0f")


def number_of(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
