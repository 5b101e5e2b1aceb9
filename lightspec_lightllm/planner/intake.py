"""What a host says about a batch or a round, checked: for strategies that need only the counts and the confidences."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lightspec_lightllm.errors import FeedbackError, PlanError
from lightspec_lightllm.planner.types import BatchView, FloatArray, IntArray, RoundFeedback


class Outcome(NamedTuple):
    """A round's feedback: int[N] each, confidence float[N, K] (0 past what was proposed) or None."""

    verified: IntArray
    accepted: IntArray
    proposed: IntArray
    confidence: FloatArray | None


def read_view(view: BatchView, max_draft_steps: int) -> tuple[IntArray, FloatArray | None]:
    """The drafts waiting, int[N], and their confidences, float[N, K] with 0 past what is waiting, or None.

    Raises:
        PlanError: the view's arrays do not fit the number of requests or hold impossible values.
    """
    proposed = np.asarray(view.proposed, dtype=np.int64)
    if proposed.shape != (view.num_requests,):
        raise PlanError(f"proposed: expected one count for each of {view.num_requests} requests, got {proposed.shape}")
    if len(proposed) and (proposed.min() < 0 or proposed.max() > max_draft_steps):
        raise PlanError(f"proposed: expected counts in 0..{max_draft_steps}, got {proposed.tolist()}")
    if view.confidence is None:
        return proposed, None
    return proposed, _confidence(view.confidence, proposed, max_draft_steps)


def read_feedback(feedback: RoundFeedback, max_draft_steps: int) -> Outcome:
    """The round's counts and confidences.

    Raises:
        FeedbackError: no round can have given this feedback.
    """
    verified, accepted = _whole("verified", feedback.verified), _whole("accepted", feedback.accepted)
    if verified.shape != accepted.shape:
        shapes = f"{verified.shape} and {accepted.shape}"
        raise FeedbackError(f"verified and accepted: expected one number per request each, got shapes {shapes}")
    planned = feedback.plan.proposed
    proposed = verified if planned is None or len(planned) != len(verified) else planned
    if (
        (verified < 0).any()
        or (verified > np.minimum(proposed, max_draft_steps)).any()
        or (accepted < 1).any()
        or (accepted > 1 + verified).any()
    ):
        raise FeedbackError(
            f"expected verified in 0..{max_draft_steps}, no more than the {proposed.tolist()} proposed, and "
            f"accepted in 1..1 + verified, got verified {verified.tolist()} and accepted {accepted.tolist()}"
        )
    if feedback.measured_ms is not None and not _is_time(feedback.measured_ms):
        raise FeedbackError(f"measured_ms: expected a finite time above 0, got {feedback.measured_ms!r}")
    if feedback.confidence is None:
        return Outcome(verified, accepted, proposed, None)
    try:
        confidence = _confidence(feedback.confidence, proposed, max_draft_steps)
    except PlanError as error:
        raise FeedbackError(str(error)) from None
    return Outcome(verified, accepted, proposed, confidence)


def _confidence(values: object, proposed: IntArray, max_draft_steps: int) -> FloatArray:
    try:
        confidence = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanError("confidence: expected an array of probabilities, got something else") from None
    expected = (len(proposed), max_draft_steps)
    if confidence.shape != expected:
        raise PlanError(f"confidence: expected shape {expected}, got {confidence.shape}")
    confidence = np.where(np.arange(max_draft_steps) < proposed[:, None], confidence, 0.0)
    if not ((confidence >= 0.0) & (confidence <= 1.0)).all():
        raise PlanError("confidence: expected probabilities in 0..1 for every waiting draft, got NaN or one outside")
    return confidence


def _whole(name: str, values: object) -> IntArray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise FeedbackError(f"{name}: expected one number per request, got rows of several lengths") from None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise FeedbackError(
            f"{name}: expected one whole number per request, got shape {array.shape} and dtype {array.dtype}"
        )
    return array.astype(np.int64, copy=False)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and math.isfinite(value) and float(value) > 0.0
