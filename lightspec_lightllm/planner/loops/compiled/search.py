"""Gain curves, and the best of what they allow."""

from __future__ import annotations

import numpy as np
from numba import types

from lightspec_lightllm.planner.loops.compiled.types import (
    cells_2d,
    compiled,
    helper,
    ints,
    new_ints,
    new_reals,
    new_reals_2d,
    real,
    reals,
    whole,
)
from lightspec_lightllm.planner.loops.plain.search import MASS_BINS, MASS_SHARED
from lightspec_lightllm.planner.survival import LAST_CELL, SURVIVAL


@helper
def _between(rows, gain, at, extra):
    """Height at ``extra``, which is not below ``rows[at]`` and below the next: numpy's own formula."""
    if at == len(rows) - 1 or rows[at] == extra:
        return gain[at]
    slope = (gain[at + 1] - gain[at]) / (rows[at + 1] - rows[at])
    return slope * (extra - rows[at]) + gain[at]


@compiled(types.none, *(ints, reals, new_reals_2d))
def _waiting_curve(tally, value, curve):
    most = len(value)
    at_least = 0
    for depth in range(most, 0, -1):
        at_least += tally[depth]
        curve[0, depth] = at_least
    for depth in range(1, most + 1):
        drafts = curve[0, depth]
        curve[0, depth] = curve[0, depth - 1] + drafts
        curve[1, depth] = curve[1, depth - 1] + drafts * value[depth - 1]


def waiting_curve(tally, value):
    curve = np.zeros((2, len(value) + 1))
    _waiting_curve(tally, value, curve)
    return curve


@compiled(real, reals, reals, real)
def gain_at(rows, gain, extra):
    low, high = 0, len(rows)  # the last of those that are not above it
    while high - low > 1:
        middle = (low + high) // 2
        if rows[middle] <= extra:
            low = middle
        else:
            high = middle
    return _between(rows, gain, low, extra)


@compiled(real, *(reals, reals, reals, reals, real, real, real))
def best_extra(rows, gain, extra, ms, most, most_ms, price):
    best, most_value = most, gain_at(rows, gain, most) - price * most_ms
    best_value = -np.inf
    at = 0
    for k in range(len(extra)):
        if extra[k] > most:
            break
        while at < len(rows) - 1 and rows[at + 1] <= extra[k]:
            at += 1
        value = _between(rows, gain, at, extra[k]) - price * ms[k]
        if value > best_value:
            best, best_value = extra[k], value
    return most if most_value > best_value else best


@compiled(whole, *(cells_2d, whole, new_reals, new_ints, new_reals))
def _expected_drafts(cells, num_requests, value, depth, count):
    most, size = cells.shape
    number, total = np.zeros((most, MASS_BINS), dtype=np.int64), np.zeros((most, MASS_BINS))
    for j in range(most):
        for i in range(size):
            of_bin = min(cells[j, i] >> MASS_SHARED, MASS_BINS - 1)
            number[j, of_bin] += 1
            total[j, of_bin] += SURVIVAL[min(np.int64(cells[j, i]), LAST_CELL)]
    share = num_requests / size
    end = 0
    for of_bin in range(MASS_BINS):  # survivals fall from bin to bin; within one, depths are sorted by insertion
        start = end
        for j in range(most):
            if number[j, of_bin] == 0:
                continue
            mean, at = total[j, of_bin] / number[j, of_bin], end
            while at > start and value[at - 1] < mean:
                value[at], depth[at], count[at] = value[at - 1], depth[at - 1], count[at - 1]
                at -= 1
            value[at], depth[at], count[at] = mean, j + 1, number[j, of_bin] * share
            end += 1
    return end


def expected_drafts(cells, num_requests):
    most = len(cells) * MASS_BINS
    value, depth, count = np.empty(most), np.empty(most, dtype=np.int64), np.empty(most)
    held = _expected_drafts(cells, num_requests, value, depth, count)
    return value[:held], depth[:held], count[:held]


@compiled(types.none, *(reals, reals, reals, reals, ints, real, new_reals))
def _ladder_values(value, count, extra, ms, ends, price, best):
    rows, gain = np.empty(len(value) + 1), np.empty(len(value) + 1)
    rows[0] = gain[0] = 0.0
    for k in range(len(value)):
        rows[k + 1] = rows[k] + count[k]
        gain[k + 1] = gain[k] + count[k] * value[k]
    most, at, k = -np.inf, 0, 0
    for d in range(len(ends)):
        while k <= ends[d]:
            wanted = min(extra[k], rows[-1])
            while at < len(value) and rows[at + 1] <= wanted:
                at += 1
            most = max(most, _between(rows, gain, at, wanted) - price * ms[k])
            k += 1
        best[d] = most


def ladder_values(value, count, extra, ms, ends, price):
    best = np.empty(len(ends))
    _ladder_values(value, count, extra, ms, ends, price, best)
    return best


@compiled(types.none, *(reals, ints, reals, ints, reals, reals, real, new_reals))
def _best_values(value, depth, count, steps, extra, ms, price, best):
    knots, heights = np.empty(len(value) + 1), np.empty(len(value) + 1)
    most = 0.0
    for k in range(len(value)):
        if depth[k] <= steps[-1]:
            most += count[k]
    for d in range(len(steps)):
        shift = d * (most + extra[-1] + 2.0)
        row = height = 0.0
        knots[0], heights[0] = shift, 0.0
        for k in range(len(value)):
            if depth[k] <= steps[d]:
                row += count[k]
                height += count[k] * value[k]
            knots[k + 1], heights[k + 1] = row + shift, height
        best[d] = -np.inf
        at = 0
        for k in range(len(extra)):
            wanted = min(extra[k], row) + shift
            while at < len(value) and knots[at + 1] <= wanted:
                at += 1
            best[d] = max(best[d], _between(knots, heights, at, wanted) - price * ms[k])


def best_values(value, depth, count, steps, extra, ms, price):
    best = np.empty(len(steps))
    _best_values(value, depth, count, steps, extra, ms, price, best)
    return best


@compiled(types.none, *(reals, whole, reals, real, real, real, real, new_reals))
def _net_values(best, num_requests, chained, step_price, off_price, start_price, more, net):
    net[0] = num_requests - off_price - step_price * chained[0]
    for d in range(1, len(best)):
        net[d] = num_requests + (best[d] - start_price) - step_price * chained[d] + more


def net_values(best, num_requests, chained, step_price, off_price, start_price, more):
    net = np.empty(len(best))
    _net_values(best, num_requests, chained, step_price, off_price, start_price, more, net)
    return net
