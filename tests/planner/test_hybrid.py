"""The hybrid strategy: who plans when, and who learns what."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.errors import ConfigError, FeedbackError
from lightspec_lightllm.planner import BatchView, Plan, PlannerCounters, RoundFeedback, make_planner
from lightspec_lightllm.planner.hybrid import HybridOptions, HybridPlanner, Switch
from lightspec_lightllm.planner.lightspec import LightspecPlanner
from tests.planner.worlds import GPU, KINDS, play, wild_rounds


def hybrid(**options: Any) -> HybridPlanner:
    given = {"by": "load", "planners": ["fixed:3", "off"], "thresholds": [16]} | options
    made = make_planner("hybrid", GPU, max_draft_steps=5, **given)
    assert isinstance(made, HybridPlanner)
    return made


def view_of(num_requests: int, proposed: int = 2) -> BatchView:
    return BatchView(num_requests, np.full(num_requests, proposed), 100)


def feedback_of(plan: Plan, view: BatchView, share: float) -> RoundFeedback:
    """Every draft that has a row is verified; of each request's, so large a share is accepted."""
    verified = select_rows(view.proposed, plan.verify_rows, plan.survival)
    return RoundFeedback(plan, verified, 1 + np.floor(share * verified).astype(np.int64))


class Listener:
    """A planner that notes what it is told."""

    def __init__(self, steps: int) -> None:
        self.max_draft_steps = 5
        self.steps = steps
        self.counters = PlannerCounters(probes=steps, skips=1)
        self.heard: list[RoundFeedback] = []

    def plan(self, view: BatchView) -> Plan:
        proposed = np.minimum(view.proposed, self.steps)
        rows = view.num_requests + int(proposed.sum())
        return Plan(rows, self.steps, view.num_requests, proposed=view.proposed, probe=True, predicted_tokens=7.0)

    def observe(self, feedback: RoundFeedback) -> None:
        self.heard.append(feedback)


def listeners(by: str, thresholds: tuple[float, ...], steps: tuple[int, ...], **options: Any) -> HybridPlanner:
    given = HybridOptions(by, steps, thresholds, **options)  # type: ignore[arg-type]
    planners = [Listener(number) for number in steps]
    return HybridPlanner(GPU, max_draft_steps=5, drafter="serial", planners=planners, options=given)


def test_by_load_each_planner_plans_between_its_thresholds_with_hysteresis() -> None:
    planner = hybrid(planners=["fixed:3", "fixed:1", "off"], thresholds=[16, 48], hysteresis=0.25)
    steps = [planner.plan(view_of(n)).draft_steps for n in (4, 15, 16, 12, 11, 60, 37, 36, 35, 4)]
    assert steps == [3, 3, 1, 1, 3, 0, 0, 0, 1, 3]
    assert planner.counters.switches == 5
    assert planner.counters.plans == 10


def test_without_hysteresis_the_threshold_alone_decides() -> None:
    planner = hybrid(hysteresis=0.0)
    assert [planner.plan(view_of(n)).draft_steps for n in (16, 15, 16, 15)] == [0, 3, 0, 3]


@given(
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=4, unique=True).map(sorted),
    st.floats(0.0, 0.9),
    st.lists(st.floats(0.0, 150.0), max_size=30),
)
def test_a_switch_moves_only_past_a_threshold_and_stays_within_its_band(
    thresholds: list[float], hysteresis: float, readings: list[float]
) -> None:
    switch = Switch(tuple(thresholds), hysteresis)
    for reading in readings:
        before = switch.current
        switch.read(reading)
        at = switch.current
        assert at == len(thresholds) or reading < thresholds[at]
        assert at == 0 or reading >= thresholds[at - 1] * (1.0 - hysteresis)
        if at > before:
            assert reading >= thresholds[at - 1]


def test_a_round_is_fed_back_to_its_planner_as_it_is_and_to_the_others_without_its_reasons() -> None:
    planner = listeners("load", (16,), (3, 1))
    view = view_of(4)
    plan = planner.plan(view)
    planner.observe(feedback_of(plan, view, 0.5))
    first, second = (part.heard[0] for part in planner.planners)  # type: ignore[attr-defined]
    assert first.plan is plan
    told = second.plan
    assert (told.verify_rows, told.draft_steps, told.num_requests) == (plan.verify_rows, 3, 4)
    assert told.proposed is plan.proposed
    assert (told.probe, told.reading, told.survival, told.chain) == (False, None, None, None)
    assert second.accepted is first.accepted


