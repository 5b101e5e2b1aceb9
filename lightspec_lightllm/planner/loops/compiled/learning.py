"""What is learned of depths, bins of confidences and requests."""

from __future__ import annotations

import math

import numpy as np
from numba import types

from lightspec_lightllm.planner.confidence import BIN_CENTRES
from lightspec_lightllm.planner.loops.compiled.arithmetic import sigmoid
from lightspec_lightllm.planner.loops.compiled.types import (
    compiled,
    helper,
    ints,
    ints_2d,
    new_ints,
    new_ints_2d,
    new_reals,
    new_reals_2d,
    new_reals_3d,
    real,
    reals,
    reals_2d,
    reals_3d,
    whole,
)
from lightspec_lightllm.planner.loops.plain.learning import HASH
from lightspec_lightllm.planner.scale import (
    LEAST_SPREAD,
    LEVEL_AGAINST,
    LEVEL_STEP,
    LEVELS,
    MOST_LOG_ODDS,
    NEUTRAL_LEVEL,
    SCALE_PRIOR,
    SHIFT_PRIOR,
    SPREAD_MEMORY,
    STALE,
)


@compiled(types.none, ints, ints, reals, new_reals_2d)
def _depth_scores(trials, accepted, neutral, scores):
    tried, right = np.zeros(len(neutral) + 1, dtype=np.int64), np.zeros(len(neutral) + 1, dtype=np.int64)
    for i in range(len(trials)):
        tried[trials[i]] += 1
        right[accepted[i] - 1] += 1
    num_tried = num_right = 0
    for j in range(len(neutral) - 1, -1, -1):
        num_tried += tried[j + 1]
        num_right += right[j + 1]
        scores[0, j] = num_right - num_tried * neutral[j]
        scores[1, j] = num_tried * (neutral[j] * max(1.0 - neutral[j], LEAST_SPREAD))


def depth_scores(trials, accepted, neutral):
    scores = np.empty((2, len(neutral)))
    _depth_scores(trials, accepted, neutral, scores)
    return scores


@compiled(types.none, ints, ints, ints, reals_2d, reals_3d, new_reals_2d, new_reals_2d)
def _level_scores(trials, accepted, levels, acceptance, expected, by_depth, by_request):
    most = acceptance.shape[1]
    tried, right = np.zeros((LEVELS, most + 1), dtype=np.int64), np.zeros(most + 1, dtype=np.int64)
    for i in range(len(trials)):
        tried[levels[i], trials[i]] += 1
        right[accepted[i] - 1] += 1
        by_request[0, i] = accepted[i] - 1 - expected[0, levels[i], trials[i]]
        by_request[1, i] = expected[1, levels[i], trials[i]]
    for level in range(LEVELS):
        num_tried = 0
        for j in range(most - 1, -1, -1):
            num_tried += tried[level, j + 1]
            likely = acceptance[level, j]
            by_depth[0, j] += num_tried * likely
            by_depth[1, j] += num_tried * (likely * max(1.0 - likely, LEAST_SPREAD))
    num_right = 0
    for j in range(most - 1, -1, -1):
        num_right += right[j + 1]
        by_depth[0, j] = num_right - by_depth[0, j]


def level_scores(trials, accepted, levels, acceptance, expected):
    by_depth, by_request = np.zeros((2, acceptance.shape[1])), np.empty((2, len(trials)))
    _level_scores(trials, accepted, levels, acceptance, expected, by_depth, by_request)
    return by_depth, by_request


@compiled(types.none, *(reals, new_reals_2d, new_reals_2d, new_reals_3d, new_reals, new_ints_2d))
def level_table(log_odds, acceptance, survival, expected, value, place):
    most = len(log_odds)
    against = np.empty(most)
    for j in range(most):
        against[j] = math.exp(-log_odds[j])
    expected[:, :, 0] = 0.0
    for level in range(LEVELS):
        surviving = 1.0
        for j in range(most):
            likely = 1.0 / (1.0 + LEVEL_AGAINST[level] * against[j])
            surviving *= likely
            acceptance[level, j], survival[level, j] = likely, surviving
            expected[0, level, j + 1] = expected[0, level, j] + likely
            expected[1, level, j + 1] = expected[1, level, j] + likely * max(1.0 - likely, LEAST_SPREAD)
    reached = np.zeros(LEVELS, dtype=np.int64)
    for k in range(len(value)):  # survivals of a level are in order: the highest of their heads is next
        best = -1
        for level in range(LEVELS):
            if reached[level] < most and (best < 0 or survival[level, reached[level]] > survival[best, reached[best]]):
                best = level
        value[k] = survival[best, reached[best]]
        reached[best] += 1
        place[0, k], place[1, k] = best, reached[best]


