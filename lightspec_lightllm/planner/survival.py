"""Survivals of drafts with confidences, added up from tables of whole numbers.

The log-odds of a draft are the sum of a term of its confidence, one of its depth and one of its request (see
`acceptance`). Each is rounded to 1/32; a table then says how many bits, in steps of 1/128, an acceptance of such
log-odds takes off a survival. Sums of these along the depths are *cells*: a draft in cell c survives with probability
``2^(-c / 128)``. Cells never fall with depth, as survivals must not grow, and are the same bit for bit on every rank.
All of these fit into 16 bits, which makes them quick to add.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS
from lightspec_lightllm.planner.types import FloatArray

CellArray = npt.NDArray[np.int16]

ODDS_STEPS = 32
"""Steps per unit of log-odds."""

BIT_STEPS = 128
"""Cells per bit of survival."""

LAST_CELL = 16 * BIT_STEPS
"""The first cell whose survival, 2^-16, is taken for 0, as is that of all cells after it."""

NO_DRAFT = MAX_DRAFT_STEPS * LAST_CELL + BIT_STEPS
"""The cell of a draft that is not there, past all others."""

MOST_ODDS = 24
"""Log-odds that are the most there are."""

# Tables are built with the C library's functions: numpy's round differently from one type of CPU to another.
_ODDS = range(-MOST_ODDS * ODDS_STEPS, MOST_ODDS * ODDS_STEPS + 1)
_EXACT_BITS = np.array([math.log2(1.0 + math.exp(-odds / ODDS_STEPS)) for odds in _ODDS])

BITS: CellArray = np.minimum(np.rint(_EXACT_BITS * BIT_STEPS), LAST_CELL).astype(np.int16)
"""By rounded log-odds from ``-MOST_ODDS`` on, what an acceptance takes off a survival."""

SURVIVAL: FloatArray = np.array([*(math.pow(2.0, -cell / BIT_STEPS) for cell in range(LAST_CELL)), 0.0])
"""By cell."""


def survival_of(cells: CellArray) -> FloatArray:
    """Probability that drafts in these cells and all before them are accepted."""
    return SURVIVAL.take(cells, mode="clip")


CURVE_SHARED = 3
"""Cells are taken together by 2^3 in a gain curve: to 1/16 bit."""

CURVE_CELLS = LAST_CELL >> CURVE_SHARED
CURVE_VALUE: FloatArray = survival_of(((np.arange(CURVE_CELLS) << CURVE_SHARED) + 3).astype(np.int16))
