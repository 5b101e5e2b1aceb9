"""Stage 1: how many rows the target verifies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightspec_lightllm.planner.costs import BudgetCosts, CostModel
from lightspec_lightllm.planner.gain import GainCurve
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.types import IntArray

FEW = 32
"""The budget is searched anew when more than one in so many requests changed since it was found."""


class FoundBudget(NamedTuple):
    """A verify budget that was found, for how many requests by proposal and level, and for what of the drafter."""

    batch: IntArray
    drafter: tuple[float, int]
    curve: GainCurve
    rows: int

    def fits(self, batch: IntArray, drafter: tuple[float, int], num_requests: int, available: int) -> bool:
        """Whether it does for a batch that is almost the same."""
        if len(batch) != len(self.batch):  # ids may come and go
            return False
        if batch.tobytes() == self.batch.tobytes():
            return drafter == self.drafter and self.rows <= num_requests + available
        few = num_requests // FEW
        same = few > 0 and int(np.abs(batch - self.batch).sum()) <= few
        return same and drafter == self.drafter and self.rows <= num_requests + available


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
    ends: tuple[int, ...] | None = None,
) -> int:
    """The budget B in ``N..N + available`` that maximises ``N + gain(B - N) - price * (T(B) + fills * Tf(B))``.

    Drafting the waiting tokens is already paid for. Of equal budgets the smallest is taken. On a staircase the best
    budget is the last row of a tier or all there is, so only those are compared (see `CostModel.budgets`).

    Args:
        curve: gain of the waiting drafts.
        price: lambda, tokens per millisecond that the time could bring elsewhere.
        fills: passes of the drafter over all verified rows that follow (see `costs.draft_terms`).
        backlog: rows that the drafter must catch up on besides.
        ends: budgets whose candidates are kept from round to round, from N to at least all that may ever be available.
    """
    limit = num_requests + available
    if costs.max_rows is not None:
        limit = max(num_requests, min(limit, costs.max_rows))
    budgets = costs.for_requests(num_requests).budgets(ends or (num_requests, limit), context, backlog)
    return best_budget(curve, budgets, limit, price=price, fills=fills)


def best_budget(curve: GainCurve, budgets: BudgetCosts, limit: int, *, price: float, fills: float) -> int:
    """The same among candidates from N on, and ``limit``, which may end between two of them."""
    num_requests = budgets.least
    if limit == num_requests:
        return num_requests
    most, most_ms = limit - num_requests, budgets.ms_of(limit, fills)
    best = INNER.loops.best_extra(curve.rows, curve.gain, budgets.extra, budgets.ms(fills), most, most_ms, price)
    return num_requests + int(best)
