"""Entries of a cost table that served rounds contradict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round
from lightspec_lightllm.planner import CostModel, make_planner
from lightspec_lightllm.planner.row_drift import MOST_ROUNDS, MOST_SHARE, RowDrift, _solved

TABLE = {1: 10.0, 2: 11.0, 4: 12.0, 8: 14.0, 16: 18.0, 32: 30.0}
BY_REQUESTS = {1: {1: 10.0, 2: 11.0, 8: 14.0}, 4: {4: 12.0, 8: 15.0, 16: 20.0}, 16: {16: 20.0, 32: 33.0}}


def serve(drift: RowDrift, truth: CostModel, told: CostModel, rows: list[int], *, seed: int = 0) -> CostModel:
    """Rounds of one request whose times are the true ones with 3 % of noise, expected by what was told last."""
    rng = np.random.default_rng(seed)
    for number in rng.choice(rows, size=4 * MOST_ROUNDS).tolist():
        expected = told.target_ms(number, 1, 0.0)
        drift.learn(1, number, truth.target_ms(number, 1, 0.0) * rng.normal(1.0, 0.03) / expected - 1.0)
        told = drift.corrected() or told
    return told


@pytest.mark.parametrize("interpolate", [True, False])
def test_an_entry_that_is_off_is_found_by_the_rounds_that_use_it(interpolate: bool) -> None:
    costs = CostModel.from_tables(TABLE, interpolate=interpolate)
    truth = CostModel.from_tables(TABLE | {4: 12.8, 8: 13.4}, interpolate=interpolate)
    found = serve(RowDrift(costs), truth, costs, [1, 2, 4, 8, 16])
    for rows in (1, 2, 4, 8, 16):
        assert found.target_ms(rows, 1, 0.0) == pytest.approx(truth.target_ms(rows, 1, 0.0), rel=0.012)
    assert found.target_ms(32, 1, 0.0) == costs.target_ms(32, 1, 0.0), "nothing was served there"


@pytest.mark.parametrize("rows", [[5], [6], [5, 6, 7, 8]])
def test_rows_that_are_padded_tell_of_the_size_they_pay_for_alone(rows: list[int]) -> None:
    costs, truth = CostModel.from_tables(TABLE), CostModel.from_tables(TABLE | {8: 14.98})
    found = serve(RowDrift(costs), truth, costs, rows)
    for size, ms in TABLE.items():
        expected = 14.98 if size == 8 else ms
        assert found.target_ms(size, 1, 0.0) == pytest.approx(expected, rel=0.015 if size == 8 else 1e-12)


@given(size=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_what_is_learned_is_solved_as_by_a_dense_inverse(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random((3 * size, size)) * (np.abs(np.subtract.outer(np.arange(3 * size) // 3, np.arange(size))) < 1)
    weights[:, 1:] += weights[:, :-1] * rng.random((3 * size, 1))
    matrix = np.diag(rng.uniform(1.0, 1e4, size)) + 1e3 * weights.T @ weights
    right = rng.standard_normal(size)
    solution, variance = _solved(np.diag(matrix).copy(), np.diag(matrix, 1).copy(), right)
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(solution, inverse @ right, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(variance, np.diag(inverse), rtol=1e-8)


def test_what_all_entries_are_off_by_is_left_to_the_correction_of_whole_rounds() -> None:
    costs = CostModel.from_tables(TABLE, {1: 1.0})
    slow = CostModel.from_tables({rows: 1.4 * ms for rows, ms in TABLE.items()}, {1: 1.4})
    host = SimulatedHost(slow, 2, AcceptanceProfile((0.7, 0.5), noise=1.0), max_draft_steps=5, cost_noise=0.03)
    planner = make_planner("lightspec", costs, max_draft_steps=5)
    loop = Round(host, planner)
    for _ in range(600):
        record = loop.step()
    assert record is not None
    ratios = [planner._served.tables.target_ms(rows, 1, 0.0) / ms for rows, ms in TABLE.items()]  # type: ignore[attr-defined]
    assert ratios == pytest.approx([1.0] * len(TABLE), abs=0.025)
    assert record.plan.predicted_ms == pytest.approx(1.4 * record.plan.table_ms, rel=0.03)


def test_tables_by_requests_are_corrected_apart_and_the_nearest_one_learns() -> None:
    costs = CostModel.from_tables(BY_REQUESTS[1], by_requests=BY_REQUESTS, interpolate=True)
    drift, found = RowDrift(costs), costs
    for _ in range(200):
        drift.learn(12, 16, 1.05 * 20.0 / found.by_requests[16].ms[0, 0] - 1.0)  # nearer to 16 than to 4
        found = drift.corrected() or found
    assert found.by_requests[16].ms[0, 0] == pytest.approx(1.05 * 20.0, rel=0.005)
    for count in (1, 4):
        assert found.by_requests[count].ms.tolist() == costs.by_requests[count].ms.tolist()
    assert found.target_ms(16, 16, 0.0) > costs.target_ms(16, 16, 0.0)
    assert found.target_ms(8, 4, 0.0) == costs.target_ms(8, 4, 0.0)


@given(
    rounds=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 400), st.floats(-1e6, 1e6)), min_size=1, max_size=200),
    by_requests=st.booleans(),
)
def test_corrected_tables_stay_near_the_measured_ones_and_never_fall_with_rows(
    rounds: list[tuple[int, int, float]], by_requests: bool
) -> None:
    tables = {"by_requests": BY_REQUESTS} if by_requests else {}
    costs = CostModel.from_tables(TABLE, interpolate=True, **tables)  # type: ignore[arg-type]
    drift = RowDrift(costs)
    for num_requests, extra, surprise in rounds:
        drift.learn(num_requests, num_requests + extra, surprise)
        found = drift.corrected()
        if found is None:
            continue
        for table, measured in (
            (found.target, costs.target),
            *((found.by_requests[n], costs.by_requests[n]) for n in costs.by_requests),
        ):
            assert (np.diff(table.ms, axis=1) >= 0).all()
            assert (table.ms >= measured.ms * (1 - MOST_SHARE - 1e-9)).all()
            assert (table.ms <= measured.ms * (1 + MOST_SHARE + 1e-9)).all()


def test_corrected_tables_become_rare() -> None:
    drift, made = RowDrift(CostModel.from_tables(TABLE)), []
    for number in range(1, 1000):
        drift.learn(1, 2, 0.01)
        if drift.corrected() is not None:
            made.append(number)
    assert np.diff([0, *made]).tolist() == [8, 16, 32, 64, 128, 256]


def test_an_entry_that_looks_cheaper_than_it_is_is_chosen_less_once_it_was_served() -> None:
    """The table promises rounds of 16 rows at the price of 8: whoever believes it verifies them for ever."""
    true = CostModel.from_tables({4: 10.0, 8: 11.0, 16: 15.0, 32: 24.0, 64: 44.0})
    told = CostModel.from_tables({4: 10.0, 8: 11.0, 16: 13.8, 32: 24.0, 64: 44.0})

    def rows(drift: bool) -> float:
        host = SimulatedHost(
            true, 4, AcceptanceProfile((0.62, 0.55), noise=0.8), max_draft_steps=5, cost_noise=0.03, seed=4
        )
        loop = Round(host, make_planner("lightspec", told, max_draft_steps=5, drafter="free", drift=drift))
        records = [loop.step() for _ in range(1200)]
        return float(np.mean([record.plan.verify_rows > 8 for record in records[600:] if record is not None]))

    assert rows(drift=True) < 0.7 * rows(drift=False)
