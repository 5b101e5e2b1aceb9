"""Attention of decode rows on the CPU: one call per layer however many rows each request brings.

Every row goes through its own context once, in blocks that fit the first-level cache, with a running maximum and sum
(online softmax, Milakov and Gimelshein 2018). A request's rows and the query heads that share a key head follow each
other over a block of keys while it is near; nothing is padded, gathered or reordered. What a row gives depends on its
own queries and context alone, bit for bit, whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from lightspec_lightllm.cpu.compiling import FAST_MATH, checked, part, powers

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
Kernel = Callable[..., None]

_BLOCK = 64
"""Keys at a time: with their values 32 KB at 64 floats each."""

_CONTEXT_ROWS = 2.5
"""Fetching a context from memory takes about as long as so many rows over it."""

_TILE_ROWS = 4
"""Rows of one piece of work where there are too few requests to keep all threads busy with whole ones."""

_BUSY = 4
"""Pieces of work per thread below which they are cut into tiles."""

_MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
_LOG2_E = 1.4426950408889634
_LOWEST = -1e30
_ROOM = 1 << 13  # floats
_SIGNATURE = "void(float32[:, :, :], float32[:, :, ::1], float32[:, :, ::1], int64[:, ::1], int64[::1])"


class RowSchedule:
    """Who computes what in a forward, the same for all its layers.

    Args:
        first_row: int64[N], first row of each request in the batch.
        rows: int64[N], rows of each request: its last positions.
        context: int64[N], positions of each request, its rows included.
        start: int64[N], slot of each request's position 0; the others follow it.
        num_key_heads: key heads.
        num_threads: threads that share the work.

    Attributes:
        items: int64[items, 5], key head, first row, rows, context and start of pieces of work.
        bounds: int64[threads + 1], the pieces of each thread lie between two of them.
    """

    def __init__(
        self,
        first_row: IntArray,
        rows: IntArray,
        context: IntArray,
        start: IntArray,
        *,
        num_key_heads: int,
        num_threads: int,
    ) -> None:
        self.num_threads = min(num_threads, _MOST_THREADS)
        requests = np.stack((first_row, rows, context, start), axis=1)
        if len(requests) * num_key_heads < _BUSY * self.num_threads:
            requests = _tiles(requests)
        items = np.empty((len(requests), num_key_heads, 5), dtype=np.int64)
        items[:, :, 0] = np.arange(num_key_heads)
        items[:, :, 1:] = requests[:, None]
        self.items = items.reshape(-1, 5)
        done = (requests[:, 2] * (requests[:, 1] + _CONTEXT_ROWS)).repeat(num_key_heads).cumsum()
        self.bounds = np.zeros(self.num_threads + 1, dtype=np.int64)
        shares = done[-1] / self.num_threads * np.arange(1, self.num_threads)
        self.bounds[1:-1] = done.searchsorted(shares) + 1
        self.bounds[-1] = len(done)

    def advance(self) -> None:
        """The same rows one position later."""
        self.items[:, 3] += 1


def _tiles(requests: IntArray) -> IntArray:
    """int64[M, 4] pieces of a few rows of int64[N, 4] requests."""
    pieces = [
        (first_row + at, min(_TILE_ROWS, rows - at), context - max(rows - at - _TILE_ROWS, 0), start)
        for first_row, rows, context, start in requests.tolist()
        for at in range(0, rows, _TILE_ROWS)
    ]
    return np.array(pieces, dtype=np.int64)


def attend_rows(queries: FloatArray, keys_values: FloatArray, mixed: FloatArray, schedule: RowSchedule) -> None:
    """Attention of the schedule's rows over one layer.

    Args:
        queries: float32 [rows, heads, dim].
        keys_values: float32 [key heads then value heads, slots, dim].
        mixed: float32 [rows, heads, dim], written where the schedule has rows.
    """
    kernel = row_kernel(queries.shape[2])
    numba.set_num_threads(schedule.num_threads)
    kernel(queries, keys_values, mixed, schedule.items, schedule.bounds)


@cache
def row_kernel(dim: int) -> Kernel:
    """The kernel for heads of ``dim`` floats, which the compiler knows: a tenth faster. Compiled as `checked` says."""
    return checked(
        lambda keep: _compile(dim, keep=keep),
        lambda kernel: _is_right(kernel, dim),
        f"attention with heads of {dim} floats",
    )


def _is_right(kernel: Kernel, dim: int) -> bool:
    """Whether a kernel gives what numpy gives, for three requests of up to three blocks. Takes a millisecond."""
    num_keys, heads = 2, 6
    rows, context, start = (np.array(numbers) for numbers in ((1, 3, 2), (1, 70, 150), (4, 10, 100)))
    schedule = RowSchedule(rows.cumsum() - rows, rows, context, start, num_key_heads=num_keys, num_threads=1)
    shapes = (rows.sum(), heads, dim), (2 * num_keys, 250, dim), (rows.sum(), heads, dim)
    queries, keys_values, found = (_with_room(*shape) for shape in shapes)
    random = np.random.default_rng(0)
    for array in (queries, keys_values):
        array[:] = random.standard_normal(array.shape, np.float32)
    kernel(queries, keys_values, found, schedule.items, schedule.bounds)
    expected = np.empty_like(found)
    for key_head, first_row, count, length, begin in schedule.items:
        own = slice(key_head * heads // num_keys, (key_head + 1) * heads // num_keys)
        for row in range(count):
            seen = slice(begin, begin + length - count + row + 1)
            scores = queries[first_row + row, own] @ keys_values[key_head, seen].T / np.float32(dim**0.5)
            weight = np.exp(scores - scores.max(axis=1, keepdims=True))
            mean = weight @ keys_values[num_keys + key_head, seen] / weight.sum(axis=1, keepdims=True)
            expected[first_row + row, own] = mean
    return np.allclose(found, expected, rtol=1e-4, atol=1e-4)


def _with_room(*shape: int) -> FloatArray:
    """Zeros with more behind them: a kernel for larger heads is found out before it breaks anything."""
    size = math.prod(shape)
    return np.zeros(size + _ROOM, dtype=np.float32)[:size].reshape(shape)


def _compile(dim: int, *, keep: bool) -> Kernel:
    scale = np.float32(_LOG2_E / dim**0.5)

    def attend(queries: Any, keys_values: Any, mixed: Any, items: Any, bounds: Any) -> None:
        num_keys = keys_values.shape[0] // 2
        per_key = queries.shape[1] // num_keys
        for thread in numba.prange(len(bounds) - 1):
            for item in range(bounds[thread], bounds[thread + 1]):
                key_head, first_row, rows, context, start = items[item]
                keys = keys_values[key_head, start : start + context]
                values = keys_values[num_keys + key_head, start : start + context]
                count = rows * per_key
                query = np.empty((count, dim), np.float32)
                total = np.zeros((count, dim), np.float32)
                highest = np.full(count, np.float32(_LOWEST))
                weight_sum = np.zeros(count, np.float32)
                weight = np.empty(_BLOCK, np.float32)
                bits = np.empty(_BLOCK, np.int32)
                for index in range(count):
                    _scale(
                        query[index],
                        queries[first_row + index // per_key, key_head * per_key + index % per_key],
                        scale,
                        dim,
                    )
                for begin in range(0, context, _BLOCK):
                    near_keys, near_values = keys[begin : begin + _BLOCK], values[begin : begin + _BLOCK]
                    for index in range(count):
                        seen = min(len(near_keys), context - rows + index // per_key + 1 - begin)
                        if seen > 0:
                            top = _scores(weight, query[index], near_keys[:seen], highest[index], dim)
                            fade = np.float32(2.0) ** (highest[index] - top)
                            highest[index] = top
                            weight_sum[index] = weight_sum[index] * fade + powers(weight, bits, top, seen)
                            _add(total[index], fade, weight, near_values[:seen], dim)
                for index in range(count):
                    share = np.float32(1.0) / weight_sum[index]
                    _scale(
                        mixed[first_row + index // per_key, key_head * per_key + index % per_key],
                        total[index],
                        share,
                        dim,
                    )

    attend.__qualname__ = f"attend_{dim}"  # by which numba names the files: no size writes those of another
    compiler: Any = numba.njit(_SIGNATURE, parallel=True, fastmath=FAST_MATH, error_model="numpy", cache=keep)
    compiled: Kernel = compiler(attend)
    return compiled


@part
def _scale(into: Any, vector: Any, factor: Any, dim: Any) -> None:
    for at in range(dim):
        into[at] = vector[at] * factor


@part
def _scores(weight: Any, query: Any, keys: Any, top: Any, dim: Any) -> Any:
    """Scores of a query, in bits, into ``weight``; the highest of them and of those before."""
    for key in range(len(keys)):
        score = np.float32(0.0)
        for at in range(dim):
            score += query[at] * keys[key, at]
        weight[key] = score
        top = max(top, score)
    return top


@part
def _add(total: Any, fade: Any, weight: Any, values: Any, dim: Any) -> None:
    """Add weighted values to what is there, faded; four at a time, so that sums are read and written less often."""
    for at in range(dim):
        total[at] *= fade
    fours = len(values) - len(values) % 4
    for key in range(0, fours, 4):
        a, b, c, d = weight[key], weight[key + 1], weight[key + 2], weight[key + 3]
        for at in range(dim):
            first, second = (
                a * values[key, at] + b * values[key + 1, at],
                c * values[key + 2, at] + d * values[key + 3, at],
            )
            total[at] += first + second
    for key in range(fours, len(values)):
        for at in range(dim):
            total[at] += weight[key] * values[key, at]
