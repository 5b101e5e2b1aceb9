"""The tables of a simulation: a row per arm, one table per cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightspec_lightllm.simulate.arms import CLAIRVOYANT, OFF, OPTIMUM, RANKED, STATIC, plans
from lightspec_lightllm.simulate.comparison import BEST_STATIC, ArmSummary, Spread, best_static, summaries, telling
from lightspec_lightllm.simulate.experiment import Cell


@dataclass(frozen=True)
class Column:
    """One column: its heading and what it shows of an arm."""

    heading: str
    show: Callable[[ArmSummary], str]


def cell_table(cell: Cell) -> RenderableType:
    """What one cell found."""
    best = best_static(cell)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("\narm", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for line in telling(summaries(cell), best):
        name = f"{line.arm} *" if line.arm in best else line.arm
        table.add_row(Text(name, style="bold" if plans(line.arm) else ""), *(column.show(line) for column in COLUMNS))
    return Group(Text(f"{cell.scenario.name}: {cell.label}", style="bold"), table, Text(caption(cell), style="dim"))


def caption(cell: Cell) -> str:
    """How to read the table, and what the static arms were set to."""
    parts = [f"median [lowest-highest] of {len(cell.seeds)} seeds; *: the best static arm of a segment"]
    for name, settings in ((STATIC, cell.references.static), (RANKED, cell.references.ranked)):
        if settings:
            parts.append(f"{name} " + ", ".join(f"d {s.steps} b {s.budget:.3g}" for s in settings))
    return "; ".join(parts)


def _against(name: str) -> Callable[[ArmSummary], str]:
    return lambda line: spread(line.to.get(name), ".3f")


def spread(value: Spread | None, form: str) -> str:
    """A median with its spread, where there is one."""
    if value is None:
        return "-"
    if f"{value.low:{form}}" == f"{value.high:{form}}":
        return f"{value.median:{form}}"
    return rf"{value.median:{form}} \[{value.low:{form}}-{value.high:{form}}]"


def _median(name: str) -> Callable[[ArmSummary], str]:
    return lambda line: f"{line.to[name].median:.3f}" if name in line.to else "-"


def _adapted(line: ArmSummary) -> str:
    return ", ".join("never" if rounds is None else str(rounds) for rounds in line.adapt_rounds) or "-"


def _plan_time(line: ArmSummary) -> str:
    return f"{line.plan_us_p50:.0f} / {line.plan_us_p99:.0f}" if plans(line.arm) else "-"


COLUMNS = (
    Column("tok/s, by\nsegment", lambda line: " / ".join(f"{rate.median:.0f}" for rate in line.segment_rates)),
    Column("x\noff", _median(OFF)),
    Column("x best\nstatic", _against(BEST_STATIC)),
    Column("x static\n+rank", _median(RANKED)),
    Column("x\noptimum", _against(OPTIMUM)),
    Column("x clair-\nvoyant", _median(CLAIRVOYANT)),
    Column("\nregret", lambda line: "-" if line.regret is None else f"{line.regret:.1%}"),
    Column("rounds\nto adapt", _adapted),
    Column("rows/\nrequest", lambda line: f"{line.rows:.2f}"),
    Column("\nsteps", lambda line: f"{line.steps:.1f}"),
    Column("accept\nlength", lambda line: f"{line.accept_length:.2f}"),
    Column("plan us\np50 / p99", _plan_time),
    Column("of the\ntime", lambda line: f"{line.plan_share:.1%}" if plans(line.arm) else "-"),
)
