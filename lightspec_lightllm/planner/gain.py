"""Expected tokens by verified rows: what both stages search on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class SurvivalMass:
    """A batch's drafts as (survival, depth, count), highest survival first.

    Survival never grows with depth within a request, so the first entries of this order are a prefix of every request:
    verifying the B - N likeliest drafts is the same as cutting this list.

    Attributes:
        value: float[M], probability that a draft and all before it are accepted, descending.
        depth: int[M], 1..K.
        count: float[M], how many drafts of the batch are of this kind.
        ladder: whether there is one entry per depth, in order: all requests are alike.
    """

    value: FloatArray
    depth: IntArray
    count: FloatArray
    ladder: bool = False

    @classmethod
    def of(cls, value: FloatArray, depth: IntArray, count: FloatArray) -> SurvivalMass:
        """Sort entries by survival, the shallower first where equal, and drop those that count nothing."""
        order = np.lexsort((depth, -value))
        order = order[count[order] > 0]
        return cls(value[order], depth[order], count[order])

    @classmethod
    def of_drafts(cls, survival: FloatArray, proposed: IntArray) -> SurvivalMass:
        """From float[N, K] survivals, of which the first ``proposed`` of each request count."""
        request, depth = np.nonzero(np.arange(survival.shape[1]) < proposed[:, None])
        return cls.of(survival[request, depth], depth + 1, np.ones(len(depth)))

    def curve(self) -> GainCurve:
        """Gain by rows over all depths."""
        return GainCurve.of(self.count, self.value)


@dataclass(frozen=True, slots=True, eq=False)
class GainCurve:
    """Expected accepted drafts by drafted rows verified: concave, piecewise linear, from (0, 0), flat past its end.

    Attributes:
        rows: float[M + 1], rows at the kinks, ascending from 0.
        gain: float[M + 1], expected accepted drafts there.
    """

    rows: FloatArray
    gain: FloatArray

    @classmethod
    def of(cls, count: FloatArray, value: FloatArray) -> GainCurve:
        """The curve of ``count`` rows of each survival, highest survival first."""
        rows = np.zeros(len(count) + 1)
        gain = np.zeros(len(count) + 1)
        np.add.accumulate(count, out=rows[1:])
        np.add.accumulate(count * value, out=gain[1:])
        return cls(rows, gain)

    def at(self, rows: IntArray | FloatArray) -> FloatArray:
        """Gain at several numbers of rows."""
        return np.interp(rows, self.rows, self.gain)

    def gain_of(self, rows: int) -> float:
        """Gain of one number of rows."""
        return float(np.interp(rows, self.rows, self.gain)) if rows else 0.0


NO_GAIN = GainCurve(np.zeros(1), np.zeros(1))
"""The curve of a batch without drafts."""


class SurvivalHistory:
    """The last requests' calibrated survivals, the population that the next round's drafts are drawn from.

    With few requests one round says little about the next, so at least the last `WINDOW` request rounds are used.
    Rounds are kept or dropped as a whole: what is known does not depend on the order of their requests. Survivals past
    what was proposed are extrapolated by the caller, so that a short proposal today does not hide what a long one
    brings.
    """

    WINDOW = 96

    def __init__(self, max_draft_steps: int, bins: int = 20) -> None:
        self._survival = np.zeros((0, max_draft_steps))
        self._sizes: deque[int] = deque()
        self.num_pushed = 0
        self._bins = bins
        self._depth_offset = np.arange(max_draft_steps) * bins

    def push(self, survival: FloatArray) -> None:
        """Add a round's float[n, K] survivals; only the newest rounds are kept."""
        if not len(survival):
            return
        self._sizes.append(len(survival))
        self.num_pushed += len(survival)
        total, old = len(self._survival) + len(survival), 0
        while total - old - self._sizes[0] >= self.WINDOW:
            old += self._sizes.popleft()
        self._survival = np.concatenate((self._survival[old:], survival))

    def __len__(self) -> int:
        return len(self._survival)

    def mass(self, num_requests: int) -> SurvivalMass:
        """The expected drafts of a batch of N requests that each propose K, in bins of half a bit of survival."""
        survival = self._survival
        num_depths = survival.shape[1]
        cell = np.minimum((np.log2(np.maximum(survival, 1e-9)) * -2.0).astype(np.int64), self._bins - 1)
        cell = (cell + self._depth_offset).ravel()
        count = np.bincount(cell, minlength=num_depths * self._bins).astype(np.float64)
        total = np.bincount(cell, weights=survival.ravel(), minlength=num_depths * self._bins)
        held = np.flatnonzero(count)
        scale = num_requests / len(survival)
        return SurvivalMass.of(total[held] / count[held], held // self._bins + 1, count[held] * scale)
