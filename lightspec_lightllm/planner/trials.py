"""What rounds say of their drafts: trials, and counts of them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from lightspec_lightllm.planner.acceptance import Scores
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.types import FloatArray, IntArray


class Reading(NamedTuple):
    """A batch's confidences as they were read when a round was planned.

    Attributes:
        source: the array that the host gave; the one that comes back with the round need not be read again.
        codes: int[D, N] (see `confidence`), of the depths that were proposed.
    """

    source: Any
    codes: IntArray


_NO_CODES = np.zeros((0, 0), dtype=np.int64)


class SeenRound(NamedTuple):
    """One round that was fed back and not learned from yet, in arrays of the planner's own.

    Attributes:
        trials: int[N], drafts verified whose predecessors were all accepted.
        num_trials: their sum.
        accepted: int[N], accept lengths, ``trials <= accepted <= trials + 1``.
        proposed: int[N], drafts that were up for verification.
        request_ids: int[N] or None.
        codes: int[D, N] of the proposed drafts' confidences, D at least the most proposed; or None.
    """

    trials: IntArray
    num_trials: int
    accepted: IntArray
    proposed: IntArray
    request_ids: IntArray | None
    codes: IntArray | None

    def without_codes(self) -> SeenRound:
        """The same round, of whose confidences nothing need be kept but that there were some."""
        return SeenRound(*self[:-1], None if self.codes is None else _NO_CODES)


class Learned(NamedTuple):
    """What a model took up.

    Attributes:
        residual, information: float[K], of the trials by depth.
        rise: see `AcceptanceModel.learn`.
        requests: the same by request, or None.
    """

    residual: FloatArray
    information: FloatArray
    rise: float
    requests: Scores | None


def joined(arrays: list[IntArray]) -> IntArray:
    """One after the other."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def trials_of(rounds: list[SeenRound]) -> tuple[IntArray, IntArray]:
    """int[M] trials and accept lengths of rounds, one after the other."""
    return joined([seen.trials for seen in rounds]), joined([seen.accepted for seen in rounds])


def joined_codes(rounds: list[SeenRound], max_draft_steps: int) -> IntArray:
    """int[K, M]: codes of rounds that all have some, one after the other; unknown where nothing was proposed."""
    proposed = joined([seen.proposed for seen in rounds])
    codes = np.empty((max_draft_steps, len(proposed)), dtype=np.int64)
    at = 0
    for seen in rounds:
        INNER.loops.lay_codes(codes, cast(IntArray, seen.codes), seen.proposed, at)
        at += len(seen.proposed)
    return codes


def at_least(tally: IntArray) -> IntArray:
    """int[.., K]: from how many there are of 0, 1, .. K, how many are at least 1, 2, .. K."""
    return np.add.accumulate(tally[..., :0:-1], axis=-1)[..., ::-1]
