"""Confidences in tables: survivals by look-ups, and confidences that are not known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.planner import BatchView, Plan, Planner, RoundFeedback, make_planner
from lightspec_lightllm.planner.acceptance import AcceptanceModel
from lightspec_lightllm.planner.confidence import BIN_CENTRES, BIN_OF_CODE, NUM_BINS, NUM_CODES, codes_of
from lightspec_lightllm.planner.lightspec import LightspecPlanner
from lightspec_lightllm.planner.scale import LEVEL_OFFSETS
from lightspec_lightllm.planner.survival import BIT_STEPS, LAST_CELL, SURVIVAL, survival_of
from lightspec_lightllm.planner.survival_table import SurvivalTable
from lightspec_lightllm.planner.types import BoolArray, FloatArray
from tests.planner.worlds import GPU

STEPS = 4


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
@example([0.9871265525223172])  # just past the edge of a bin, where codes are widest apart
def test_a_bin_holds_the_confidences_around_its_centre(values: list[float]) -> None:
    codes = codes_of(np.array([values]).T, 1, some_unknown=False)[0]
    for value, at in zip(values, BIN_OF_CODE[codes], strict=True):
        odds = math.log(max(value, 1e-9) / max(1.0 - value, 1e-9))
        nearest = min(max(odds, BIN_CENTRES[0]), BIN_CENTRES[-1])
        assert abs(BIN_CENTRES[at] - nearest) < 0.25 + 0.06  # half a bin, and the step of a code at the ends


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), with_levels=st.booleans())
@example(seed=442164, with_levels=False)  # roundings of the depths that hardly cancel
def test_survivals_by_look_up_are_those_of_the_model(seed: int, with_levels: bool) -> None:
    rng = np.random.default_rng(seed)
    bins, depths, plain = rng.uniform(-3, 4, NUM_BINS), rng.uniform(-1, 1, 15), rng.uniform(-3, 3, 15)
    table = SurvivalTable(bins, depths, plain)
    codes = rng.integers(0, NUM_CODES, (15, 20))
    codes[:, 0] = NUM_CODES + np.arange(15)  # nothing is known of this request
    levels = rng.integers(0, len(LEVEL_OFFSETS), 20) if with_levels else None
    term = np.where(codes < NUM_CODES, bins[BIN_OF_CODE.take(codes, mode="clip")] + depths[:, None], plain[:, None])
    odds = term + (0.0 if levels is None else LEVEL_OFFSETS[levels])
    exact = np.cumprod(1.0 / (1.0 + np.exp(-odds)), axis=0)
    found = survival_of(table.cells(codes, levels))
    likely = exact > 1e-3
    np.testing.assert_allclose(found[likely], exact[likely], rtol=0.25)
    np.testing.assert_allclose(np.log(found[likely] / exact[likely]).mean(), 0.0, atol=0.05)
    assert (np.diff(found, axis=0) <= 0).all()
    by_code, by_depth, by_level = table.against
    against = by_code[codes[3]] * by_depth[3] * (1.0 if levels is None else by_level[levels])
    np.testing.assert_allclose(1.0 / (1.0 + against), 1.0 / (1.0 + np.exp(-odds[3])))


@given(st.lists(st.floats(), min_size=1, max_size=30), st.booleans())
@example([87.0, math.inf, -math.inf, math.nan, -1.0, 1e300, -0.0, 1.0], False)
def test_whatever_a_buffer_holds_codes_are_within_their_table(values: list[float], some_unknown: bool) -> None:
    codes = codes_of(np.array([values, values]), len(values), some_unknown=some_unknown)
    for depth, (code, value) in enumerate(zip(codes[:, 0].tolist(), values, strict=True)):
        assert 0 <= code < NUM_CODES or (some_unknown and math.isnan(value) and code == NUM_CODES + depth)


def test_tables_are_those_of_the_c_library() -> None:
    """Numpy's logarithms and exponentials are not the same bit for bit on every type of CPU."""
    assert SURVIVAL.tolist() == [*(math.pow(2.0, -cell / BIT_STEPS) for cell in range(LAST_CELL)), 0.0]
    model = AcceptanceModel(15, prior_logit=0.8, use_confidence=False, memory_trials=400.0)
    model.learn(np.linspace(-9.0, 9.0, 15), np.linspace(40.0, 1.0, 15))
    hopeful = (model.depth_terms + model.hope()).tolist()
    assert model.hopeful(None).tolist() == [1.0 / (1.0 + math.exp(-odds)) for odds in hopeful]


