"""What hosts say, and confidences."""

from __future__ import annotations

import math

import numpy as np

from lightspec_lightllm.planner.confidence import BIN_OF_CODE, NUM_BINS, NUM_CODES, codes_of
from lightspec_lightllm.planner.loops.plain.arithmetic import curve_of, exponential, in_order, summed
from lightspec_lightllm.planner.scale import information_of
from lightspec_lightllm.planner.survival import (
    BITS,
    CURVE_CELLS,
    CURVE_SHARED,
    CURVE_VALUE,
    MOST_ODDS,
    NO_DRAFT,
    ODDS_STEPS,
    CellArray,
    survival_of,
)
from lightspec_lightllm.planner.types import FloatArray, IntArray

ONE_BITS = int(np.float64(1.0).view(np.uint64))

LOGGED_TOGETHER = 16
"""Likelihood ratios that are multiplied before their logarithm is taken."""

FEW_SHORT = 6
"""Up to so many requests that propose fewer drafts than others are looked at one by one: new ones are few."""


def are_probabilities(values: FloatArray) -> bool:
    # Doubles in 0..1 are those whose bits, read as whole numbers, are at most the bits of 1: one pass for two.
    return not len(values) or int(np.maximum.reduce(values.view(np.uint64), axis=None)) <= ONE_BITS


def proposal_counts(proposed: IntArray, tally: IntArray) -> int:
    counts = _tally(proposed, len(tally) - 1)
    if not len(counts):
        return -1
    tally[:] = counts
    return int(np.add.reduce(proposed))


def round_counts(
    verified: IntArray, accepted: IntArray, proposed: IntArray, most: int, trials: IntArray
) -> tuple[bool, int, int, int]:
    np.minimum(verified, accepted, out=trials)
    tally = _tally(accepted, most + 1)
    # What is subtracted is bounded by then: differences of any numbers may wrap.
    possible = not len(verified) or (
        len(tally) > 0
        and not tally[0]
        and int(np.minimum.reduce(verified)) >= 0
        and int(np.maximum.reduce(verified)) <= most
        and int(np.maximum.reduce(accepted - verified)) <= 1
        and bool(np.logical_and.reduce(verified <= proposed))
    )
    return possible, int(np.add.reduce(trials)), int(np.add.reduce(verified)), int(np.add.reduce(accepted))


def _tally(counts: IntArray, largest: int) -> IntArray:
    """int[largest + 1], how many are 0, 1, .. largest; empty where one is outside."""
    try:
        tally: IntArray = np.bincount(counts, minlength=largest + 1)
    except (ValueError, MemoryError):  # one below 0, or far beyond
        tally = np.zeros(0, dtype=np.int64)
    return tally if len(tally) == largest + 1 else tally[:0]


def cells(codes: IntArray, levels: IntArray, terms: CellArray, depths: CellArray, offsets: CellArray) -> CellArray:
    odds = terms.take(codes)
    odds += depths[: len(codes), None]
    if len(levels):
        odds += offsets.take(levels)
    found = BITS.take(odds, mode="clip")
    reach = 1
    while reach < len(found):  # sums along depths by doubling (Hillis and Steele, 1986): few calls
        found[reach:] += found[:-reach].copy()
        reach *= 2
    return found


def read_drafts(
    confidence: FloatArray,
    num_depths: int,
    proposed: IntArray,
    levels: IntArray,
    terms: CellArray,
    depths: CellArray,
    offsets: CellArray,
    some_unknown: bool,
    codes: IntArray,
    survival: FloatArray,
    curve: FloatArray,
) -> None:
    codes[:] = codes_of(confidence, num_depths, some_unknown=some_unknown)
    found = cells(codes, levels, terms, depths, offsets)
    if len(proposed):
        short = (proposed < num_depths).nonzero()[0]
        if len(short) > FEW_SHORT:
            np.putmask(found, np.arange(num_depths)[:, None] >= proposed, NO_DRAFT)
        else:
            for request in short.tolist():
                found[proposed[request] :, request] = NO_DRAFT
    survival[:num_depths] = survival_of(found)
    survival[num_depths:] = 0.0
    curve[:] = curve_of_cells(found)


