"""Which rows a budget buys, and how many of them the target accepts."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.errors import PlanError

IntArray = npt.NDArray[np.int64]


def select_rows(proposed: IntArray, budget: int, survival: npt.NDArray[np.float64] | None = None) -> IntArray:
    """How many drafts of each request are verified; a request's kept drafts are always its first ones.

    Args:
        proposed: int[N], drafts waiting.
        budget: B, rows of the target; one of them is each request's own.
        survival: float[N, K], rows are taken from the highest down, the shallower draft first where equal and the
            earlier request after that. None: all first drafts, then all second ones, ...

    Returns:
        int[N] of ``0..proposed``, summing to ``budget - N``.

    Raises:
        PlanError: the budget is below N or above ``N + sum(proposed)``.
    """
    num_requests, available = len(proposed), int(proposed.sum())
    extra = budget - num_requests
    if not 0 <= extra <= available:
        raise PlanError(f"budget: expected {num_requests}..{num_requests + available} rows, got {budget}")
    if extra == available:
        return np.array(proposed)
    if extra == 0:
        return np.zeros_like(proposed)
    if survival is None:
        return _breadth_first(proposed, extra)
    depths = survival.shape[1]
    # A survival that grew with depth would tear a hole into a prefix.
    falling = np.minimum.accumulate(survival, axis=1)
    rank = np.where(np.arange(depths) < proposed[:, None], falling, -np.inf).T
    taken = np.argsort(-rank, axis=None, kind="stable")[:extra]
    return np.bincount(taken % num_requests, minlength=num_requests)


def _breadth_first(proposed: IntArray, extra: int) -> IntArray:
    at_least = np.bincount(proposed)[::-1].cumsum()[::-1][1:]
    whole = int(np.searchsorted(at_least.cumsum(), extra, side="right"))
    verified = np.minimum(proposed, whole)
    rest = np.flatnonzero(proposed > whole)[: extra - int(verified.sum())]
    verified[rest] += 1
    return verified


def accept_lengths(drafts: IntArray, sampled: IntArray, verified: IntArray) -> IntArray:
    """Tokens each request commits: the longest prefix of drafts equal to the target's own tokens, plus one.

    Args:
        drafts: int[N, K], what was proposed.
        sampled: int[N, 1 + K], what the target sampled at row 0 and after each verified draft.
        verified: int[N], drafts that had a row.

    Returns:
        int[N] of ``1..1 + verified``.
    """
    depths = drafts.shape[1]
    right = (drafts == sampled[:, :depths]) & (np.arange(depths) < verified[:, None])
    return cast(IntArray, 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1))
