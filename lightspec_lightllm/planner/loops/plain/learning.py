"""What is learned of depths, bins of confidences and requests."""

from __future__ import annotations

from typing import cast

import numpy as np

from lightspec_lightllm.planner.confidence import BIN_CENTRES, NUM_BINS
from lightspec_lightllm.planner.loops.plain.arithmetic import curve_of, exponential, in_order, sigmoid, sums
from lightspec_lightllm.planner.scale import (
    LEVEL_AGAINST,
    LEVEL_STEP,
    LEVELS,
    MOST_LOG_ODDS,
    NEUTRAL_LEVEL,
    SCALE_PRIOR,
    SHIFT_PRIOR,
    SPREAD_MEMORY,
    STALE,
    information_of,
)
from lightspec_lightllm.planner.types import FloatArray, IntArray

HASH = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: its multiples are spread evenly (Knuth, TAOCP 3, 6.4)."""

_POWERS = np.stack((np.ones(NUM_BINS), BIN_CENTRES, BIN_CENTRES * BIN_CENTRES))


def depth_scores(trials: IntArray, accepted: IntArray, neutral: FloatArray) -> FloatArray:
    most = len(neutral)
    tried, right = _num_at_least(trials, most), _num_at_least(accepted, most + 1)[1:]
    return np.stack((right - tried * neutral, tried * information_of(neutral)))


def level_scores(
    trials: IntArray, accepted: IntArray, levels: IntArray, acceptance: FloatArray, expected: FloatArray
) -> tuple[FloatArray, FloatArray]:
    width = expected.shape[2]
    cell = levels * width + trials
    tally = np.bincount(cell, minlength=LEVELS * width).reshape(LEVELS, width)
    tried = np.add.accumulate(tally[:, :0:-1], axis=1)[:, ::-1]
    right = _num_at_least(accepted, width)[1:]
    told = np.add.accumulate(np.stack((tried * acceptance, tried * information_of(acceptance))), axis=1)[:, -1]
    by_depth = right - told[0], told[1]
    by_request = accepted - 1 - expected[0].ravel().take(cell), expected[1].ravel().take(cell)
    return np.stack(by_depth), np.stack(by_request)


def _num_at_least(counts: IntArray, most: int) -> IntArray:
    """int[most]: how many of ``counts`` in 0..most are at least 1, 2, .. most."""
    return np.add.accumulate(np.bincount(counts, minlength=most + 1)[:0:-1])[::-1]


def level_table(
    log_odds: FloatArray,
    acceptance: FloatArray,
    survival: FloatArray,
    expected: FloatArray,
    value: FloatArray,
    place: IntArray,
) -> None:
    num_depths = len(log_odds)
    acceptance[:] = 1.0 / (1.0 + LEVEL_AGAINST[:, None] * exponential(-log_odds))
    np.multiply.accumulate(acceptance, axis=1, out=survival)
    expected[:, :, 0] = 0.0
    np.add.accumulate(acceptance, axis=1, out=expected[0, :, 1:])
    np.add.accumulate(information_of(acceptance), axis=1, out=expected[1, :, 1:])
    order = np.argsort(-survival, axis=None, kind="stable")
    value[:] = survival.ravel()[order]
    np.divmod(order, num_depths, out=(place[0], place[1]))
    place[1] += 1


def level_curve(counts: IntArray, levels: IntArray, value: FloatArray, place: IntArray, curve: FloatArray) -> None:
    width = len(value) // LEVELS + 1
    tally = np.bincount(levels * width + counts, minlength=LEVELS * width).reshape(LEVELS, width)
    reach = np.add.accumulate(tally[:, ::-1], axis=1)[:, ::-1]
    curve[:] = curve_of(reach[place[0], place[1]], value)


def acceptances(log_odds: FloatArray) -> FloatArray:
    likely = sigmoid(log_odds)
    return np.stack((likely, np.multiply.accumulate(likely)))


def learn_depths(
    value: FloatArray,
    info: FloatArray,
    before: FloatArray,
    residual: FloatArray,
    information: FloatArray,
    memory: float,
    prior: float,
    strength: float,
) -> tuple[FloatArray, float]:
    # A depth that is not tried while shallower ones are grows stale, eight times as slowly as one that is.
    info *= exponential((information + 0.125 * information[0]) / -memory)
    _blend(value, info, before, residual, information)
    read = read_depths(value, info, prior, strength)
    return read, _mean_rise(read, before, information)


def read_depths(value: FloatArray, info: FloatArray, prior: float, strength: float) -> FloatArray:
    read = []
    for known, much in zip(value.tolist(), info.tolist(), strict=True):
        prior = (much * known + strength * prior) / (much + strength)
        read.append(prior)
    return np.array(read)


def learn_bins(
    value: FloatArray,
    info: FloatArray,
    before: FloatArray,
    residual: FloatArray,
    information: FloatArray,
    memory: float,
    strength: float,
) -> tuple[FloatArray, float]:
    stale = STALE * in_order(information) / len(value)
    info *= exponential(np.maximum(information, stale) / -memory)
    _blend(value, info, before, residual, information)
    read = read_bins(value, info, strength)
    return read, _mean_rise(read, before, information)


def read_bins(value: FloatArray, info: FloatArray, strength: float) -> FloatArray:
    seen, first, second = (in_order(power * info) for power in _POWERS)
    total, cross = (in_order(power * (info * value)) for power in _POWERS[:2])
    shift_info, scale_info = seen + SHIFT_PRIOR, second + SCALE_PRIOR
    determinant = shift_info * scale_info - first * first
    scale = (shift_info * (cross + SCALE_PRIOR) - first * total) / determinant
    scale = min(max(scale, 0.0), 2.0)
    shift = (total - scale * first) / shift_info
    believed = strength * np.minimum(np.maximum(shift + scale * BIN_CENTRES, -2.5), 2.5)
    return (info * value + believed) / (info + strength)


def _blend(
    value: FloatArray, info: FloatArray, read: FloatArray, residual: FloatArray, information: FloatArray
) -> None:
    """Take a round's working observations into terms, in place (the update in `acceptance`)."""
    info += information
    value += (information * (read - value) + residual) / (info + 1e-9)
    np.minimum(np.maximum(value, -MOST_LOG_ODDS, out=value), MOST_LOG_ODDS, out=value)


