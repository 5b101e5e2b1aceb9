"""What rounds say of their drafts: counts of trials and of what was accepted, and their scores against expectation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightspec_lightllm.planner.acceptance import LEVELS, NUM_BINS, information_of, sums
from lightspec_lightllm.planner.intake import Outcome
from lightspec_lightllm.planner.types import BoolArray, FloatArray, IntArray


class Reading(NamedTuple):
    """What the confidences of a batch say, looked up in the tables of a moment.

    Attributes:
        waiting: bool[N, K], which of the drafts there are; None: all.
        bins: int[N, K], bin of each confidence; `NUM_BINS` where nothing is proposed.
        acceptance: float[N, K], calibrated conditional acceptance, extrapolated by depth past what is proposed.
        survival: float[N, K], its running product.
    """

    waiting: BoolArray | None
    bins: IntArray
    acceptance: FloatArray
    survival: FloatArray


class SeenRound(NamedTuple):
    """One round that was fed back and not learned from yet.

    Attributes:
        trials: int[N], drafts verified whose predecessors were all accepted.
        accepted: int[N], accept lengths, ``trials <= accepted <= trials + 1``.
        proposed: int[N], drafts that were up for verification.
        request_ids: int[N] or None.
        confidence: float[N, K] of the proposed drafts, or None.
        reading: of these confidences, where they were read when the round was planned.
    """

    trials: IntArray
    accepted: IntArray
    proposed: IntArray
    request_ids: IntArray | None
    confidence: FloatArray | None
    reading: Reading | None

    @classmethod
    def of(cls, outcome: Outcome, trials: IntArray, reading: Reading | None) -> SeenRound:
        """A round to learn from later, on copies: the host may reuse its buffers."""
        confidence = outcome.confidence
        return cls(
            trials,
            outcome.accepted.copy(),
            outcome.proposed,
            None if outcome.request_ids is None else outcome.request_ids.copy(),
            confidence.copy() if reading is None and confidence is not None else confidence,
            reading,
        )


class Learned(NamedTuple):
    """What a model took up.

    Attributes:
        residual, information: float[K], of the trials by depth.
        rise: see `AcceptanceModel.learn`.
        requests: int[M] entries of `RequestOffsets` and their scores, float[2, M], or None.
    """

    residual: FloatArray
    information: FloatArray
    rise: float
    requests: tuple[IntArray, FloatArray] | None


class Scores(NamedTuple):
    """Accepted trials above expectation (residuals) and Fisher information, each as residual and information.

    Attributes:
        bins: float[2, bins].
        depths: float[2, K].
        requests: float[2, N].
        trials: int[3, T], bin, depth (from 0) and outcome (0 or 1) of each.
    """

    bins: FloatArray
    depths: FloatArray
    requests: FloatArray
    trials: IntArray


def joined(arrays: list[IntArray]) -> IntArray:
    """One after the other."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def joined_readings(readings: list[Reading]) -> Reading:
    """One after the other; which drafts there are is left out."""
    if len(readings) == 1:
        return readings[0]
    _, *parts = zip(*readings, strict=True)
    return Reading(None, *(np.concatenate(part) for part in parts))


def at_least(tally: IntArray) -> IntArray:
    """int[.., K]: from how many there are of 0, 1, .. K, how many are at least 1, 2, .. K."""
    return np.add.accumulate(tally[..., :0:-1], axis=-1)[..., ::-1]


def by_level(counts: IntArray, levels: IntArray, largest: int) -> IntArray:
    """int[LEVELS, largest + 1]: how many of ``counts`` are 0, 1, .. largest, by level."""
    width = largest + 1
    return np.bincount(levels * width + counts, minlength=LEVELS * width).reshape(LEVELS, width)


def scores_of(trials: IntArray, accepted: IntArray, reading: Reading) -> Scores:
    """Compare trials with what their confidences promised; there must be at least one."""
    num_requests, num_depths = reading.bins.shape
    ends = np.add.accumulate(trials)
    cells = np.repeat(np.arange(num_requests) * num_depths - ends + trials, trials)
    cells += np.arange(ends[-1])
    expected = reading.acceptance.ravel().take(cells)
    information = information_of(expected)
    residual = 1.0 - expected
    # Where there are as many trials as accepted tokens, the target's own among these, the last trial failed.
    failed = ends[trials == accepted] - 1
    residual[failed] -= 1.0
    right = np.ones(len(cells), dtype=np.int64)
    right[failed] = 0
    bins = reading.bins.ravel().take(cells)
    requests, depths = np.divmod(cells, num_depths)

    def by(keys: IntArray, size: int) -> FloatArray:
        return np.stack((sums(keys, residual, size), sums(keys, information, size)))

    return Scores(
        bins=by(bins, NUM_BINS),
        depths=by(depths, num_depths),
        requests=by(requests, num_requests),
        trials=np.stack((bins, depths, right)),
    )
