"""Both stages of a plan, with every candidate they compared; made by the planner's own functions.

Each figure is `planner.budget.choose_budget`'s or `planner.steps.steps_values`' own, or read off the same gain curve
and the same cost lines; `planner.oracle` searches all over again, slowly, to confirm what they found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.explain.state import State
from lightspec_lightllm.planner import CostModel
from lightspec_lightllm.planner.budget import choose_budget
from lightspec_lightllm.planner.costs import draft_terms
from lightspec_lightllm.planner.gain import GainCurve, SurvivalMass
from lightspec_lightllm.planner.oracle import best_budget, best_steps
from lightspec_lightllm.planner.steps import catching_up_ms, legal_steps, steps_values
from lightspec_lightllm.planner.types import FloatArray

SAME = 1e-6
"""Tokens by which the fast search and the exhaustive one may differ: rounding."""

QUICKEST_MS = 1e-3
"""A speedup is priced as if no round were quicker than this: at an endless price rounding alone would choose."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One candidate of stage 1.

    Attributes:
        rows: B.
        gain: accepted drafts that it can be expected to bring.
        target_ms: one target forward of B rows.
        draft_ms: the drafter's passes over these rows.
        value: ``N + gain - price (target_ms + draft_ms)``.
    """

    rows: int
    gain: float
    target_ms: float
    draft_ms: float
    value: float


@dataclass(frozen=True, slots=True)
class Steps:
    """One candidate of stage 2: d, with the best budget that d drafts of every request allow.

    Attributes:
        steps: d.
        rows: the best B for it.
        tokens: committed tokens of a round like that.
        round_ms: its time.
        draft_ms: what of it is drafting, what a draft takes beside its steps and the drafter's catching up with tokens
            that it has not seen included.
        value: ``tokens - price round_ms``.
    """

    steps: int
    rows: int
    tokens: float
    round_ms: float
    draft_ms: float
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A plan and why.

    Attributes:
        price: lambda, tokens per millisecond.
        speedup: the price over what the batch brings without speculation.
        settled: whether the price is the one that the batch would settle at.
        off_ms: a round without speculation.
        budgets: candidates of stage 1, by rows.
        rows: B that `choose_budget` took.
        steps: candidates of stage 2, by d.
        best_steps: d of the highest value.
        draft_steps: d that is taken: the current one unless the best gains more than the margin; K where drafts are
            free.
        disagreements: where the exhaustive search, or a value put together here, differs; empty is right.
    """

    state: State
    price: float
    speedup: float
    settled: bool
    off_ms: float
    budgets: tuple[Budget, ...]
    rows: int
    steps: tuple[Steps, ...]
    best_steps: int
    draft_steps: int
    disagreements: tuple[str, ...]


def explain(state: State, costs: CostModel) -> Explanation:
    """Plan a round of the state and keep everything that was compared."""
    costs = costs.for_requests(state.num_requests)
    legal = legal_steps(state.drafter, state.max_draft_steps)
    off_ms = costs.target_ms(state.num_requests, state.num_requests, state.context_tokens)
    unit = state.num_requests / max(off_ms, QUICKEST_MS)
    settled = state.price is None and state.speedup is None
    if state.price is not None:
        price = state.price
    else:
        price = _settled_price(state, costs, legal) if state.speedup is None else state.speedup * unit
    waiting = SurvivalMass.of_drafts(state.survival, state.waiting).curve()
    fills = draft_terms(state.drafter, state.steps)[1]
    rows = _choose_budget(state, costs, waiting, int(state.waiting.sum()), price=price, fills=fills)
    budgets = _budgets(state, costs, waiting, price, fills)
    steps, faults = _steps(state, costs, legal, price)
    best = max(steps, key=lambda line: (line.value, -line.steps))
    taken = best.steps
    if state.drafter == "free":
        taken = state.max_draft_steps
    elif current := [line for line in steps if line.steps == state.steps]:
        keeps = best.value - current[0].value <= state.options.steps_margin * state.num_requests
        taken = state.steps if keeps else best.steps
    return Explanation(
        state=state,
        price=price,
        speedup=price / unit,
        settled=settled,
        off_ms=off_ms,
        budgets=budgets,
        rows=rows,
        steps=steps,
        best_steps=best.steps,
        draft_steps=taken,
        disagreements=(
            *_check_budget(state, costs, budgets, rows, price),
            *faults,
            *_check_steps(state, costs, steps, price),
        ),
    )


def _future(state: State) -> SurvivalMass:
    """What stage 2 expects: every request proposes K drafts like today's."""
    if state.confidence is None:
        depths = np.arange(1, state.max_draft_steps + 1)
        count = np.full(state.max_draft_steps, float(state.num_requests))
        return SurvivalMass(state.survival[0], depths, count, ladder=True)
    return SurvivalMass.of_drafts(state.survival, np.full(state.num_requests, state.max_draft_steps))


def _values(state: State, costs: CostModel, legal: tuple[int, ...], price: float) -> FloatArray:
    """float[D], `steps_values` less the price of the time that no decision changes."""
    values = steps_values(
        _future(state),
        state.num_requests,
        legal,
        kind=state.drafter,
        block=state.max_draft_steps,
        costs=costs,
        context=state.context_tokens,
        price=price,
    )
    return values - price * costs.base_ms(state.num_requests, state.context_tokens)


