"""Capacity scheduled by confidence: what every plan keeps to, and each part of the recipe."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters.simulated import AcceptanceProfile
from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.errors import ConfigError, FeedbackError, PlanError
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind, Plan, RoundFeedback, make_planner
from lightspec_lightllm.planner.dspark import DsparkPlanner, TemperatureScale
from lightspec_lightllm.planner.intake import Outcome
from lightspec_lightllm.planner.oracle import best_budget
from lightspec_lightllm.planner.types import FloatArray, IntArray
from tests.planner.simulation import FairHost, serve
from tests.planner.worlds import CPU, GPU, KINDS, cost_models, play, survival_of, wild_rounds

seeds = st.integers(0, 2**32 - 1)


def scheduled(costs: CostModel = GPU, *, max_draft_steps: int = 5, drafter: DrafterKind = "block") -> DsparkPlanner:
    planner = make_planner("dspark", costs, max_draft_steps=max_draft_steps, drafter=drafter)
    assert isinstance(planner, DsparkPlanner)
    return planner


@settings(max_examples=60, deadline=None)
@given(
    costs=cost_models(own_draft_sizes=True),
    kind=st.sampled_from(KINDS),
    seed=seeds,
    max_draft_steps=st.integers(1, 7),
    with_confidence=st.booleans(),
    late=st.booleans(),
)
def test_the_budget_the_steps_and_the_predictions_are_possible(
    *, costs: CostModel, kind: DrafterKind, seed: int, max_draft_steps: int, with_confidence: bool, late: bool
) -> None:
    planner = scheduled(costs, max_draft_steps=max_draft_steps, drafter=kind)
    rounds = list(wild_rounds(seed, 30, 6, max_draft_steps, with_ids=True, with_confidence=with_confidence))
    for round_, plan in zip(rounds, play(planner, iter(rounds), late=late), strict=True):
        num_requests, available = round_.view.num_requests, int(round_.view.proposed.sum())
        assert num_requests <= plan.verify_rows <= num_requests + available
        assert costs.max_rows is None or plan.verify_rows <= max(costs.max_rows, num_requests)
        assert plan.draft_steps == max_draft_steps
        assert num_requests - 1e-9 <= plan.predicted_tokens <= plan.verify_rows + 1e-9
        assert math.isfinite(plan.predicted_ms)
        assert plan.predicted_ms >= 0
        assert (plan.survival is None) == (not with_confidence)
        if plan.survival is not None:
            assert plan.survival.shape == (num_requests, max_draft_steps)
            assert (np.diff(plan.survival, axis=1) <= 0).all()
            assert ((plan.survival >= 0) & (plan.survival <= 1)).all()


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS), costs=st.sampled_from([GPU, CPU]), seed=seeds, max_requests=st.sampled_from([6, 80])
)
def test_the_order_of_the_requests_changes_no_plan(
    kind: DrafterKind, costs: CostModel, seed: int, max_requests: int
) -> None:
    rng = np.random.default_rng(seed)
    rounds = list(wild_rounds(seed, 30, max_requests, 4, with_ids=True, with_confidence=True))
    orders = [rng.permutation(round_.view.num_requests) for round_ in rounds]
    shuffled = [round_.permuted(order) for round_, order in zip(rounds, orders, strict=True)]
    verified = [rng.integers(0, round_.view.proposed + 1) for round_ in rounds]
    first, second = (scheduled(costs, max_draft_steps=4, drafter=kind) for _ in range(2))
    plain, mixed = iter(verified), (v[order] for v, order in zip(verified, orders, strict=True))
    one = [(p.verify_rows, p.draft_steps) for p in play(first, iter(rounds), late=False, choose=lambda *_: next(plain))]
    two = [
        (p.verify_rows, p.draft_steps) for p in play(second, iter(shuffled), late=False, choose=lambda *_: next(mixed))
    ]
    assert one == two


def test_two_planners_that_see_the_same_plan_the_same_to_the_bit() -> None:
    def trace() -> list[str]:
        planner = scheduled()
        rounds = wild_rounds(5, 200, 9, 5, with_ids=True, with_confidence=True)
        return [
            f"{p.verify_rows} {p.predicted_tokens.hex()} {b'' if p.survival is None else p.survival.tobytes()!r}"
            for p in play(planner, rounds, late=True)
        ]

    assert trace() == trace()


def told(planner: DsparkPlanner, confidence: FloatArray, *, hear: bool = True) -> Plan:
    """One round whose drafts have these confidences and are all verified and rejected."""
    count = np.full(len(confidence), confidence.shape[1])
    plan = planner.plan(BatchView(len(confidence), count))
    if hear:
        nothing = np.zeros_like(count)
        planner.observe(RoundFeedback(plan, nothing, nothing + 1, confidence=confidence))
    return plan


def test_the_capacity_is_that_of_the_confidences_two_rounds_ago() -> None:
    planner = scheduled(CPU, drafter="free")
    hopeful, hopeless = np.full((8, 5), 0.99), np.full((8, 5), 0.01)
    rows = [told(planner, c).verify_rows for c in (hopeful, hopeless, hopeless, hopeful, hopeful, hopeful)]
    # Nothing is old enough in the first two rounds, and each round after them has the capacity of the one before last.
    assert rows == [48, 48, 48, 8, 8, 48]


def test_a_host_that_reports_late_gets_the_capacity_of_the_same_rounds() -> None:
    planner = scheduled(CPU, drafter="free")
    told_of = [np.full((8, 5), c) for c in (0.99, 0.01, 0.01, 0.99, 0.99, 0.99)]
    rows, plans = [], []
    nothing = np.zeros(8, dtype=np.int64)
    for number in range(6):
        plans.append(told(planner, told_of[number], hear=False))
        rows.append(plans[-1].verify_rows)
        if number:
            late = RoundFeedback(plans[number - 1], nothing, nothing + 1, confidence=told_of[number - 1])
            planner.observe(late)
    assert rows == [48, 48, 48, 8, 8, 48]


@settings(max_examples=60, deadline=None)
@given(costs=cost_models(max_rows=False), kind=st.sampled_from(KINDS), seed=seeds)
def test_the_capacity_has_the_most_tokens_per_time_of_all_budgets(
    costs: CostModel, kind: DrafterKind, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    planner = scheduled(costs, max_draft_steps=4, drafter=kind)
    confidence = rng.uniform(0.05, 0.95, (3, 4))
    for _ in range(3):
        plan = told(planner, confidence)
    time = plan.predicted_ms
    if time < 1e-6:  # ratios of times that are nothing are not compared
        return
    proposed = np.full(3, 4)
    # At the price of the best ratio the best budget is worth nothing more than its time (Dinkelbach).
    price = plan.predicted_tokens / time
    base = price * costs.base_ms(3, 0.0)
    survival = survival_of(confidence)
    _, value = best_budget(survival, proposed, costs=costs, context=0.0, price=price, kind=kind, steps=4, block=4)
    assert value - base == pytest.approx(0.0, abs=1e-6 * plan.predicted_tokens)


def test_the_number_of_drafts_is_scaled_to_those_that_wait_now() -> None:
    planner = scheduled(CostModel.from_tables({64: 1.0}), drafter="free", max_draft_steps=2)
    for _ in range(2):
        told(planner, np.array([[0.9, 0.9], [0.1, 0.1]]))
    everything = planner.plan(BatchView(6, np.array([2, 2, 2, 2, 2, 0])))
    assert everything.verify_rows == 16
    assert everything.predicted_tokens == pytest.approx(6 + 2.5 * (0.9 + 0.81 + 0.1 + 0.01))


def test_live_confidence_decides_which_drafts_have_rows() -> None:
    planner = scheduled(CPU, drafter="free")
    sure, unsure = np.full(5, 0.98), np.full(5, 0.05)
    for _ in range(2):
        told(planner, np.stack([sure, unsure]))
    live = np.stack([unsure, sure])
    proposed = np.array([5, 5])
    plan = planner.plan(BatchView(2, proposed, confidence=live))
    assert select_rows(proposed, plan.verify_rows, plan.survival).tolist() == [0, plan.verify_rows - 2]
    assert plan.verify_rows > 2


def test_without_confidence_everything_is_verified() -> None:
    planner = scheduled(CPU)
    for round_ in wild_rounds(3, 20, 6, 5, with_ids=True, with_confidence=False):
        plan = planner.plan(round_.view)
        assert plan.verify_rows == round_.view.num_requests + round_.view.proposed.sum()
        planner.observe(round_.feedback(plan, round_.view.proposed, told=False))


def outcome(verified: IntArray, accepted: IntArray, proposed: IntArray, told: FloatArray) -> Outcome:
    """A round's feedback as it is read."""
    return Outcome(verified, accepted, proposed, told, None)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_a_temperature_between_what_is_told_and_what_is_true_is_found(temperature: float) -> None:
    rng = np.random.default_rng(1)
    scale = TemperatureScale(2)
    for _ in range(60):
        truth = rng.normal(0.5, 1.2, (64, 2))
        right = rng.random((64, 2)) < 1 / (1 + np.exp(-truth))
        count = np.full(64, 2)
        accepted = 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1)
        told_of = 1 / (1 + np.exp(-temperature * truth))
        scale.learn(outcome(count, accepted, count, told_of), told_of)
    assert scale.temperature == pytest.approx(temperature, rel=0.2)