def test_feedback_that_is_late_reaches_the_planner_that_made_the_plan() -> None:
    planner = listeners("load", (16,), (3, 1))
    few, many = view_of(4), view_of(20)
    early = planner.plan(few)
    late = planner.plan(many)  # the switch has moved on
    assert planner.current == 1
    planner.observe(feedback_of(early, few, 1.0))
    planner.observe(feedback_of(late, many, 1.0))
    first, second = ([heard.plan for heard in part.heard] for part in planner.planners)  # type: ignore[attr-defined]
    assert first[0] is early
    assert first[1] is not late
    assert second[0] is not early
    assert second[1] is late


def test_a_plan_of_somebody_else_teaches_all_of_them() -> None:
    planner = listeners("load", (16,), (3, 1))
    view = view_of(4)
    planner.observe(feedback_of(Plan(12, 2, 4, proposed=view.proposed), view, 1.0))
    assert all(len(part.heard) == 1 for part in planner.planners)  # type: ignore[attr-defined]


def test_a_planner_that_waits_learns_what_the_one_that_plans_finds_out() -> None:
    planner = hybrid(planners=["fixed:3", "lightspec"], thresholds=[16])
    idle = planner.planners[1]
    assert isinstance(idle, LightspecPlanner)
    before = idle._estimator._neutral[0]
    for _ in range(60):
        view = view_of(4, proposed=3)
        planner.observe(feedback_of(planner.plan(view), view, 0.0))
    assert idle.counters.observed == 60
    assert idle._estimator._neutral[0] < 0.2 < before


def test_refused_feedback_is_counted_once_and_reaches_nobody() -> None:
    planner = listeners("load", (16,), (3, 1))
    view = view_of(4)
    plan = planner.plan(view)
    with pytest.raises(FeedbackError):
        planner.observe(RoundFeedback(plan, np.full(4, 2), np.full(4, 9)))
    assert planner.counters.refused_feedback == 1
    assert not any(part.heard for part in planner.planners)  # type: ignore[attr-defined]


def test_counters_are_its_own_and_sums_of_what_only_the_parts_can_count() -> None:
    planner = listeners("load", (16,), (3, 1))
    planner.plan(view_of(4))
    counters = planner.counters
    assert (counters.plans, counters.probes, counters.skips) == (1, 4, 2)


def by_acceptance(planner: HybridPlanner, shares: list[float]) -> list[int]:
    """Places of the planners that planned; drafts wait as the last plan said."""
    proposed, out = 2, []
    for share in shares:
        view = view_of(8, proposed)
        plan = planner.plan(view)
        out.append(planner.current)
        planner.observe(feedback_of(plan, view, share))
        proposed = plan.draft_steps
    return out


def test_by_acceptance_the_reading_chooses_after_enough_trials() -> None:
    planner = listeners("acceptance", (0.4, 0.8), (1, 2, 5), memory_trials=50.0)
    places = by_acceptance(planner, [1.0] * 10 + [0.0] * 40 + [1.0] * 40)
    assert places[:10] == [2] * 10
    assert places[49] == 0
    assert places[-1] == 2
    assert planner.counters.switches == sum(a != b for a, b in itertools.pairwise(places))


def test_without_trials_the_next_higher_planner_has_a_try_ever_more_rarely() -> None:
    planner = listeners("acceptance", (0.5,), (0, 3), memory_trials=64.0, retry_rounds=8)
    places = by_acceptance(planner, [0.0] * 400)
    tries = [at for at in range(1, 400) if places[at] and not places[at - 1]]
    gaps = np.diff(tries)
    assert places[:2] == [1, 1]
    assert len(tries) >= 3
    assert (np.diff(gaps) >= 0).all()
    assert gaps[-1] > 2 * gaps[0]
    assert places.count(1) < 60


def test_a_try_that_pays_stays() -> None:
    planner = listeners("acceptance", (0.5,), (0, 3), memory_trials=64.0, retry_rounds=8)
    places = by_acceptance(planner, [0.0] * 40 + [1.0] * 200)
    assert 0 in places[:40]
    assert set(places[150:]) == {1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["load", "acceptance"])
@pytest.mark.parametrize("late", [False, True])
def test_the_same_rounds_give_the_same_plans_whatever_comes(kind: Any, by: str, late: bool) -> None:
    def plans() -> list[tuple[Any, ...]]:
        thresholds = [4, 8] if by == "load" else [0.4, 0.7]
        parts = ["off", "mean-ema", {"strategy": "lightspec", "options": {"probe_rounds": 3}}]
        planner = make_planner(
            "hybrid", GPU, max_draft_steps=4, drafter=kind, by=by, planners=parts, thresholds=thresholds
        )
        rounds = wild_rounds(5, 120, 10, 4, with_ids=True, with_confidence=True)
        return [(p.verify_rows, p.draft_steps, p.predicted_tokens) for p in play(planner, rounds, late=late)]

    assert plans() == plans()


