"""The price of time, the correction of costs, and when to probe."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.planner import BatchView, RoundFeedback, make_planner
from lightspec_lightllm.planner.pace import CostDrift, Pace
from lightspec_lightllm.planner.probe import LONGEST, ProbeSchedule
from tests.planner.worlds import GPU

times = st.floats(1e-3, 1e4)


def test_the_speed_up_is_the_running_ratio_and_never_below_one() -> None:
    pace = Pace(10.0)
    assert pace.speedup == 1.0
    for _ in range(200):
        pace.update(2.0, 1.25)
    assert pace.speedup == pytest.approx(1.6, rel=1e-3)
    for _ in range(200):
        pace.update(1.0, 1.5)
    assert pace.speedup == 1.0


def test_overhead_and_slope_are_told_apart_where_predictions_vary() -> None:
    drift = CostDrift()
    rng = np.random.default_rng(0)
    for predicted in rng.uniform(5.0, 50.0, 600).tolist():
        drift.update(predicted, 4.0 + 1.3 * predicted + float(rng.normal(0, 0.2)))
    assert drift.slope == pytest.approx(1.3, abs=0.03)
    assert drift.overhead_ms == pytest.approx(4.0, abs=0.8)


def test_where_predictions_do_not_vary_all_of_a_difference_is_slope() -> None:
    drift = CostDrift()
    for _ in range(100):
        drift.update(10.0, 15.0)
    assert drift.slope == pytest.approx(1.5)
    assert drift.correct(10.0) == pytest.approx(15.0)


def test_a_machine_that_gets_quicker_while_rounds_grow_does_not_make_rows_cheap() -> None:
    drift = CostDrift()
    rng = np.random.default_rng(0)
    for done in np.linspace(0.0, 1.0, 120).tolist():
        predicted = 80.0 + 24.0 * done + float(rng.choice([-6.0, 6.0]))
        drift.update(predicted, (1.3 - 0.3 * done) * predicted * float(rng.normal(1.0, 0.02)))
    assert drift.slope * 104.0 > 0.9 * drift.correct(104.0)
    assert drift.correct(104.0) == pytest.approx(104.0, rel=0.05)


def test_one_stalled_round_moves_the_correction_little() -> None:
    drift = CostDrift()
    for _ in range(100):
        drift.update(10.0, 12.0)
    drift.update(10.0, 5000.0)
    assert drift.correct(10.0) < 12.0 * 1.05


@settings(max_examples=100, deadline=None)
@given(rounds=st.lists(st.tuples(times, times), max_size=60))
def test_the_correction_is_finite_positive_and_grows_with_the_prediction(rounds: list[tuple[float, float]]) -> None:
    drift = CostDrift()
    for predicted, measured in rounds:
        drift.update(predicted, measured)
    corrected = [drift.correct(ms) for ms in (0.0, 1.0, 10.0, 1e4)]
    assert np.isfinite(corrected).all()
    assert min(corrected) >= 0.0
    assert corrected == sorted(corrected)


def test_probes_become_rarer_while_they_disappoint_and_frequent_once_one_surprises() -> None:
    schedule = ProbeSchedule(24)
    waits = []
    for _ in range(8):
        wait = 0
        while not schedule.due(0.0):
            schedule.observed(0, probe=False, residual=0.0)
            wait += 1
        waits.append(wait)
        schedule.observed(8, probe=True, residual=-3.0)
    assert waits[0] == 24
    assert waits == sorted(waits)
    assert waits[-1] == 24 * LONGEST
    schedule.observed(8, probe=True, residual=3.0)
    assert schedule.due(0.0) is False
    for _ in range(4):
        schedule.observed(0, probe=False, residual=0.0)
    assert schedule.due(0.0)


def test_a_dear_probe_waits_longer_but_not_for_ever() -> None:
    schedule = ProbeSchedule(10)
    for _ in range(10):
        schedule.observed(0, probe=False, residual=0.0)
    assert schedule.due(5.0)
    assert not schedule.due(40.0)
    for _ in range(10 * LONGEST):
        schedule.observed(0, probe=False, residual=0.0)
    assert schedule.due(1e9)


def test_a_chain_goes_on_while_the_next_drafts_are_worth_their_rows_and_the_step() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=5)
    ids = np.arange(4)
    plan = planner.plan(BatchView(4, np.full(4, 5), 300, confidence=np.full((4, 5), 0.9), request_ids=ids))
    rule = plan.chain
    assert rule is not None
    assert rule.row_price >= 0
    assert rule.step_price > 0
    answers = [rule.worth_another_step(np.full((4, steps), 0.02), ids) for steps in (1, 2, 3, 4)]
    assert answers == sorted(answers, reverse=True)
    assert answers[-1] is False
    assert rule.worth_another_step(np.full((4, 1), 0.99), ids)


@pytest.mark.parametrize("told", [87.0, math.inf, -math.inf, -0.5, 1.0 + 1e-15])
def test_a_chain_rule_refuses_confidences_that_are_no_probabilities(told: float) -> None:
    plan = make_planner("lightspec", GPU, max_draft_steps=5).plan(BatchView(2, np.full(2, 5), request_ids=np.arange(2)))
    assert plan.chain is not None
    with pytest.raises(PlanError, match="confidence: expected probabilities"):
        plan.chain.worth_another_step(np.array([[0.9, 0.8], [0.7, told]]), np.arange(2))


@pytest.mark.parametrize(
    ("confidence", "ids"),
    [
        (np.full((4, 2), 0.5), np.arange(3)),
        (np.full((4, 2), 0.5), np.arange(5)),
        (np.full(4, 0.5), np.arange(4)),
        (np.full((4, 2), 0.5), np.zeros((4, 1), dtype=np.int64)),
        ([[0.5], [0.5, 0.5]], np.arange(2)),
        ([["high"]], np.arange(1)),
    ],
)
def test_a_chain_rule_refuses_other_shapes_than_one_row_and_one_id_per_request(confidence: Any, ids: Any) -> None:
    plan = make_planner("lightspec", GPU, max_draft_steps=5).plan(BatchView(4, np.full(4, 5), request_ids=np.arange(4)))
    assert plan.chain is not None
    with pytest.raises(PlanError, match="confidence"):
        plan.chain.worth_another_step(confidence, ids)


@pytest.mark.parametrize("kind", ["free", "block", "chained"])
def test_only_a_drafter_that_steps_gets_a_chain_rule(kind: str) -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=5, drafter=kind)  # type: ignore[arg-type]  # a kind
    assert planner.plan(BatchView(1, np.zeros(1, dtype=np.int64))).chain is None


def test_asking_a_chain_rule_changes_no_later_plan() -> None:
    twins = [make_planner("lightspec", GPU, max_draft_steps=5) for _ in range(2)]
    ids, confidence = np.arange(3), np.full((3, 5), 0.6)
    decisions: list[list[tuple[int, int, float]]] = [[], []]
    for round_ in range(40):
        for asks, planner, out in zip((True, False), twins, decisions, strict=True):
            plan = planner.plan(BatchView(3, np.full(3, 5), 300, confidence=confidence, request_ids=ids))
            out.append((plan.verify_rows, plan.draft_steps, plan.predicted_tokens))
            if asks and plan.chain is not None:
                plan.chain.worth_another_step(confidence[::-1][:2, :3], ids[::-1][:2])
            verified = np.full(3, round_ % 5)
            accepted = 1 + verified // 2
            planner.observe(RoundFeedback(plan, verified, accepted, confidence=confidence, request_ids=ids))
    assert decisions[0] == decisions[1]


def test_rounds_that_cost_nothing_by_the_tables_are_passed_by() -> None:
    drift = CostDrift()
    for predicted in (0.0, 5e-324, 1e-300):
        drift.update(predicted, 1.0)
    assert (drift.slope, drift.overhead_ms) == (1.0, 0.0)
