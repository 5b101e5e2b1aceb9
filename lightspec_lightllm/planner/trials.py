"""What rounds say of their drafts: trials, and counts of them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from lightspec_lightllm.planner.acceptance import LEVELS, Scores, sums
from lightspec_lightllm.planner.confidence import NUM_CODES
from lightspec_lightllm.planner.intake import Outcome
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
    """One round that was fed back and not learned from yet.

    Attributes:
        trials: int[N], drafts verified whose predecessors were all accepted.
        accepted: int[N], accept lengths, ``trials <= accepted <= trials + 1``.
        proposed: int[N], drafts that were up for verification.
        request_ids: int[N] or None.
        codes: int[D, N] of the proposed drafts' confidences, D at least the most proposed; or None.
    """

    trials: IntArray
    accepted: IntArray
    proposed: IntArray
    request_ids: IntArray | None
    codes: IntArray | None

    @classmethod
    def of(cls, outcome: Outcome, trials: IntArray, codes: IntArray | None) -> SeenRound:
        """A round to learn from later, on copies: the host may reuse its buffers."""
        ids = None if outcome.request_ids is None else outcome.request_ids.copy()
        return cls(trials, outcome.accepted.copy(), outcome.proposed.copy(), ids, codes)

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


class Trials(NamedTuple):
    """Single trials with confidences.

    Attributes:
        request: int[T], position in the rounds they are from.
        depth: int[T], from 0.
        code: int[T].
        right: int[T], 1 where the draft was accepted, else 0.
    """

    request: IntArray
    depth: IntArray
    code: IntArray
    right: IntArray


def joined(arrays: list[IntArray]) -> IntArray:
    """One after the other."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def joined_codes(rounds: list[SeenRound], max_draft_steps: int) -> IntArray:
    """int[K, M]: codes of rounds that all have some, one after the other; unknown where nothing was proposed."""
    proposed = joined([seen.proposed for seen in rounds])
    codes = np.empty((max_draft_steps, len(proposed)), dtype=np.int64)
    codes[:] = np.arange(NUM_CODES, NUM_CODES + max_draft_steps)[:, None]
    depths, at = np.arange(max_draft_steps)[:, None], 0
    for seen in rounds:
        known = cast(IntArray, seen.codes)
        part = codes[: len(known), at : at + len(seen.proposed)]
        np.copyto(part, known, where=depths[: len(known)] < seen.proposed)
        at += len(seen.proposed)
    return codes


def at_least(tally: IntArray) -> IntArray:
    """int[.., K]: from how many there are of 0, 1, .. K, how many are at least 1, 2, .. K."""
    return np.add.accumulate(tally[..., :0:-1], axis=-1)[..., ::-1]


def by_level(counts: IntArray, levels: IntArray, largest: int) -> IntArray:
    """int[LEVELS, largest + 1]: how many of ``counts`` are 0, 1, .. largest, by level."""
    width = largest + 1
    return np.bincount(levels * width + counts, minlength=LEVELS * width).reshape(LEVELS, width)


def single_trials(trials: IntArray, accepted: IntArray, codes: IntArray) -> Trials:
    """The trials of int[M] requests one by one, those without a known confidence left out.

    Args:
        codes: int[K, M].
    """
    ends = np.add.accumulate(trials)
    request = np.repeat(np.arange(len(trials)), trials)
    depth = np.arange(len(request))
    depth -= np.repeat(ends - trials, trials)
    right = np.ones(len(request), dtype=np.int64)
    # Where there are as many trials as accepted tokens, the target's own among these, the last trial failed.
    right[ends[trials == accepted] - 1] = 0
    code = codes.ravel().take(depth * len(trials) + request)
    found = Trials(request, depth, code, right)
    known = code < NUM_CODES
    return found if known.all() else Trials(*(part[known] for part in found))


def summed(keys: IntArray, residual: FloatArray, information: FloatArray, size: int) -> FloatArray:
    """float[2, size]: residuals and information of trials, by key."""
    return np.stack((sums(keys, residual, size), sums(keys, information, size)))
