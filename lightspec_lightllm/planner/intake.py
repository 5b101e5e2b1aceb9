"""What a host says about a batch or a round, checked: a planner believes nothing that cannot be."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.errors import FeedbackError, PlanError
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.types import BatchView, FloatArray, IntArray, RoundFeedback

NUMBERS = (int, float, np.integer, np.floating)
"""Types of one number."""

_NO_COUNTS: IntArray = np.zeros(0, dtype=np.int64)


class Outcome(NamedTuple):
    """A round's feedback, checked, in arrays of the planner's own, confidences excepted: these may be the host's own
    buffer, which it may reuse once the call that read it returned.

    Attributes:
        verified, accepted, proposed: int[N].
        confidence: float[N, K], see `read_confidence`, or None.
        request_ids: int[N] or None.
        num_unknown: confidences of proposed drafts that are not known.
        trials: int[N], drafts verified whose predecessors were all accepted.
        num_trials, num_verified, num_accepted: sums of these, of the drafts verified and of the accept lengths.
    """

    verified: IntArray
    accepted: IntArray
    proposed: IntArray
    confidence: FloatArray | None
    request_ids: IntArray | None
    num_unknown: int = 0
    trials: IntArray = _NO_COUNTS
    num_trials: int = 0
    num_verified: int = 0
    num_accepted: int = 0


def read_view(view: BatchView, max_draft_steps: int) -> tuple[IntArray, FloatArray | None, int]:
    """The drafts waiting, int[N]; their confidences (see `read_confidence`) or None; and how many are unknown.

    Raises:
        PlanError: the view's arrays do not fit the number of requests or hold impossible values.
    """
    proposed = read_proposals(view, max_draft_steps)[0]
    if view.confidence is None:
        return proposed, None, 0
    return proposed, *read_confidence(view.confidence, proposed, max_draft_steps)


def read_proposals(view: BatchView, max_draft_steps: int) -> tuple[IntArray, IntArray, int]:
    """int[N] drafts waiting, a copy; int[K + 1], how many requests have 0, 1, .. K of them; and their sum.

    Raises:
        PlanError: there is not one count in 0..K per request.
    """
    proposed = np.array(view.proposed, dtype=np.int64)
    if proposed.shape != (view.num_requests,):
        raise PlanError(f"proposed: expected one count for each of {view.num_requests} requests, got {proposed.shape}")
    tally = np.empty(max_draft_steps + 1, dtype=np.int64)
    available = INNER.loops.proposal_counts(proposed, tally)
    if available < 0:
        raise PlanError(f"proposed: expected counts in 0..{max_draft_steps}, got {proposed.tolist()}")
    return proposed, tally, available


def read_backlog(view: BatchView, counted: int) -> int:
    """Rows that the drafter must catch up on: what the host says, or what was counted.

    Raises:
        PlanError: it is negative.
    """
    if view.draft_backlog is None:
        return counted
    if view.draft_backlog < 0:
        raise PlanError(f"draft_backlog: expected a number of tokens of at least 0, got {view.draft_backlog}")
    return view.draft_backlog


def read_ids(view: BatchView) -> IntArray | None:
    """int[N], ids of the requests, a copy, or None.

    Raises:
        PlanError: there is not one per request.
    """
    if view.request_ids is None:
        return None
    ids = np.array(view.request_ids, dtype=np.int64)
    if ids.shape != (view.num_requests,):
        raise PlanError(f"request_ids: expected {view.num_requests} ids, got shape {ids.shape}")
    return ids


def read_confidence(values: object, proposed: IntArray, max_draft_steps: int) -> tuple[FloatArray, int]:
    """float[N, K] in 0..1 or NaN where a proposed draft's confidence is not known, and how many these are.

    Entries past what is proposed may be any number in 0..1.

    Raises:
        PlanError: the shape is another, or a proposed draft has something else for a probability.
    """
    try:
        confidence = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanError("confidence: expected an array of probabilities, got something else") from None
    expected = (len(proposed), max_draft_steps)
    if confidence.shape != expected:
        raise PlanError(f"confidence: expected shape {expected}, got {confidence.shape}")
    flags = confidence.flags
    if flags.c_contiguous and flags.aligned and INNER.loops.are_probabilities(confidence):
        return confidence, 0
    confidence = np.where(np.arange(max_draft_steps) < proposed[:, None], confidence, 0.0)
    unknown = np.isnan(confidence)
    if not (confidence[~unknown] >= 0.0).all() or not (confidence[~unknown] <= 1.0).all():
        raise PlanError("confidence: expected probabilities in 0..1, or NaN if unknown, for every waiting draft")
    return confidence, int(np.count_nonzero(unknown))


def read_chain(confidence: object, request_ids: object) -> tuple[FloatArray, IntArray, int]:
    """float[n, j] confidences of drafts so far, as `read_confidence` gives them; int[n] ids; how many are unknown.

    Raises:
        PlanError: a confidence is no probability, or there is not one row of them per request.
    """
    try:
        ids, shape = np.array(request_ids, dtype=np.int64), np.shape(cast(npt.ArrayLike, confidence))
    except (TypeError, ValueError, OverflowError):
        raise PlanError("confidence and request_ids: expected arrays of numbers, got something else") from None
    if ids.ndim != 1 or len(shape) != 2 or shape[0] != len(ids):
        raise PlanError(
            "confidence and request_ids: expected float[n, j] and int[n], one row and one id per request, got shapes "
            f"{shape} and {ids.shape}"
        )
    sure, num_unknown = read_confidence(confidence, np.full(len(ids), shape[1]), shape[1])
    return sure, ids, num_unknown


def read_feedback(feedback: RoundFeedback, max_draft_steps: int, *, confidence: bool = True) -> Outcome:
    """The round's counts, ids and confidences.

    Args:
        confidence: whether to read the confidences.

    Raises:
        FeedbackError: no round can have given this feedback.
    """
    verified, accepted = _whole("verified", feedback.verified), _whole("accepted", feedback.accepted)
    if verified.shape != accepted.shape:
        shapes = f"{verified.shape} and {accepted.shape}"
        raise FeedbackError(f"verified and accepted: expected one number per request each, got shapes {shapes}")
    planned = feedback.plan.proposed
    known = planned is not None and len(planned) == len(verified)
    proposed = np.array(planned, dtype=np.int64) if known else verified
    trials = np.empty(len(verified), dtype=np.int64)
    possible, *sums = INNER.loops.round_counts(verified, accepted, proposed, max_draft_steps, trials)
    if not possible:
        raise FeedbackError(
            f"expected verified in 0..{max_draft_steps}, no more than the {proposed.tolist()} proposed, and "
            f"accepted in 1..1 + verified, got verified {verified.tolist()} and accepted {accepted.tolist()}"
        )
    if feedback.measured_ms is not None and not _is_time(feedback.measured_ms):
        raise FeedbackError(f"measured_ms: expected a finite time above 0, got {feedback.measured_ms!r}")
    made = feedback.draft_steps
    if made is not None and not _is_count(made, max_draft_steps):
        raise FeedbackError(f"draft_steps: expected a whole number in 0..{max_draft_steps}, got {made!r}")
    ids = None if feedback.request_ids is None else _whole("request_ids", feedback.request_ids)
    if ids is not None and ids.shape != verified.shape:
        raise FeedbackError(f"request_ids: expected {len(verified)}, got {len(ids)}")
    sure, num_unknown = None, 0
    if confidence and feedback.confidence is not None:
        try:
            sure, num_unknown = read_confidence(feedback.confidence, proposed, max_draft_steps)
        except PlanError as error:
            raise FeedbackError(str(error)) from None
    return Outcome(verified, accepted, proposed, sure, ids, num_unknown, trials, *sums)


def _whole(name: str, values: object) -> IntArray:
    """One whole number per request, a copy."""
    if type(values) is np.ndarray and values.dtype is _NO_COUNTS.dtype and values.ndim == 1:
        return cast(IntArray, values.copy())
    try:
        array = np.asarray(values)
    except ValueError:
        raise FeedbackError(f"{name}: expected one number per request, got rows of several lengths") from None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise FeedbackError(
            f"{name}: expected one whole number per request, got shape {array.shape} and dtype {array.dtype}"
        )
    return array.astype(np.int64)


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) <= most


def _is_time(value: object) -> bool:
    return isinstance(value, NUMBERS) and math.isfinite(value) and float(value) > 0.0
