"""One picture of results: throughput, time to first token and time per output token, by load."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightspec_lightllm.client.comparison import Measure, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("output tokens / s", Measure("", ("output_throughput",)), None),
    ("TTFT ms: mean, up to p99", Measure("", ("mean_ttft_ms",)), Measure("", ("p99_ttft_ms",))),
    ("TPOT ms: mean, up to p99", Measure("", ("mean_tpot_ms",)), Measure("", ("p99_tpot_ms",))),
    ("E2EL ms: mean, up to p99", Measure("", ("mean_e2el_ms",)), Measure("", ("p99_e2el_ms",))),
)


def plot_results(names: Sequence[str], rows: Sequence[tuple[str, list[Record | None]]], path: Path) -> None:
    """Bars side by side. ``names``: of the subjects; ``rows``: what each was measured under, and a record of each."""
    # A Figure with the Agg canvas alone: no pyplot, no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = max(4.0, 0.5 * len(rows) * (len(names) + 1))
    figure = Figure(figsize=(2 * width, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (title, measure, upper) in enumerate(PANELS):
        axes = figure.add_subplot(2, 2, number + 1)
        _bars(axes, names, rows, measure, upper)
        axes.set_title(title, fontsize="medium")
        if number == 0 and len(names) > 1:
            axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _bars(
    axes: "Axes",
    names: Sequence[str],
    rows: Sequence[tuple[str, list[Record | None]]],
    measure: Measure,
    upper: Measure | None,
) -> None:
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        at, values, tails = [], [], []
        for x, (_, records) in enumerate(rows):
            record = records[number]
            if record is None or (value := measure.of(record)) is None:
                continue
            tail = upper.of(record) if upper else None
            at.append(x + (number - (len(names) - 1) / 2) * width)
            values.append(value)
            tails.append(max(0.0, (tail or value) - value))
        axes.bar(
            at,
            values,
            width,
            yerr=[[0.0] * len(tails), tails] if upper else None,
            label=name,
            capsize=2,
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(range(len(rows)), [title.replace(", ", "\n") for title, _ in rows], fontsize="small")
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