@compiled(types.none, *(ints, ints, reals, ints_2d, new_reals_2d))
def level_curve(counts, levels, value, place, curve):
    most = len(value) // LEVELS
    reach = np.zeros((LEVELS, most + 1), dtype=np.int64)
    for i in range(len(counts)):
        reach[levels[i], counts[i]] += 1
    for level in range(LEVELS):
        for j in range(most - 1, -1, -1):
            reach[level, j] += reach[level, j + 1]
    curve[:, 0] = 0.0
    for k in range(len(value)):
        count = reach[place[0, k], place[1, k]]
        curve[0, k + 1] = curve[0, k] + count
        curve[1, k + 1] = curve[1, k] + count * value[k]


@compiled(types.none, reals, new_reals_2d)
def _acceptances(log_odds, found):
    surviving = 1.0
    for j in range(len(log_odds)):
        found[0, j] = sigmoid(log_odds[j])
        surviving *= found[0, j]
        found[1, j] = surviving


def acceptances(log_odds):
    found = np.empty((2, len(log_odds)))
    _acceptances(log_odds, found)
    return found


@helper
def _blend(value, info, read, residual, information):
    for k in range(len(value)):
        info[k] += information[k]
        value[k] += (information[k] * (read[k] - value[k]) + residual[k]) / (info[k] + 1e-9)
        value[k] = min(max(value[k], -MOST_LOG_ODDS), MOST_LOG_ODDS)


@helper
def _mean_rise(after, before, information):
    rise = total = 0.0
    for k in range(len(after)):
        rise += (after[k] - before[k]) * information[k]
        total += information[k]
    return rise / (total + 1e-9)


@compiled(real, *(new_reals, new_reals, reals, reals, reals, real, real, real, new_reals))
def _learn_depths(value, info, before, residual, information, memory, prior, strength, read):
    for k in range(len(value)):
        info[k] *= math.exp((information[k] + 0.125 * information[0]) / -memory)
    _blend(value, info, before, residual, information)
    for k in range(len(value)):
        prior = (info[k] * value[k] + strength * prior) / (info[k] + strength)
        read[k] = prior
    return _mean_rise(read, before, information)


def learn_depths(value, info, before, residual, information, memory, prior, strength):
    read = np.empty(len(value))
    rise = _learn_depths(value, info, before, residual, information, memory, prior, strength, read)
    return read, rise


@compiled(types.none, reals, reals, real, new_reals)
def _read_bins(value, info, strength, read):
    seen = first = second = total = cross = 0.0
    for k in range(len(value)):
        centre, weighted = BIN_CENTRES[k], info[k] * value[k]
        seen += info[k]
        first += centre * info[k]
        second += centre * centre * info[k]
        total += weighted
        cross += centre * weighted
    shift_info, scale_info = seen + SHIFT_PRIOR, second + SCALE_PRIOR
    determinant = shift_info * scale_info - first * first
    scale = (shift_info * (cross + SCALE_PRIOR) - first * total) / determinant
    scale = min(max(scale, 0.0), 2.0)
    shift = (total - scale * first) / shift_info
    for k in range(len(value)):
        believed = strength * min(max(shift + scale * BIN_CENTRES[k], -2.5), 2.5)
        read[k] = (info[k] * value[k] + believed) / (info[k] + strength)


def read_bins(value, info, strength):
    read = np.empty(len(value))
    _read_bins(value, info, strength, read)
    return read


@compiled(real, *(new_reals, new_reals, reals, reals, reals, real, real, new_reals))
def _learn_bins(value, info, before, residual, information, memory, strength, read):
    total = 0.0
    for k in range(len(value)):
        total += information[k]
    stale = STALE * total / len(value)
    for k in range(len(value)):
        info[k] *= math.exp(max(information[k], stale) / -memory)
    _blend(value, info, before, residual, information)
    _read_bins(value, info, strength, read)
    return _mean_rise(read, before, information)


