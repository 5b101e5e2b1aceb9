"""The published recipe of running means: what it promises, and the weaknesses that make it a baseline."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters.simulated import AcceptanceProfile
from lightspec_lightllm.errors import ConfigError, FeedbackError, PlanError
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind, Plan, Planner, RoundFeedback, make_planner
from lightspec_lightllm.planner.mean_ema import WARM_UP_ROUNDS, MeanEmaPlanner
from tests.planner.simulation import FairHost, best_fixed_rate, serve
from tests.planner.worlds import CPU, GPU, KINDS, cost_models, play, wild_rounds

seeds = st.integers(0, 2**32 - 1)


def baseline(costs: CostModel = GPU, *, max_draft_steps: int = 5, drafter: DrafterKind = "serial") -> MeanEmaPlanner:
    planner = make_planner("mean-ema", costs, max_draft_steps=max_draft_steps, drafter=drafter)
    assert isinstance(planner, MeanEmaPlanner)
    return planner


@settings(max_examples=60, deadline=None)
@given(
    costs=cost_models(own_draft_sizes=True),
    kind=st.sampled_from(KINDS),
    seed=seeds,
    max_draft_steps=st.integers(1, 7),
    late=st.booleans(),
)
def test_the_budget_the_steps_and_the_predictions_are_possible(
    *, costs: CostModel, kind: DrafterKind, seed: int, max_draft_steps: int, late: bool
) -> None:
    planner = baseline(costs, max_draft_steps=max_draft_steps, drafter=kind)
    rounds = list(wild_rounds(seed, 30, 6, max_draft_steps, with_ids=True, with_confidence=False))
    legal = range(1, max_draft_steps + 1) if kind in ("serial", "serial_no_kv") else [max_draft_steps]
    for round_, plan in zip(rounds, play(planner, iter(rounds), late=late), strict=True):
        num_requests, available = round_.view.num_requests, int(round_.view.proposed.sum())
        assert num_requests <= plan.verify_rows <= num_requests + available
        assert costs.max_rows is None or plan.verify_rows <= max(costs.max_rows, num_requests)
        assert plan.draft_steps in legal
        assert num_requests - 1e-9 <= plan.predicted_tokens <= plan.verify_rows + 1e-9
        assert math.isfinite(plan.predicted_ms)
        assert plan.predicted_ms >= 0
        assert plan.survival is None


def serve_evenly(planner: Planner, acceptance: float, rounds: int, *, num_requests: int = 4, seed: int = 0) -> Plan:
    """Rounds in which every request goes on; the last plan."""
    rng = np.random.default_rng(seed)
    proposed = np.full(num_requests, planner.max_draft_steps)
    for _ in range(rounds):
        plan = planner.plan(BatchView(num_requests, proposed))
        verified = np.minimum(proposed, (plan.verify_rows - num_requests) // num_requests)
        right = np.logical_and.accumulate(rng.random((num_requests, 16)) < acceptance, axis=1).sum(axis=1)
        planner.observe(RoundFeedback(plan, verified, 1 + np.minimum(right, verified)))
        proposed = np.full(num_requests, plan.draft_steps)
    return plan


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(KINDS), costs=st.sampled_from([GPU, CPU]), seed=seeds)
def test_the_order_of_the_requests_changes_no_plan(kind: DrafterKind, costs: CostModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rounds = list(wild_rounds(seed, 40, 6, 4, with_ids=True, with_confidence=False))
    orders = [rng.permutation(round_.view.num_requests) for round_ in rounds]
    shuffled = [round_.permuted(order) for round_, order in zip(rounds, orders, strict=True)]
    verified = [rng.integers(0, round_.view.proposed + 1) for round_ in rounds]
    first, second = (baseline(costs, max_draft_steps=4, drafter=kind) for _ in range(2))
    plain, mixed = iter(verified), (v[order] for v, order in zip(verified, orders, strict=True))
    one = [(p.verify_rows, p.draft_steps) for p in play(first, iter(rounds), late=False, choose=lambda *_: next(plain))]
    two = [
        (p.verify_rows, p.draft_steps) for p in play(second, iter(shuffled), late=False, choose=lambda *_: next(mixed))
    ]
    assert one == two


def test_two_planners_that_see_the_same_plan_the_same_to_the_bit() -> None:
    def trace() -> list[str]:
        planner = baseline()
        rounds = wild_rounds(5, 200, 9, 5, with_ids=True, with_confidence=False)
        return [
            f"{p.verify_rows} {p.draft_steps} {p.predicted_tokens.hex()} {p.predicted_ms.hex()}"
            for p in play(planner, rounds, late=True)
        ]

    assert trace() == trace()


def test_the_first_rounds_draft_and_verify_everything() -> None:
    planner = baseline()
    plan = serve_evenly(planner, 0.0, WARM_UP_ROUNDS)
    assert (plan.verify_rows, plan.draft_steps) == (4 * 6, 5)
    assert serve_evenly(planner, 0.0, 2).draft_steps == 1


@pytest.mark.parametrize(("acceptance", "kind"), [(0.4, "serial"), (0.8, "serial"), (0.8, "block"), (0.6, "free")])
def test_a_steady_workload_is_served_nearly_as_fast_as_by_the_best_fixed_steps(
    acceptance: float, kind: DrafterKind
) -> None:
    host = FairHost(GPU, 64, AcceptanceProfile((acceptance,)), max_draft_steps=7, drafter=kind)
    served = serve(host, baseline(max_draft_steps=7, drafter=kind), rounds=300, warm_up=50)
    # A serial drafter's best may be to draft nothing, which the recipe cannot.
    assert served.tokens_per_ms > 0.93 * best_fixed_rate(GPU, kind, 64, acceptance)


def test_a_workload_that_gets_easier_leaves_it_at_one_step() -> None:
    planner = baseline(CPU)
    assert serve_evenly(planner, 0.1, 60).draft_steps == 1
    assert serve_evenly(planner, 0.98, 300).draft_steps == 1


def test_survival_is_not_learned_from_rounds_that_were_trimmed() -> None:
    planner = baseline()
    serve_evenly(planner, 0.5, WARM_UP_ROUNDS)
    before = planner._survival.copy()
    plan = Plan(4 + 8, 5, 4, proposed=np.full(4, 5))
    planner.observe(RoundFeedback(plan, np.full(4, 2), np.full(4, 3)))
    assert (planner._survival == before).all()
    assert planner._rates[4, 5][12] == (1.0, 1)


def test_a_mean_stays_with_its_configuration() -> None:
    planner = baseline()
    for tokens in (3, 1):
        plan = Plan(4, 3, 1, proposed=np.array([3]))
        planner.observe(RoundFeedback(plan, np.array([3]), np.array([tokens])))
    assert planner._rates == {(1, 3): {4: (0.5, 2)}}


def test_a_mean_forgets_a_tenth_per_round_once_it_has_ten() -> None:
    planner = baseline()
    plan = Plan(2, 1, 1, proposed=np.array([1]))
    for tokens in [1] * 20 + [2] * 3:
        planner.observe(RoundFeedback(plan, np.array([1]), np.array([tokens])))
    # The averages of 11 to 20 rounds weigh a new round 1 / 10 as well.
    assert planner._rates[1, 1][2][0] == pytest.approx(1.0 - 0.5 * 0.9**3)
    assert planner._survival[0] == pytest.approx(1.0 - 0.9**3)


def test_batches_with_a_new_request_teach_nothing() -> None:
    planner = baseline()
    for _ in range(50):
        proposed = np.array([5, 5, 5, 0])
        plan = planner.plan(BatchView(4, proposed))
        assert (plan.verify_rows, plan.draft_steps) == (19, 5)
        planner.observe(RoundFeedback(plan, proposed, np.ones(4, dtype=np.int64)))
    assert not planner._rates
    assert planner.counters.observed == 50


def test_costs_are_read_at_an_almost_empty_cache() -> None:
    costs = CostModel.from_tables({2: {1: 1.0, 8: 2.0}, 1000: {1: 10.0, 8: 20.0}}, {1: 0.1, 8: 0.2})
    times = {baseline(costs).plan(BatchView(2, np.array([1, 1]), context)).table_ms for context in (2, 500, 4000)}
    assert times == {baseline(costs).costs.target_ms(4, 2, 2.0) + costs.draft_ms("serial", 2, 4, 5, block=5)}


def test_rows_that_the_drafter_takes_in_are_priced_by_their_own_table() -> None:
    costs = CostModel.from_tables({8: 1.0}, {8: 5.0}, fill={8: 0.25})
    plan = baseline(costs, drafter="chained").plan(BatchView(2, np.array([1, 1])))
    assert plan.table_ms == 1.0 + 5 * 0.25


def test_no_more_is_drafted_than_the_largest_batch_can_verify() -> None:
    costs = CostModel.from_tables({16: 1.0}, {16: 0.1}, max_rows=9)
    plan = baseline(costs).plan(BatchView(3, np.full(3, 5)))
    assert (plan.verify_rows, plan.draft_steps) == (9, 2)
    assert baseline(costs).plan(BatchView(12, np.full(12, 5))).verify_rows == 12


def test_memory_is_bounded() -> None:
    planner = baseline()
    for number in range(6000):
        count = 1 + number % 5000
        plan = Plan(2 * count, 1, count, proposed=np.ones(count, dtype=np.int64))
        planner.observe(RoundFeedback(plan, plan.proposed, np.ones(count, dtype=np.int64)))  # type: ignore[arg-type]
    assert len(planner._rates) == 4096


def test_it_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="no options"):
        make_planner("mean-ema", GPU, max_draft_steps=3, steps=2)
    with pytest.raises(ConfigError, match="number of steps"):
        make_planner("mean-ema:3", GPU, max_draft_steps=3)


@pytest.mark.parametrize("proposed", [np.array([4]), np.array([-1]), np.array([1, 1])])
def test_an_impossible_view_is_refused(proposed: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    with pytest.raises(PlanError, match="proposed"):
        baseline(max_draft_steps=3).plan(BatchView(1, proposed))


@pytest.mark.parametrize(
    ("verified", "accepted"),
    [([6], [1]), ([-1], [1]), ([2], [0]), ([2], [4]), ([2, 2], [1]), ([2.0], [1]), ([4], [1])],
)
def test_impossible_feedback_is_refused_counted_and_forgotten(verified: list[float], accepted: list[int]) -> None:
    planner = baseline()
    plan = Plan(4, 5, 1, proposed=np.array([3]))
    with pytest.raises(FeedbackError):
        planner.observe(RoundFeedback(plan, np.array(verified), np.array(accepted)))
    assert planner.counters.refused_feedback == 1
    assert not planner._rates


def test_an_empty_batch_plans_and_teaches_nothing() -> None:
    planner = baseline()
    none = np.zeros(0, dtype=np.int64)
    plan = planner.plan(BatchView(0, none))
    planner.observe(RoundFeedback(plan, none, none))
    assert (plan.verify_rows, plan.draft_steps, planner.counters.observed) == (0, 0, 0)


def test_what_a_draft_takes_beside_its_steps_is_part_of_a_round() -> None:
    costs = CostModel.from_tables({8: 1.0}, {8: 0.5}, draft_start={2: 3.0})
    view = BatchView(2, np.array([1, 1]))
    assert baseline(costs, drafter="serial_no_kv").plan(view).table_ms == 1.0 + 5 * 0.5 + 3.0
    assert baseline(costs, drafter="free").plan(view).table_ms == 1.0


def test_a_draft_that_is_dear_to_begin_is_longer() -> None:
    steps = []
    for start in (0.0, 50.0):
        costs = CostModel.from_tables({4: 10.0, 24: 11.0}, {4: 4.0}, draft_start={4: start}, interpolate=True)
        steps.append(serve_evenly(baseline(costs, drafter="serial_no_kv"), 0.6, 100).draft_steps)
    assert steps[0] < steps[1]
