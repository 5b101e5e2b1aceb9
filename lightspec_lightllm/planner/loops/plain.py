"""The inner loops in numpy: what `compiled` must equal bit for bit (shapes and meaning: `interface`).

Sums are from first to last (`in_order`), not numpy's own, whose order is its own affair; exponentials and logarithms
are the C library's (`exponential`), as compiled code calls them, not numpy's, which round otherwise.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from lightspec_lightllm.planner.confidence import BIN_CENTRES, BIN_OF_CODE, NUM_BINS, NUM_CODES, codes_of
from lightspec_lightllm.planner.scale import (
    LEVEL_OFFSETS,
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
from lightspec_lightllm.planner.survival import (
    BIT_STEPS,
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

MASS_BINS = 11
"""Bins of survivals of future drafts, half a bit each; the last takes all that is less likely."""

MASS_SHARED = (BIT_STEPS // 2).bit_length() - 1

FEW_SHORT = 6
"""Up to so many requests that propose fewer drafts than others are looked at one by one: new ones are few."""

HASH = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: its multiples are spread evenly (Knuth, TAOCP 3, 6.4)."""

_POWERS = np.stack((np.ones(NUM_BINS), BIN_CENTRES, BIN_CENTRES * BIN_CENTRES))


def in_order(values: FloatArray) -> float:
    """The sum from first to last."""
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


def exponential(values: FloatArray) -> FloatArray:
    """The C library's exponential."""
    return np.array([math.exp(value) for value in values.tolist()])


def sums(keys: IntArray, values: FloatArray, size: int) -> FloatArray:
    """float[size], the sum of the values of each key."""
    if not len(keys):  # numpy then counts in whole numbers
        return np.zeros(size)
    return cast(FloatArray, np.bincount(keys, weights=values, minlength=size))


def summed(keys: IntArray, residual: FloatArray, information: FloatArray, size: int) -> FloatArray:
    """float[2, size]: residuals and information, by key."""
    return np.stack((sums(keys, residual, size), sums(keys, information, size)))


# --- what hosts say ---------------------------------------------------------------------------------------------------


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
) -> tuple[bool, int, int]:
    np.minimum(verified, accepted, out=trials)
    tally = _tally(accepted, most + 1)
    # The first bound keeps what was verified from being negative.
    possible = not len(verified) or (
        len(tally) > 0
        and not tally[0]
        and int(np.maximum.reduce(accepted - verified)) <= 1
        and int(np.maximum.reduce(verified - proposed)) <= 0
        and int(np.maximum.reduce(verified)) <= most
    )
    return possible, int(np.add.reduce(trials)), int(np.add.reduce(accepted))


def _tally(counts: IntArray, largest: int) -> IntArray:
    """int[largest + 1], how many are 0, 1, .. largest; empty where one is outside."""
    try:
        tally: IntArray = np.bincount(counts, minlength=largest + 1)
    except (ValueError, MemoryError):  # one below 0, or far beyond
        tally = np.zeros(0, dtype=np.int64)
    return tally if len(tally) == largest + 1 else tally[:0]


# --- confidences ------------------------------------------------------------------------------------------------------


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


def curve_of(count: FloatArray | IntArray, value: FloatArray) -> FloatArray:
    """float[2, M + 1]: rows and gains of ``count`` rows of each survival, highest survival first."""
    curve = np.zeros((2, len(count) + 1))
    curve[0, 1:] = count  # first: to change type while accumulating is slow
    np.multiply(curve[0, 1:], value, out=curve[1, 1:])
    return np.add.accumulate(curve, axis=1, out=curve)


def lay_codes(codes: IntArray, known: IntArray, proposed: IntArray, start: int) -> None:
    part = codes[:, start : start + len(proposed)]
    part[:] = np.arange(NUM_CODES, NUM_CODES + len(codes))[:, None]
    np.copyto(part[: len(known)], known, where=np.arange(len(known))[:, None] < proposed)


def score_trials(
    trials: IntArray,
    accepted: IntArray,
    codes: IntArray,
    levels: IntArray,
    terms: FloatArray,
    depths: FloatArray,
    offsets: FloatArray,
    neutral: FloatArray,
    by_bin: FloatArray,
    by_depth: FloatArray,
    by_request: FloatArray,
) -> tuple[int, float]:
    request, depth, code, right = _single_trials(trials, accepted, codes)
    odds = terms.take(code) + depths.take(depth)
    told = expected = _sigmoid(odds)
    if len(levels):
        expected = _sigmoid(odds + offsets.take(levels.take(request)))
    residual, information = right - expected, information_of(expected)
    by_bin += summed(BIN_OF_CODE.take(code), residual, information, NUM_BINS)
    by_depth += summed(depth, residual, information, len(neutral))
    by_request += summed(request, residual, information, len(trials))
    wrong = 1 - right
    ratio = np.abs(wrong - told) / np.abs(wrong - neutral.take(depth))
    return len(code), in_order(np.array([math.log(value) for value in ratio.tolist()]))


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


def whole_terms(bins: FloatArray, depths: FloatArray, plain: FloatArray, terms: FloatArray, rounded: CellArray) -> None:
    terms[:NUM_CODES] = bins.take(BIN_OF_CODE)
    terms[NUM_CODES:] = plain - depths
    rounded[: len(terms)] = np.rint(terms * ODDS_STEPS)
    rounded[len(terms) :] = np.rint((depths + MOST_ODDS) * ODDS_STEPS)


# --- what is learned --------------------------------------------------------------------------------------------------


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
    acceptance[:] = _sigmoid((LEVEL_OFFSETS[:, None] + log_odds).ravel()).reshape(LEVELS, num_depths)
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
    likely = _sigmoid(log_odds)
    return np.stack((likely, np.multiply.accumulate(likely)))


def _sigmoid(log_odds: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + exponential(-log_odds))


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


# --- requests ---------------------------------------------------------------------------------------------------------


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


# --- the two stages ---------------------------------------------------------------------------------------------------


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
