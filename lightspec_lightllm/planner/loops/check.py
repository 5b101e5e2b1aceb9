"""Whether compiled loops give what numpy gives on this machine, by made-up batches. Takes some 10 milliseconds."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from lightspec_lightllm.planner.confidence import BIN_CENTRES, NUM_BINS, NUM_CODES
from lightspec_lightllm.planner.loops.interface import Loops
from lightspec_lightllm.planner.loops.plain.learning import hashed
from lightspec_lightllm.planner.scale import LEVEL_AGAINST, LEVEL_OFFSETS, LEVELS
from lightspec_lightllm.planner.survival import (
    BIT_STEPS,
    CURVE_CELLS,
    LAST_CELL,
    MOST_ODDS,
    ODDS_STEPS,
    CellArray,
)
from lightspec_lightllm.planner.types import FloatArray, IntArray

_REQUESTS, _DEPTHS, _BITS = 67, 15, 5

_WHOLE_OFFSETS: CellArray = np.rint(LEVEL_OFFSETS * ODDS_STEPS).astype(np.int16)


class LoopsDifferError(RuntimeError):
    """A loop does not give what numpy gives."""


def spread(*shape: int, start: float = 0.5) -> FloatArray:
    """Numbers in 0..1, spread evenly and in no order: multiples of the golden ratio, without a generator."""
    numbers = (start + np.arange(math.prod(shape)) * 0.6180339887498949) % 1.0
    return cast(FloatArray, numbers.reshape(shape))


def compare(plain: Loops, compiled: Loops) -> None:
    """Run every loop in both ways.

    Raises:
        LoopsDifferError: one differs.
    """
    for name, arguments in (*samples().items(), *bounds()):
        mine, theirs = (tuple(_copied(a) for a in arguments) for _ in range(2))
        found, expected = getattr(compiled, name)(*mine), getattr(plain, name)(*theirs)
        if name == "learn_offsets":
            mine, theirs = (a[:6] + a[7:] for a in (mine, theirs))  # the one left out is room to work in
        if not _same((found, mine), (expected, theirs)):
            raise LoopsDifferError(f"{name}: differs from numpy on this machine")


def samples() -> dict[str, tuple[Any, ...]]:
    """Arguments of every loop."""
    wide, tall = spread(_REQUESTS, _DEPTHS), spread(_DEPTHS, _REQUESTS, start=0.1)
    each = spread(_REQUESTS, start=0.3)
    proposed: IntArray = (each * (_DEPTHS + 1)).astype(np.int64)
    verified: IntArray = (proposed * spread(_REQUESTS)).astype(np.int64)
    accepted: IntArray = 1 + (verified * wide[:, 0] * 1.3).astype(np.int64).clip(0, verified)
    trials = np.minimum(verified, accepted)
    levels: IntArray = (each * LEVELS).astype(np.int64)
    codes: IntArray = (tall * NUM_CODES).astype(np.int64)
    codes[:, ::7] = NUM_CODES + np.arange(_DEPTHS)[:, None]
    terms, depths, bins = 6.0 * spread(NUM_CODES + _DEPTHS) - 2.0, spread(_DEPTHS) - 0.5, spread(NUM_BINS)
    whole_terms, whole_depths, whole_offsets = (
        np.rint(values * ODDS_STEPS).astype(np.int16) for values in (terms, depths + MOST_ODDS, LEVEL_OFFSETS)
    )
    table = whole_terms, whole_depths, whole_offsets
    unsure = wide.copy()
    unsure[::5, 3] = np.nan
    ids: IntArray = (each * 40).astype(np.int64)
    owner: IntArray = np.full(1 << _BITS, -1, dtype=np.int64)
    tables = 4.0 * spread(1 << _BITS) - 2.0, 9.0 * spread(1 << _BITS, start=0.2)
    level: IntArray = np.zeros(1 << _BITS, dtype=np.int64)
    rows, gain = np.append(0.0, np.add.accumulate(np.rint(3 * each))), np.append(0.0, np.add.accumulate(each))
    extra, ms = np.arange(0.0, 120.0, 1.5), 7.0 + np.add.accumulate(spread(80))
    acceptance = spread(LEVELS, _DEPTHS, start=0.7)
    cells = (tall * 1500).astype(np.int16)
    return {
        "are_probabilities": (wide,),
        "proposal_counts": (proposed, np.zeros(_DEPTHS + 1, dtype=np.int64)),
        "round_counts": (verified, accepted, proposed, _DEPTHS, trials),
        "cells": (codes, levels, *table),
        "read_drafts": (
            unsure,
            13,
            proposed,
            levels,
            *table,
            True,
            codes[:13].copy(),
            tall,
            np.zeros((2, CURVE_CELLS + 1)),
        ),
        "lay_codes": (np.zeros((_DEPTHS, 2 * _REQUESTS), dtype=np.int64), codes, proposed, 5),
        "score_trials": (
            *(
                trials,
                accepted,
                codes,
                levels,
                np.exp(terms),
                np.exp(depths),
                LEVEL_AGAINST,
                0.1 + 0.8 * spread(_DEPTHS),
            ),
            *(np.zeros((2, NUM_BINS)), np.zeros((2, _DEPTHS)), np.zeros((2, _REQUESTS))),
        ),
        "whole_terms": (
            bins,
            depths,
            depths + 1.0,
            terms,
            depths.copy(),
            np.zeros(NUM_CODES + 2 * _DEPTHS, dtype=np.int16),
        ),
        "depth_scores": (trials, accepted, acceptance[0]),
        "level_scores": (trials, accepted, levels, acceptance, 5.0 * spread(2, LEVELS, _DEPTHS + 1)),
        "level_table": (
            *(depths, np.zeros((LEVELS, _DEPTHS)), np.zeros((LEVELS, _DEPTHS))),
            *(np.zeros((2, LEVELS, _DEPTHS + 1)), np.zeros(LEVELS * _DEPTHS)),
            np.zeros((2, LEVELS * _DEPTHS), dtype=np.int64),
        ),
        "level_curve": (
            *(proposed, levels, spread(LEVELS * _DEPTHS)),
            np.stack(np.divmod(np.arange(LEVELS * _DEPTHS) * 7 % (LEVELS * _DEPTHS), _DEPTHS)) + np.array([[0], [1]]),
            np.zeros((2, LEVELS * _DEPTHS + 1)),
        ),
        "acceptances": (depths,),
        "learn_depths": (depths, 20.0 * spread(_DEPTHS), depths + 0.1, -depths, 9.0 * spread(_DEPTHS), 80.0, 0.8, 1.0),
        "learn_bins": (bins, 30.0 * spread(NUM_BINS), bins + 0.1, bins - 0.5, 9.0 * spread(NUM_BINS), 80.0, 1.2),
        "read_bins": (bins, 30.0 * spread(NUM_BINS), 1.2),
        "find_entries": (ids, owner, *tables, level, _BITS),
        "learn_offsets": (
            *(ids, each - 0.5, each, 0.1, 16.0, _owned(ids), np.zeros(1 << _BITS, dtype=np.int64)),
            *(*tables, level, (25.0, 64.0, 2.4)),
        ),
        "gain_at": (rows, gain, 31.5),
        "waiting_curve": (np.bincount(proposed % _DEPTHS, minlength=_DEPTHS + 1), acceptance[0]),
        "net_values": (20.0 * each, 31, np.rint(9.0 * each), 0.37, 41.3, 1.7, 0.9),
        "best_extra": (rows, gain, extra, ms, 88.0, 25.0, 0.07),
        "expected_drafts": (np.add.accumulate(cells // 4, axis=0, dtype=np.int16), 31),
        "ladder_values": (np.sort(each)[::-1].copy(), 1.0 + 2.0 * each, extra, ms, np.array([0, 5, 5, 61]), 0.07),
        "best_values": (
            *(np.sort(each)[::-1].copy(), 1 + proposed % 7, 0.3 + spread(_REQUESTS)),
            *(np.array([0, 1, 2, 5, 7]), extra, ms, 0.07),
        ),
    }


def bounds() -> list[tuple[str, tuple[Any, ...]]]:
    """Arguments that reach the bounds of what loops learn and look up, and many exponentials and interpolations."""
    far, one = np.array([-30.0, 30.0] * NUM_BINS), np.ones(2 * NUM_BINS)
    bins, depths = far[:NUM_BINS], far[:_DEPTHS]
    sure, levels = np.full(_DEPTHS, 0.999), np.arange(_REQUESTS) % LEVELS
    trials: IntArray = np.arange(_REQUESTS) % (_DEPTHS + 1)
    accepted: IntArray = trials + 1
    terms: IntArray = (30 * (np.arange(NUM_CODES + _DEPTHS) % 65 - 32)).astype(np.int16)
    table = terms, np.rint((0.1 * depths + MOST_ODDS) * ODDS_STEPS).astype(np.int16), _WHOLE_OFFSETS
    codes: IntArray = np.arange(_DEPTHS * _REQUESTS).reshape(_DEPTHS, _REQUESTS) * 7 % NUM_CODES
    wide = codes.T / (NUM_CODES - 1.0)
    strange = wide.copy()
    strange[::3, ::2], strange[1::3, 1], strange[2::3, 5] = math.nan, 87.0, -math.inf
    found: list[tuple[str, tuple[Any, ...]]] = [
        ("are_probabilities", (np.array([[value]]),)) for value in (-0.0, 1.0, np.nextafter(1.0, 2.0), math.nan)
    ]
    found += [("cells", (codes, levels, *table)), ("cells", (codes, levels[:0], *table))]
    for values, some_unknown in ((wide, False), (strange, True), (strange, False)):
        filled = np.zeros_like(codes), np.zeros((_DEPTHS, _REQUESTS)), np.zeros((2, CURVE_CELLS + 1))
        found.append(("read_drafts", (values, _DEPTHS, trials[:0], levels, *table, some_unknown, *filled)))
    # One cell after the other, past the last.
    ladder = np.arange(LAST_CELL + 2 * BIT_STEPS, dtype=np.int16)
    found.append(("expected_drafts", (np.stack((ladder, ladder + np.int16(1))), 7)))
    against, scores = np.exp(0.5 * far), (np.zeros((2, NUM_BINS)), np.zeros((2, _DEPTHS)), np.zeros((2, _REQUESTS)))
    by_code = against[np.arange(NUM_CODES + _DEPTHS) % len(against)]
    found.append(("score_trials", (trials, accepted, codes, levels, by_code, sure, LEVEL_AGAINST, sure, *scores)))
    found.append(("depth_scores", (trials, accepted, sure)))
    expected = np.zeros((2, LEVELS, _DEPTHS + 1))
    found.append(("level_scores", (trials, accepted, levels, np.tile(sure, (LEVELS, 1)), expected)))
    tables = np.zeros((LEVELS, _DEPTHS)), np.zeros((LEVELS, _DEPTHS)), expected.copy(), np.zeros(LEVELS * _DEPTHS)
    found.append(("level_table", (np.full(_DEPTHS, 6.0), *tables, np.zeros((2, LEVELS * _DEPTHS), dtype=np.int64))))
    for sign in (-1.0, 1.0):
        # Far more than any bound, up and down.
        found.append(
            ("learn_depths", (0.1 * depths, 1.0 + one[:_DEPTHS], depths, sign * depths, depths**2, 80.0, 0.8, 1.0))
        )
        found.append(("learn_bins", (0.1 * bins, 1.0 + one[:NUM_BINS], bins, sign * bins, bins**2, 80.0, 1.2)))
        for steep in (-1.0, 0.1, 3.0):
            found.append(("read_bins", (sign * steep * BIN_CENTRES, 99.0 * one[:NUM_BINS], 1.2)))
    for size, told in ((1, 30.0), (2, 30.0), (2, 0.0), (_REQUESTS, 30.0), (_REQUESTS, 1.0)):
        ids: IntArray = np.arange(size) % 25
        entries = np.zeros(1 << _BITS, dtype=np.int64), np.zeros(1 << _BITS), np.ones(1 << _BITS)
        learned = *entries, np.zeros(1 << _BITS, dtype=np.int64), (25.0, 64.0, 2.4)
        residual = told * far[np.arange(size) % 2]
        found.append(("learn_offsets", (ids, residual, 0.3 + spread(size), 0.1, 16.0, _owned(ids), *learned)))
    distant: IntArray = (spread(_REQUESTS) * 2.0**63).astype(np.int64) - (1 << 62)
    owned = np.full(1 << _BITS, -1, dtype=np.int64), *np.ones((2, 1 << _BITS)), np.zeros(1 << _BITS, dtype=np.int64)
    found.append(("find_entries", (distant, *owned, _BITS)))
    odds = 60.0 * spread(10_000) - 30.0
    found.append(("acceptances", (odds,)))
    count, value = 0.5 + spread(200), np.sort(spread(200, start=0.2))[::-1].copy()
    extra = np.sort(190.0 * spread(10_000))
    found.append(("ladder_values", (value, count, extra, np.zeros(10_000), np.arange(10_000), 0.0)))
    return found


def _owned(ids: IntArray) -> IntArray:
    """A table in which some of the requests hold an entry."""
    owner: IntArray = np.full(1 << _BITS, -1, dtype=np.int64)
    owner[hashed(ids[:40], _BITS)] = ids[:40]
    return owner


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(_same(*pair) for pair in zip(found, expected, strict=True))
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
    return bool(found == expected)
