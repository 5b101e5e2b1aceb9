"""A scenario as a host: the real round runs it with real planners."""

from __future__ import annotations

import numpy as np

from lightspec_lightllm.decode.host import IntArray, StepRule, Verdict
from lightspec_lightllm.errors import SlotError
from lightspec_lightllm.planner import BatchView, CostModel, Plan
from lightspec_lightllm.planner.types import FloatArray
from lightspec_lightllm.simulate.replay import open_batch
from lightspec_lightllm.simulate.scenario import Scenario

CACHED = ("serial", "chained", "block")
"""Drafters with a KV cache of their own, which must catch up on what was committed while they did not draft."""


class ScenarioHost:
    """Serves a scenario on a clock that its costs set.

    Args:
        scenario: what is served.
        seed: of this run; the same seed is the same text.
        ranks: where the confidence is known late, whether the host takes rows by it.

    Attributes:
        world: the hidden truth; planners do not see it, oracles may.
        expected_tokens: what the last round could be expected to commit: what it drew, without the noise.
    """

    def __init__(self, scenario: Scenario, seed: int, *, ranks: bool = False) -> None:
        self.scenario = scenario
        self.world = open_batch(scenario, seed)
        self.max_draft_steps = scenario.drafter.max_draft_steps
        self.costs = [scenario.tables.model(segment.cost_factor) for segment in scenario.segments]
        self.expected_tokens = 0.0
        self._ranks = ranks and scenario.drafter.confidence == "late"
        self._clock_ms = 0.0
        self._rows = 0
        self._context = 0.0
        self._noise = np.random.default_rng((scenario.seed, seed, 6))
        self._kept = np.zeros(0, dtype=np.int64)

    @property
    def true_costs(self) -> CostModel:
        """What rounds of this segment cost before noise."""
        return self.costs[self.world.segment]

    @property
    def backlog(self) -> int:
        """Tokens that the drafter must catch up on."""
        return int(self.world.unseen[self.world.slots].sum())

    def now(self) -> float:
        """Seconds on the simulated clock."""
        return self._clock_ms / 1e3

    def check_slots(self) -> None:
        """Raise SlotError unless every request of the batch has a slot of its own."""
        slots = self.world.slots
        if len(np.unique(slots)) != len(slots) or len(np.unique(self.world.request_ids)) != len(slots):
            raise SlotError(f"expected a slot and an id for each request, got slots {slots.tolist()}")

    def schedule(self) -> BatchView:
        """See `Host`."""
        world = self.world
        world.open_round()
        context = world.context
        self._context = float(context.mean())
        live = self.scenario.drafter.confidence == "live"
        return BatchView(
            num_requests=len(world.slots),
            proposed=world.proposed[world.slots],
            context_tokens=context,
            confidence=world.drafts.told if live else None,
            request_ids=world.request_ids,
            draft_backlog=self.backlog,
        )

    def rank(self, plan: Plan) -> FloatArray | None:
        """See `RankingHost`."""
        return np.asarray(np.cumprod(self.world.drafts.told, axis=1)) if self._ranks else plan.survival

    def verify(self, verified: IntArray) -> Verdict:
        """See `Host`."""
        world, num_requests = self.world, len(verified)
        self._rows = num_requests + int(verified.sum())
        self.expected_tokens = world.expected_tokens(verified)
        self._spend(self.true_costs.target_ms(self._rows, num_requests, self._context))
        late = self.scenario.drafter.confidence == "late"
        return Verdict(
            1 + np.minimum(world.drafts.runs, verified),
            np.zeros((num_requests, 1 + self.max_draft_steps), dtype=np.int64),
            confidence=world.drafts.told if late else None,
        )

    def commit(self, verdict: Verdict) -> IntArray:
        """See `Host`."""
        self._kept = self.world.commit(verdict.accepted)
        return self._kept

    def draft(self, steps: int, chain: StepRule | None = None) -> int:
        """See `Host`. Steps are made one by one where an engine was recorded that made them so, else at once."""
        world, drafter = self.world, self.scenario.drafter
        num_requests, slots, backlog = len(world.slots), world.slots, self.backlog
        world.end_round()
        if world.waits and not len(world.drafted_for):
            steps = 0
        elif chain is not None and steps and world.by_step:
            steps = self._chain(chain)
        self._spend(
            self.true_costs.draft_ms(
                drafter.kind,
                num_requests,
                self._rows,
                steps,
                block=self.max_draft_steps,
                context=self._context,
                backlog=backlog,
            )
        )
        if drafter.kind in CACHED:
            unseen = np.minimum(world.unseen[slots] + self._kept, drafter.max_backlog)
            world.unseen[slots] = 0 if steps else unseen
        world.propose(steps)
        return steps

    def _chain(self, rule: StepRule) -> int:
        """Steps until the rule has enough of them."""
        world = self.world
        slots = world.drafted_for
        drafts = world.look(slots, world.position[slots])
        told = np.where(np.arange(self.max_draft_steps) < drafts.available[:, None], drafts.told, np.nan)
        for made in range(1, self.max_draft_steps):
            if not rule.worth_another_step(told[:, :made], world.request[slots]):
                return made
        return self.max_draft_steps

    def _spend(self, milliseconds: float) -> None:
        if self.scenario.cost_noise:
            milliseconds *= float(np.exp(self.scenario.cost_noise * self._noise.standard_normal()))
        self._clock_ms += milliseconds