def _catching_up(state: State, costs: CostModel, legal: tuple[int, ...]) -> FloatArray:
    """float[D], milliseconds of a round that the drafter's catching up takes."""
    resumed = catching_up_ms(
        state.drafter, state.num_requests, state.draft_backlog, costs=costs, context=state.context_tokens
    )
    return np.array([resumed if steps else 0.0 for steps in legal])


def _settled_price(state: State, costs: CostModel, legal: tuple[int, ...]) -> float:
    """The price at which the best round is worth exactly its time: the rate of that round (Dinkelbach 1967)."""
    behind = _catching_up(state, costs, legal)

    def best(price: float) -> float:
        return float((_values(state, costs, legal, price) - price * behind).max())

    low, high = 0.0, 1.0
    while best(high) > 0 and high < 1e9:
        low, high = high, 2 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if best(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def _choose_budget(
    state: State,
    costs: CostModel,
    curve: GainCurve,
    available: int,
    *,
    price: float,
    fills: float,
    backlog: bool = True,
) -> int:
    return choose_budget(
        curve,
        state.num_requests,
        available,
        costs=costs,
        context=state.context_tokens,
        price=price,
        fills=fills,
        backlog=state.draft_backlog if backlog else 0,
    )


def _budgets(state: State, costs: CostModel, curve: GainCurve, price: float, fills: float) -> tuple[Budget, ...]:
    count, backlog = state.num_requests, state.draft_backlog
    limit = count + int(state.waiting.sum())
    if costs.max_rows is not None:
        limit = max(count, min(limit, costs.max_rows))
    rows = costs.budgets((count, limit), state.context_tokens, backlog).rows
    rows = rows[rows <= limit]
    reach = int(rows[-1]) + backlog
    target, fill = costs.lines(reach, state.context_tokens)[0], costs.fill_line(reach, state.context_tokens)
    gain = curve.at(rows - count)
    draft_ms = fills * fill[rows + backlog]
    value = count + gain - price * (target[rows] + draft_ms)
    columns = (rows.tolist(), gain.tolist(), target[rows].tolist(), draft_ms.tolist(), value.tolist())
    return tuple(Budget(*line) for line in zip(*columns, strict=True))


def _steps(
    state: State, costs: CostModel, legal: tuple[int, ...], price: float
) -> tuple[tuple[Steps, ...], tuple[str, ...]]:
    """The candidates of stage 2, and where their parts do not add up to the value that stage 2 gave them."""
    count, context = state.num_requests, state.context_tokens
    lines, faults = [], []
    behind = _catching_up(state, costs, legal)
    values = _values(state, costs, legal, price) - price * behind
    for steps, value, extra_ms in zip(legal, values.tolist(), behind.tolist(), strict=True):
        proposed = np.full(count, steps)
        curve = SurvivalMass.of_drafts(state.survival, proposed).curve()
        fills = draft_terms(state.drafter, steps)[1]
        rows = _choose_budget(state, costs, curve, count * steps, price=price, fills=fills, backlog=False)
        draft_ms = extra_ms + costs.draft_ms(
            state.drafter, count, rows, steps, block=state.max_draft_steps, context=context
        )
        round_ms = costs.target_ms(rows, count, context) + draft_ms
        tokens = count + curve.gain_of(rows - count)
        lines.append(Steps(steps, rows, tokens, round_ms, draft_ms, value))
        if abs(tokens - price * round_ms - value) > SAME * (1 + abs(value)):
            faults.append(f"d = {steps}: its parts add up to {tokens - price * round_ms:.6f}, stage 2 says {value:.6f}")
    return tuple(lines), tuple(faults)


def _check_budget(
    state: State, costs: CostModel, budgets: tuple[Budget, ...], rows: int, price: float
) -> tuple[str, ...]:
    """Stage 1 against every budget there is."""
    best_rows, best = best_budget(
        state.survival,
        state.waiting,
        costs=costs,
        context=state.context_tokens,
        price=price,
        kind=state.drafter,
        steps=state.steps,
        block=state.max_draft_steps,
        backlog=state.draft_backlog,
    )
    chained = draft_terms(state.drafter, state.steps)[0]
    chain_rows = state.num_requests * (state.max_draft_steps if state.drafter == "block" else 1)
    fixed_ms = chained * float(costs.lines(chain_rows, state.context_tokens)[1][chain_rows])
    fixed_ms += costs.draft_start_ms(state.drafter, state.num_requests, state.steps)
    best += price * fixed_ms  # the same for every budget, so that stage 1 leaves it out
    taken = next((line.value for line in budgets if line.rows == rows), -np.inf)
    if abs(best - taken) <= SAME * (1 + abs(best)):
        return ()
    return (f"the exhaustive search takes B = {best_rows} of value {best:.6f}, stage 1 B = {rows} of {taken:.6f}",)


def _check_steps(state: State, costs: CostModel, lines: tuple[Steps, ...], price: float) -> tuple[str, ...]:
    """Stage 2 against every budget of every d."""
    behind = _catching_up(state, costs, tuple(line.steps for line in lines))
    base_ms = costs.base_ms(state.num_requests, state.context_tokens)
    faults = []
    for line, extra_ms in zip(lines, behind.tolist(), strict=True):
        _, best = best_steps(
            state.survival,
            legal=(line.steps,),
            kind=state.drafter,
            block=state.max_draft_steps,
            costs=costs,
            context=state.context_tokens,
            price=price,
        )
        best -= price * (base_ms + extra_ms)
        if abs(best - line.value) > SAME * (1 + abs(best)):
            faults.append(f"d = {line.steps}: the exhaustive search finds {best:.6f}, stage 2 {line.value:.6f}")
    return tuple(faults)