def test_fewer_depths_have_the_same_survivals() -> None:
    rng = np.random.default_rng(1)
    table = SurvivalTable(rng.normal(size=NUM_BINS), rng.normal(size=6), rng.normal(size=6))
    codes = rng.integers(0, NUM_CODES, (6, 9))
    assert (table.cells(codes[:2], None) == table.cells(codes, None)[:2]).all()


def served(planner: Planner, rounds: int, spoil: BoolArray | None = None, *, late: bool = False) -> list[Plan]:
    """Plans of rounds of 8 requests whose drafts come true as told; ``spoil`` hides some of the confidences.

    ``late``: confidences are told only after the round.
    """
    rng, ids, plans = np.random.default_rng(2), np.arange(8), []
    for _ in range(rounds):
        truth = rng.uniform(0.2, 0.95, (8, STEPS))
        told = truth.copy() if spoil is None else np.where(spoil, math.nan, truth)
        view = BatchView(8, np.full(8, STEPS), 300, confidence=None if late else told, request_ids=ids)
        plans.append(planner.plan(view))
        verified = select_rows(view.proposed, plans[-1].verify_rows, plans[-1].survival)
        right = np.logical_and.accumulate(rng.random((8, STEPS)) < truth, axis=1).sum(axis=1)
        feedback = RoundFeedback(plans[-1], verified, 1 + np.minimum(right, verified), told, 9.0, ids)
        planner.observe(feedback)
    return plans


SPOILT: BoolArray = np.zeros((8, STEPS), dtype=np.bool_)
SPOILT[1, 2] = SPOILT[5, 0] = True


@pytest.mark.parametrize("strategy", ["lightspec", "dspark", "mean-ema"])
@pytest.mark.parametrize("late", [False, True])
def test_a_confidence_that_is_not_a_number_is_not_known_and_counted(strategy: str, late: bool) -> None:
    planner = make_planner(strategy, GPU, max_draft_steps=STEPS)
    plans = served(planner, 60, SPOILT, late=late)
    assert planner.counters.plans == planner.counters.observed == 60
    assert planner.counters.refused_feedback == 0
    assert planner.counters.unknown_confidences >= (0 if late and strategy == "mean-ema" else 2 * 60)
    assert all(plan.survival is None or np.isfinite(plan.survival).all() for plan in plans)


def test_what_was_read_for_the_plan_is_counted_once() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
    plans = served(planner, 60, SPOILT)
    assert all(plan.reading is not None for plan in plans)
    assert planner.counters.unknown_confidences == 2 * 60


def test_a_draft_without_a_confidence_is_judged_by_its_depth_and_request() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
    assert isinstance(planner, LightspecPlanner)
    plan = served(planner, 200, SPOILT)[-1]
    assert plan.survival is not None
    estimator = planner._estimator
    level = estimator.levels(np.arange(8))
    assert level is not None
    expected = estimator._levels_table().acceptance[level[5], 0]
    assert plan.survival[5, 0] == pytest.approx(expected, rel=0.05)


def test_confidences_that_are_known_are_learned_as_if_the_others_were_not_there() -> None:
    def calibration(spoil: BoolArray | None) -> FloatArray:
        planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
        assert isinstance(planner, LightspecPlanner)
        served(planner, 300, spoil)
        return planner._estimator._calibrated.bin_terms

    np.testing.assert_allclose(calibration(SPOILT)[3:14], calibration(None)[3:14], atol=0.4)


def test_drafts_of_which_nothing_is_known_at_all_are_planned_for_as_without_confidences() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
    plans = served(planner, 40, np.ones((8, STEPS), dtype=np.bool_))
    assert all(plan.verify_rows > 8 for plan in plans)


def test_entries_past_what_is_proposed_may_be_anything() -> None:
    planner, twin = (make_planner("lightspec", GPU, max_draft_steps=STEPS) for _ in range(2))
    served(planner, 30)
    served(twin, 30)
    sure = np.full((2, STEPS), 0.6)
    dirty = sure.copy()
    dirty[0, 2:], dirty[1, 3:] = math.nan, -7.0
    plans = [p.plan(BatchView(2, np.array([2, 3]), 300, confidence=c)) for p, c in ((planner, dirty), (twin, sure))]
    assert plans[0].verify_rows == plans[1].verify_rows
    assert plans[0].predicted_tokens == plans[1].predicted_tokens
    assert planner.counters.unknown_confidences == 0


def test_a_step_after_an_unknown_confidence_is_still_judged() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
    plan = served(planner, 60)[-1]
    assert plan.chain is not None
    told = np.array([[0.9, math.nan], [0.9, 0.8]])
    assert plan.chain.worth_another_step(told, np.arange(2)) in {True, False}
    survival = plan.chain.estimator.next_survival(told, np.arange(2), some_unknown=True)
    assert ((survival > 0) & (survival < 1)).all()
