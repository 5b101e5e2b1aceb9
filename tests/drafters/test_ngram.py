"""Prompt lookup against a search written the slow way."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.drafters.ngram import (
    BASE,
    HALF,
    HIT_RATES,
    MAX_COUNTED,
    OF_MATCH,
    OF_SHARE,
    OF_UNANIMITY,
    NgramDrafter,
    NgramIndex,
)
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


def slow_confidences(tokens: list[int], draft: list[int], length: int) -> list[float]:
    """The documented log-odds, each count a search through the whole text."""
    found = []
    for step, token in enumerate(draft):
        hit = HIT_RATES[min(length + step, MAX_COUNTED) - 1]
        odds = BASE + OF_MATCH * math.log(hit / (1 - hit))
        before = [*tokens, *draft[:step]]
        for n in (1, 2):
            after = [tokens[at + n] for at in range(len(tokens) - n) if tokens[at : at + n] == before[-n:]]
            if after:
                same = after.count(token)
                odds += OF_SHARE * math.log((same + HALF) / (len(after) - same + HALF))
                if n == 2 and same == len(after):
                    odds += OF_UNANIMITY * math.log(same)
        found.append(1 / (1 + math.exp(-odds)))
    return found


def index_of(tokens: list[int]) -> NgramIndex:
    index = NgramIndex(1, 4)
    index.extend(tokens)
    return index


@given(texts, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_a_proposal_is_what_the_slow_search_finds(tokens: list[int], steps: int, low: int, high: int) -> None:
    low, high = min(low, high), max(low, high)
    drafter = NgramDrafter(min_match=low, max_match=high)
    proposals = drafter.propose([FakeRequest(1, tokens)], steps)
    draft, length = brute_force(tokens, steps, low, high)
    assert proposals.tokens[0, : proposals.lengths[0]].tolist() == draft
    if length:
        np.testing.assert_allclose(proposals.confidence[0], slow_confidences(tokens, draft, length), rtol=1e-12)
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
    index = index_of([1, 2, 3, 1, 2])
    sure = [index.confidences([1, 2, 3, 1, 2], [3], length)[0] for length in range(1, 40)]
    assert sure == sorted(sure)
    assert sure[MAX_COUNTED - 1 :] == [sure[-1]] * (40 - MAX_COUNTED)


def test_a_token_is_trusted_by_its_share_of_what_followed_before() -> None:
    always = [7, 8, 9, 0, 7, 8, 9, 1, 7, 8, 9, 2, 7, 8]
    once = [7, 8, 9, 0, 7, 8, 5, 1, 7, 8, 6, 2, 7, 8]
    (sure,), (unsure,) = (index_of(tokens).confidences(tokens, [9], 2) for tokens in (always, once))
    assert sure > HIT_RATES[1] > unsure


def test_confidences_are_probabilities_whatever_is_drafted() -> None:
    tokens = [1] * 60
    assert all(0 < sure < 1 for sure in index_of(tokens).confidences(tokens, [1] * 15, 40))
    assert all(0 < sure < 1 for sure in index_of(tokens).confidences(tokens, [2, 3, 1], 1))


def test_impossible_match_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_match=3 and max_match=2"):
        NgramDrafter(min_match=3, max_match=2)
