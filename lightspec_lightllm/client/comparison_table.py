"""Results side by side: a block per condition, a line per number, ratios to the first."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightspec_lightllm.client.comparison import MEASURES, Measure, Record, differences

NOTEWORTHY = 0.02
"""From which distance of a ratio from 1 on it is coloured."""


def comparison_table(names: Sequence[str], rows: Sequence[tuple[str, list[Record | None]]]) -> RenderableType:
    """``names``: of the subjects; ``rows``: what was measured, and each subject's record of it."""
    parts: list[RenderableType] = []
    for title, records in rows:
        out = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        out.add_column(Text(title))
        for name in names:
            out.add_column(Text(name), justify="right")
        for measure in MEASURES:
            values = [None if record is None else measure.of(record) for record in records]
            if any(value is not None for value in values):
                out.add_row(measure.heading, *(_cell(measure, value, values[0]) for value in values))
        parts += [Text(), out, *(Text(line, style="dim") for line in differences(records))]
    parts.append(Text("In brackets: ratio to the first. Green is better, red is worse.", style="dim"))
    return Group(*parts)


def _cell(measure: Measure, value: float | None, first: float | None) -> Text:
    if value is None:
        return Text("-")
    text = f"{value:.0f}" if value == int(value) else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    if first is None or value is first or not first:
        return Text(text)
    ratio = value / first
    same = measure.higher_is_better is None or abs(ratio - 1) < NOTEWORTHY
    style = "" if same else "green" if (ratio > 1) == measure.higher_is_better else "red"
    return Text(f"{text} ({ratio:.2f}x)", style=style)
