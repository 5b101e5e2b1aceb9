"""Requests sorted into levels of difficulty, so that tables replace arithmetic per request."""

from __future__ import annotations

import numpy as np

from lightspec_lightllm.planner.gain import GainCurve, SurvivalMass
from lightspec_lightllm.planner.scale import LEVELS, information_of
from lightspec_lightllm.planner.types import FloatArray, IntArray


class LevelTable:
    """Acceptances and survivals by level of request and depth, and their order.

    Attributes:
        acceptance: float[LEVELS, K].
        survival: float[LEVELS, K].
        value, depth, level: the same entries, highest survival first; where equal, by level and then by depth.
        expected: float[2, LEVELS, K + 1], what 0, 1, .. K trials of a request bring, and how much they tell.
    """

    def __init__(self, acceptance: FloatArray) -> None:
        self.acceptance = acceptance
        self.survival: FloatArray = np.multiply.accumulate(acceptance, axis=1)
        num_depths = acceptance.shape[1]
        self._order = np.argsort(-self.survival, axis=None, kind="stable")
        self.value = self.survival.ravel()[self._order]
        self.level, self.depth = np.divmod(self._order, num_depths)
        self.depth += 1
        self.expected = np.zeros((2, len(acceptance), num_depths + 1))
        np.add.accumulate(acceptance, axis=1, out=self.expected[0, :, 1:])
        np.add.accumulate(information_of(acceptance), axis=1, out=self.expected[1, :, 1:])

    def curve(self, counts: IntArray) -> GainCurve:
        """Gain of int[LEVELS, K] drafts."""
        return GainCurve.of(counts.ravel().take(self._order), self.value)

    def mass(self, levels: IntArray) -> SurvivalMass:
        """The drafts of a batch of int[N] levels in which every request proposes K."""
        count = np.bincount(levels, minlength=LEVELS)
        if np.maximum.reduce(count) == len(levels):
            return SurvivalMass.ladder_of(self.survival[levels[0]], len(levels))
        return SurvivalMass(self.value, self.depth, count.take(self.level).astype(np.float64))
