"""Planners that no one would want: whatever they plan, the text must stay the same."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from lightspec_lightllm.planner import BatchView, Plan, RoundFeedback
from lightspec_lightllm.planner.types import PlannerCounters


class Adversary:
    """Plans by rule, learns nothing, and holds every feedback against what was planned."""

    def __init__(self, max_draft_steps: int, steps: Sequence[int], *, budget: str = "random", seed: int = 0) -> None:
        self.max_draft_steps = max_draft_steps
        self.counters = PlannerCounters()
        self._steps = list(steps)
        self._budget = budget
        self._random = np.random.default_rng(seed)
        self._plans = 0

    def plan(self, view: BatchView) -> Plan:
        least, most = view.num_requests, view.num_requests + int(view.proposed.sum())
        rows = {"random": int(self._random.integers(least, most + 1)), "none": least, "all": most}[self._budget]
        self._plans += 1
        if self._budget == "random":
            steps = int(self._random.choice(self._steps))
        else:
            steps = self._steps[self._plans % len(self._steps)]
        return Plan(rows, steps, view.num_requests, proposed=np.array(view.proposed))

    def observe(self, feedback: RoundFeedback) -> None:
        plan, verified, accepted = feedback.plan, feedback.verified, feedback.accepted
        assert plan.proposed is not None
        assert plan.num_requests + verified.sum() == plan.verify_rows, "rows of the round are not those of the plan"
        assert (verified >= 0).all()
        assert (verified <= plan.proposed).all(), "more drafts verified than waited"
        assert (accepted >= 1).all()
        assert (accepted <= 1 + verified).all(), "more accepted than verified"
        if feedback.confidence is not None:
            waiting = np.arange(feedback.confidence.shape[1]) < plan.proposed[:, None]
            sure = feedback.confidence[waiting]
            assert (sure >= 0).all(), "a confidence below 0"
            assert (sure <= 1 + 1e-6).all(), "a confidence above 1"


def random_plans(*, max_draft_steps: int, seed: int = 0, all_or_none: bool = False) -> Adversary:
    """Any budget, any number of steps (all or none for drafters that cannot make fewer)."""
    steps = (0, max_draft_steps) if all_or_none else tuple(range(max_draft_steps + 1))
    return Adversary(max_draft_steps, steps, seed=seed)


def everything(*, max_draft_steps: int) -> Adversary:
    """K steps, all of them verified, every round."""
    return Adversary(max_draft_steps, (max_draft_steps,), budget="all")


def nothing_verified(*, max_draft_steps: int) -> Adversary:
    """K steps, none of them verified."""
    return Adversary(max_draft_steps, (max_draft_steps,), budget="none")


def long_rests(*, max_draft_steps: int, rest: int = 12, work: int = 3) -> Adversary:
    """No drafts for longer than the drafter's KV is filled, then K of them, and so on."""
    return Adversary(max_draft_steps, (0,) * rest + (max_draft_steps,) * work, budget="all")


def different_on_each_rank(*, max_draft_steps: int) -> Adversary:
    """Plans that depend on the process, as those of a planner with a clock would."""
    return Adversary(max_draft_steps, tuple(range(max_draft_steps + 1)), seed=os.getpid())
