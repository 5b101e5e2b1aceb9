"""Two pictures: throughput by arm and concurrency, and what the planner decided over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightspec_lightllm.bench.cells import Cell, Run, is_static
from lightspec_lightllm.bench.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_throughput(experiment: Experiment, path: Path) -> None:
    """Bars of median output tokens/s; the whiskers reach from the lowest to the highest repetition."""
    names = list(dict.fromkeys(cell.dataset.name for cell in experiment.cells))
    figure = _figure(width=5.0 * len(names) + 1.0, height=4.2)
    for number, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), number + 1)
        _throughput_bars(axes, [cell for cell in experiment.cells if cell.dataset.name == name])
        axes.set_title(name)
        if number == 0:
            axes.set_ylabel("output tokens / s")
    _legend(figure)
    figure.savefig(path, dpi=120)


def _throughput_bars(axes: "Axes", cells: Sequence[Cell]) -> None:
    arms = list(dict.fromkeys(arm for cell in cells for arm in cell.arms()))
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        at = [x for x, cell in enumerate(cells) if cell.of(arm)]
        spreads = [cells[x].throughput(arm) for x in at]
        axes.bar(
            [x + (number - (len(arms) - 1) / 2) * width for x in at],
            [spread.median for spread in spreads],
            width,
            yerr=[[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]],
            label=arm,
            color=_colour(arm, number),
            capsize=2,
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(range(len(cells)), [str(cell.concurrency) for cell in cells])
    axes.set_xlabel("requests in flight")
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)


def plot_plans(experiment: Experiment, path: Path) -> bool:
    """Verify rows and draft steps of each planning arm's first run, round by round; False when no arm plans."""
    rows = [
        (cell, run)
        for cell in experiment.cells
        for run in cell.runs
        if not is_static(run.arm) and run.repetition == 0 and run.result.rounds
    ]
    if not rows:
        return False
    names = list(dict.fromkeys(cell.dataset.name for cell, _ in rows))
    columns = max(sum(cell.dataset.name == name for cell, _ in rows) for name in names)
    figure = _figure(width=4.6 * columns + 1.0, height=2.9 * len(names) + 0.4)
    for line, name in enumerate(names):
        of_name = [(cell, run) for cell, run in rows if cell.dataset.name == name]
        for column, (cell, run) in enumerate(of_name):
            axes = figure.add_subplot(len(names), columns, line * columns + column + 1)
            _plan_lines(axes, cell, run)
    _legend(figure)
    figure.savefig(path, dpi=120)
    return True


def _plan_lines(axes: "Axes", cell: Cell, run: Run) -> None:
    rounds = run.result.rounds
    seconds = [trace.time for trace in rounds]  # at the end of a round: a step reaches back to the one before
    lines = (
        ("verify rows B", [trace.verify_rows for trace in rounds], "tab:red"),
        ("running requests N", [trace.num_requests for trace in rounds], "tab:gray"),
        ("draft steps d", [trace.draft_steps for trace in rounds], "tab:blue"),
    )
    for label, values, colour in lines:
        axes.step(seconds, values, where="pre", label=label, color=colour, linewidth=1.1)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{run.arm}: {cell.dataset.name}, {cell.concurrency} in flight", fontsize="medium")
    axes.set_xlabel("seconds")
    axes.grid(linewidth=0.4, alpha=0.6)


def _legend(figure: "Figure") -> None:
    """One for all axes, which show the same things, where it covers none of them."""
    labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(*labels, loc="outside upper center", ncols=len(labels[1]), fontsize="small")


def _figure(*, width: float, height: float) -> "Figure":
    # A Figure with the Agg canvas alone: no pyplot, no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _colour(arm: str, number: int) -> str:
    if arm == "off":
        return "0.55"
    greys = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
    return greys[number % len(greys)] if is_static(arm) else "tab:red"
