"""Stage 1: how many rows the target verifies."""

from __future__ import annotations

from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.gain import GainCurve


def choose_budget(
    curve: GainCurve,
    num_requests: int,
    available: int,
    *,
    costs: CostModel,
    context: float,
    price: float,
    fills: float = 0.0,
    backlog: int = 0,
) -> int:
    """The budget B in ``N..N + available`` that maximises ``N + gain(B - N) - price * (T(B) + fills * Td(B))``.

    Drafting the waiting tokens is already paid for. Of equal budgets the smallest is taken. On a staircase the best
    budget is the last row of a tier or all there is, so only those are compared (see `CostModel.budgets`).

    Args:
        curve: gain of the waiting drafts.
        price: lambda, tokens per millisecond that the time could bring elsewhere.
        fills: passes of the drafter over all verified rows that follow (see `costs.draft_terms`).
        backlog: rows that the drafter must catch up on besides.
    """
    limit = num_requests + available
    if costs.max_rows is not None:
        limit = max(num_requests, min(limit, costs.max_rows))
    if limit == num_requests:
        return num_requests
    budgets = costs.budgets((num_requests, limit), context, backlog)
    value = curve.at(budgets.rows - num_requests) - price * (budgets.target_ms + fills * budgets.draft_ms)
    return int(budgets.rows[value.argmax()])
