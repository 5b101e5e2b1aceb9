"""Survivals and acceptances of drafts with confidences, by the terms of a model at one moment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightspec_lightllm.planner.confidence import NUM_CODES
from lightspec_lightllm.planner.gain import GainCurve
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.scale import LEVEL_AGAINST, LEVEL_OFFSETS
from lightspec_lightllm.planner.survival import CURVE_CELLS, ODDS_STEPS, CellArray
from lightspec_lightllm.planner.types import FloatArray, IntArray

_WHOLE_OFFSETS: CellArray = np.rint(LEVEL_OFFSETS * ODDS_STEPS).astype(np.int16)

NONE: IntArray = np.zeros(0, dtype=np.int64)
"""No levels, or no proposals, for a loop."""


class SureDrafts(NamedTuple):
    """Waiting drafts whose confidences are known.

    Attributes:
        codes: int[D, N] (see `confidence`), of the depths that were proposed.
        survival: float[N, K], 0 where there is no draft.
        curve: what verifying them is expected to bring.
    """

    codes: IntArray
    survival: FloatArray
    curve: GainCurve


class SurvivalTable:
    """The terms of an acceptance model at one moment.

    Args:
        bins: float[bins], term of each bin of confidences.
        depths: float[K], term of each depth beside a confidence.
        plain: float[K], log-odds by depth of a draft without one.

    Attributes:
        against: odds against an acceptance, as the product of float[NUM_CODES + K] by code, float[K] by depth and
            float[LEVELS] by level of request.
    """

    def __init__(self, bins: FloatArray, depths: FloatArray, plain: FloatArray) -> None:
        by_code, by_depth = np.empty(NUM_CODES + len(depths)), np.empty(len(depths))
        rounded = np.empty(len(by_code) + len(depths), dtype=np.int16)
        INNER.loops.whole_terms(bins, depths, plain, by_code, by_depth, rounded)
        self.against = by_code, by_depth, LEVEL_AGAINST
        self._whole = rounded[: len(by_code)], rounded[len(by_code) :], _WHOLE_OFFSETS

    def drafts(
        self,
        confidence: FloatArray,
        num_depths: int,
        *,
        proposed: IntArray | None,
        levels: IntArray | None,
        some_unknown: bool,
    ) -> SureDrafts:
        """The first D depths of float[N, K] confidences, requests as in `cells`.

        Args:
            proposed: int[N], how many drafts there are of each request; None: all are meant.
        """
        num_requests, most = confidence.shape
        codes = np.empty((num_depths, num_requests), dtype=np.int64)
        survival, curve = np.empty((most, num_requests)), np.empty((2, CURVE_CELLS + 1))
        INNER.loops.read_drafts(
            confidence,
            num_depths,
            NONE if proposed is None else proposed,
            NONE if levels is None else levels,
            *self._whole,
            some_unknown,
            codes,
            survival,
            curve,
        )
        return SureDrafts(codes, survival.T, GainCurve(*curve))

    def cells(self, codes: IntArray, levels: IntArray | None) -> CellArray:
        """int16[D, N]: cells of int[D, N] codes; requests of int[N] levels, or all like the batch."""
        return INNER.loops.cells(codes, NONE if levels is None else levels, *self._whole)
