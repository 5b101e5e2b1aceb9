"""What a decoder layer does to rows between its matrix products, each in one pass over them.

A handful of rows is little work, and what an array library takes to start an operation, behind a forward that has left
nothing of it in the caches, is more than the operation itself. What a row gives depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from lightspec_lightllm.cpu.compiling import FAST_MATH, checked, part, powers

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

_BLOCK = 256
"""Numbers whose powers are taken at a time."""

_LOG2_E = 1.4426950408889634


class Kernels(NamedTuple):
    """As compiled. They run on one thread: to wake another takes longer than a round's rows do."""

    unit: Callable[..., None]
    pair: Callable[..., None]
    place: Callable[..., None]
    add_norm: Callable[..., None]
    gate: Callable[..., None]
    chance: Callable[..., None]


class RowArithmetic:
    """R rows, of D numbers unless said otherwise; float32 arrays in C order."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def unit(self, rows: FloatArray, width: int, epsilon: float) -> None:
        """Bring every ``width`` numbers of ``rows`` to a root mean square of 1, in place; they must come out even."""
        if rows.shape[1] % width:
            raise ValueError(f"expected rows of a multiple of {width} numbers, got {rows.shape[1]}")
        self._kernels.unit(rows, width, epsilon)

    def pair(  # noqa: PLR0917 - the two halves in their order
        self,
        embedding: FloatArray,
        tokens: IntArray,
        hidden: FloatArray,
        gain: FloatArray,
        hidden_gain: FloatArray,
        epsilon: float,
    ) -> FloatArray:
        """[R, 2 D]: the embedding [V, D] of each row's token and its hidden vector, each normalised, side by side."""
        out = np.empty((len(tokens), 2 * hidden.shape[1]), dtype=np.float32)
        self._kernels.pair(embedding, tokens, hidden, gain, hidden_gain, epsilon, out)
        return out

    def place(  # noqa: PLR0917 - what is turned, by what, and where it goes
        self,
        heads: FloatArray,
        queries: int,
        turns: FloatArray,
        positions: IntArray,
        slots: IntArray,
        cache: FloatArray,
    ) -> None:
        """Turn queries and keys, in place, and store keys and values.

        Args:
            heads: [R, M, E], of each row its queries, G keys and G values.
            queries: how many queries a row has.
            turns: [positions, E / 2, 2], cosine and sine by which pairs of a head, side by side, are turned.
            positions: int64[R].
            slots: int64[R], where in the cache a row's keys and values go, no two the same; of no account without any.
            cache: [2 G, slots, E], keys first.
        """
        self._kernels.place(heads, queries, turns, positions, slots, cache)

    def add_norm(
        self, stream: FloatArray, delta: FloatArray, gain: FloatArray, epsilon: float, out: FloatArray
    ) -> None:
        """Add to the stream, in place; its rows normalised go to ``out``."""
        self._kernels.add_norm(stream, delta, gain, epsilon, out)

    def gate(self, gate_up: FloatArray, out: FloatArray) -> None:
        """silu(gate) * up, of ``[R, 2 F]``, to ``out [R, F]``."""
        self._kernels.gate(gate_up, out)

    def chance(self, logits: FloatArray, best: IntArray, temperature: float) -> FloatArray:
        """[R]: the probability of each row's likeliest, which is number ``best`` int64[R] of its logits [R, V]."""
        out = np.empty(len(logits), dtype=np.float32)
        self._kernels.chance(logits, best, 1.0 / temperature, out)
        return out


@cache
def row_arithmetic() -> RowArithmetic:
    """Kernels that are compiled as `checked` says."""
    return checked(lambda keep: RowArithmetic(_compile(keep)), _is_right, "arithmetic of rows")


def _is_right(arithmetic: RowArithmetic) -> bool:
    """Whether it gives what numpy gives, for a few small rows. Takes a millisecond."""
    random = np.random.default_rng(0)

    def some(*shape: int) -> FloatArray:
        return random.standard_normal(shape, np.float32)

    def unit(rows: FloatArray) -> Any:
        return rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + np.float32(1e-5))

    rows, embedding, gain, other = some(3, 8), some(5, 8), some(8), some(8)
    tokens, positions, slots = np.array([4, 0, 2]), np.array([1, 3, 0]), np.array([5, 0, 2])
    units = rows.copy()
    arithmetic.unit(units, 4, 1e-5)
    pair = arithmetic.pair(embedding, tokens, rows, gain, other, 1e-5)
    expected_pair = np.concatenate((unit(embedding[tokens]) * gain, unit(rows) * other), axis=1)

    heads, stored, turns = some(3, 4, 4), np.zeros((2, 6, 4), np.float32), some(4, 2, 2)
    numbers = (heads[:, :3].reshape(3, 3, 2, 2) @ [1, 1j]) * (turns @ [1, 1j])[positions][:, None]
    turned = np.stack((numbers.real, numbers.imag), axis=-1).reshape(3, 3, 4)
    kept = np.zeros_like(stored)
    kept[:, slots] = np.stack((turned[:, 2], heads[:, 3]))
    arithmetic.place(heads, 2, turns, positions, slots, stored)

    stream, delta, normed = rows.copy(), some(3, 8), np.empty_like(rows)
    arithmetic.add_norm(stream, delta, gain, 1e-5, normed)
    both, gated, logits = 20 * some(3, 600), np.empty((3, 300), np.float32), 4 * some(3, 700)
    arithmetic.gate(both, gated)
    gate = both[:, :300].astype(np.float64)
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / 2)
    pairs = (
        (units, unit(rows.reshape(3, 2, 4)).reshape(3, 8)),
        (pair, expected_pair),
        (heads[:, :2], turned[:, :2]),
        (stored, kept),
        (stream, rows + delta),
        (normed, unit(rows + delta) * gain),
        (gated, gate / (1 + np.exp(-gate)) * both[:, 300:]),
        (arithmetic.chance(logits, logits.argmax(axis=1), 2.0), 1 / weights.sum(axis=1)),
    )
    return all(np.allclose(found, expected, rtol=1e-4, atol=1e-5) for found, expected in pairs)


