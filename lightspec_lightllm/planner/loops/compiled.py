"""The inner loops compiled by numba: what `plain` says, in one pass each (shapes and meaning: `interface`).

Compiled for fixed types when this module is imported, and kept on disk; nothing is compiled while serving. No fast
arithmetic: every sum and product is rounded as numpy rounds it. `check` compares the two whenever they are loaded.
"""

from __future__ import annotations

import math

import numpy as np
from numba import config, njit, types

from lightspec_lightllm.planner.confidence import BIN_CENTRES, BIN_OF_CODE, NUM_CODES
from lightspec_lightllm.planner.loops.plain import HASH, MASS_BINS, MASS_SHARED, ONE_BITS
from lightspec_lightllm.planner.scale import (
    LEAST_SPREAD,
    LEVEL_OFFSETS,
    LEVEL_STEP,
    LEVELS,
    MOST_LOG_ODDS,
    NEUTRAL_LEVEL,
    SCALE_PRIOR,
    SHIFT_PRIOR,
    SPREAD_MEMORY,
    STALE,
)
from lightspec_lightllm.planner.survival import (
    BITS,
    CURVE_CELLS,
    CURVE_SHARED,
    CURVE_VALUE,
    LAST_CELL,
    MOST_ODDS,
    NO_DRAFT,
    ODDS_STEPS,
    SURVIVAL,
)

if vars(config)["DISABLE_JIT"]:
    raise ImportError("numba is told not to compile (NUMBA_DISABLE_JIT)")

_whole, _real, _truth = types.int64, types.float64, types.boolean


def _array(kind, dimensions):
    """Any array of a kind that is read: of whatever strides, and maybe not to be written."""
    return types.Array(kind, dimensions, "A", readonly=True)


_ints, _ints_2d = _array(_whole, 1), _array(_whole, 2)
_reals, _reals_2d, _reals_3d = _array(_real, 1), _array(_real, 2), _array(_real, 3)
_cells, _cells_2d = _array(types.int16, 1), _array(types.int16, 2)
_table = types.Array(_real, 2, "C", readonly=True)

# What is written or returned.
_new_ints, _new_ints_2d = types.Array(_whole, 1, "C"), types.Array(_whole, 2, "C")
_new_reals, _new_reals_2d = types.Array(_real, 1, "C"), types.Array(_real, 2, "C")
_new_reals_3d = types.Array(_real, 3, "C")
_new_cells, _new_cells_2d = types.Array(types.int16, 1, "C"), types.Array(types.int16, 2, "C")


def _compiled(result, *arguments):
    """Compile for these types, now."""
    return njit(result(*arguments), cache=True)


# --- what hosts say ---------------------------------------------------------------------------------------------------


@_compiled(_truth, _table)
def are_probabilities(values):
    largest = np.uint64(0)
    for row in values.view(np.uint64):
        for bits in row:
            largest = max(largest, bits)
    return largest <= np.uint64(ONE_BITS)


@_compiled(_whole, _ints, _new_ints)
def proposal_counts(proposed, tally):
    tally[:] = 0
    total = 0
    for count in proposed:
        if not 0 <= count < len(tally):
            return -1
        tally[count] += 1
        total += count
    return total


@_compiled(types.Tuple((_truth, _whole, _whole)), _ints, _ints, _ints, _whole, _new_ints)
def round_counts(verified, accepted, proposed, most, trials):
    num_trials = num_accepted = 0
    possible = True
    for i in range(len(verified)):
        trials[i] = min(verified[i], accepted[i])
        num_trials += trials[i]
        num_accepted += accepted[i]
        possible &= 1 <= accepted[i] <= 1 + verified[i] and verified[i] <= proposed[i] and verified[i] <= most
    return possible, num_trials, num_accepted


# --- confidences ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _bits(odds):
    """What an acceptance of whole log-odds takes off a survival."""
    return np.int64(BITS[min(max(odds, 0), len(BITS) - 1)])


@_compiled(_new_cells_2d, _ints_2d, _ints, _cells, _cells, _cells)
def cells(codes, levels, terms, depths, offsets):
    found = np.empty(codes.shape, dtype=np.int16)
    for i in range(codes.shape[1]):
        cell = 0
        offset = np.int64(offsets[levels[i]]) if len(levels) else 0
        for j in range(len(codes)):
            cell += _bits(terms[codes[j, i]] + depths[j] + offset)
            found[j, i] = cell
    return found