def test_hybrids_nest() -> None:
    inner = {"strategy": "hybrid", "options": {"by": "load", "planners": ["fixed:2", "fixed:1"], "thresholds": [4]}}
    planner = hybrid(planners=[inner, "off"], thresholds=[16])
    assert [planner.plan(view_of(n)).draft_steps for n in (1, 4, 16)] == [2, 1, 0]


def test_an_empty_batch_plans_nothing() -> None:
    planner = hybrid()
    assert planner.plan(view_of(0)).verify_rows == 0
    assert planner.counters.plans == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "weather"}, "by: expected load or acceptance, got 'weather'"),
        ({"by": 3}, "by: expected load or acceptance, got 3"),
        ({"planners": ["off"]}, "planners: expected a list of at least two strategies"),
        ({"planners": "off"}, "planners: expected a list, got 'off'"),
        ({"planners": ["off", 3]}, "expected the name of a strategy, or a mapping of strategy and options, got 3"),
        ({"planners": ["off", {"strategy": "off", "option": {}}]}, "a mapping of strategy and options"),
        ({"planners": ["off", {"strategy": "off", "options": 3}]}, "options: expected a mapping"),
        ({"planners": ["off", "swift"]}, "strategy: expected one of lightspec"),
        ({"planners": ["off", {"strategy": "fixed", "options": {"steps": 9}}]}, "strategy 'fixed': steps"),
        ({"thresholds": [1, 2]}, "thresholds: expected one fewer than the 2 planners"),
        ({"thresholds": ["many"]}, "thresholds: expected a list of numbers"),
        ({"thresholds": [0]}, "thresholds: expected ascending numbers above 0"),
        ({"thresholds": [math.nan]}, "thresholds: expected ascending"),
        ({"planners": ["off", "off", "off"], "thresholds": [5, 5]}, "thresholds: expected ascending"),
        ({"by": "acceptance", "thresholds": [1.5]}, "up to 1"),
        ({"hysteresis": 1.0}, "hysteresis: expected a share in"),
        ({"hysteresis": -0.1}, "hysteresis: expected a share in"),
        ({"hysteresis": math.nan}, "hysteresis: expected a share in"),
        ({"memory_trials": 10}, "memory_trials: belongs to a switch by acceptance"),
        ({"retry_rounds": 10}, "retry_rounds: belongs to a switch by acceptance"),
        ({"by": "acceptance", "thresholds": [0.5], "memory_trials": 0.5}, "memory_trials: expected"),
        ({"by": "acceptance", "thresholds": [0.5], "memory_trials": math.inf}, "memory_trials: expected"),
        ({"by": "acceptance", "thresholds": [0.5], "retry_rounds": 0}, "retry_rounds: expected"),
        ({"by": "acceptance", "thresholds": [0.5], "retry_rounds": 2.5}, "retry_rounds: expected a whole number"),
        ({"threshold": [3]}, "threshold is not an option; did you mean thresholds"),
    ],
)
def test_a_bad_option_is_named_with_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hybrid(**options)
    assert message in str(caught.value)
    assert str(caught.value).startswith("strategy 'hybrid': ")


def test_an_option_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="strategy 'hybrid': thresholds: expected a value, the option is missing"):
        make_planner("hybrid", GPU, max_draft_steps=3, by="load", planners=["off", "lightspec"])


MOVES: list[dict[str, Any]] = [
    {"by": "load", "thresholds": [5], "hysteresis": 0.2},
    {"planners": ["fixed:2", "off", "lightspec"], "thresholds": [0.3, 0.9]},
    {"thresholds": [0.9]},
    {"hysteresis": 0.9},
    {"memory_trials": 20.0},
    {"retry_rounds": 2},
]


@pytest.mark.parametrize("options", MOVES, ids=str)
def test_every_option_moves_some_plan(options: dict[str, Any]) -> None:
    def places(**given: Any) -> list[int]:
        basis = {"by": "acceptance", "planners": ["off", "fixed:3"], "thresholds": [0.5], "hysteresis": 0.1}
        return by_acceptance(hybrid(**{**basis, **given}), ([1.0] * 8 + [0.0] * 60) * 3)

    assert places(**options) != places()
