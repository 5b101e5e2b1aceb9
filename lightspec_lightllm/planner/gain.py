"""Expected tokens by verified rows: what both stages search on."""

from __future__ import annotations

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

    With few requests one round says little about the next; the last ``size`` request rounds do. Survivals past what
    was proposed are extrapolated by the caller, so that a short proposal today does not hide what a long one brings.
    """

    def __init__(self, max_draft_steps: int, size: int = 192, bins: int = 20) -> None:
        self._survival = np.zeros((size, max_draft_steps))
        self._next = 0
        self._filled = 0
        self._bins = bins
        self._depth_offset = np.arange(max_draft_steps) * bins

    def push(self, survival: FloatArray) -> None:
        """Add float[n, K] survivals; only the newest ``size`` rows are kept."""
        size = len(self._survival)
        survival = survival[-size:]
        where = (self._next + np.arange(len(survival))) % size
        self._survival[where] = survival
        self._next = (self._next + len(survival)) % size
        self._filled = min(size, self._filled + len(survival))

    def __len__(self) -> int:
        return self._filled

    def mass(self, num_requests: int) -> SurvivalMass:
        """The expected drafts of a batch of N requests that each propose K, in bins of half a bit of survival."""
        survival = self._survival[: self._filled]
        num_depths = survival.shape[1]
        cell = (
            np.minimum((np.log2(np.maximum(survival, 1e-9)) * -2.0).astype(np.int64), self._bins - 1)
            + self._depth_offset
        )
        count = np.bincount(cell.ravel(), minlength=num_depths * self._bins).astype(np.float64)
        total = np.bincount(cell.ravel(), weights=survival.ravel(), minlength=num_depths * self._bins)
        held = np.flatnonzero(count)
        return SurvivalMass.of(
            total[held] / count[held], held // self._bins + 1, count[held] * (num_requests / self._filled)
        )
