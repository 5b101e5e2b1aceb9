"""What every plan keeps to, whatever the batch, the costs and the feedback before it."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters.simulated import AcceptanceProfile
from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind, Plan, make_planner
from tests.planner.simulation import FairHost, serve
from tests.planner.worlds import CPU, GPU, KINDS, WildRound, cost_models, legal_steps, play, wild_rounds

strategies = st.sampled_from(["lightspec", "fixed", "fixed:1", "off"])
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=80, deadline=None)
@given(
    strategy=strategies,
    costs=cost_models(own_draft_sizes=True),
    kind=st.sampled_from(KINDS),
    seed=seeds,
    max_draft_steps=st.integers(1, 7),
    with_ids=st.booleans(),
    with_confidence=st.booleans(),
    late=st.booleans(),
)
def test_the_budget_the_steps_and_the_predictions_are_possible(
    *,
    strategy: str,
    costs: CostModel,
    kind: DrafterKind,
    seed: int,
    max_draft_steps: int,
    with_ids: bool,
    with_confidence: bool,
    late: bool,
) -> None:
    planner = make_planner(strategy, costs, max_draft_steps=max_draft_steps, drafter=kind)
    rounds = list(wild_rounds(seed, 25, 6, max_draft_steps, with_ids=with_ids, with_confidence=with_confidence))
    for round_, plan in zip(rounds, play(planner, iter(rounds), late=late), strict=True):
        num_requests, available = round_.view.num_requests, int(round_.view.proposed.sum())
        assert num_requests <= plan.verify_rows <= num_requests + available
        if strategy == "lightspec":
            assert plan.draft_steps in legal_steps(kind, max_draft_steps)
            assert num_requests <= plan.predicted_tokens <= plan.verify_rows + 1e-9
        else:
            assert plan.draft_steps == {"off": 0, "fixed:1": 1, "fixed": max_draft_steps}[strategy]
        assert costs.max_rows is None or plan.verify_rows <= max(costs.max_rows, num_requests)
        assert math.isfinite(plan.predicted_ms)
        assert plan.predicted_ms >= 0
        assert math.isfinite(plan.table_ms)
        assert plan.num_requests == num_requests
        if plan.survival is not None:
            assert plan.survival.shape == (num_requests, max_draft_steps)
            assert (np.diff(plan.survival, axis=1) <= 0).all()
            assert ((plan.survival >= 0) & (plan.survival <= 1)).all()


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    costs=st.sampled_from([GPU, CPU]),
    seed=seeds,
    max_requests=st.sampled_from([3, 7, 60, 250]),
    with_ids=st.booleans(),
    with_confidence=st.booleans(),
)
def test_the_order_of_the_requests_changes_no_plan(
    *, kind: DrafterKind, costs: CostModel, seed: int, max_requests: int, with_ids: bool, with_confidence: bool
) -> None:
    rng = np.random.default_rng(seed)
    num_rounds = 10 if max_requests > 30 else 60
    rounds = list(wild_rounds(seed, num_rounds, max_requests, 4, with_ids=with_ids, with_confidence=with_confidence))
    orders = [rng.permutation(round_.view.num_requests) for round_ in rounds]
    shuffled = [round_.permuted(order) for round_, order in zip(rounds, orders, strict=True)]
    verified = [rng.integers(0, round_.view.proposed + 1) for round_ in rounds]
    first, second = (make_planner("lightspec", costs, max_draft_steps=4, drafter=kind) for _ in range(2))
    plain, mixed = iter(verified), (v[order] for v, order in zip(verified, orders, strict=True))
    one = [_decision(plan) for plan in play(first, iter(rounds), late=False, choose=lambda *_: next(plain))]
    two = [_decision(plan) for plan in play(second, iter(shuffled), late=False, choose=lambda *_: next(mixed))]
    assert one == two


def _decision(plan: Plan) -> tuple[int, int]:
    return plan.verify_rows, plan.draft_steps


def _trace(seed: int = 5) -> list[str]:
    """Every bit of the plans of a long wild run of each kind."""
    out = []
    for kind in KINDS:
        for with_confidence in (False, True):
            planner = make_planner("lightspec", GPU, max_draft_steps=5, drafter=kind)
            rounds = wild_rounds(seed, 60, 9, 5, with_ids=True, with_confidence=with_confidence)
            for plan in play(planner, rounds, late=True):
                survival = b"" if plan.survival is None else plan.survival.tobytes()
                times = plan.predicted_ms.hex(), plan.predicted_tokens.hex(), plan.table_ms.hex()
                out.append(f"{plan.verify_rows} {plan.draft_steps} {plan.probe} {times} {survival.hex()}")
    return out


def test_two_planners_that_see_the_same_plan_the_same_to_the_bit() -> None:
    assert _trace() == _trace()


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import hashlib; from tests.planner.test_plans import _trace;"
        "print(hashlib.sha256('\\n'.join(_trace()).encode()).hexdigest())"
    )
    digests = set()
    for hash_seed in ("0", "1", "424242"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_an_empty_batch_plans_nothing() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=3)
    plan = planner.plan(BatchView(0, np.zeros(0, dtype=np.int64)))
    assert _decision(plan) == (0, 0)


@pytest.mark.parametrize("strategy", ["lightspec", "fixed"])
def test_a_view_whose_counts_do_not_fit_the_batch_is_refused(strategy: str) -> None:
    planner = make_planner(strategy, GPU, max_draft_steps=3)
    with pytest.raises(PlanError, match="proposed"):
        planner.plan(BatchView(2, np.zeros(3, dtype=np.int64)))


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (BatchView(1, np.array([4])), "proposed"),
        (BatchView(1, np.array([-1])), "proposed"),
        (BatchView(2, np.zeros(2, dtype=np.int64), request_ids=np.arange(3)), "request_ids"),
        (BatchView(2, np.zeros(2, dtype=np.int64), confidence=np.zeros((2, 4))), "confidence"),
        (BatchView(1, np.array([2]), confidence=np.array([[0.5, 1.1, 0.0]])), "confidence"),
        (BatchView(1, np.array([2]), confidence=np.array([[0.5, -math.inf, 0.0]])), "confidence"),
    ],
)
def test_an_impossible_view_is_refused(view: BatchView, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_planner("lightspec", GPU, max_draft_steps=3).plan(view)


def test_confidences_past_the_waiting_drafts_are_ignored() -> None:
    first, second = (make_planner("lightspec", GPU, max_draft_steps=3) for _ in range(2))
    proposed = np.array([1, 3])
    clean = np.array([[0.5, 0.0, 0.0], [0.9, 0.8, 0.7]])
    dirty = np.array([[0.5, math.nan, 7.0], [0.9, 0.8, 0.7]])
    one = first.plan(BatchView(2, proposed, confidence=clean))
    two = second.plan(BatchView(2, proposed, confidence=dirty))
    assert _decision(one) == _decision(two)
    assert one.predicted_tokens == two.predicted_tokens


def test_numbers_of_any_context_shape_are_read_as_their_mean() -> None:
    costs = CostModel.from_tables({100: {1: 1.0, 8: 2.0}, 1000: {1: 5.0, 8: 9.0}}, {1: 0.1, 8: 0.2})
    times = set()
    for context in (400, 400.0, np.array([100, 700]), np.int64(400)):
        planner = make_planner("lightspec", costs, max_draft_steps=3)
        times.add(round(planner.plan(BatchView(2, np.array([1, 1]), context)).table_ms, 12))
    assert len(times) == 1


def test_a_plan_says_what_was_waiting() -> None:
    round_: WildRound = next(wild_rounds(1, 1, 5, 4, with_ids=True, with_confidence=False))
    plan = make_planner("lightspec", GPU, max_draft_steps=4).plan(round_.view)
    assert plan.proposed is not None
    assert plan.proposed.tolist() == round_.view.proposed.tolist()


@pytest.mark.parametrize("confident", [False, True])
def test_a_draft_that_is_dear_to_begin_is_longer_and_one_that_does_not_pay_is_not_made(*, confident: bool) -> None:
    """Where a draft has a price of its own, more steps share it; past what drafting brings there is no draft."""
    steps = []
    for start in (0.0, 3.0, 60.0):
        costs = CostModel.from_tables({1: 7.0, 64: 12.0}, {8: 1.5}, draft_start={8: start}, interpolate=True)
        profile = AcceptanceProfile((0.7,), confidence=confident)
        host = FairHost(costs, 8, profile, max_draft_steps=7, drafter="serial_no_kv")
        planner = make_planner("lightspec", costs, max_draft_steps=7, drafter="serial_no_kv")
        served = serve(host, planner, rounds=400, warm_up=100)
        assert served.tokens_per_ms > 0.97 * 8 / costs.target_ms(8, 8, 0.0)
        steps.append(served.mean_steps)
    assert 1.0 < steps[0] + 0.3 < steps[1]
    assert steps[2] < 0.1
