"""Arithmetic of rows against numpy in double precision, and what one row has to do with another: nothing."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.cpu.compiling import checked
from lightspec_lightllm.cpu.rows import row_arithmetic
from lightspec_lightllm.errors import ModelError

FloatArray = npt.NDArray[np.float32]

EPSILON = 1e-5
SIZES = {"rows": st.integers(1, 40), "pairs": st.sampled_from([1, 2, 8, 32]), "seed": st.integers(0, 10**6)}


def draws(seed: int) -> Callable[..., FloatArray]:
    random = np.random.default_rng(seed)
    return lambda *shape, scale=1.0: (scale * random.standard_normal(shape)).astype(np.float32)


def normed(rows: FloatArray) -> npt.NDArray[np.float64]:
    exact = rows.astype(np.float64)
    found: npt.NDArray[np.float64] = exact / np.sqrt((exact**2).mean(axis=-1, keepdims=True) + EPSILON)
    return found


def close(found: FloatArray, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SIZES, streams=st.integers(1, 4))
def test_every_stream_of_a_row_is_brought_to_unit_scale(rows: int, pairs: int, seed: int, streams: int) -> None:
    given_rows = draws(seed)(rows, streams * 2 * pairs, scale=100.0)
    found = given_rows.copy()
    row_arithmetic().unit(found, 2 * pairs, EPSILON)
    close(found, normed(given_rows.reshape(rows, streams, -1)).reshape(rows, -1))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SIZES)
def test_an_embedding_and_a_hidden_vector_are_normalised_side_by_side(rows: int, pairs: int, seed: int) -> None:
    some, width = draws(seed), 2 * pairs
    embedding, hidden, gain, other = some(7, width), some(rows, width), some(width), some(width)
    tokens = np.random.default_rng(seed).integers(0, 7, rows)
    found = row_arithmetic().pair(embedding, tokens, hidden, gain, other, EPSILON)
    close(found, np.concatenate((normed(embedding[tokens]) * gain, normed(hidden) * other), axis=1))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SIZES, queries=st.integers(0, 6), keys=st.integers(0, 3))
def test_queries_and_keys_are_turned_and_keys_and_values_stored(
    rows: int, pairs: int, seed: int, queries: int, keys: int
) -> None:
    some, random = draws(seed), np.random.default_rng(seed)
    heads, angles = some(rows, queries + 2 * keys, 2 * pairs), some(9, pairs)
    turns = np.stack((np.cos(angles), np.sin(angles)), axis=-1)
    positions, slots = random.integers(0, 9, rows), random.permutation(50)[:rows]
    cache = some(2 * keys, 50, 2 * pairs)
    turned, expected = heads.astype(np.float64), cache.astype(np.float64)
    numbers = turned[:, : queries + keys].view(np.complex128)
    numbers *= np.exp(1j * angles.astype(np.float64))[positions][:, None]
    expected[:, slots] = turned[:, queries:].transpose(1, 0, 2)
    row_arithmetic().place(heads, queries, turns, positions, slots, cache)
    close(heads[:, :queries], turned[:, :queries])
    close(cache, expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SIZES)
def test_a_delta_is_added_to_the_stream_before_it_is_normalised(rows: int, pairs: int, seed: int) -> None:
    some, width = draws(seed), 2 * pairs
    stream, delta, gain = some(rows, width), some(rows, width), some(width)
    found, out = stream.copy(), np.empty_like(stream)
    row_arithmetic().add_norm(found, delta, gain, EPSILON, out)
    np.testing.assert_array_equal(found, stream + delta)
    close(out, normed(stream + delta) * gain)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=st.integers(1, 9), width=st.integers(1, 700), seed=st.integers(0, 10**6))
def test_a_gate_is_silu_times_up_however_large_or_small_it_is(rows: int, width: int, seed: int) -> None:
    both = draws(seed)(rows, 2 * width, scale=60.0)
    both[0, 0], both[-1, width - 1] = 3e4, -3e4
    out = np.empty((rows, width), dtype=np.float32)
    row_arithmetic().gate(both, out)
    gate = both[:, :width].astype(np.float64)
    close(out, gate * np.exp(-np.logaddexp(0, -gate)) * both[:, width:])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 700),
    temperature=st.floats(0.2, 5.0),
    seed=st.integers(0, 10**6),
)
def test_the_chance_of_the_likeliest_is_its_softmax(rows: int, width: int, temperature: float, seed: int) -> None:
    logits = draws(seed)(rows, width, scale=20.0)
    logits[0] = 0.0
    weights = np.exp((logits.astype(np.float64) - logits.max(axis=1, keepdims=True)) / temperature)
    close(row_arithmetic().chance(logits, logits.argmax(axis=1), temperature), 1.0 / weights.sum(axis=1))


def outcomes(rows: FloatArray, slots: npt.NDArray[np.int64]) -> list[FloatArray]:
    """Everything that the arithmetic makes of ``rows [R, 8]``."""
    some, arithmetic, count = draws(1), row_arithmetic(), len(rows)
    units, stream, out = rows.copy(), rows.copy(), np.empty_like(rows)
    gated, heads, cache = np.empty((count, 4), np.float32), rows.reshape(count, 4, 2).copy(), some(2, 64, 2)
    gain, turns, embedding, delta = some(8), some(9, 1, 2), some(7, 8), np.repeat(some(1, 8), count, axis=0)
    arithmetic.unit(units, 4, EPSILON)
    arithmetic.add_norm(stream, delta, gain, EPSILON, out)
    arithmetic.gate(rows, gated)
    arithmetic.place(heads, 2, turns, slots % 9, slots, cache)
    pair = arithmetic.pair(embedding, slots % 7, rows, gain, gain, EPSILON)
    chance = arithmetic.chance(rows, rows.argmax(axis=1), 1.0)
    return [units, stream, out, gated, heads, cache[:, slots].transpose(1, 0, 2), pair, chance]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows=st.integers(2, 40), seed=st.integers(0, 10**6))
def test_a_row_gives_the_same_bits_whatever_others_are_with_it(rows: int, seed: int) -> None:
    given_rows, slots = draws(seed)(rows, 8, scale=5.0), np.random.default_rng(seed).permutation(64)[:rows]
    together = outcomes(given_rows, slots)
    for row in range(rows):
        alone = outcomes(given_rows[row : row + 1], slots[row : row + 1])
        for whole, single in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole[row], single[0])


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_row_that_is_no_number_shows_it_and_others_do_not(number: float) -> None:
    rows, slots = draws(3)(3, 8), np.arange(3)
    before = outcomes(rows, slots)
    rows[1, [0, 4]] = number  # of the streams, the gates, the queries and the keys
    for whole, good in zip(outcomes(rows, slots)[:-1], before[:-1], strict=True):
        assert not np.isfinite(whole[1]).all()
        np.testing.assert_array_equal(whole[[0, 2]], good[[0, 2]])


def test_what_is_kept_but_wrong_is_compiled_for_this_process_alone() -> None:
    assert checked(lambda keep: "kept" if keep else "fresh", lambda found: found == "fresh", "a kernel") == "fresh"


def test_what_is_wrong_however_it_is_compiled_is_refused() -> None:
    with pytest.raises(ModelError, match="a kernel computes wrong numbers on this machine; install another version"):
        checked(lambda keep: keep, lambda _: False, "a kernel")


def test_a_chance_is_never_above_one() -> None:
    logits = np.zeros((1, 300), dtype=np.float32)
    logits[0, 7] = 200.0
    assert row_arithmetic().chance(logits, np.array([7]), 1.0)[0] == 1.0


def test_rows_that_do_not_divide_into_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="expected rows of a multiple of 24 numbers, got 77"):
        row_arithmetic().unit(np.ones((3, 77), dtype=np.float32), 24, EPSILON)