@_compiled(
    types.none,
    *(_table, _whole, _ints, _ints, _cells, _cells, _cells, _truth),
    *(_new_ints_2d, _new_reals_2d, _new_reals_2d),
)
def read_drafts(
    confidence,
    num_depths,
    proposed,
    levels,
    terms,
    depths,
    offsets,
    some_unknown,
    codes,
    survival,
    curve,
):
    num_requests = len(confidence)
    cells = np.zeros(num_requests, dtype=np.int64)
    offset = np.zeros(num_requests, dtype=np.int64)
    count = np.zeros(CURVE_CELLS + 1, dtype=np.int64)
    if len(levels):
        for i in range(num_requests):
            offset[i] = offsets[levels[i]]
    # Depth by depth and step by step: short loops that the compiler turns into vectors.
    for j in range(num_depths):
        for i in range(num_requests):
            scaled = confidence[i, j] * (NUM_CODES - 1)
            codes[j, i] = NUM_CODES + j if some_unknown and math.isnan(scaled) else np.int64(scaled)
        depth = np.int64(depths[j])
        for i in range(num_requests):
            cells[i] += _bits(terms[codes[j, i]] + depth + offset[i])
        if len(proposed):
            for i in range(num_requests):
                if j >= proposed[i]:
                    cells[i] = NO_DRAFT
        for i in range(num_requests):
            survival[j, i] = SURVIVAL[min(cells[i], LAST_CELL)]
        for i in range(num_requests):
            count[min(cells[i] >> CURVE_SHARED, CURVE_CELLS)] += 1
    survival[num_depths:] = 0.0
    curve[:, 0] = 0.0
    for k in range(CURVE_CELLS):
        curve[0, k + 1] = curve[0, k] + count[k]
        curve[1, k + 1] = curve[1, k] + count[k] * CURVE_VALUE[k]


@_compiled(types.none, _new_ints_2d, _ints_2d, _ints, _whole)
def lay_codes(codes, known, proposed, start):
    for j in range(len(codes)):
        for i in range(len(proposed)):
            codes[j, start + i] = known[j, i] if j < len(known) and j < proposed[i] else NUM_CODES + j


@njit(cache=True)
def _sigmoid(log_odds):
    return 1.0 / (1.0 + math.exp(-log_odds))


@_compiled(
    types.Tuple((_whole, _real)),
    *(_ints, _ints, _ints_2d, _ints, _reals, _reals, _reals, _reals),
    *(_new_reals_2d, _new_reals_2d, _new_reals_2d),
)
def score_trials(trials, accepted, codes, levels, terms, depths, offsets, neutral, by_bin, by_depth, by_request):
    num_known, likelier = 0, 0.0
    for i in range(len(trials)):
        for j in range(trials[i]):
            code = codes[j, i]
            if code >= NUM_CODES:
                continue
            num_known += 1
            odds = terms[code] + depths[j]
            told = expected = _sigmoid(odds)
            if len(levels):
                expected = _sigmoid(odds + offsets[levels[i]])
            wrong = 1 if trials[i] == accepted[i] and j == trials[i] - 1 else 0
            residual, information = (1 - wrong) - expected, expected * max(1.0 - expected, LEAST_SPREAD)
            of_bin = BIN_OF_CODE[code]
            by_bin[0, of_bin] += residual
            by_bin[1, of_bin] += information
            by_depth[0, j] += residual
            by_depth[1, j] += information
            by_request[0, i] += residual
            by_request[1, i] += information
            likelier += math.log(abs(wrong - told) / abs(wrong - neutral[j]))
    return num_known, likelier


@_compiled(types.none, *(_reals, _reals, _reals, _new_reals, _new_cells))
def whole_terms(bins, depths, plain, terms, rounded):
    for code in range(NUM_CODES):
        terms[code] = bins[BIN_OF_CODE[code]]
    for j in range(len(depths)):
        terms[NUM_CODES + j] = plain[j] - depths[j]
        rounded[len(terms) + j] = np.int16(np.rint((depths[j] + MOST_ODDS) * ODDS_STEPS))
    for code in range(len(terms)):
        rounded[code] = np.int16(np.rint(terms[code] * ODDS_STEPS))


