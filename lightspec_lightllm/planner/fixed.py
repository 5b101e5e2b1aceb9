"""The ``fixed`` and ``off`` strategies: what a server without a planner does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.errors import ConfigError, PlanError
from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.types import BatchView, DrafterKind, Plan, PlannerCounters, RoundFeedback


@dataclass(frozen=True, slots=True)
class FixedOptions:
    """Options of the ``fixed`` strategy.

    Attributes:
        steps: drafts per request and round; all of them are verified.
    """

    steps: int


class FixedPlanner:
    """Draft the same number of steps every round and verify all of them, as a server with fixed steps does.

    With 0 steps this is no speculation at all.
    """

    def __init__(self, costs: CostModel, *, max_draft_steps: int, drafter: DrafterKind, steps: int) -> None:
        if not 0 <= steps <= max_draft_steps:
            raise ConfigError(f"steps: expected 0..{max_draft_steps} (the largest number of draft steps), got {steps}")
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.steps = steps
        self.counters = PlannerCounters()

    def plan(self, view: BatchView) -> Plan:
        """All waiting drafts are verified, the same number is drafted again."""
        proposed = np.asarray(view.proposed, dtype=np.int64)
        if proposed.shape != (view.num_requests,):
            raise PlanError(
                f"proposed: expected one count per request, {view.num_requests}, got shape {proposed.shape}"
            )
        num_requests = view.num_requests
        if num_requests == 0:
            return Plan(0, 0)
        self.counters.plans += 1
        rows = num_requests + int(np.minimum(proposed, self.steps).sum())
        if self.costs.max_rows is not None:
            rows = max(num_requests, min(rows, self.costs.max_rows))
        context = float(np.mean(view.context_tokens))
        table_ms = self.costs.target_ms(rows, num_requests, context) + self.costs.draft_ms(
            self.drafter, num_requests, rows, self.steps, block=self.max_draft_steps, context=context
        )
        return Plan(rows, self.steps, num_requests, proposed=proposed.copy(), table_ms=table_ms, predicted_ms=table_ms)

    def observe(self, feedback: RoundFeedback) -> None:  # noqa: ARG002 - the interface's, there is nothing to learn
        """Count the round."""
        self.counters.observed += 1
