"""What the planner comes to know from rounds: without bias, in time, per request and from any confidence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightspec_lightllm.adapters.simulated import AcceptanceProfile
from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.planner import BatchView, Plan, Planner, RoundFeedback, make_planner
from lightspec_lightllm.planner.acceptance import RequestOffsets, Scores
from lightspec_lightllm.planner.lightspec import LightspecPlanner
from lightspec_lightllm.planner.scale import NEUTRAL_LEVEL
from lightspec_lightllm.planner.types import FloatArray, IntArray
from tests.planner.simulation import FairHost, Tell, best_rate, lightspec, serve
from tests.planner.worlds import CPU, GPU, KINDS

STEPS = 4


def accepted_prefix(truth: FloatArray, rng: np.random.Generator) -> IntArray:
    """int[N]: how many drafts in a row come true, float[N, K] being the chance of each."""
    return np.asarray(np.logical_and.accumulate(rng.random(truth.shape) < truth, axis=1).sum(axis=1))


def learned_survival(
    truth: FloatArray, *, seed: int = 0, rounds: int = 400, trim: bool = False, new_requests: bool = False
) -> FloatArray:
    """float[N, K]: survivals that a planner estimates over the last half of the rounds.

    ``truth``: float[N, K] conditional acceptance. ``trim``: a random number of each request's drafts is verified.
    """
    rng = np.random.default_rng(seed)
    num_requests, steps = truth.shape
    planner = make_planner("lightspec", GPU, max_draft_steps=steps)
    ids = np.arange(num_requests)
    seen = []
    for index in range(rounds):
        plan = planner.plan(BatchView(num_requests, np.full(num_requests, steps), 300, request_ids=ids))
        if index >= rounds // 2:
            assert plan.survival is not None
            seen.append(plan.survival)
        verified = rng.integers(0, steps + 1, num_requests) if trim else np.full(num_requests, steps)
        accepted = 1 + np.minimum(accepted_prefix(truth, rng), verified)
        planner.observe(RoundFeedback(plan, verified, accepted, measured_ms=10.0, request_ids=ids))
        ids = ids + num_requests if new_requests else ids
    return np.asarray(np.mean(seen, axis=0))


def conditional(survival: FloatArray) -> FloatArray:
    """float[K]: conditional acceptance from the batch's mean survivals."""
    mean = survival.mean(axis=0)
    return np.asarray(mean / np.concatenate(([1.0], mean[:-1])))


@pytest.mark.parametrize("truth", [(0.8, 0.6, 0.7, 0.5), (0.3, 0.3, 0.3, 0.3), (0.5, 0.9, 0.9, 0.9)], ids=str)
@pytest.mark.parametrize("trim", [False, True], ids=["whole", "trimmed"])
def test_acceptance_per_depth_is_learned_without_bias_from_whole_and_from_trimmed_rounds(
    truth: tuple[float, ...], trim: bool
) -> None:
    runs = [conditional(learned_survival(np.tile(truth, (8, 1)), seed=seed, trim=trim)) for seed in range(6)]
    mean, error = np.mean(runs, axis=0), np.std(runs, axis=0) / np.sqrt(len(runs))
    # A depth that few drafts reach is shrunk towards the one before it, a little.
    assert (np.abs(mean - truth) <= 3.5 * error + 0.02).all(), (mean, error)


def test_requests_that_are_new_in_every_round_still_teach() -> None:
    survival = learned_survival(np.full((8, STEPS), 0.35), new_requests=True)
    np.testing.assert_allclose(survival.mean(axis=0)[:2], [0.35, 0.35**2], atol=0.04)


def test_an_easy_request_is_told_from_a_hard_one() -> None:
    truth = np.full((8, STEPS), 0.9)
    truth[4:] = 0.35
    first = learned_survival(truth)[:, 0]
    assert first[:4].min() > 0.8
    assert first[4:].max() < 0.5


def test_requests_that_are_alike_are_not_told_apart_by_noise() -> None:
    spread = [learned_survival(np.full((8, STEPS), 0.6), seed=seed)[:, 0].std() for seed in range(3)]
    assert np.mean(spread) < 0.03


