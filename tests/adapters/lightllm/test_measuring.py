"""What was measured, made into tables: shared contexts, blocks, and the trip over the ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.lightllm import costs
from lightspec_lightllm.adapters.lightllm.measuring import Grid, Times, fit_shared


@given(
    per_row_ms=st.floats(0, 1e-3),
    per_request_ms=st.floats(0, 1e-3),
    steps=st.integers(1, 15),
    contexts=st.sampled_from(((100, 1000), (512, 4096, 16384))),
)
def test_what_rows_share_is_found_whatever_the_shares(
    per_row_ms: float, per_request_ms: float, steps: int, contexts: tuple[int, ...]
) -> None:
    rows = (1, 16, 64, 256)
    shared_rows = tuple(size for size in rows if size >= 2 * (1 + steps))
    grid = Grid(rows, (), contexts, shared_rows)
    at, size = np.array(contexts)[:, None], np.array(rows)
    target = 7.0 + 0.02 * size + at * size * (per_row_ms + per_request_ms)
    shared = [
        7.0 + 0.02 * n + contexts[-1] * (n * per_row_ms + -(-n // (1 + steps)) * per_request_ms) for n in shared_rows
    ]
    nothing = np.zeros((len(contexts), 0))
    times = Times(target, nothing, np.array(shared), nothing)
    assert fit_shared(grid, times, steps) == pytest.approx(per_request_ms, abs=1e-9)


def test_times_are_the_same_after_a_trip_over_the_ranks() -> None:
    for fill_rows in ((), (1, 2)):
        grid = Grid((1, 2), (1, 2, 4), (10, 20), (2,), fill_rows)
        numbers = np.arange(11 + 2 * len(fill_rows), dtype=np.float64)
        times = Times.unflat(grid, numbers)
        shapes = [part.shape for part in (times.target, times.draft, times.fill, times.shared)]
        assert shapes == [(2, 2), (2, 3), (2, len(fill_rows)), (1,)]
        assert times.flat().tolist() == numbers.tolist()


@given(num_requests=st.integers(1, 16), steps=st.integers(1, 15), skipped=st.integers(0, 1))
def test_a_block_costs_what_the_graph_that_runs_all_its_rows_takes(num_requests: int, steps: int, skipped: int) -> None:
    """A planner counts K rows per request, a block drafter may run 1 + K."""
    sizes, block_rows = tuple(range(3, 260, 4)), steps + skipped
    grid = Grid((1, 512), sizes, (100,), (), (1,), block_rows)
    draft = np.array([[1.0 + 0.01 * size for size in sizes]])
    times = Times(np.array([[5.0, 9.0]]), draft, np.zeros(0), np.array([[0.1]]))
    model = costs.tabulate(grid, times, steps, interpolate=False).model()
    found = model.draft_ms("block", num_requests, num_requests, steps, block=steps, context=100.0)
    replayed = min(size for size in sizes if size >= num_requests * block_rows)
    assert found - float(model.fill_line(num_requests, 100.0)[num_requests]) == pytest.approx(1.0 + 0.01 * replayed)
