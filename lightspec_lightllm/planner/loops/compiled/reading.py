"""What hosts say, and confidences."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from lightspec_lightllm.planner.confidence import BIN_OF_CODE, NUM_CODES
from lightspec_lightllm.planner.loops.compiled.arithmetic import sigmoid
from lightspec_lightllm.planner.loops.compiled.types import (
    cells_1d,
    compiled,
    ints,
    ints_2d,
    new_cells,
    new_cells_2d,
    new_ints,
    new_ints_2d,
    new_reals,
    new_reals_2d,
    real,
    reals,
    table,
    truth,
    whole,
)
from lightspec_lightllm.planner.loops.plain.reading import ONE_BITS
from lightspec_lightllm.planner.scale import (
    LEAST_SPREAD,
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


@compiled(truth, table)
def are_probabilities(values):
    largest = np.uint64(0)
    for row in values.view(np.uint64):
        for bits in row:
            largest = max(largest, bits)
    return largest <= np.uint64(ONE_BITS)


@compiled(whole, ints, new_ints)
def proposal_counts(proposed, tally):
    tally[:] = 0
    total = 0
    for count in proposed:
        if not 0 <= count < len(tally):
            return -1
        tally[count] += 1
        total += count
    return total


@compiled(types.Tuple((truth, whole, whole)), ints, ints, ints, whole, new_ints)
def round_counts(verified, accepted, proposed, most, trials):
    num_trials = num_accepted = 0
    possible = True
    for i in range(len(verified)):
        trials[i] = min(verified[i], accepted[i])
        num_trials += trials[i]
        num_accepted += accepted[i]
        possible &= 1 <= accepted[i] <= 1 + verified[i] and verified[i] <= proposed[i] and verified[i] <= most
    return possible, num_trials, num_accepted


@njit(cache=True)
def _bits(odds):
    """What an acceptance of whole log-odds takes off a survival."""
    return np.int64(BITS[min(max(odds, 0), len(BITS) - 1)])


@compiled(new_cells_2d, ints_2d, ints, cells_1d, cells_1d, cells_1d)
def cells(codes, levels, terms, depths, offsets):
    found = np.empty(codes.shape, dtype=np.int16)
    for i in range(codes.shape[1]):
        cell = 0
        offset = np.int64(offsets[levels[i]]) if len(levels) else 0
        for j in range(len(codes)):
            cell += _bits(terms[codes[j, i]] + depths[j] + offset)
            found[j, i] = cell
    return found


@compiled(
    types.none,
    *(table, whole, ints, ints, cells_1d, cells_1d, cells_1d, truth),
    *(new_ints_2d, new_reals_2d, new_reals_2d),
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


@compiled(types.none, new_ints_2d, ints_2d, ints, whole)
def lay_codes(codes, known, proposed, start):
    for j in range(len(codes)):
        for i in range(len(proposed)):
            codes[j, start + i] = known[j, i] if j < len(known) and j < proposed[i] else NUM_CODES + j


@compiled(
    types.Tuple((whole, real)),
    *(ints, ints, ints_2d, ints, reals, reals, reals, reals),
    *(new_reals_2d, new_reals_2d, new_reals_2d),
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
            told = expected = sigmoid(odds)
            if len(levels):
                expected = sigmoid(odds + offsets[levels[i]])
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


@compiled(types.none, *(reals, reals, reals, new_reals, new_cells))
def whole_terms(bins, depths, plain, terms, rounded):
    for code in range(NUM_CODES):
        terms[code] = bins[BIN_OF_CODE[code]]
    for j in range(len(depths)):
        terms[NUM_CODES + j] = plain[j] - depths[j]
        rounded[len(terms) + j] = np.int16(np.rint((depths[j] + MOST_ODDS) * ODDS_STEPS))
    for code in range(len(terms)):
        rounded[code] = np.int16(np.rint(terms[code] * ODDS_STEPS))