def _mean_rise(after: FloatArray, before: FloatArray, information: FloatArray) -> float:
    return in_order((after - before) * information) / (in_order(information) + 1e-9)


def hashed(ids: IntArray, bits: int) -> IntArray:
    """int[N], entries of ids in a table of ``2 ** bits``."""
    return cast(IntArray, ((ids.view(np.uint64) * HASH) >> np.uint64(64 - bits)).view(np.int64))


def find_entries(
    ids: IntArray, owner: IntArray, offset: FloatArray, info: FloatArray, level: IntArray, bits: int
) -> IntArray:
    entries = hashed(ids, bits)
    new = (owner.take(entries) != ids).nonzero()[0]
    if len(new):
        cleared = entries[new]
        owner[cleared] = ids[new]
        offset[cleared] = 0.0
        info[cleared] = 0.0
        level[cleared] = NEUTRAL_LEVEL
    return entries


def learn_offsets(
    ids: IntArray,
    residual: FloatArray,
    information: FloatArray,
    rise: float,
    memory: float,
    owner: IntArray,
    position: IntArray,
    offset: FloatArray,
    info: FloatArray,
    level: IntArray,
    spread: tuple[float, float, float],
) -> tuple[float, float, float]:
    entries, residual, information = _by_entry(ids, residual, information, owner, position)
    if not len(entries):
        return spread
    excess, weight, prior = spread
    old, value = info[entries], offset[entries]
    read = old * value / (old + prior)
    stale = STALE * in_order(information) / len(entries)
    total = old * exponential(np.maximum(information, stale) / -memory) + information
    value += (information * (read - value) + (residual - information * rise)) / (total + 1e-9)
    np.minimum(np.maximum(value, -MOST_LOG_ODDS, out=value), MOST_LOG_ODDS, out=value)
    if len(entries) > 1:
        # How much the requests of a batch differ. What they have in common says nothing of it.
        summed_info = in_order(total) + 1e-9
        deviation = value - in_order(value * total) / summed_info
        count = len(entries) - 1.0
        share = SPREAD_MEMORY / (SPREAD_MEMORY + count)
        excess = share * excess + (1.0 - share) * (in_order((deviation * deviation) * total) - count)
        weight = share * weight + (1.0 - share) * summed_info
        prior = 1.0 / min(max(excess / weight, 0.01), 2.0)
    read = np.rint(total * value / (total + prior) / LEVEL_STEP) + NEUTRAL_LEVEL
    info[entries] = total
    offset[entries] = value
    level[entries] = np.minimum(np.maximum(read, 0, out=read), LEVELS - 1, out=read)
    return excess, weight, prior


def _by_entry(
    ids: IntArray, residual: FloatArray, information: FloatArray, owner: IntArray, position: IntArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Entries without repetition, with the residual and the information of each: scores added up. Requests that lost
    their entry to another since are left out."""
    entries = hashed(ids, len(owner).bit_length() - 1)
    held = owner.take(entries) == ids
    if not held.all():
        entries, residual, information = entries[held], residual[held], information[held]
    positions = np.arange(len(entries))
    position[entries] = positions
    last = position.take(entries)  # where the same entry stands for the last time
    kept = (last == positions).nonzero()[0]
    if len(kept) == len(entries):
        return entries, residual, information
    residual, information = sums(last, residual, len(entries)), sums(last, information, len(entries))
    return entries.take(kept), residual.take(kept), information.take(kept)
