"""Gain curves, and the best of what they allow."""

from __future__ import annotations

from typing import cast

import numpy as np

from lightspec_lightllm.planner.loops.plain.arithmetic import curve_of
from lightspec_lightllm.planner.survival import BIT_STEPS, CellArray, survival_of
from lightspec_lightllm.planner.types import FloatArray, IntArray

MASS_BINS = 11
"""Bins of survivals of future drafts, half a bit each; the last takes all that is less likely."""

MASS_SHARED = (BIT_STEPS // 2).bit_length() - 1


def waiting_curve(tally: IntArray, value: FloatArray) -> FloatArray:
    return curve_of(np.add.accumulate(tally[:0:-1])[::-1], value)


def gain_at(rows: FloatArray, gain: FloatArray, extra: float) -> float:
    return float(np.interp(extra, rows, gain))


def best_extra(
    rows: FloatArray,
    gain: FloatArray,
    extra: FloatArray,
    ms: FloatArray,
    most: float,
    most_ms: float,
    price: float,
) -> float:
    end = int(extra.searchsorted(most, "right"))
    value = np.interp(extra[:end], rows, gain) - price * ms[:end]
    best = int(value.argmax())
    everything = float(np.interp(most, rows, gain)) - price * most_ms
    return most if everything > value[best] else float(extra[best])


def expected_drafts(cells: CellArray, num_requests: int) -> tuple[FloatArray, IntArray, FloatArray]:
    size = len(cells) * MASS_BINS
    bins = np.minimum(cells >> MASS_SHARED, MASS_BINS - 1)
    bins += np.arange(len(cells), dtype=np.int16)[:, None] * np.int16(MASS_BINS)
    count = np.bincount(bins.ravel(), minlength=size)
    total = np.bincount(bins.ravel(), weights=survival_of(cells).ravel(), minlength=size)
    held = count.nonzero()[0]
    number = count[held].astype(np.float64)
    value, depth = total[held] / number, held // MASS_BINS + 1
    order = np.lexsort((depth, -value))
    return value[order], depth[order], number[order] * (num_requests / cells.shape[1])


def ladder_values(
    value: FloatArray, count: FloatArray, extra: FloatArray, ms: FloatArray, ends: IntArray, price: float
) -> FloatArray:
    gain = np.interp(extra, *curve_of(count, value))
    return cast(FloatArray, np.maximum.accumulate(gain - price * ms).take(ends))


def best_values(
    value: FloatArray,
    depth: IntArray,
    count: FloatArray,
    steps: IntArray,
    extra: FloatArray,
    ms: FloatArray,
    price: float,
) -> FloatArray:
    """All lengths at once: a gain curve per length, laid end to end so that one interpolation reads them all."""
    counted = count * (depth <= steps[:, None])
    knots = np.zeros((len(steps), len(value) + 1))
    heights = np.zeros_like(knots)
    np.add.accumulate(counted, axis=1, out=knots[:, 1:])
    np.add.accumulate(counted * value, axis=1, out=heights[:, 1:])
    shift = np.arange(len(steps))[:, None] * (knots[-1, -1] + extra[-1] + 2.0)
    # A budget beyond what the steps can fill pays for rows that do not exist, which never wins.
    at = np.minimum(extra, knots[:, -1:]) + shift
    gain = np.interp(at.ravel(), (knots + shift).ravel(), heights.ravel()).reshape(at.shape)
    return cast(FloatArray, (gain - price * ms).max(axis=1))


def net_values(
    best: FloatArray,
    num_requests: int,
    chained: FloatArray,
    step_price: float,
    off_price: float,
    start_price: float,
    more: float,
) -> FloatArray:
    value = best - start_price
    value[0] = -off_price
    value = num_requests + value - step_price * chained
    value[1:] += more
    return value
