"""Whatever a planner does, requests are served, with the same text."""

import logging
import math
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import DecodeCounters, GuardedPlanner, Round
from lightspec_lightllm.decode.guard import FALLBACK_STEPS
from lightspec_lightllm.decode.host import StepRule
from lightspec_lightllm.planner import BatchView, CostModel, Plan, PlannerCounters, RoundFeedback, make_planner

COSTS = CostModel.from_tables({64: 7.0}, {64: 0.4})
STEPS = 5


class OnePlan:
    """Plans whatever it was given."""

    def __init__(self, plan: Any, max_draft_steps: int = STEPS) -> None:
        self.max_draft_steps = max_draft_steps
        self.counters = PlannerCounters()
        self.observed: list[RoundFeedback] = []
        self._plan = plan

    def plan(self, view: BatchView) -> Any:
        return self._plan

    def observe(self, feedback: RoundFeedback) -> None:
        self.observed.append(feedback)


class FailingRule:
    """A rule that cannot decide."""

    asked = 0

    def worth_another_step(self, confidence: Any, request_ids: Any) -> bool:
        self.asked += 1
        raise ZeroDivisionError("no price")


class SteppingHost(SimulatedHost):
    """Asks after every step, as a host does that drafts one by one."""

    def draft(self, steps: int, chain: StepRule | None = None) -> int:
        made = min(steps, 1)
        confidence = np.full((len(self._ids), self.max_draft_steps), 0.5)
        while chain is not None and 0 < made < self.max_draft_steps:
            if not chain.worth_another_step(confidence[:, :made], self._ids):
                break
            made += 1
        return super().draft(made)


def guarded(plan: Any) -> tuple[Plan, DecodeCounters]:
    """What becomes of a plan for two requests with 3 and 1 drafts waiting."""
    counters = DecodeCounters(STEPS)
    view = BatchView(2, np.array([3, 1]))
    return GuardedPlanner(OnePlan(plan), counters).plan(view), counters


UNSURE = np.full((2, STEPS), 0.5)
UNSURE[1, 3] = math.nan
BOUNDLESS = np.full((2, STEPS), math.inf)

IMPOSSIBLE: dict[str, Any] = {
    "nothing": None,
    "another type": (3, 2),
    "half a row": Plan(3.5, 2, 2),  # type: ignore[arg-type]  # on purpose
    "rows as a float": Plan(3.0, 2, 2),  # type: ignore[arg-type]  # on purpose
    "rows NaN": Plan(math.nan, 2, 2),  # type: ignore[arg-type]  # on purpose
    "steps as a float": Plan(3, 2.0, 2),  # type: ignore[arg-type]  # on purpose
    "steps as text": Plan(3, "2", 2),  # type: ignore[arg-type]  # on purpose
    "steps as a truth value": Plan(3, True, 2),
    "the size of another batch": Plan(3, 2, 3),
    "survival NaN": Plan(3, 2, 2, survival=UNSURE),
    "survival infinite": Plan(3, 2, 2, survival=BOUNDLESS),
    "survival of one request": Plan(3, 2, 2, survival=UNSURE[:1]),
    "survival flat": Plan(3, 2, 2, survival=UNSURE.ravel()),
    "survival a list": Plan(3, 2, 2, survival=[[0.5] * STEPS] * 2),  # type: ignore[arg-type]  # on purpose
    "survival as text": Plan(3, 2, 2, survival=np.full((2, STEPS), "likely")),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_plan_becomes_fixed_steps_that_verify_all(name: str) -> None:
    plan, counters = guarded(IMPOSSIBLE[name])
    assert counters.fallback is not None
    assert (plan.verify_rows, plan.draft_steps, plan.survival) == (6, FALLBACK_STEPS, None)


@pytest.mark.parametrize(
    "plan",
    [Plan(2, 0, 2), Plan(6, STEPS, 2), Plan(3, 1, 2, survival=np.zeros((2, STEPS)))],
    ids=["least", "most", "hopeless"],
)
def test_a_possible_plan_is_handed_on_as_it_is(plan: Plan) -> None:
    found, counters = guarded(plan)
    assert found is plan
    assert counters.fallback is None


@pytest.mark.parametrize("plan", [Plan(np.int64(4), np.int32(3), 2), Plan(4, 3)], ids=["numpy", "no size"])
def test_hosts_are_given_plain_numbers_and_the_size_of_the_batch(plan: Plan) -> None:
    found, counters = guarded(plan)
    assert counters.fallback is None
    assert (found.verify_rows, found.draft_steps, found.num_requests) == (4, 3, 2)
    assert type(found.verify_rows) is type(found.draft_steps) is int


def test_the_fallback_s_steps_are_no_more_than_the_drafter_makes() -> None:
    planner = GuardedPlanner(OnePlan(None, max_draft_steps=2), DecodeCounters(2))
    assert planner.plan(BatchView(1, np.array([2]))).draft_steps == 2


def test_a_planner_that_failed_is_not_told_of_later_rounds() -> None:
    planner = OnePlan(None)
    rounds = Round(host(), planner)
    for _ in range(5):
        rounds.step()
    assert planner.observed == []


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(OnePlan):
        def plan(self, view: BatchView) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Round(host(), Interrupted(None)).step()


def host() -> SteppingHost:
    return SteppingHost(COSTS, 2, AcceptanceProfile((0.7,)), max_draft_steps=STEPS)


def test_a_rule_that_fails_ends_the_draft_and_the_planning_and_no_round(caplog: pytest.LogCaptureFixture) -> None:
    rule = FailingRule()
    rounds = Round(host(), OnePlan(Plan(2, 1, 2, chain=rule)))  # type: ignore[arg-type]  # stands in for a rule
    with caplog.at_level(logging.ERROR):
        records = [rounds.step() for _ in range(6)]
    assert all(record is not None for record in records)
    assert records[0] is not None
    assert records[0].draft_steps == 1
    assert rounds.counters.fallback == "ZeroDivisionError: no price"
    assert len(caplog.records) == 1
    assert rule.asked == 1
    assert records[-1] is not None
    assert records[-1].plan.draft_steps == FALLBACK_STEPS


@pytest.mark.parametrize(
    ("kind", "max_rows", "rows", "steps"),
    [("serial", None, 16 * 6, FALLBACK_STEPS), ("serial", 24, 24, FALLBACK_STEPS), ("block", 8, 16, STEPS)],
)
def test_the_fallback_keeps_to_the_limits_of_the_host(kind: Any, max_rows: int | None, rows: int, steps: int) -> None:
    costs = CostModel.from_tables({64: 7.0}, {64: 0.4}, max_rows=max_rows)
    planner = GuardedPlanner(
        make_planner("lightspec", costs, max_draft_steps=STEPS, drafter=kind), DecodeCounters(STEPS)
    )
    impossible = BatchView(16, np.full(16, STEPS), math.nan)
    plan = planner.plan(impossible)
    assert (plan.verify_rows, plan.draft_steps) == (rows, steps)
