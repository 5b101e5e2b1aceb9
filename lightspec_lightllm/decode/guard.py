"""A planner that may fail: serving goes on with fixed steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.decode.counters import DecodeCounters
from lightspec_lightllm.decode.host import IntArray, StepRule
from lightspec_lightllm.errors import FeedbackError, PlanError
from lightspec_lightllm.planner import BatchView, Plan, Planner, RoundFeedback

logger = logging.getLogger(__name__)

FALLBACK_STEPS = 3
"""Draft steps once a planner has failed: short enough to help most loads and to hurt few. K where that is less, and
where a drafter makes K steps or none."""


class GuardedPlanner:
    """Runs a planner; after its first exception or impossible plan, the same number of steps every round for good.

    That costs speed, never text: what is committed is decided by the target. Feedback that the planner refuses
    (`FeedbackError`) is counted and forgotten; the planner goes on with what it knew.
    """

    def __init__(self, planner: Planner, counters: DecodeCounters) -> None:
        self.planner = planner
        self._counters = counters
        # What `make_planner` makes has both; a planner of one's own that lacks them is limited by nothing.
        self._max_rows: int | None = getattr(getattr(planner, "costs", None), "max_rows", None)
        all_or_none = getattr(planner, "drafter", None) in ("chained", "block")
        self._fallback_steps = planner.max_draft_steps if all_or_none else min(FALLBACK_STEPS, planner.max_draft_steps)

    def plan(self, view: BatchView) -> Plan:
        """The planner's plan, checked, or the fallback's."""
        if self._counters.fallback is None:
            try:
                return _checked(self.planner.plan(view), view, self.planner.max_draft_steps)
            except Exception as error:  # noqa: BLE001 - whatever a planner does wrong, requests are served
                self._give_up(error)
        rows = view.num_requests + int(np.asarray(view.proposed).sum())
        if self._max_rows is not None:
            rows = max(view.num_requests, min(rows, self._max_rows))
        return Plan(rows, self._fallback_steps, view.num_requests)

    def rule(self, plan: Plan) -> StepRule | None:
        """The plan's rule for ending a draft early; it ends the draft where it fails."""
        return None if plan.chain is None else _GuardedRule(plan.chain, self._give_up)

    def observe(self, feedback: RoundFeedback) -> None:
        """Pass feedback on, unless planning was given up."""
        if self._counters.fallback is not None:
            return
        try:
            self.planner.observe(feedback)
        except FeedbackError as error:
            if self._counters.num_refused_feedback == 0:
                logger.warning("the planner refused a round's feedback, later ones are only counted: %s", error)
            self._counters.num_refused_feedback += 1
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._counters.fallback = f"{type(error).__name__}: {error}"
        message = "planning failed, serving on with %d fixed draft steps: %s"
        logger.error(message, self._fallback_steps, self._counters.fallback)


class _GuardedRule:
    def __init__(self, rule: StepRule, give_up: Callable[[Exception], None]) -> None:
        self._rule = rule
        self._give_up = give_up

    def worth_another_step(self, confidence: npt.NDArray[np.float64], request_ids: IntArray) -> bool:
        try:
            return bool(self._rule.worth_another_step(confidence, request_ids))
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
            return False


def _checked(plan: Plan, view: BatchView, max_draft_steps: int) -> Plan:
    num_requests = view.num_requests
    most = num_requests + int(np.sum(view.proposed))
    for name, number in (("verify rows", plan.verify_rows), ("draft steps", plan.draft_steps)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise PlanError(f"{name}: expected a whole number, the planner gave {number!r}")
    if not num_requests <= plan.verify_rows <= most:
        raise PlanError(f"verify rows: expected {num_requests}..{most}, the planner gave {plan.verify_rows}")
    if not 0 <= plan.draft_steps <= max_draft_steps:
        raise PlanError(f"draft steps: expected 0..{max_draft_steps}, the planner gave {plan.draft_steps}")
    if plan.num_requests not in (0, num_requests):
        raise PlanError(f"num_requests: expected {num_requests}, the planner gave {plan.num_requests}")
    if plan.survival is not None:
        expected = (num_requests, max_draft_steps)
        if plan.survival.shape != expected:
            raise PlanError(f"survival: expected shape {expected}, the planner gave {plan.survival.shape}")
        if not np.isfinite(plan.survival).all():
            raise PlanError("survival: expected finite numbers, the planner gave others")
    if type(plan.verify_rows) is int and type(plan.draft_steps) is int and plan.num_requests == num_requests:
        return plan
    # A planner of one's own may leave the batch's size out, and calculate in numpy.
    return replace(
        plan, verify_rows=int(plan.verify_rows), draft_steps=int(plan.draft_steps), num_requests=num_requests
    )
