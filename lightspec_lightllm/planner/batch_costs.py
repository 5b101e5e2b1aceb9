"""What rounds of one batch cost: figures that every round asks for, kept."""

from __future__ import annotations

from typing import TypeVar

from lightspec_lightllm.planner.costs import BudgetCosts, CostModel
from lightspec_lightllm.planner.steps import budget_ends
from lightspec_lightllm.planner.types import DrafterKind

K = TypeVar("K")
V = TypeVar("V")

MOST_KEPT = 1024
"""Figures that are kept of each kind."""


class BatchCosts:
    """The costs of N requests at one context.

    Attributes:
        off_ms: a round without drafting.
        step_ms: one more draft step of a serial drafter.
    """

    def __init__(
        self,
        costs: CostModel,
        *,
        drafter: DrafterKind,
        legal: tuple[int, ...],
        num_requests: int,
        context: float,
    ) -> None:
        self.num_requests = num_requests
        self.off_ms = costs.target_ms(num_requests, num_requests, context)
        self.step_ms = float(costs.lines(num_requests, context)[1][num_requests])
        self._costs = costs.for_requests(num_requests)
        self._drafter: DrafterKind = drafter
        self._block = legal[-1]
        self._context = context
        self._ends = budget_ends(num_requests, legal, costs.max_rows)
        self._rounds: dict[tuple[int, int, int], float] = {}
        self._row_ms: dict[int, float] = {}
        self._budgets: dict[int, BudgetCosts] = {}

    def round_ms(self, rows: int, steps: int, backlog: int) -> float:
        """A round of B rows, and d draft steps after it."""
        key = (rows, steps, backlog)
        held = self._rounds.get(key)
        if held is None:
            target_ms = self._costs.target_ms(rows, self.num_requests, self._context)
            held = target_ms + self._costs.draft_ms(
                self._drafter,
                self.num_requests,
                rows,
                steps,
                block=self._block,
                context=self._context,
                backlog=backlog,
            )
            _keep(self._rounds, key, held)
        return held

    def row_ms(self, rows: int) -> float:
        """One row more than B: the target's slope over the next row of every request."""
        held = self._row_ms.get(rows)
        if held is None:
            target = self._costs.lines(rows + self.num_requests, self._context)[0]
            held = float(target[rows + self.num_requests] - target[rows]) / self.num_requests
            _keep(self._row_ms, rows, held)
        return held

    def budgets(self, backlog: int) -> BudgetCosts:
        """The budgets worth comparing (see `CostModel.budgets`)."""
        held = self._budgets.get(backlog)
        if held is None:
            held = self._costs.budgets(self._ends, self._context, backlog)
            _keep(self._budgets, backlog, held)
        return held


class KeptCosts:
    """Costs by number of requests, at the context that was last asked for."""

    def __init__(self, costs: CostModel, *, drafter: DrafterKind, legal: tuple[int, ...]) -> None:
        self._costs = costs
        self._drafter: DrafterKind = drafter
        self._legal = legal
        self._context = 0.0
        self._kept: dict[int, BatchCosts] = {}

    def of(self, num_requests: int, context: float) -> BatchCosts:
        """The costs of a batch of N."""
        if context != self._context:
            self._context = context
            self._kept.clear()
        held = self._kept.get(num_requests)
        if held is None:
            held = BatchCosts(
                self._costs, drafter=self._drafter, legal=self._legal, num_requests=num_requests, context=context
            )
            _keep(self._kept, num_requests, held)
        return held


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = value