def curve_of_cells(found: CellArray) -> FloatArray:
    """The curve of single drafts by cell, of those that there are and that may be accepted."""
    count = np.bincount((found >> CURVE_SHARED).ravel(), minlength=CURVE_CELLS)
    return curve_of(count[:CURVE_CELLS], CURVE_VALUE)


def lay_codes(codes: IntArray, known: IntArray, proposed: IntArray, start: int) -> None:
    part = codes[:, start : start + len(proposed)]
    part[:] = np.arange(NUM_CODES, NUM_CODES + len(codes))[:, None]
    np.copyto(part[: len(known)], known, where=np.arange(len(known))[:, None] < proposed)


def score_trials(
    trials: IntArray,
    accepted: IntArray,
    codes: IntArray,
    levels: IntArray,
    by_code: FloatArray,
    by_depth: FloatArray,
    by_level: FloatArray,
    neutral: FloatArray,
    bin_scores: FloatArray,
    depth_scores: FloatArray,
    request_scores: FloatArray,
) -> tuple[int, float]:
    request, depth, code, right = _single_trials(trials, accepted, codes)
    against = by_code.take(code) * by_depth.take(depth)
    told = expected = 1.0 / (1.0 + against)
    if len(levels):
        expected = 1.0 / (1.0 + against * by_level.take(levels.take(request)))
    residual, information = right - expected, information_of(expected)
    bin_scores += summed(BIN_OF_CODE.take(code), residual, information, NUM_BINS)
    depth_scores += summed(depth, residual, information, len(neutral))
    request_scores += summed(request, residual, information, len(trials))
    wrong = 1 - right
    ratio = np.abs(wrong - told) / np.abs(wrong - neutral.take(depth))
    # Logarithms of few products: a ratio is at least 1e-9, so that so many of them are still numbers.
    products = np.ones((len(code) // LOGGED_TOGETHER + 1, LOGGED_TOGETHER))
    products.ravel()[: len(code)] = ratio
    together: FloatArray = np.multiply.accumulate(products, axis=1)[:, -1]
    return len(code), in_order(np.array(list(map(math.log, together.tolist()))))


def _single_trials(trials: IntArray, accepted: IntArray, codes: IntArray) -> tuple[IntArray, ...]:
    """int[T] request, depth from 0, code, and whether it was accepted, of each trial with a known confidence."""
    ends = np.add.accumulate(trials)
    request = np.repeat(np.arange(len(trials)), trials)
    depth = np.arange(len(request))
    depth -= np.repeat(ends - trials, trials)
    right = np.ones(len(request), dtype=np.int64)
    # Where there are as many trials as accepted tokens, the target's own among these, the last trial failed.
    right[ends[trials == accepted] - 1] = 0
    code = codes.ravel().take(depth * len(trials) + request)
    known = code < NUM_CODES
    found = request, depth, code, right
    return found if known.all() else tuple(part[known] for part in found)


def whole_terms(
    bins: FloatArray,
    depths: FloatArray,
    plain: FloatArray,
    by_code: FloatArray,
    by_depth: FloatArray,
    rounded: CellArray,
) -> None:
    by_code[:NUM_CODES] = exponential(-bins).take(BIN_OF_CODE)
    by_code[NUM_CODES:] = exponential(depths - plain)
    by_depth[:] = exponential(-depths)
    rounded[:NUM_CODES] = np.rint(bins * ODDS_STEPS).take(BIN_OF_CODE)
    rounded[NUM_CODES : len(by_code)] = np.rint((plain - depths) * ODDS_STEPS)
    rounded[len(by_code) :] = np.rint((depths + MOST_ODDS) * ODDS_STEPS)