def test_trimming_by_confidence_does_not_bias_the_calibration() -> None:
    rng = np.random.default_rng(2)
    scale = TemperatureScale(3)
    for _ in range(100):
        truth = rng.normal(0.0, 1.5, (64, 3))
        right = rng.random((64, 3)) < 1 / (1 + np.exp(-truth))
        verified = np.logical_and.accumulate(truth > -0.5, axis=1).sum(axis=1)
        accepted = 1 + np.minimum(np.logical_and.accumulate(right, axis=1).sum(axis=1), verified)
        told_of = 1 / (1 + np.exp(-2.0 * truth))
        scale.learn(outcome(verified, accepted, np.full(64, 3), told_of), told_of)
    assert scale.temperature == pytest.approx(2.0, rel=0.2)


def test_few_trials_leave_the_confidence_as_it_is_told() -> None:
    scale = TemperatureScale(1)
    count = np.ones(99, dtype=np.int64)
    scale.learn(outcome(count, count, count, np.full((99, 1), 0.9)), np.full((99, 1), 0.9))
    assert scale.temperature.tolist() == [1.0]
    scale.learn(outcome(count, count, count, np.full((99, 1), 0.9)), np.full((99, 1), 0.9))
    assert scale.temperature.tolist() == [16.0]


@pytest.mark.parametrize("kind", ["block", "serial"])
def test_mixed_requests_with_confidence_are_served_faster_than_with_every_draft_verified(kind: DrafterKind) -> None:
    profile = AcceptanceProfile((0.75,), spread=1.2, noise=0.8, confidence=True)
    rates = [
        serve(
            FairHost(GPU, 64, profile, max_draft_steps=7, drafter=kind, seed=4),
            make_planner(strategy, GPU, max_draft_steps=7, drafter=kind),
            rounds=200,
            warm_up=40,
        ).tokens_per_ms
        for strategy in ("dspark", "fixed")
    ]
    assert rates[0] > 1.1 * rates[1]