# --- what is learned --------------------------------------------------------------------------------------------------


@_compiled(_new_reals_2d, _ints, _ints, _reals)
def depth_scores(trials, accepted, neutral):
    tried, right = np.zeros(len(neutral) + 1, dtype=np.int64), np.zeros(len(neutral) + 1, dtype=np.int64)
    for i in range(len(trials)):
        tried[trials[i]] += 1
        right[accepted[i] - 1] += 1
    scores = np.empty((2, len(neutral)))
    num_tried = num_right = 0
    for j in range(len(neutral) - 1, -1, -1):
        num_tried += tried[j + 1]
        num_right += right[j + 1]
        scores[0, j] = num_right - num_tried * neutral[j]
        scores[1, j] = num_tried * (neutral[j] * max(1.0 - neutral[j], LEAST_SPREAD))
    return scores


@_compiled(types.Tuple((_new_reals_2d, _new_reals_2d)), _ints, _ints, _ints, _reals_2d, _reals_3d)
def level_scores(trials, accepted, levels, acceptance, expected):
    most = acceptance.shape[1]
    tried, right = np.zeros((LEVELS, most + 1), dtype=np.int64), np.zeros(most + 1, dtype=np.int64)
    by_depth, by_request = np.zeros((2, most)), np.empty((2, len(trials)))
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
    return by_depth, by_request


@_compiled(types.none, *(_reals, _new_reals_2d, _new_reals_2d, _new_reals_3d, _new_reals, _new_ints_2d))
def level_table(log_odds, acceptance, survival, expected, value, place):
    most = len(log_odds)
    expected[:, :, 0] = 0.0
    for level in range(LEVELS):
        surviving = 1.0
        for j in range(most):
            likely = _sigmoid(LEVEL_OFFSETS[level] + log_odds[j])
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


@_compiled(types.none, *(_ints, _ints, _reals, _ints_2d, _new_reals_2d))
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


@_compiled(_new_reals_2d, _reals)
def acceptances(log_odds):
    found = np.empty((2, len(log_odds)))
    surviving = 1.0
    for j in range(len(log_odds)):
        found[0, j] = _sigmoid(log_odds[j])
        surviving *= found[0, j]
        found[1, j] = surviving
    return found


@njit(cache=True)
def _blend(value, info, read, residual, information):
    for k in range(len(value)):
        info[k] += information[k]
        value[k] += (information[k] * (read[k] - value[k]) + residual[k]) / (info[k] + 1e-9)
        value[k] = min(max(value[k], -MOST_LOG_ODDS), MOST_LOG_ODDS)


@njit(cache=True)
def _mean_rise(after, before, information):
    rise = total = 0.0
    for k in range(len(after)):
        rise += (after[k] - before[k]) * information[k]
        total += information[k]
    return rise / (total + 1e-9)


@_compiled(types.Tuple((_new_reals, _real)), *(_new_reals, _new_reals, _reals, _reals, _reals, _real, _real, _real))
def learn_depths(value, info, before, residual, information, memory, prior, strength):
    for k in range(len(value)):
        info[k] *= math.exp((information[k] + 0.125 * information[0]) / -memory)
    _blend(value, info, before, residual, information)
    read = np.empty(len(value))
    for k in range(len(value)):
        prior = (info[k] * value[k] + strength * prior) / (info[k] + strength)
        read[k] = prior
    return read, _mean_rise(read, before, information)


@_compiled(_new_reals, _reals, _reals, _real)
def read_bins(value, info, strength):
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
    read = np.empty(len(value))
    for k in range(len(value)):
        believed = strength * min(max(shift + scale * BIN_CENTRES[k], -2.5), 2.5)
        read[k] = (info[k] * value[k] + believed) / (info[k] + strength)
    return read


