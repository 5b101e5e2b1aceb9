"""Expected tokens by verified rows: what both stages search on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.loops.plain.arithmetic import curve_of
from lightspec_lightllm.planner.survival import CellArray
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
    def ladder_of(cls, survival: FloatArray, num_requests: int) -> SurvivalMass:
        """N requests that are all alike, float[K] survivals."""
        return cls(survival, *_ladder(len(survival), num_requests), ladder=True)

    @classmethod
    def of_drafts(cls, survival: FloatArray, proposed: IntArray) -> SurvivalMass:
        """From float[N, K] survivals, of which the first ``proposed`` of each request count."""
        request, depth = np.nonzero(np.arange(survival.shape[1]) < proposed[:, None])
        return cls.of(survival[request, depth], depth + 1, np.ones(len(depth)))

    def curve(self, steps: int | None = None) -> GainCurve:
        """Gain by rows, over the depths 1..steps or all."""
        return GainCurve.of(self.count if steps is None else self.count * (self.depth <= steps), self.value)


@lru_cache(maxsize=256)
def _ladder(num_depths: int, num_requests: int) -> tuple[IntArray, FloatArray]:
    depth, count = np.arange(1, num_depths + 1), np.full(num_depths, float(num_requests))
    depth.flags.writeable = count.flags.writeable = False
    return depth, count


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
    def of(cls, count: FloatArray | IntArray, value: FloatArray) -> GainCurve:
        """The curve of ``count`` rows of each survival, highest survival first."""
        return cls(*curve_of(count, value))

    @classmethod
    def waiting(cls, tally: IntArray, survival: FloatArray) -> GainCurve:
        """The curve of requests of which int[K + 1] propose 0, 1, .. K drafts, of float[K] survivals by depth."""
        return cls(*INNER.loops.waiting_curve(tally, survival))

    @classmethod
    def of_survivals(cls, survival: FloatArray) -> GainCurve:
        """The curve of single drafts, float[M] in 0..1 in any order."""
        gain = np.zeros(len(survival) + 1)
        np.add.accumulate(np.sort(survival)[::-1], out=gain[1:])
        return cls(np.arange(len(gain), dtype=np.float64), gain)

    def at(self, rows: IntArray | FloatArray) -> FloatArray:
        """Gain at several numbers of rows."""
        return np.interp(rows, self.rows, self.gain)

    def gain_of(self, rows: int) -> float:
        """Gain of one number of rows."""
        return INNER.loops.gain_at(self.rows, self.gain, rows) if rows else 0.0


NO_GAIN = GainCurve(np.zeros(1), np.zeros(1))
"""The curve of a batch without drafts."""


class SurvivalHistory:
    """The last requests' calibrated survivals, the population that the next round's drafts are drawn from.

    With few requests one round says little about the next, so the last `WINDOW` request rounds are used, but of no more
    than some `ROUNDS` rounds: a request is as hard as its own last rounds were, and those that were served before it
    say less. Rounds are kept or dropped as a whole: what is known does not depend on the order of their requests.
    Survivals past what was proposed are extrapolated by the caller, so that a short proposal today does not hide what a
    long one brings.
    """

    WINDOW = 256
    ROUNDS = 64

    def __init__(self) -> None:
        self._rounds: deque[CellArray] = deque()
        self._held = 0

    def push(self, cells: CellArray, proposed: IntArray, num_requests: int) -> None:
        """Add some rounds' int16[K, M] cells, which must not change afterwards; only the newest are kept.

        Args:
            proposed: int[M], drafts that the cells are of; requests without a proposal say nothing.
            num_requests: N of the newest of these rounds.
        """
        total, size = len(proposed), int(np.count_nonzero(proposed))
        if not size:
            return
        whole = size >= total - total // 32  # a few that would be extrapolated do not matter
        self._rounds.append(cells if whole else cells[:, proposed > 0])
        self._held += self._rounds[-1].shape[1]
        window = min(self.WINDOW, self.ROUNDS * num_requests)
        while self._held - self._rounds[0].shape[1] >= window:
            self._held -= self._rounds.popleft().shape[1]

    def clear(self) -> None:
        """Forget all rounds."""
        self._rounds.clear()
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def mass(self, num_requests: int) -> SurvivalMass:
        """The expected drafts of a batch of N requests that each propose K, in bins half a bit of survival wide."""
        cells = self._rounds[0] if len(self._rounds) == 1 else np.concatenate(self._rounds, axis=1)
        return SurvivalMass(*INNER.loops.expected_drafts(cells, num_requests))