def learn_bins(value, info, before, residual, information, memory, strength):
    read = np.empty(len(value))
    rise = _learn_bins(value, info, before, residual, information, memory, strength, read)
    return read, rise


@helper
def _hashed(ids, bits):
    entries = np.empty(len(ids), dtype=np.int64)
    for i in range(len(ids)):
        entries[i] = np.int64((np.uint64(ids[i]) * HASH) >> np.uint64(64 - bits))
    return entries


@compiled(types.none, *(ints, new_ints, new_reals, new_reals, new_ints, whole, new_ints))
def _find_entries(ids, owner, offset, info, level, bits, entries):
    entries[:] = _hashed(ids, bits)
    new = np.empty(len(ids), dtype=np.bool_)
    for i in range(len(ids)):
        new[i] = owner[entries[i]] != ids[i]
    for i in range(len(ids)):
        if new[i]:
            owner[entries[i]] = ids[i]
            offset[entries[i]] = info[entries[i]] = 0.0
            level[entries[i]] = NEUTRAL_LEVEL


def find_entries(ids, owner, offset, info, level, bits):
    entries = np.empty(len(ids), dtype=np.int64)
    _find_entries(ids, owner, offset, info, level, bits, entries)
    return entries


@helper
def _by_entry(ids, residual, information, owner, position):
    bits = 0
    while 1 << bits < len(owner):
        bits += 1
    entries = _hashed(ids, bits)
    for i in range(len(ids)):
        if owner[entries[i]] == ids[i]:
            position[entries[i]] = i
    size = 0
    for i in range(len(ids)):  # where an entry stands for the last time is its place
        if owner[entries[i]] == ids[i] and position[entries[i]] == i:
            size += 1
    found, scores, place = np.empty(size, dtype=np.int64), np.zeros((2, size)), 0
    for i in range(len(ids)):
        if owner[entries[i]] == ids[i] and position[entries[i]] == i:
            found[place] = entries[i]
            place += 1
    for place in range(size):
        position[found[place]] = place
    for i in range(len(ids)):
        if owner[entries[i]] == ids[i]:
            scores[0, position[entries[i]]] += residual[i]
            scores[1, position[entries[i]]] += information[i]
    return found, scores


@compiled(
    types.UniTuple(real, 3),
    *(ints, reals, reals, real, real, ints, new_ints, new_reals, new_reals, new_ints),
    types.UniTuple(real, 3),
)
def learn_offsets(ids, residual, information, rise, memory, owner, position, offset, info, level, spread):
    entries, scores = _by_entry(ids, residual, information, owner, position)
    size = len(entries)
    if not size:
        return spread
    excess, weight, prior = spread
    stale = 0.0
    for k in range(size):
        stale += scores[1, k]
    stale = STALE * stale / size
    summed_info = weighted = 0.0
    for k in range(size):
        entry, told = entries[k], scores[1, k]
        old, value = info[entry], offset[entry]
        read = old * value / (old + prior)
        total = old * math.exp(max(told, stale) / -memory) + told
        value += (told * (read - value) + (scores[0, k] - told * rise)) / (total + 1e-9)
        value = min(max(value, -MOST_LOG_ODDS), MOST_LOG_ODDS)
        info[entry], offset[entry] = total, value
        summed_info += total
        weighted += value * total
    if size > 1:
        summed_info += 1e-9
        mean, differing = weighted / summed_info, 0.0
        for k in range(size):
            deviation = offset[entries[k]] - mean
            differing += deviation * deviation * info[entries[k]]
        count = size - 1.0
        share = SPREAD_MEMORY / (SPREAD_MEMORY + count)
        excess = share * excess + (1.0 - share) * (differing - count)
        weight = share * weight + (1.0 - share) * summed_info
        prior = 1.0 / min(max(excess / weight, 0.01), 2.0)
    for k in range(size):
        total, value = info[entries[k]], offset[entries[k]]
        read = np.rint(total * value / (total + prior) / LEVEL_STEP) + NEUTRAL_LEVEL
        level[entries[k]] = np.int64(min(max(read, 0.0), LEVELS - 1.0))
    return excess, weight, prior