@_compiled(types.Tuple((_new_reals, _real)), *(_new_reals, _new_reals, _reals, _reals, _reals, _real, _real))
def learn_bins(value, info, before, residual, information, memory, strength):
    total = 0.0
    for k in range(len(value)):
        total += information[k]
    stale = STALE * total / len(value)
    for k in range(len(value)):
        info[k] *= math.exp(max(information[k], stale) / -memory)
    _blend(value, info, before, residual, information)
    read = read_bins(value, info, strength)
    return read, _mean_rise(read, before, information)


# --- requests ---------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _hashed(ids, bits):
    entries = np.empty(len(ids), dtype=np.int64)
    for i in range(len(ids)):
        entries[i] = np.int64((np.uint64(ids[i]) * HASH) >> np.uint64(64 - bits))
    return entries


@_compiled(_new_ints, *(_ints, _new_ints, _new_reals, _new_reals, _new_ints, _whole))
def find_entries(ids, owner, offset, info, level, bits):
    entries = _hashed(ids, bits)
    new = np.empty(len(ids), dtype=np.bool_)
    for i in range(len(ids)):
        new[i] = owner[entries[i]] != ids[i]
    for i in range(len(ids)):
        if new[i]:
            owner[entries[i]] = ids[i]
            offset[entries[i]] = info[entries[i]] = 0.0
            level[entries[i]] = NEUTRAL_LEVEL
    return entries


@njit(cache=True)
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


@_compiled(
    types.UniTuple(_real, 3),
    *(_ints, _reals, _reals, _real, _real, _ints, _new_ints, _new_reals, _new_reals, _new_ints),
    types.UniTuple(_real, 3),
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


# --- the two stages ---------------------------------------------------------------------------------------------------


@njit(cache=True)
def _between(rows, gain, at, extra):
    """Height at ``extra``, which is not below ``rows[at]`` and below the next: numpy's own formula."""
    if at == len(rows) - 1 or rows[at] == extra:
        return gain[at]
    slope = (gain[at + 1] - gain[at]) / (rows[at + 1] - rows[at])
    return slope * (extra - rows[at]) + gain[at]


@_compiled(_real, _reals, _reals, _real)
def gain_at(rows, gain, extra):
    low, high = 0, len(rows)  # the last of those that are not above it
    while high - low > 1:
        middle = (low + high) // 2
        if rows[middle] <= extra:
            low = middle
        else:
            high = middle
    return _between(rows, gain, low, extra)


@_compiled(_real, *(_reals, _reals, _reals, _reals, _real, _real, _real))
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


@_compiled(types.Tuple((_new_reals, _new_ints, _new_reals)), _cells_2d, _whole)
def expected_drafts(cells, num_requests):
    most, size = cells.shape
    number, total = np.zeros((most, MASS_BINS), dtype=np.int64), np.zeros((most, MASS_BINS))
    held = 0
    for j in range(most):
        for i in range(size):
            of_bin = min(cells[j, i] >> MASS_SHARED, MASS_BINS - 1)
            held += number[j, of_bin] == 0
            number[j, of_bin] += 1
            total[j, of_bin] += SURVIVAL[min(np.int64(cells[j, i]), LAST_CELL)]
    value, depth, count = np.empty(held), np.empty(held, dtype=np.int64), np.empty(held)
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
    return value, depth, count


@_compiled(_new_reals, *(_reals, _reals, _reals, _reals, _ints, _real))
def ladder_values(value, count, extra, ms, ends, price):
    rows, gain = np.empty(len(value) + 1), np.empty(len(value) + 1)
    rows[0] = gain[0] = 0.0
    for k in range(len(value)):
        rows[k + 1] = rows[k] + count[k]
        gain[k + 1] = gain[k] + count[k] * value[k]
    best = np.empty(len(ends))
    most, at, k = -np.inf, 0, 0
    for d in range(len(ends)):
        while k <= ends[d]:
            wanted = min(extra[k], rows[-1])
            while at < len(value) and rows[at + 1] <= wanted:
                at += 1
            most = max(most, _between(rows, gain, at, wanted) - price * ms[k])
            k += 1
        best[d] = most
    return best


@_compiled(_new_reals, *(_reals, _ints, _reals, _ints, _reals, _reals, _real))
def best_values(value, depth, count, steps, extra, ms, price):
    knots, heights = np.empty(len(value) + 1), np.empty(len(value) + 1)
    best = np.empty(len(steps))
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
    return best
