"""What hosts say, and confidences."""

from __future__ import annotations

import math

import numpy as np
from numba import types

from lightspec_lightllm.planner.confidence import BIN_OF_CODE, NUM_CODES
from lightspec_lightllm.planner.loops.compiled.types import (
    cells_1d,
    compiled,
    helper,
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
from lightspec_lightllm.planner.loops.plain.reading import LOGGED_TOGETHER, ONE_BITS
from lightspec_lightllm.planner.scale import LEAST_SPREAD
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


@compiled(types.Tuple((truth, whole, whole, whole)), ints, ints, ints, whole, new_ints)
def round_counts(verified, accepted, proposed, most, trials):
    num_trials = num_verified = num_accepted = 0
    possible = True
    for i in range(len(verified)):
        trials[i] = min(verified[i], accepted[i])
        num_trials += trials[i]
        num_verified += verified[i]
        num_accepted += accepted[i]
        possible &= 0 <= verified[i] <= most and verified[i] <= proposed[i] and 1 <= accepted[i] <= 1 + verified[i]
    return possible, num_trials, num_verified, num_accepted


@helper
def _bits(odds):
    """What an acceptance of whole log-odds takes off a survival."""
    return np.int64(BITS[min(max(odds, 0), len(BITS) - 1)])


@compiled(types.none, ints_2d, ints, cells_1d, cells_1d, cells_1d, new_cells_2d)
def _cells(codes, levels, terms, depths, offsets, found):
    for i in range(codes.shape[1]):
        cell = 0
        offset = np.int64(offsets[levels[i]]) if len(levels) else 0
        for j in range(len(codes)):
            cell += _bits(terms[codes[j, i]] + depths[j] + offset)
            found[j, i] = cell


def cells(codes, levels, terms, depths, offsets):
    found = np.empty(codes.shape, dtype=np.int16)
    _cells(codes, levels, terms, depths, offsets, found)
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
            # Bounded whatever it is, NaN included: the host may write into its buffer after it was checked.
            bounded = min(scaled, NUM_CODES - 1.0) if scaled > 0.0 else 0.0
            codes[j, i] = NUM_CODES + j if some_unknown and math.isnan(scaled) else np.int64(bounded)
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
def score_trials(
    trials, accepted, codes, levels, by_code, by_depth, by_level, neutral, bin_scores, depth_scores, request_scores
):
    num_known, likelier, product = 0, 0.0, 1.0
    for i in range(len(trials)):
        for j in range(trials[i]):
            code = codes[j, i]
            if code >= NUM_CODES:
                continue
            against = by_code[code] * by_depth[j]
            told = expected = 1.0 / (1.0 + against)
            if len(levels):
                expected = 1.0 / (1.0 + against * by_level[levels[i]])
            wrong = 1 if trials[i] == accepted[i] and j == trials[i] - 1 else 0
            residual, information = (1 - wrong) - expected, expected * max(1.0 - expected, LEAST_SPREAD)
            of_bin = BIN_OF_CODE[code]
            bin_scores[0, of_bin] += residual
            bin_scores[1, of_bin] += information
            depth_scores[0, j] += residual
            depth_scores[1, j] += information
            request_scores[0, i] += residual
            request_scores[1, i] += information
            product *= abs(wrong - told) / abs(wrong - neutral[j])
            num_known += 1
            if num_known % LOGGED_TOGETHER == 0:
                likelier += math.log(product)
                product = 1.0
    return num_known, likelier + math.log(product)


@compiled(types.none, *(reals, reals, reals, new_reals, new_reals, new_cells))
def whole_terms(bins, depths, plain, by_code, by_depth, rounded):
    against, whole_bins = np.empty(len(bins)), np.empty(len(bins), dtype=np.int16)
    for k in range(len(bins)):
        against[k], whole_bins[k] = math.exp(-bins[k]), np.int16(np.rint(bins[k] * ODDS_STEPS))
    for code in range(NUM_CODES):
        by_code[code], rounded[code] = against[BIN_OF_CODE[code]], whole_bins[BIN_OF_CODE[code]]
    for j in range(len(depths)):
        by_code[NUM_CODES + j] = math.exp(depths[j] - plain[j])
        by_depth[j] = math.exp(-depths[j])
        rounded[NUM_CODES + j] = np.int16(np.rint((plain[j] - depths[j]) * ODDS_STEPS))
        rounded[len(by_code) + j] = np.int16(np.rint((depths[j] + MOST_ODDS) * ODDS_STEPS))
