"""Expected tokens by verified rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.planner.gain import NO_GAIN, GainCurve, SurvivalHistory, SurvivalMass
from lightspec_lightllm.planner.loops.plain.reading import curve_of_cells
from lightspec_lightllm.planner.survival import BIT_STEPS, LAST_CELL, NO_DRAFT, CellArray
from lightspec_lightllm.planner.types import FloatArray, IntArray
from tests.planner.worlds import survival_of, survivals


def cells_of(survival: FloatArray) -> CellArray:
    """int16[K, N] cells of float[N, K] survivals."""
    cells = np.rint(-np.log2(np.maximum(survival, 1e-9)) * BIT_STEPS).astype(np.int16)
    return np.asarray(np.minimum(cells, LAST_CELL).T)


@settings(max_examples=100, deadline=None)
@given(batch=survivals())
def test_the_gain_of_a_budget_is_the_sum_of_the_likeliest_drafts(batch: tuple[FloatArray, IntArray]) -> None:
    survival, proposed = batch
    curve = SurvivalMass.of_drafts(survival, proposed).curve()
    waiting = sorted((s for line, p in zip(survival.tolist(), proposed, strict=True) for s in line[:p]), reverse=True)
    sums = np.concatenate(([0.0], np.cumsum(waiting)))
    rows = np.arange(len(sums))
    np.testing.assert_allclose(curve.at(rows), sums, atol=1e-12)
    np.testing.assert_allclose([curve.gain_of(int(r)) for r in rows], sums, atol=1e-12)
    assert curve.gain_of(len(sums) + 5) == pytest.approx(sums[-1])


@settings(max_examples=100, deadline=None)
@given(batch=survivals())
def test_gain_is_concave_and_never_falls(batch: tuple[FloatArray, IntArray]) -> None:
    curve = SurvivalMass.of_drafts(*batch).curve()
    gain = curve.at(np.arange(batch[0].size + 2))
    assert gain[0] == 0.0
    slope = np.diff(gain)
    assert (slope >= -1e-12).all()
    assert (slope <= 1.0 + 1e-12).all()
    assert (np.diff(slope) <= 1e-12).all()


@settings(max_examples=100, deadline=None)
@given(batch=survivals(), share=st.floats(0.0, 1.0))
def test_the_rows_selected_bring_the_gain_that_was_planned(batch: tuple[FloatArray, IntArray], share: float) -> None:
    survival, proposed = batch
    extra = int(share * proposed.sum())
    verified = select_rows(proposed, len(proposed) + extra, survival)
    brought = sum(survival[i, : verified[i]].sum() for i in range(len(proposed)))
    assert SurvivalMass.of_drafts(survival, proposed).curve().gain_of(extra) == pytest.approx(brought, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(batch=survivals())
def test_a_mass_is_sorted_and_counts_every_waiting_draft_once(batch: tuple[FloatArray, IntArray]) -> None:
    survival, proposed = batch
    mass = SurvivalMass.of_drafts(survival, proposed)
    assert mass.count.sum() == proposed.sum()
    assert (np.diff(mass.value) <= 0).all()
    for depth in range(1, survival.shape[1] + 1):
        assert mass.count[mass.depth == depth].sum() == (proposed >= depth).sum()


def test_entries_that_count_nothing_are_dropped_and_equal_ones_go_shallow_first() -> None:
    mass = SurvivalMass.of(np.array([0.5, 0.9, 0.5]), np.array([2, 1, 1]), np.array([1.0, 0.0, 2.0]))
    assert mass.value.tolist() == [0.5, 0.5]
    assert mass.depth.tolist() == [1, 2]
    assert mass.count.tolist() == [2.0, 1.0]


def test_a_batch_without_drafts_gains_nothing() -> None:
    assert NO_GAIN.gain_of(5) == 0.0
    assert GainCurve.of(np.zeros(0), np.zeros(0)).gain_of(3) == 0.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    batches=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    num_requests=st.integers(1, 40),
)
def test_the_history_stands_for_one_batch_whose_requests_all_propose_everything(
    seed: int, batches: list[int], num_requests: int
) -> None:
    rng = np.random.default_rng(seed)
    history = SurvivalHistory()
    for size in batches:
        history.push(cells_of(survival_of(rng.uniform(0.0, 1.0, (size, 4)))), np.full(size, 4), size)
    mass = history.mass(num_requests)
    assert len(history) > 0
    for depth in range(1, 5):
        assert mass.count[mass.depth == depth].sum() == pytest.approx(num_requests)
    assert (np.diff(mass.value) <= 0).all()
    assert ((mass.value >= 0) & (mass.value <= 1)).all()


def test_the_history_keeps_the_mean_of_what_was_pushed_last() -> None:
    rng = np.random.default_rng(3)
    history = SurvivalHistory()
    for _ in range(50):
        history.push(cells_of(survival_of(rng.uniform(0.0, 0.2, (16, 2)))), np.full(16, 2), 16)
    late = survival_of(rng.uniform(0.6, 1.0, (1024, 2)))
    for chunk in late.reshape(64, 16, 2):
        history.push(cells_of(chunk), np.full(16, 2), 16)
    mass = history.mass(1)
    for depth in (1, 2):
        at = mass.depth == depth
        assert (mass.count[at] @ mass.value[at]) == pytest.approx(late[:, depth - 1].mean(), abs=0.05)


def test_of_a_single_request_only_its_own_last_rounds_count() -> None:
    history = SurvivalHistory()
    for survival in (0.1, 0.9):
        for _ in range(SurvivalHistory.ROUNDS):
            history.push(cells_of(np.full((1, 2), survival)), np.full(1, 2), 1)
    mass = history.mass(1)
    assert (mass.count @ mass.value) / 2 == pytest.approx(0.9, abs=0.03)


def test_the_order_of_the_requests_in_a_round_does_not_change_the_history() -> None:
    rng = np.random.default_rng(4)
    rounds = [survival_of(rng.uniform(0.0, 1.0, (60, 3))) for _ in range(7)]
    masses = []
    for mixed in (False, True):
        history = SurvivalHistory()
        for survival in rounds:
            history.push(cells_of(survival[rng.permutation(60)] if mixed else survival), np.full(60, 3), 60)
        masses.append(history.mass(60))
    np.testing.assert_allclose(masses[0].value, masses[1].value, atol=1e-12)
    np.testing.assert_allclose(masses[0].count, masses[1].count, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(batch=survivals(max_requests=40))
def test_the_gain_by_cells_is_that_of_the_single_drafts_to_two_percent(batch: tuple[FloatArray, IntArray]) -> None:
    survival, proposed = batch
    there = np.arange(survival.shape[1]) < proposed[:, None]
    exact = GainCurve.of_survivals(survival[there])
    curve = GainCurve(*curve_of_cells(np.where(there.T, cells_of(survival), NO_DRAFT)))
    rows = np.arange(int(proposed.sum()) + 3)
    np.testing.assert_allclose(curve.at(rows), exact.at(rows), rtol=0.025, atol=1e-4)