def test_it_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="no options"):
        make_planner("dspark", GPU, max_draft_steps=3, steps=2)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (BatchView(1, np.array([4])), "proposed"),
        (BatchView(1, np.array([-1])), "proposed"),
        (BatchView(2, np.zeros(3, dtype=np.int64)), "proposed"),
        (BatchView(2, np.zeros(2, dtype=np.int64), confidence=np.zeros((2, 4))), "confidence"),
        (BatchView(1, np.array([2]), confidence=np.array([[0.5, 1.1, 0.0]])), "confidence"),
        (BatchView(1, np.array([2]), confidence=np.array([[0.5, math.inf, 0.0]])), "confidence"),
    ],
)
def test_an_impossible_view_is_refused(view: BatchView, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        scheduled(max_draft_steps=3).plan(view)


GOOD = RoundFeedback(
    Plan(4, 3, 1, proposed=np.array([3])), np.array([2]), np.array([2]), confidence=np.array([[0.5, 0.5, 0.5]])
)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, verified=np.array([4])),
        replace(GOOD, accepted=np.array([4])),
        replace(GOOD, accepted=np.array([0])),
        replace(GOOD, confidence=np.array([[0.5, 0.5, -math.inf]])),
        replace(GOOD, confidence=np.array([[0.5, -0.5, 0.5]])),
        replace(GOOD, confidence=np.array([[0.5, 0.5]])),
        replace(GOOD, measured_ms=math.inf),
        replace(GOOD, measured_ms=-1.0),
    ],
)
def test_impossible_feedback_is_refused_counted_and_forgotten(bad: RoundFeedback) -> None:
    planner = scheduled(max_draft_steps=3)
    with pytest.raises(FeedbackError):
        planner.observe(bad)
    assert planner.counters.refused_feedback == 1
    assert not planner._heard
    planner.observe(GOOD)
    assert (planner.counters.observed, len(planner._heard)) == (1, 1)


def test_an_empty_batch_plans_and_teaches_nothing() -> None:
    planner = scheduled()
    none = np.zeros(0, dtype=np.int64)
    plan = planner.plan(BatchView(0, none))
    planner.observe(RoundFeedback(plan, none, none))
    assert (plan.verify_rows, plan.draft_steps, planner.counters.observed) == (0, 0, 0)


def test_what_a_draft_takes_beside_its_steps_is_part_of_a_round() -> None:
    costs = CostModel.from_tables({64: 1.0}, {64: 0.5}, draft_start={2: 3.0})
    planner = scheduled(costs, drafter="serial_no_kv")
    assert planner.plan(BatchView(2, np.array([1, 1]))).table_ms == 1.0 + 5 * 0.5 + 3.0
