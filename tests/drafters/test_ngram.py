"""Prompt lookup against a search written the slow way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.drafters.ngram import HIT_RATES, NgramDrafter, confidences
from lightspec_lightllm.errors import ConfigError
from tests.drafters.requests import FakeRequest

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def brute_force(tokens: list[int], steps: int, min_match: int, max_match: int) -> tuple[list[int], int]:
    """The longest suffix with an earlier occurrence, its latest such occurrence, and what followed."""
    for n in range(max_match, min_match - 1, -1):
        if n >= len(tokens):
            continue
        suffix = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                longer = list(tokens)
                for _ in range(steps):
                    longer.append(longer[start + n + len(longer) - len(tokens)])
                before, after = tokens[: start + n], tokens
                agree = [m for m in range(n, 33) if m <= len(before) and before[-m:] == after[-m:]]
                return longer[len(tokens) :], max(agree)
    return [], 0


@given(texts, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_a_proposal_is_what_the_slow_search_finds(tokens: list[int], steps: int, low: int, high: int) -> None:
    low, high = min(low, high), max(low, high)
    drafter = NgramDrafter(min_match=low, max_match=high)
    proposals = drafter.propose([FakeRequest(1, tokens)], steps)
    draft, length = brute_force(tokens, steps, low, high)
    assert proposals.tokens[0, : proposals.lengths[0]].tolist() == draft
    if length:
        assert proposals.confidence[0].tolist() == confidences(length, steps)
    else:
        assert proposals.lengths[0] == 0
        assert (proposals.tokens == -1).all()
        assert (proposals.confidence == 0).all()


@given(texts, st.lists(st.integers(1, 5), max_size=20))
def test_an_index_that_grows_with_the_text_finds_the_same_as_a_fresh_one(tokens: list[int], pieces: list[int]) -> None:
    grown = NgramDrafter()
    request = FakeRequest(1, [])
    for piece in pieces:
        request.tokens = tokens[: len(request.tokens) + piece]
        if request.tokens:
            grown.propose([request], 4)
    request.tokens = tokens
    fresh = NgramDrafter().propose([request], 6)
    again = grown.propose([request], 6)
    np.testing.assert_array_equal(again.tokens, fresh.tokens)
    np.testing.assert_array_equal(again.confidence, fresh.confidence)


def test_requests_are_looked_up_in_their_own_text_only() -> None:
    proposals = NgramDrafter().propose([FakeRequest(1, [5, 6, 7, 5]), FakeRequest(2, [8, 9, 5])], 2)
    assert proposals.lengths.tolist() == [2, 0]
    assert proposals.tokens[0].tolist() == [6, 7]


def test_a_loop_is_continued_with_its_own_period() -> None:
    proposals = NgramDrafter().propose([FakeRequest(1, [1, 2, 3, 1, 2, 3, 1])], 8)
    assert proposals.tokens[0].tolist() == [2, 3, 1, 2, 3, 1, 2, 3]


def test_release_forgets_the_request_and_may_be_repeated() -> None:
    drafter = NgramDrafter()
    drafter.propose([FakeRequest(1, [1, 2, 1])], 2)
    drafter.release(1)
    drafter.release(1)
    assert drafter.propose([FakeRequest(1, [3, 4])], 2).lengths.tolist() == [0]


def test_longer_matches_are_never_less_trusted() -> None:
    assert list(HIT_RATES) == sorted(HIT_RATES)
    assert all(0 < rate < 1 for rate in HIT_RATES)
    assert confidences(3, 2) == [HIT_RATES[2], HIT_RATES[3]]
    assert confidences(31, 3) == [HIT_RATES[30], HIT_RATES[31], HIT_RATES[31]]


def test_impossible_match_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_match=3 and max_match=2"):
        NgramDrafter(min_match=3, max_match=2)
