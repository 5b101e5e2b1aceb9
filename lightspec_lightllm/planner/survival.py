"""Survivals of drafts with confidences, added up from tables of whole numbers.

The log-odds of a draft are the sum of a term of its confidence, one of its depth and one of its request (see
`acceptance`). Each is rounded to 1/32; a table then says how many bits, in steps of 1/128, an acceptance of such
log-odds takes off a survival. Sums of these along the depths are *cells*: a draft in cell c survives with probability
``2^(-c / 128)``. Cells never fall with depth, as survivals must not grow, and are the same bit for bit on every rank.
All of these fit into 16 bits, which makes them quick to add.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.planner.confidence import BIN_OF_CODE
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS
from lightspec_lightllm.planner.types import FloatArray, IntArray

CellArray = npt.NDArray[np.int16]

ODDS_STEPS = 32
"""Steps per unit of log-odds."""

BIT_STEPS = 128
"""Cells per bit of survival."""

LAST_CELL = 16 * BIT_STEPS
"""The first cell whose survival, 2^-16, is taken for 0, as is that of all cells after it."""

NO_DRAFT = MAX_DRAFT_STEPS * LAST_CELL + BIT_STEPS
"""The cell of a draft that is not there, past all others."""

_MOST_ODDS = 24
_ODDS = np.arange(-_MOST_ODDS * ODDS_STEPS, _MOST_ODDS * ODDS_STEPS + 1) / ODDS_STEPS
_BITS = np.minimum(np.rint(np.log2(1.0 + np.exp(-_ODDS)) * BIT_STEPS), LAST_CELL).astype(np.int16)
_SURVIVAL = np.append(np.exp2(-np.arange(LAST_CELL) / BIT_STEPS), 0.0)


def survival_of(cells: CellArray) -> FloatArray:
    """Probability that drafts in these cells and all before them are accepted."""
    return cast(FloatArray, _SURVIVAL.take(cells, mode="clip"))


class SurvivalTable:
    """The terms of an acceptance model at one moment.

    Args:
        bins: float[bins], term of each bin of confidences.
        depths: float[K], term of each depth beside a confidence.
        plain: float[K], log-odds by depth of a draft without one.
        offsets: float[LEVELS], term of each level of requests.
    """

    def __init__(self, bins: FloatArray, depths: FloatArray, plain: FloatArray, offsets: FloatArray) -> None:
        self._terms = np.concatenate((bins.take(BIN_OF_CODE), plain - depths))
        self._depths = depths
        self._offsets = offsets
        self._whole_terms = _whole(self._terms)
        self._whole_depths = _whole(depths[:, None] + _MOST_ODDS)
        self._whole_offsets = _whole(offsets)

    def cells(self, codes: IntArray, levels: IntArray | None) -> CellArray:
        """int16[D, N]: cells of int[D, N] codes; requests of int[N] levels, or all like the batch."""
        odds = self._whole_terms.take(codes)
        odds += self._whole_depths[: len(codes)]
        if levels is not None:
            odds += self._whole_offsets.take(levels)
        cells = cast(CellArray, _BITS.take(odds, mode="clip"))
        reach = 1
        while reach < len(cells):  # sums along depths by doubling (Hillis and Steele, 1986): few calls
            cells[reach:] += cells[:-reach].copy()
            reach *= 2
        return cells

    def acceptance(self, codes: IntArray, depths: IntArray, levels: IntArray | None) -> FloatArray:
        """float[T]: conditional acceptance of single drafts, by code, depth from 0, and level of the request."""
        odds = self._terms.take(codes) + self._depths.take(depths)
        if levels is not None:
            odds += self._offsets.take(levels)
        return 1.0 / (1.0 + np.exp(-odds))


def _whole(log_odds: FloatArray) -> CellArray:
    return np.rint(log_odds * ODDS_STEPS).astype(np.int16)
