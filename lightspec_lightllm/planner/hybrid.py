"""The ``hybrid`` strategy: several planners, one of which plans, chosen by load or by acceptance."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from lightspec_lightllm.errors import ConfigError, FeedbackError
from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.intake import Outcome, read_feedback
from lightspec_lightllm.planner.probe import ProbeSchedule
from lightspec_lightllm.planner.types import (
    BatchView,
    DrafterKind,
    Plan,
    Planner,
    PlannerCounters,
    RoundFeedback,
)

Measure = Literal["load", "acceptance"]
"""What a switch goes by: requests in the batch, or the share of trials that were accepted."""

LEAST_TRIALS = 32.0
"""Trials before which an acceptance is not judged."""

MOST_ROUNDS_LATE = 16
"""Rounds for which it is remembered who planned them."""


@dataclass(frozen=True, slots=True)
class HybridOptions:
    """Options of the ``hybrid`` strategy.

    Attributes:
        by: ``load`` (requests in the batch) or ``acceptance`` (the share of trials that were accepted: of drafts that
            were verified after all drafts before them were accepted).
        planners: two strategies or more, the first for the lowest readings. A name, or a mapping of ``strategy`` and
            ``options``.
        thresholds: readings from which on the second planner plans, the third, and so on: ascending, one fewer than
            planners.
        hysteresis: share of a threshold by which a reading must fall below it until the planner before takes over
            again, in [0, 1).
        memory_trials: trials after which the acceptance that was read has forgotten 1 - 1/e of the past.
        retry_rounds: rounds without a trial (nothing was verified) after which the planner for the next higher
            acceptance has a try; doubles, up to 16 times that, while such tries disappoint.
    """

    by: Measure
    planners: tuple[Any, ...]
    thresholds: tuple[float, ...]
    hysteresis: float = 0.2
    memory_trials: float = 400.0
    retry_rounds: int = 128

    def __post_init__(self) -> None:
        def refuse(name: str, expected: str) -> None:
            raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

        if self.by not in get_args(Measure):
            refuse("by", "load or acceptance")
        if len(self.planners) < 2:
            refuse("planners", "a list of at least two strategies")
        if len(self.thresholds) != len(self.planners) - 1:
            refuse("thresholds", f"one fewer than the {len(self.planners)} planners")
        ascending = all(low < high for low, high in zip(self.thresholds, self.thresholds[1:], strict=False))
        most = 1.0 if self.by == "acceptance" else math.inf
        if not ascending or not all(0.0 < threshold <= most and threshold < math.inf for threshold in self.thresholds):
            refuse("thresholds", "ascending numbers above 0" + (" and up to 1" if self.by == "acceptance" else ""))
        if not 0.0 <= self.hysteresis < 1.0:
            refuse("hysteresis", "a share in [0, 1)")
        if not 1.0 <= self.memory_trials < math.inf:
            refuse("memory_trials", "a number of at least 1")
        if self.retry_rounds < 1:
            refuse("retry_rounds", "a number of rounds of at least 1")
        if self.by == "load":
            for name in ("memory_trials", "retry_rounds"):
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise ConfigError(f"{name}: belongs to a switch by acceptance, this one is by load; leave it out")


class HybridPlanner:
    """Lets one of its planners plan, and all of them learn.

    The reading moves the switch up at a threshold and down only below ``threshold * (1 - hysteresis)``, so that one
    that wavers about a threshold does not make plans alternate. Each planner is told of every round that ran. The one
    that planned it, looked up by the plan itself, gets the feedback as it is, however late; the others get it with a
    plan that says what was proposed, verified and drafted, and nothing of how that was decided.

    Args:
        planners: the first for the lowest readings; of the same costs, K and drafter.
    """

    def __init__(
        self,
        costs: CostModel,
        *,
        max_draft_steps: int,
        drafter: DrafterKind,
        planners: Sequence[Planner],
        options: HybridOptions,
    ) -> None:
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.planners = tuple(planners)
        self.options = options
        self._own = PlannerCounters()
        self._switch = Switch(options.thresholds, options.hysteresis)
        self._acceptance = AcceptanceReading(options.memory_trials)
        self._retry = ProbeSchedule(options.retry_rounds)
        self._trying = False
        self._planned: deque[tuple[Plan, int]] = deque(maxlen=MOST_ROUNDS_LATE)
        if options.by == "acceptance":
            self._switch.current = len(self.planners) - 1  # drafts are taken to be good until some were tried

    @property
    def current(self) -> int:
        """The planner that the switch is at, by its place in ``planners``."""
        return self._switch.current

    @property
    def counters(self) -> PlannerCounters:
        """Plans, feedback and switches of its own; of the planners, the sums of what only they can count."""
        each = [planner.counters for planner in self.planners]
        return replace(
            self._own,
            probes=sum(counters.probes for counters in each),
            skips=sum(counters.skips for counters in each),
            changes=sum(counters.changes for counters in each),
            unknown_confidences=max(counters.unknown_confidences for counters in each),
        )

    def plan(self, view: BatchView) -> Plan:
        """The plan of the planner that the reading chooses.

        Raises:
            PlanError: the view's arrays do not fit the number of requests or hold impossible values.
        """
        if view.num_requests == 0:
            return Plan(0, 0)
        before = self._switch.current
        if self.options.by == "load":
            self._switch.read(float(view.num_requests))
        elif self._retry.due() and self._switch.up():
            self._retry.planned()
            self._acceptance.restart()
            self._trying = True
        self._own.switches += self._switch.current != before
        plan = self.planners[self._switch.current].plan(view)
        self._planned.append((plan, self._switch.current))
        self._own.plans += 1
        return plan

    def observe(self, feedback: RoundFeedback) -> None:
        """Teach all planners a round, and read the acceptance.

        Raises:
            FeedbackError: no round can have given this feedback; it is counted and changes nothing.
        """
        try:
            outcome = read_feedback(feedback, self.max_draft_steps, confidence=False)
        except FeedbackError:
            self._own.refused_feedback += 1
            raise
        if not len(outcome.verified):
            return
        self._own.observed += 1
        planned_it = self.planner_of(feedback.plan)
        for planner in self.planners:
            planner.observe(feedback if planner is planned_it else replace(feedback, plan=_bare(feedback.plan)))
        if self.options.by == "acceptance":
            self._read_acceptance(outcome)

    def planner_of(self, plan: Plan) -> Planner | None:
        """Which of the planners made one of the last plans."""
        return next((self.planners[at] for known, at in self._planned if known is plan), None)

    def _read_acceptance(self, outcome: Outcome) -> None:
        num_trials = int(np.minimum(outcome.verified, outcome.accepted).sum())
        self._acceptance.update(int(outcome.accepted.sum()) - len(outcome.accepted), num_trials)
        reading, before = self._acceptance.value, self._switch.current
        if reading is None:
            self._retry.observed(num_trials, False, 0.0)
            return
        self._switch.read(reading)
        judged, self._trying = self._trying, False
        self._retry.observed(num_trials, judged, float(self._switch.current - before) + 0.5)
        self._own.switches += self._switch.current != before


class Switch:
    """Which of several planners a reading means, with hysteresis.

    Attributes:
        current: from 0.
    """

    def __init__(self, thresholds: tuple[float, ...], hysteresis: float) -> None:
        self.current = 0
        self._thresholds = thresholds
        self._keep = 1.0 - hysteresis

    def read(self, reading: float) -> None:
        """Follow a reading, over several thresholds if need be."""
        while self.current < len(self._thresholds) and reading >= self._thresholds[self.current]:
            self.current += 1
        while self.current > 0 and reading < self._thresholds[self.current - 1] * self._keep:
            self.current -= 1

    def up(self) -> bool:
        """Go one up whatever was read; whether there was one."""
        if self.current == len(self._thresholds):
            return False
        self.current += 1
        return True


class AcceptanceReading:
    """The share of trials that were accepted, a mean that forgets by trials."""

    def __init__(self, memory_trials: float) -> None:
        self._memory = memory_trials
        self._accepted = self._trials = 0.0

    def update(self, accepted: int, trials: int) -> None:
        """Take in a round."""
        keep = math.exp(-trials / self._memory)
        self._accepted = keep * self._accepted + accepted
        self._trials = keep * self._trials + trials

    def restart(self) -> None:
        """Forget what was read: another planner has a try."""
        self._accepted = self._trials = 0.0

    @property
    def value(self) -> float | None:
        """In 0..1, or None while trials are too few to judge."""
        return self._accepted / self._trials if self._trials >= min(LEAST_TRIALS, 0.5 * self._memory) else None


def _bare(plan: Plan) -> Plan:
    """What a round did, for planners that did not decide it."""
    return Plan(
        plan.verify_rows,
        plan.draft_steps,
        plan.num_requests,
        proposed=plan.proposed,
        table_ms=plan.table_ms,
        step_ms=plan.step_ms,
    )
