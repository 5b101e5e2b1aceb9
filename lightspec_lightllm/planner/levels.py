"""Requests sorted into levels of difficulty, so that tables replace arithmetic per request."""

from __future__ import annotations

import numpy as np

from lightspec_lightllm.planner.gain import GainCurve, SurvivalMass
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.scale import LEVELS
from lightspec_lightllm.planner.types import FloatArray, IntArray


class LevelTable:
    """Acceptances and survivals by level of request and depth, and their order.

    Args:
        depth_terms: float[K], log-odds by depth.

    Attributes:
        acceptance: float[LEVELS, K].
        survival: float[LEVELS, K].
        value, depth, level: the same entries, highest survival first; where equal, by level and then by depth.
        expected: float[2, LEVELS, K + 1], what 0, 1, .. K trials of a request bring, and how much they tell.
    """

    def __init__(self, depth_terms: FloatArray) -> None:
        num_depths = len(depth_terms)
        self.acceptance, self.survival = np.empty((2, LEVELS, num_depths))
        self.expected = np.empty((2, LEVELS, num_depths + 1))
        self.value = np.empty(LEVELS * num_depths)
        self._place = np.empty((2, LEVELS * num_depths), dtype=np.int64)
        self.level, self.depth = self._place
        INNER.loops.level_table(depth_terms, self.acceptance, self.survival, self.expected, self.value, self._place)

    def curve(self, proposed: IntArray, levels: IntArray) -> GainCurve:
        """Gain of int[N] drafts of requests of int[N] levels."""
        curve = np.empty((2, len(self.value) + 1))
        INNER.loops.level_curve(proposed, levels, self.value, self._place, curve)
        return GainCurve(*curve)

    def mass(self, levels: IntArray) -> SurvivalMass:
        """The drafts of a batch of int[N] levels in which every request proposes K."""
        count = np.bincount(levels, minlength=LEVELS)
        if np.maximum.reduce(count) == len(levels):
            return SurvivalMass.ladder_of(self.survival[levels[0]], len(levels))
        return SurvivalMass(self.value, self.depth, count.take(self.level).astype(np.float64))