def _compile(keep: bool) -> Kernels:
    def compiled(types: str, function: Callable[..., None]) -> Any:
        compiler: Any = numba.njit(f"void({types})", fastmath=FAST_MATH, error_model="numpy", cache=keep)
        return compiler(function)

    matrix, vector, numbers, heads = "float32[:, ::1]", "float32[::1]", "int64[::1]", "float32[:, :, ::1]"
    return Kernels(
        unit=compiled(f"{matrix}, int64, float64", _unit),
        pair=compiled(f"{matrix}, {numbers}, {matrix}, {vector}, {vector}, float64, {matrix}", _pair),
        place=compiled(f"{heads}, int64, {heads}, {numbers}, {numbers}, {heads}", _place),
        add_norm=compiled(f"{matrix}, {matrix}, {vector}, float64, {matrix}", _add_norm),
        gate=compiled(f"{matrix}, {matrix}", _gate),
        chance=compiled(f"{matrix}, {numbers}, float64, {vector}", _chance),
    )


@part
def _scale_of(row: Any, epsilon: Any) -> Any:
    """By what a row is multiplied to have a root mean square of 1."""
    total = np.float32(0.0)
    for at in range(len(row)):
        total += row[at] * row[at]
    return np.float32(1.0 / np.sqrt(total / len(row) + epsilon))


def _unit(rows: Any, width: Any, epsilon: Any) -> None:
    for row in range(len(rows)):
        for begin in range(0, rows.shape[1], width):
            own = rows[row, begin : begin + width]
            scale = _scale_of(own, epsilon)
            for at in range(width):
                own[at] *= scale


def _pair(  # noqa: PLR0917
    embedding: Any, tokens: Any, hidden: Any, gain: Any, hidden_gain: Any, epsilon: Any, out: Any
) -> None:
    width = hidden.shape[1]
    for row in range(len(out)):
        first, second = embedding[tokens[row]], hidden[row]
        left, right = out[row, :width], out[row, width:]
        scale, hidden_scale = _scale_of(first, epsilon), _scale_of(second, epsilon)
        for at in range(width):
            left[at] = first[at] * scale * gain[at]
        for at in range(width):
            right[at] = second[at] * hidden_scale * hidden_gain[at]


def _place(  # noqa: PLR0917
    heads: Any, queries: Any, turns: Any, positions: Any, slots: Any, cache: Any
) -> None:
    keys = (heads.shape[1] - queries) // 2
    for row in range(len(heads)):
        turn = turns[positions[row]]
        for head in range(queries + keys):
            own = heads[row, head]
            for at in range(len(turn)):
                a, b = own[2 * at], own[2 * at + 1]
                own[2 * at] = a * turn[at, 0] - b * turn[at, 1]
                own[2 * at + 1] = a * turn[at, 1] + b * turn[at, 0]
        for head in range(2 * keys):
            own, kept = heads[row, queries + head], cache[head, slots[row]]
            for at in range(len(own)):
                kept[at] = own[at]


def _add_norm(stream: Any, delta: Any, gain: Any, epsilon: Any, out: Any) -> None:
    for row in range(len(out)):
        own, more, normed = stream[row], delta[row], out[row]
        for at in range(len(own)):
            own[at] += more[at]
        scale = _scale_of(own, epsilon)
        for at in range(len(own)):
            normed[at] = own[at] * scale * gain[at]


def _gate(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    power, bits = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.int32)
    for row in range(len(out)):
        for begin in range(0, width, _BLOCK):
            end = min(begin + _BLOCK, width)
            gate, up, product = gate_up[row, begin:end], gate_up[row, width + begin : width + end], out[row, begin:end]
            for at in range(len(gate)):
                power[at] = abs(gate[at]) * np.float32(-_LOG2_E)
            powers(power, bits, np.float32(0.0), len(gate))
            for at in range(len(gate)):
                share = np.float32(1.0) if gate[at] >= 0.0 else power[at]  # e^-|x| does not overflow
                product[at] = gate[at] * share / (np.float32(1.0) + power[at]) * up[at]


def _chance(logits: Any, best: Any, inverse: Any, out: Any) -> None:
    width = logits.shape[1]
    scale = np.float32(_LOG2_E * inverse)
    power, bits = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.int32)
    for row in range(len(out)):
        top = logits[row, best[row]] * scale
        total = np.float32(0.0)
        for begin in range(0, width, _BLOCK):
            near = logits[row, begin : min(begin + _BLOCK, width)]
            for at in range(len(near)):
                power[at] = near[at] * scale
            total += powers(power, bits, top, len(near))
        chance = np.float32(1.0) / total
        out[row] = min(chance, np.float32(1.0))  # powers are rounded