def test_depths_that_were_never_verified_are_extrapolated_from_shallower_ones() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=6)
    rng, ids = np.random.default_rng(0), np.arange(8)
    plan = Plan(0, 0)
    for _ in range(200):
        plan = planner.plan(BatchView(8, np.full(8, 6), 300, request_ids=ids))
        verified = np.full(8, 2)
        accepted = 1 + np.minimum(accepted_prefix(np.full((8, 6), 0.4), rng), verified)
        planner.observe(RoundFeedback(plan, verified, accepted, measured_ms=10.0, request_ids=ids))
    assert plan.survival is not None
    np.testing.assert_allclose(conditional(plan.survival), 0.4, atol=0.08)


def test_learning_goes_on_while_rows_are_trimmed() -> None:
    planner = make_planner("lightspec", CPU, max_draft_steps=STEPS)
    rng, ids = np.random.default_rng(1), np.arange(16)
    estimates = []
    for acceptance in (0.8, 0.65):
        for _ in range(150):
            plan = planner.plan(BatchView(16, np.full(16, STEPS), 300, request_ids=ids))
            verified = select_rows(np.full(16, STEPS), plan.verify_rows, plan.survival)
            assert verified.sum() < 16 * STEPS
            accepted = 1 + np.minimum(accepted_prefix(np.full((16, STEPS), acceptance), rng), verified)
            planner.observe(RoundFeedback(plan, verified, accepted, request_ids=ids))
        assert plan.survival is not None
        estimates.append(plan.survival[:, 0].mean())
    np.testing.assert_allclose(estimates, [0.8, 0.65], atol=0.07)


@pytest.mark.parametrize("bias", [0.0, 0.2])
def test_trimming_by_confidence_biases_neither_the_drafts_kept_nor_those_trimmed(bias: float) -> None:
    """Drafts are verified by their confidence; the estimates must fit the outcomes of both halves."""
    rng = np.random.default_rng(2)
    num_requests, steps = 16, 3
    planner = make_planner("lightspec", CPU, max_draft_steps=steps)
    proposed, ids = np.full(num_requests, steps), np.arange(num_requests)
    expected, happened = np.zeros(2), np.zeros(2)
    for index in range(500):
        truth = rng.uniform(0.1, 0.9, (num_requests, steps))
        told = np.minimum(truth + bias, 1.0)
        plan = planner.plan(BatchView(num_requests, proposed, 300, confidence=told, request_ids=ids))
        assert plan.survival is not None
        verified = select_rows(proposed, num_requests + 16, plan.survival)
        right = accepted_prefix(truth, rng)
        feedback = RoundFeedback(plan, verified, 1 + np.minimum(right, verified), confidence=told, request_ids=ids)
        planner.observe(feedback)
        if index >= 100:
            kept = np.arange(steps) < verified[:, None]
            true = np.arange(steps) < right[:, None]
            expected += plan.survival[kept].sum(), plan.survival[~kept].sum()
            happened += true[kept].sum(), true[~kept].sum()
    assert expected[0] == pytest.approx(happened[0], rel=0.06)
    assert expected[1] == pytest.approx(happened[1], rel=0.2)


def after_shift(low: float, high: float, kind: str, *, confidence: bool, settle: int = 50, seed: int = 0) -> float:
    """Rate from ``settle`` rounds after a shift on, over the best that a planner who knew could reach."""
    before = 200

    def profile(rounds: int) -> AcceptanceProfile:
        return AcceptanceProfile((low if rounds < before else high,), confidence=confidence)

    host = FairHost(GPU, 16, profile, max_draft_steps=7, drafter=kind, context_tokens=0, seed=seed)
    planner = make_planner("lightspec", GPU, max_draft_steps=7, drafter=kind)  # type: ignore[arg-type]  # a kind
    served = serve(host, planner, rounds=60, warm_up=before + settle)
    return served.tokens_per_ms / best_rate(GPU, kind, 16, high)  # type: ignore[arg-type]  # the same


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "chained"])
@pytest.mark.parametrize("confidence", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0.4, 0.85), (0.85, 0.4)])
def test_fifty_rounds_after_a_shift_the_new_optimum_is_reached(
    kind: str, confidence: bool, low: float, high: float
) -> None:
    assert after_shift(low, high, kind, confidence=confidence) >= 0.95


