"""The explanation as a person reads it: two tables and the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightspec_lightllm.explain.explanation import Budget, Explanation, Steps

SHOWN = 21
"""Budgets that are shown without being asked for all."""


def explanation_table(found: Explanation, *, everything: bool = False) -> RenderableType:
    """All of it; ``everything``: with every budget, however many."""
    state = found.state
    source = "at which this batch would settle" if found.settled else "as given"
    head = (
        f"{state.num_requests} requests, {int(state.waiting.sum())} drafts waiting, {state.drafter} drafter, "
        f"K = {state.max_draft_steps}, context {state.context_tokens:g}\n"
        f"Price of time {source}: {found.price:.4g} tokens/ms, {found.speedup:.2f} times the batch without speculation "
        f"({state.num_requests} tokens in {found.off_ms:.3f} ms)"
    )
    check = "An exhaustive search over every budget and every d agrees."
    if found.disagreements:
        check = "\n".join(f"DISAGREES: {line}" for line in found.disagreements)
    return Group(
        Text(head),
        Text("\nStage 1: rows to verify now. Value = N + gain - price x ms", style="bold"),
        budget_table(found, everything=everything),
        Text("\n".join(budget_reasons(found))),
        Text("\nStage 2: drafts to propose for the next round. Value = tokens - price x ms", style="bold"),
        steps_table(found),
        Text("\n".join(steps_reasons(found))),
        Text(f"\n{check}", style="red" if found.disagreements else "dim"),
    )


def budget_table(found: Explanation, *, everything: bool) -> Table:
    out = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in (
        "",
        "B\nrows",
        "drafted\nrows",
        "gain\ntokens",
        "target\nms",
        "drafter\nms",
        "value\ntokens",
        "behind\nbest",
    ):
        out.add_column(heading, justify="right")
    taken = _position(found.budgets, found.rows)
    best = found.budgets[taken].value
    shown = range(len(found.budgets)) if everything else _around(taken, len(found.budgets))
    last = -1
    for at in shown:
        if at != last + 1:
            out.add_row("", Text("...", style="dim"))
        line, last = found.budgets[at], at
        out.add_row(
            "->" if at == taken else "",
            f"{line.rows}",
            f"{line.rows - found.state.num_requests}",
            f"{line.gain:.2f}",
            f"{line.target_ms:.3f}",
            f"{line.draft_ms:.3f}",
            _signed(line.value),
            "" if at == taken else f"{best - line.value:.3f}",
            style="bold" if at == taken else "",
        )
    return out


def budget_reasons(found: Explanation) -> list[str]:
    """Why this budget, and not the next tier or the one before."""
    state, at = found.state, _position(found.budgets, found.rows)
    taken = found.budgets[at]
    lines = [
        f"B = {taken.rows}: {_of(taken.rows - state.num_requests, 'drafted row')} beside the {state.num_requests} own."
    ]
    if len(found.budgets) == 1:
        lines.append(
            "There is no other: " + ("no draft is waiting." if not state.waiting.any() else "no more rows fit.")
        )
        return lines
    if at + 1 < len(found.budgets):
        lines.append("The next tier does not pay: " + _compare(taken, found.budgets[at + 1], found.price))
        rest = max(found.budgets[at + 1 :], key=lambda line: line.value)
        if rest is not found.budgets[at + 1]:
            lines.append(
                f"The best of all larger budgets, {rest.rows}, is {taken.value - rest.value:.3f} tokens behind."
            )
    else:
        lines.append("It is all there is: every waiting draft that may have a row has one.")
    if at > 0:
        lines.append("The tier before is left: " + _compare(found.budgets[at - 1], taken, found.price))
    return lines


def steps_table(found: Explanation) -> Table:
    out = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in (
        "",
        "\nd",
        "best B\nrows",
        "\ntokens",
        "round\nms",
        "drafting\nms",
        "tokens/ms\n",
        "value\ntokens",
        "behind\nbest",
    ):
        out.add_column(heading, justify="right")
    best = max(line.value for line in found.steps)
    for line in found.steps:
        chosen = line.steps == found.draft_steps
        out.add_row(
            "->" if chosen else "",
            f"{line.steps}",
            f"{line.rows}",
            f"{line.tokens:.2f}",
            f"{line.round_ms:.3f}",
            f"{line.draft_ms:.3f}",
            f"{line.tokens / max(line.round_ms, 1e-9):.3f}",
            _signed(line.value),
            "" if line.steps == found.best_steps else f"{best - line.value:.3f}",
            style="bold" if chosen else "",
        )
    return out


def steps_reasons(found: Explanation) -> list[str]:
    """Why this d, and not one more or one less."""
    state = found.state
    at = next(number for number, line in enumerate(found.steps) if line.steps == found.best_steps)
    best = found.steps[at]
    if state.drafter == "free":
        return [f"d = {found.draft_steps}: drafts cost nothing, so as many as can be found are proposed."]
    lines = [f"d = {best.steps} has the highest value with its best budget, B = {best.rows}."]
    if at + 1 < len(found.steps):
        lines.append("More steps do not pay: " + _compare_steps(best, found.steps[at + 1], found.price))
    else:
        lines.append("It is the most that may be drafted.")
    if at > 0:
        lines.append("Fewer steps lose: " + _compare_steps(found.steps[at - 1], best, found.price))
    if found.draft_steps != found.best_steps:
        behind = best.value - next(line.value for line in found.steps if line.steps == found.draft_steps)
        margin = state.options.steps_margin * state.num_requests
        lines.append(
            f"The batch stays at d = {found.draft_steps}: it is {behind:.3f} tokens behind, within the margin of "
            f"{margin:.3f} (steps_margin x N) that a change must bring."
        )
    if best.steps == 0:
        lines.append(
            "A planner that is not sure of these acceptances yet drafts on, and later tries again now and then."
        )
    return lines


def _compare(low: Budget, high: Budget, price: float) -> str:
    milliseconds = high.target_ms + high.draft_ms - low.target_ms - low.draft_ms
    return _balance(_of(high.rows - low.rows, "more row"), high.gain - low.gain, milliseconds, price)


def _compare_steps(low: Steps, high: Steps, price: float) -> str:
    rows = f"both with B = {low.rows}" if high.rows == low.rows else f"B = {high.rows} rather than {low.rows}"
    what = f"d = {high.steps} rather than {low.steps} ({rows})"
    return _balance(what, high.tokens - low.tokens, high.round_ms - low.round_ms, price)


def _balance(what: str, gain: float, milliseconds: float, price: float) -> str:
    cost = price * milliseconds
    verdict = f"{gain - cost:.3f} tokens more than it costs" if gain > cost else f"{cost - gain:.3f} tokens too few"
    return f"{what}: {gain:+.3f} tokens in {milliseconds:+.4f} ms, which could bring {cost:.3f} elsewhere: {verdict}."


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # the sum makes a negative zero positive


def _of(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _position(budgets: Sequence[Budget], rows: int) -> int:
    return next(number for number, line in enumerate(budgets) if line.rows == rows)


def _around(taken: int, count: int) -> list[int]:
    """The first, the last, and those next to the one taken."""
    if count <= SHOWN:
        return list(range(count))
    start = min(max(taken - SHOWN // 2, 0), count - SHOWN)
    return sorted({0, *range(start, start + SHOWN), count - 1})
