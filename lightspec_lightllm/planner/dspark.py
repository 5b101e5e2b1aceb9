"""The ``dspark`` strategy: capacity scheduled by the drafter's confidence, for block drafters; a baseline."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from lightspec_lightllm.errors import FeedbackError
from lightspec_lightllm.planner.costs import CostModel, draft_terms
from lightspec_lightllm.planner.intake import Outcome, read_feedback, read_view
from lightspec_lightllm.planner.types import (
    BatchView,
    DrafterKind,
    FloatArray,
    IntArray,
    Plan,
    PlannerCounters,
    RoundFeedback,
)

CONFIDENCE_AGE = 2
"""Rounds between the one whose confidences are used and the one they are used for."""

MEMORY_TRIALS = 2000.0
"""Trials of a depth after which its calibration has forgotten 1 - 1/e of the past."""

LEAST_TRIALS = 100.0
"""Trials of a depth before which its confidence is taken as it is told."""

_LOG_ODDS = np.linspace(-6.0, 6.0, 49)
_EXPONENTS = np.array(sorted(range(-8, 17), key=lambda k: (abs(k), k)))
_TEMPERATURES = 2.0 ** (_EXPONENTS / 4.0)
_TEMPERED = 1.0 / (1.0 + np.exp(-_LOG_ODDS / _TEMPERATURES[:, None]))


class DsparkPlanner:
    """Verifies as many rows as the batch's confidence makes worth their time, and gives them to the likeliest drafts.

    The recipe of confidence-scheduled verification (DSpark, 2026), with what it needs from an offline run learned
    while serving instead:

    1. *Calibration.* A confidence c of draft j is read as ``sigmoid(logit(c) / t_j)``, one temperature per depth. t_j
       is the one of a grid with the least expected calibration error on the depth's trials. A draft is a trial if it
       was verified and all before it were accepted, so each depth is fitted on its own. Survival is the product of a
       request's calibrated confidences.
    2. *Capacity.* ``B = argmax tau(B) / (T(B) + D(N, B, K))`` over the budgets of `CostModel.budgets`, where tau(B) is
       N and the B - N largest survivals. The confidences are those of the round before last, `CONFIDENCE_AGE` rounds
       old, so that the host never waits for the drafter; their number is scaled to the drafts that wait now.
    3. *Split.* The capacity goes to the drafts with the largest live survival. Where the host knows this round's
       confidences when it plans they are in ``Plan.survival``; otherwise that is None and rows are ranked where the
       confidences are.

    Only verification is scheduled: every round drafts K. Before the first confidences are old enough, and on a host
    without confidence, every waiting draft is verified.
    """

    def __init__(self, costs: CostModel, *, max_draft_steps: int, drafter: DrafterKind) -> None:
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.counters = PlannerCounters()
        self._calibration = TemperatureScale(max_draft_steps)
        self._planned: deque[tuple[int, Plan]] = deque(maxlen=8)
        self._heard: deque[_Heard] = deque(maxlen=8)

    def plan(self, view: BatchView) -> Plan:
        """Choose the verify budget of this round; K drafts follow.

        Raises:
            PlanError: the view's arrays do not fit the number of requests or hold impossible values.
        """
        num_requests, steps = view.num_requests, self.max_draft_steps
        proposed, confidence, num_unknown = read_view(view, steps)
        if num_requests == 0:
            return Plan(0, 0)
        self.counters.plans += 1
        self.counters.unknown_confidences += num_unknown
        context = float(np.mean(view.context_tokens))
        limit = num_requests + int(proposed.sum())
        if self.costs.max_rows is not None:
            limit = max(num_requests, min(limit, self.costs.max_rows))
        heard = self._old_enough()
        rows, tokens = np.array([limit]), np.array([float(num_requests)])
        if heard is not None and limit > num_requests:
            costs = self.costs.for_requests(num_requests)
            rows = costs.budgets((num_requests, limit), context, view.draft_backlog or 0).rows
            scale = np.count_nonzero(proposed) / heard.num_proposals
            tokens = num_requests + _gain(heard.survival, scale, rows - num_requests)
        time = self._round_ms(num_requests, rows, context, view.draft_backlog or 0)
        best = int((tokens / np.maximum(time, 1e-9)).argmax())
        plan = Plan(
            verify_rows=int(rows[best]),
            draft_steps=steps,
            num_requests=num_requests,
            survival=None if confidence is None else self._calibration.survival(confidence),
            proposed=proposed.copy(),
            table_ms=float(time[best]),
            predicted_ms=float(time[best]),
            predicted_tokens=float(tokens[best]),
        )
        self._planned.append((self.counters.plans, plan))
        return plan

    def _old_enough(self) -> _Heard | None:
        """The newest round that is at least `CONFIDENCE_AGE` rounds before the one being planned."""
        latest = self.counters.plans - CONFIDENCE_AGE
        return next((heard for heard in reversed(self._heard) if heard.round <= latest), None)

    def _round_ms(self, num_requests: int, rows: IntArray, context: float, backlog: int) -> FloatArray:
        """float[C], the time of a round of each of int[C] ascending budgets that then drafts K."""
        chained, fills = draft_terms(self.drafter, self.max_draft_steps)
        chain_rows = num_requests * self.max_draft_steps if self.drafter == "block" else num_requests
        most = max(int(rows[-1]) + backlog, chain_rows)
        target, draft = self.costs.for_requests(num_requests).lines(most, context)
        time = (
            target[rows]
            + fills * self.costs.fill_line(most, context)[rows + backlog]
            + chained * float(draft[chain_rows])
            + self.costs.draft_start_ms(self.drafter, num_requests, self.max_draft_steps)
        )
        return np.asarray(time + self.costs.base_ms(num_requests, context))

    def observe(self, feedback: RoundFeedback) -> None:
        """Learn from a round: the confidences that it had, and how those of its trials came out.

        Raises:
            FeedbackError: no round can have given this feedback; it is counted and changes nothing.
        """
        try:
            outcome = read_feedback(feedback, self.max_draft_steps)
        except FeedbackError:
            self.counters.refused_feedback += 1
            raise
        if not len(outcome.verified):
            return
        self.counters.observed += 1
        self.counters.unknown_confidences += outcome.num_unknown
        if outcome.confidence is None:
            return
        self._calibration.learn(outcome, outcome.confidence)
        survival = self._calibration.survival(outcome.confidence)
        waiting = np.arange(self.max_draft_steps) < outcome.proposed[:, None]
        number = next((n for n, plan in self._planned if plan is feedback.plan), self.counters.plans)
        if num_proposals := int(np.count_nonzero(outcome.proposed)):
            self._heard.append(_Heard(number, num_proposals, np.sort(survival[waiting])[::-1]))


class _Heard(NamedTuple):
    """The drafts of one round: its number, requests with a proposal, and float[M] survivals, descending."""

    round: int
    num_proposals: int
    survival: FloatArray


def _gain(survival: FloatArray, scale: float, rows: IntArray) -> FloatArray:
    """Expected accepted drafts of int[C] drafted rows, of ``scale`` times as many drafts as float[M] survivals."""
    kinks = np.concatenate(([0.0], scale * np.arange(1.0, len(survival) + 1)))
    gain = np.concatenate(([0.0], scale * np.cumsum(survival)))
    return np.interp(rows, kinks, gain)


class TemperatureScale:
    """One temperature per depth between the confidence that is told and the acceptance it means."""

    def __init__(self, max_draft_steps: int) -> None:
        self._depths = np.arange(max_draft_steps)
        self._trials = np.zeros((max_draft_steps, len(_LOG_ODDS)))
        self._accepted = np.zeros((max_draft_steps, len(_LOG_ODDS)))
        self.temperature = np.ones(max_draft_steps)

    def survival(self, confidence: FloatArray) -> FloatArray:
        """float[N, K], products of the calibrated confidences float[N, K]; one that is unknown is taken as 1/2."""
        bounded = np.clip(np.nan_to_num(confidence, nan=0.5), 1e-6, 1.0 - 1e-6)
        log_odds = np.log(bounded / (1.0 - bounded)) / self.temperature
        return np.asarray(np.multiply.accumulate(1.0 / (1.0 + np.exp(-log_odds)), axis=1))

    def learn(self, outcome: Outcome, confidence: FloatArray) -> None:
        """Take in a round's trials and fit the temperatures anew."""
        tried = self._depths < np.minimum(outcome.verified, outcome.accepted)[:, None]
        requests, depths = (tried & ~np.isnan(confidence)).nonzero()
        if not len(depths):
            return
        bounded = np.clip(confidence[requests, depths], 1e-6, 1.0 - 1e-6)
        log_odds = np.clip(np.log(bounded / (1.0 - bounded)), _LOG_ODDS[0], _LOG_ODDS[-1])
        cell = depths * len(_LOG_ODDS) + np.rint((log_odds - _LOG_ODDS[0]) * 4.0).astype(np.int64)
        accepted = depths < outcome.accepted[requests] - 1
        keep = np.exp(-np.bincount(depths, minlength=len(self._depths)) / MEMORY_TRIALS)[:, None]
        shape, size = self._trials.shape, self._trials.size
        self._trials = keep * self._trials + np.bincount(cell, minlength=size).reshape(shape)
        self._accepted = keep * self._accepted + np.bincount(cell[accepted], minlength=size).reshape(shape)
        expected = self._trials[:, None] * _TEMPERED
        error = np.abs(self._accepted[:, None] - expected).sum(axis=2)
        known = self._trials.sum(axis=1) >= LEAST_TRIALS
        self.temperature = np.where(known, _TEMPERATURES[error.argmin(axis=1)], 1.0)
