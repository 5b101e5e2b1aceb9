"""Rows by budget against a search written the slow way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.decode import accept_lengths, select_rows
from lightspec_lightllm.errors import PlanError

counts = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@st.composite
def selections(draw: st.DrawFn) -> tuple[np.ndarray, int, np.ndarray]:
    proposed = np.array(draw(counts), dtype=np.int64)
    budget = len(proposed) + draw(st.integers(0, int(proposed.sum())))
    values = draw(st.lists(st.integers(0, 6), min_size=5 * len(proposed), max_size=5 * len(proposed)))
    return proposed, budget, np.array(values, dtype=np.float64).reshape(len(proposed), 5) / 6


@given(selections())
def test_the_likeliest_drafts_get_the_rows(case: tuple[np.ndarray, int, np.ndarray]) -> None:
    proposed, budget, survival = case
    verified = select_rows(proposed, budget, survival)
    falling = np.minimum.accumulate(survival, axis=1)
    waiting = [(-falling[i, j], j, i) for i in range(len(proposed)) for j in range(proposed[i])]
    taken = sorted(waiting)[: budget - len(proposed)]
    expected = [sum(request == i for _, _, request in taken) for i in range(len(proposed))]
    assert verified.tolist() == expected
    # What is kept of a request is a prefix: its taken depths are 0, 1, ..
    for i in range(len(proposed)):
        assert sorted(depth for _, depth, request in taken if request == i) == list(range(expected[i]))


@given(selections())
def test_without_a_ranking_rows_go_breadth_first(case: tuple[np.ndarray, int, np.ndarray]) -> None:
    proposed, budget, _ = case
    flat = np.zeros((len(proposed), 5))
    assert select_rows(proposed, budget).tolist() == select_rows(proposed, budget, flat).tolist()


@pytest.mark.parametrize("budget", [1, 6])
def test_a_budget_outside_the_batch_is_refused(budget: int) -> None:
    with pytest.raises(PlanError, match=rf"expected 2\.\.5 rows, got {budget}"):
        select_rows(np.array([1, 2]), budget)


def test_the_callers_counts_are_not_handed_back() -> None:
    proposed = np.array([1, 2])
    select_rows(proposed, 5)[0] = 9
    assert proposed.tolist() == [1, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_accept_lengths_are_the_longest_agreeing_prefix(verified: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafts = rng.integers(0, 2, (len(verified), 4))
    sampled = rng.integers(0, 2, (len(verified), 5))
    expected = []
    for i, rows in enumerate(verified):
        length = 0
        while length < rows and drafts[i, length] == sampled[i, length]:
            length += 1
        expected.append(1 + length)
    assert accept_lengths(drafts, sampled, np.array(verified)).tolist() == expected
