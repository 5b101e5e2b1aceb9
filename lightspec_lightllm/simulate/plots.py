"""Two pictures: throughput by segment and arm, and what the arms decided round by round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightspec_lightllm.simulate.arms import OPTIMUM, RANKED, is_static, plans
from lightspec_lightllm.simulate.comparison import ArmSummary, best_static, summaries, telling
from lightspec_lightllm.simulate.experiment import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_throughput(cells: Sequence[Cell], path: Path) -> None:
    """A panel per cell: bars of tokens/s by segment, whiskers from the lowest to the highest seed."""
    figure = _figure(width=6.5, height=3.2 * len(cells) + 0.4)
    for number, cell in enumerate(cells):
        axes = figure.add_subplot(len(cells), 1, number + 1)
        _bars(axes, telling(summaries(cell), best_static(cell)))
        axes.set_title(f"{cell.scenario.name}: {cell.label}", fontsize="medium")
        axes.set_ylabel("tokens / s")
    figure.savefig(path, dpi=110)


def _bars(axes: Axes, lines: Sequence[ArmSummary]) -> None:
    segments, width = len(lines[0].segment_rates), 0.85 / len(lines)
    for number, line in enumerate(lines):
        rates = line.segment_rates
        axes.bar(
            [x + (number - (len(lines) - 1) / 2) * width for x in range(segments)],
            [rate.median for rate in rates],
            width,
            yerr=[[r.median - r.low for r in rates], [r.high - r.median for r in rates]],
            label=line.arm,
            color=_colour(line.arm, number),
            capsize=2,
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(range(segments), [f"segment {x + 1}" for x in range(segments)])
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize="x-small", ncols=2)


def plot_plans(cells: Sequence[Cell], path: Path) -> bool:
    """Verify rows per request and draft steps over rounds, means over seeds; False when no arm plans."""
    shown = [[arm for arm in cell.arms if plans(arm) or arm in (RANKED, OPTIMUM)] for cell in cells]
    if not any(plans(arm) for arms in shown for arm in arms):
        return False
    figure = _figure(width=10.5, height=2.9 * len(cells) + 0.4)
    for line, (cell, arms) in enumerate(zip(cells, shown, strict=True)):
        for column, (name, label) in enumerate((("rows", "verify rows / request"), ("steps", "draft steps"))):
            axes = figure.add_subplot(len(cells), 2, 2 * line + column + 1)
            for number, arm in enumerate(arms):
                traces = [cell.traces[arm, seed] for seed in cell.seeds]
                values = np.mean(
                    [t.rows / t.num_requests if name == "rows" else t.steps for t in traces],
                    axis=0,
                )
                axes.plot(values, label=arm, color=_colour(arm, number), linewidth=1.0)
            axes.set_ylim(bottom=0)
            axes.set_title(f"{label}: {cell.label}", fontsize="medium")
            axes.set_xlabel("round")
            axes.grid(linewidth=0.4, alpha=0.6)
            if line == column == 0:
                axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=110)
    return True


def _figure(*, width: float, height: float) -> Figure:
    # A Figure with the Agg canvas alone: no pyplot, no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _colour(arm: str, number: int) -> str:
    named = {"off": "0.55", "lightspec": "tab:red", "mean-ema": "tab:purple", "dspark": "tab:brown"}
    oracles = {"static": "tab:blue", "static+ranking": "tab:cyan", "optimum": "tab:green", "clairvoyant": "tab:olive"}
    greys = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
    return (named | oracles).get(arm, greys[number % len(greys)] if is_static(arm) else "tab:orange")