def test_a_drafter_that_is_dear_is_taken_up_again_too() -> None:
    assert after_shift(0.4, 0.85, "chained", confidence=False) >= 0.95


TELLS: dict[str, Tell | None] = {
    "honest": None,
    "overconfident": lambda known, _: np.minimum(known + 0.2, 1.0),
    "constant": lambda known, _: np.full(known.shape, 0.9),
    "random": lambda known, rng: rng.random(known.shape),
}


@pytest.mark.parametrize("tell", TELLS)
def test_no_confidence_costs_more_than_a_little_of_what_is_reached_without(tell: str) -> None:
    def rate(confidence: bool) -> float:
        profile = AcceptanceProfile((0.7,), spread=0.7, noise=1.0, confidence=confidence)
        told = TELLS[tell] if confidence else None
        runs = [
            lightspec(CPU, 16, profile, rounds=250, warm_up=100, tell=told, context_tokens=0, seed=seed)
            for seed in range(3)
        ]
        return float(np.mean([run.tokens_per_ms for run in runs]))

    assert rate(True) >= 0.97 * rate(False)


def test_an_honest_confidence_pays_where_rows_cost() -> None:
    def rate(confidence: bool) -> float:
        profile = AcceptanceProfile((0.4,), spread=0.7, noise=1.0, confidence=confidence)
        runs = [lightspec(CPU, 16, profile, rounds=300, warm_up=100, context_tokens=0, seed=seed) for seed in range(4)]
        return float(np.mean([run.tokens_per_ms for run in runs]))

    assert rate(True) >= 1.01 * rate(False)


def test_a_round_that_verifies_nothing_still_tells_its_confidences() -> None:
    """From likely drafts to hopeless ones: drafting ends although nothing is verified any more."""

    def profile(rounds: int) -> AcceptanceProfile:
        return AcceptanceProfile((0.85 if rounds < 100 else 0.3,), confidence=True)

    host = FairHost(CPU, 16, profile, max_draft_steps=7, drafter="serial", context_tokens=0)
    served = serve(host, make_planner("lightspec", CPU, max_draft_steps=7, drafter="serial"), rounds=40, warm_up=130)
    assert served.mean_steps < 0.1


def planned(planner: Planner, told: FloatArray, rounds: int, truth: FloatArray | None = None) -> Plan:
    """The last plan of some rounds of 16 requests whose drafts are all verified; by default they come true as told."""
    rng, ids, plan = np.random.default_rng(5), np.arange(16), Plan(0, 0)
    for _ in range(rounds):
        sure = told if truth is None else rng.random((16, STEPS))
        plan = planner.plan(BatchView(16, np.full(16, STEPS), 300, confidence=sure, request_ids=ids))
        accepted = 1 + accepted_prefix(sure if truth is None else truth, rng)
        feedback = RoundFeedback(plan, np.full(16, STEPS), accepted, confidence=sure, request_ids=ids)
        planner.observe(feedback)
    return plan


def test_a_confidence_that_means_nothing_is_not_used_to_rank_drafts() -> None:
    plan = planned(
        make_planner("lightspec", CPU, max_draft_steps=STEPS), np.zeros(0), 80, truth=np.full((16, STEPS), 0.6)
    )
    assert plan.reading is None
    assert plan.survival is not None
    assert np.ptp(plan.survival[:, 0]) < 0.2


def test_a_confidence_that_means_something_ranks_drafts() -> None:
    told = np.random.default_rng(6).uniform(0.1, 0.9, (16, STEPS))
    plan = planned(make_planner("lightspec", CPU, max_draft_steps=STEPS), told, 80)
    assert plan.reading is not None
    assert plan.survival is not None
    assert np.corrcoef(plan.survival[:, 0], told[:, 0])[0, 1] > 0.9


def test_a_confidence_that_begins_to_mean_something_is_used_from_then_on() -> None:
    planner = make_planner("lightspec", CPU, max_draft_steps=STEPS)
    assert planned(planner, np.zeros(0), 80, truth=np.full((16, STEPS), 0.6)).reading is None
    assert planned(planner, np.random.default_rng(6).uniform(0.1, 0.9, (16, STEPS)), 150).reading is not None


@pytest.mark.parametrize(("misses", "drafts"), [(10, True), (100, False)])
def test_a_run_of_bad_luck_does_not_end_drafting_but_a_long_one_does(misses: int, drafts: bool) -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS, drafter="chained")
    proposed, ids, plan = np.full(1, STEPS), np.zeros(1, dtype=np.int64), Plan(0, 0)
    for _ in range(misses):
        plan = planner.plan(BatchView(1, proposed, 300, request_ids=ids))
        planner.observe(RoundFeedback(plan, proposed, np.ones(1, dtype=np.int64), request_ids=ids))
    assert (planner.plan(BatchView(1, proposed, 300, request_ids=ids)).draft_steps > 0) is drafts


def test_requests_whose_ids_fall_on_the_same_entry_are_served_and_forgotten() -> None:
    offsets = RequestOffsets(memory_trials=80, prior_trials=12, bits=2)
    first = offsets.entries(np.arange(64))
    assert first.max() <= 3
    offsets.learn(Scores(np.arange(64), np.full(64, 1.0), np.full(64, 0.5)), 0.0)
    assert offsets.levels(offsets.entries(np.arange(64, 128))).tolist() == [NEUTRAL_LEVEL] * 64


def test_a_new_request_is_not_taught_what_was_seen_of_one_that_had_its_entry_before() -> None:
    offsets = RequestOffsets(memory_trials=80, prior_trials=12, bits=2)
    old = np.array([0])
    new = next(ids for ids in np.arange(1, 64)[:, None] if offsets.find(ids) == offsets.find(old))
    offsets.find(new)
    offsets.learn(Scores(old, np.full(1, 5.0), np.full(1, 2.0)), 0.0)
    assert offsets.levels(offsets.find(new)).tolist() == [NEUTRAL_LEVEL]
    offsets.learn(Scores(new, np.full(1, 5.0), np.full(1, 2.0)), 0.0)
    assert offsets.levels(offsets.find(new))[0] > NEUTRAL_LEVEL


def test_scores_of_one_request_add_up() -> None:
    once, twice = (RequestOffsets(memory_trials=80, prior_trials=12) for _ in range(2))
    once.find(np.array([7, 9]))
    twice.find(np.array([7, 9]))
    once.learn(Scores(np.array([7, 9]), np.array([1.5, -0.5]), np.array([0.75, 0.25])), 0.1)
    parts = Scores(np.array([7, 9, 7, 7]), np.array([0.5, -0.5, 0.75, 0.25]), np.array([0.25, 0.25, 0.25, 0.25]))
    twice.learn(parts, 0.1)
    np.testing.assert_allclose(once._offset, twice._offset)
    np.testing.assert_allclose(once._info, twice._info)


@pytest.mark.parametrize("late", [False, True])
def test_to_ask_what_steps_are_worth_changes_no_plan(late: bool) -> None:
    """Large batches are learned from in parts, over several rounds; whoever looks in between sees one version."""
    asked, left_alone = (make_planner("lightspec", GPU, max_draft_steps=5) for _ in range(2))
    assert isinstance(asked, LightspecPlanner)
    rng, steps, waiting = np.random.default_rng(0), 5, []
    for number in range(250):
        size = int(rng.choice([70, 71, 72]))
        ids, proposed = np.arange(size), np.full(size, steps)
        sure = 1 / (1 + np.exp(-(0.8 + 1.5 * math.sin(number / 9) + rng.standard_normal((size, 5)))))
        plans = [planner.plan(BatchView(size, proposed, 300, sure, ids)) for planner in (asked, left_alone)]
        assert (plans[0].verify_rows, plans[0].draft_steps) == (plans[1].verify_rows, plans[1].draft_steps)
        steps = plans[0].draft_steps
        verified = np.minimum(proposed, 3)
        right = (rng.random((size, 5)) < sure) & (np.arange(5) < verified[:, None])
        accepted = 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1)
        waiting.append((plans, verified, accepted, sure, ids))
        asked.steps_worth(size)
        if number or not late:
            plans, verified, accepted, sure, ids = waiting.pop(0)
            for planner, plan in zip((asked, left_alone), plans, strict=True):
                planner.observe(RoundFeedback(plan, verified, accepted, sure, None, ids))
