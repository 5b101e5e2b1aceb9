"""The ``lightspec`` strategy: search the verify budget, then the draft steps, every round."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lightspec_lightllm.errors import FeedbackError, PlanError
from lightspec_lightllm.planner.budget import choose_budget
from lightspec_lightllm.planner.chain import ChainRule
from lightspec_lightllm.planner.costs import CostModel, draft_terms
from lightspec_lightllm.planner.estimator import AcceptanceEstimator
from lightspec_lightllm.planner.gain import NO_GAIN, SurvivalMass
from lightspec_lightllm.planner.options import PlannerOptions
from lightspec_lightllm.planner.pace import CostDrift, Pace
from lightspec_lightllm.planner.probe import ProbeSchedule
from lightspec_lightllm.planner.steps import legal_steps, steps_values
from lightspec_lightllm.planner.types import (
    BatchView,
    DrafterKind,
    FloatArray,
    IntArray,
    Plan,
    PlannerCounters,
    RoundFeedback,
)

REWARM_ROUNDS = 128
"""Rounds over which catching up with the drafter's backlog is written off when drafting is resumed."""

BACKLOG_TOKENS = 32
"""Tokens per request that a drafter is taken to catch up on at most, where the host does not count its backlog."""

PROBE_ROWS = 8
"""Drafted rows that a probe verifies."""


class LightspecPlanner:
    """Two-stage plan from a cost table and running acceptance statistics.

    The state is a pure function of the sequence of views and feedbacks: no clock, no random numbers.
    """

    def __init__(
        self, costs: CostModel, *, max_draft_steps: int, drafter: DrafterKind, options: PlannerOptions
    ) -> None:
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.options = options
        self.counters = PlannerCounters()
        self._legal = legal_steps(drafter, max_draft_steps)
        self._depths = np.arange(max_draft_steps)
        self._estimator = AcceptanceEstimator(max_draft_steps, options)
        self._pace = Pace(options.pace_rounds)
        self._drift = CostDrift()
        self._probes = ProbeSchedule(options.probe_rounds)
        self._steps = 0
        self._backlog = 0
        self._context = 0.0
        self._drafted_to_probe = False
        self._searched: tuple[SurvivalMass | None, int] = (None, 0)

    # --- plan ---------------------------------------------------------------------------------------------------------

    def plan(self, view: BatchView) -> Plan:
        """Choose the verify budget of this round and the draft steps for the next.

        Raises:
            PlanError: the view's arrays do not fit the number of requests or hold impossible values.
        """
        num_requests = view.num_requests
        if num_requests == 0:
            return Plan(0, 0)
        proposed, confidence, levels = self._read(view)
        context = self._context
        available = int(np.add.reduce(proposed))
        backlog = self._backlog if view.draft_backlog is None else view.draft_backlog
        price = self.price(num_requests, context)

        curve, survival = NO_GAIN, None
        if available:
            curve, survival = self._estimator.waiting(proposed, levels, confidence)
        rows = choose_budget(
            curve,
            num_requests,
            available,
            costs=self.costs,
            context=context,
            price=price,
            fills=draft_terms(self.drafter, self._steps)[1],
            backlog=backlog,
        )
        steps = self._choose_steps(num_requests, levels, price, backlog)
        rows, steps, probe = self._maybe_probe(num_requests, available, rows, steps, backlog)

        self._steps = steps
        self.counters.plans += 1
        table_ms = self._table_ms(num_requests, rows, steps, backlog)
        return Plan(
            verify_rows=rows,
            draft_steps=steps,
            num_requests=num_requests,
            survival=survival,
            proposed=proposed,
            table_ms=table_ms,
            predicted_ms=self._drift.correct(table_ms),
            predicted_tokens=num_requests + curve.gain_of(rows - num_requests),
            probe=probe,
            chain=self._chain_rule(num_requests, rows, price),
        )

    def _chain_rule(self, num_requests: int, rows: int, price: float) -> ChainRule | None:
        if self.drafter not in ("serial", "serial_no_kv"):
            return None
        target, draft = self.costs.lines(rows + num_requests, self._context)
        # The slope of the target over the next row of every request.
        row_ms = float(target[rows + num_requests] - target[rows]) / num_requests
        return ChainRule(self._estimator, price * row_ms, price * float(draft[num_requests]))

    def price(self, num_requests: int, context: float) -> float:
        """Lambda, in tokens per table millisecond: what a batch of N brings in one at the running speed-up."""
        off_ms = self._drift.correct(self.costs.target_ms(num_requests, num_requests, context))
        return self._pace.speedup * num_requests / max(off_ms, 1e-9) * self._drift.slope

    def _read(self, view: BatchView) -> tuple[IntArray, FloatArray | None, IntArray | None]:
        num_requests = view.num_requests
        proposed = np.asarray(view.proposed, dtype=np.int64)
        if proposed.shape != (num_requests,):
            raise PlanError(f"proposed: expected one count for each of {num_requests} requests, got {proposed.shape}")
        if int(np.minimum.reduce(proposed)) < 0 or int(np.maximum.reduce(proposed)) > self.max_draft_steps:
            raise PlanError(f"proposed: expected counts in 0..{self.max_draft_steps}, got {proposed.tolist()}")
        context = view.context_tokens
        self._context = float(context) if isinstance(context, int | float) else float(np.mean(context))
        ids = None if view.request_ids is None else np.asarray(view.request_ids, dtype=np.int64)
        if ids is not None and ids.shape != (num_requests,):
            raise PlanError(f"request_ids: expected {num_requests} ids, got shape {ids.shape}")
        confidence = None if view.confidence is None else self._checked(view.confidence, proposed)
        return proposed, confidence, self._estimator.levels(ids)

    def _checked(self, confidence: FloatArray, proposed: IntArray) -> FloatArray:
        try:
            confidence = np.asarray(confidence, dtype=np.float64)
        except (TypeError, ValueError):
            raise PlanError("confidence: expected an array of probabilities, got something else") from None
        if confidence.shape != (len(proposed), self.max_draft_steps):
            expected = (len(proposed), self.max_draft_steps)
            raise PlanError(f"confidence: expected shape {expected}, got {confidence.shape}")
        confidence = np.where(self._depths < proposed[:, None], confidence, 0.0)
        if not (float(confidence.min()) >= 0.0 and float(confidence.max()) <= 1.0):
            raise PlanError(
                "confidence: expected probabilities in 0..1 for every waiting draft, got NaN or one outside"
            )
        return confidence

    def _choose_steps(self, num_requests: int, levels: IntArray | None, price: float, backlog: int) -> int:
        """The draft steps of the next round, from a steady state that does not depend on how few are waiting now."""
        if self.drafter == "free":
            return self.max_draft_steps
        mass = self._estimator.future(num_requests, levels)
        if mass is self._searched[0]:
            return self._searched[1]
        values = steps_values(
            mass,
            num_requests,
            self._legal,
            kind=self.drafter,
            block=self.max_draft_steps,
            costs=self.costs,
            context=self._context,
            price=price,
        )
        if self.drafter != "serial_no_kv":
            # A skipped round leaves its tokens to catch up on; resuming catches up on all of them once.
            draft = self.costs.lines(backlog + 2 * num_requests, self._context)[1]
            values[0] -= price * (draft[2 * num_requests] - draft[num_requests])
            values[1:] -= price * (draft[backlog + num_requests] - draft[num_requests]) / REWARM_ROUNDS
        best = int(values.argmax())
        current = self._legal.index(self._steps)
        if values[best] - values[current] <= self.options.steps_margin * num_requests:
            best = current
        self._searched = (mass, self._legal[best])
        return self._legal[best]

    def _maybe_probe(
        self, num_requests: int, available: int, rows: int, steps: int, backlog: int
    ) -> tuple[int, int, bool]:
        """Once in a long while, draft or verify what does not pay by what is known.

        Where nothing is waiting that takes two rounds: one drafts, the next verifies.
        """
        drafted, self._drafted_to_probe = self._drafted_to_probe, False
        if steps > 0 and self.drafter != "free":
            self._probes.worthwhile()
        most = num_requests + min(available or num_requests, PROBE_ROWS)
        probe_rows = most if self.costs.max_rows is None else min(most, self.costs.max_rows)
        drafted = drafted and rows < probe_rows and available > 0
        if not drafted and (rows > num_requests or (available == 0 and steps > 0)):
            return rows, steps, False
        self.counters.skips += rows == num_requests
        if probe_rows <= num_requests or not (drafted or self._probes.due()):
            return rows, steps, False
        probe_steps = max(steps, self._legal[1])
        off_ms = self._table_ms(num_requests, num_requests, 0, backlog)
        extra_ms = self._table_ms(num_requests, probe_rows, probe_steps, backlog) - off_ms
        if not (drafted or self._probes.due(extra_ms / (self.options.probe_cost * max(off_ms, 1e-9)))):
            return rows, steps, False
        self.counters.probes += 1
        self._drafted_to_probe = available == 0
        return (probe_rows if available else rows), probe_steps, True

    def _table_ms(self, num_requests: int, rows: int, steps: int, backlog: int) -> float:
        return self.costs.target_ms(rows, num_requests, self._context) + self.costs.draft_ms(
            self.drafter,
            num_requests,
            rows,
            steps,
            block=self.max_draft_steps,
            context=self._context,
            backlog=backlog,
        )

    # --- observe ------------------------------------------------------------------------------------------------------

    def observe(self, feedback: RoundFeedback) -> None:
        """Learn from a round: once per round, late or not.

        Raises:
            FeedbackError: no round can have given this feedback; it is counted and changes nothing.
        """
        try:
            outcome = self._check(feedback)
        except (FeedbackError, PlanError) as error:
            self.counters.refused_feedback += 1
            raise FeedbackError(str(error)) from None
        if not len(outcome.verified):
            return
        self.counters.observed += 1
        self._account(feedback, outcome.verified, outcome.accepted)
        trials = np.minimum(outcome.verified, outcome.accepted)
        num_trials = int(np.add.reduce(trials))
        residual = 0.0
        if num_trials:
            residual = self._estimator.learn(
                trials,
                outcome.accepted - 1,
                request_ids=outcome.request_ids,
                confidence=outcome.confidence,
                proposed=outcome.proposed,
            )
            self.counters.changes = self._estimator.changes
        elif outcome.confidence is not None:
            self._estimator.look(outcome.confidence, outcome.proposed, request_ids=outcome.request_ids)
        self._probes.observed(num_trials, feedback.plan.probe, residual)

    def _check(self, feedback: RoundFeedback) -> _Outcome:
        verified, accepted = _whole("verified", feedback.verified), _whole("accepted", feedback.accepted)
        if verified.shape != accepted.shape:
            shapes = f"{verified.shape} and {accepted.shape}"
            raise FeedbackError(f"verified and accepted: expected one number per request each, got shapes {shapes}")
        proposed = _proposed(feedback, verified)
        if len(verified) and (
            int(np.minimum.reduce(verified)) < 0
            or int(np.maximum.reduce(verified)) > self.max_draft_steps
            or int(np.maximum.reduce(verified - proposed)) > 0
            or int(np.minimum.reduce(accepted)) < 1
            or int(np.maximum.reduce(accepted - verified)) > 1
        ):
            raise FeedbackError(
                f"expected verified in 0..{self.max_draft_steps}, no more than the {proposed.tolist()} proposed, and "
                f"accepted in 1..1 + verified, got verified {verified.tolist()} and accepted {accepted.tolist()}"
            )
        if feedback.measured_ms is not None and not _is_time(feedback.measured_ms):
            raise FeedbackError(f"measured_ms: expected a finite time above 0, got {feedback.measured_ms!r}")
        ids = None if feedback.request_ids is None else _whole("request_ids", feedback.request_ids)
        if ids is not None and ids.shape != verified.shape:
            raise FeedbackError(f"request_ids: expected {len(verified)}, got {len(ids)}")
        confidence = None if feedback.confidence is None else self._checked(feedback.confidence, proposed)
        return _Outcome(verified, accepted, proposed, confidence, ids)

    def _account(self, feedback: RoundFeedback, verified: IntArray, accepted: IntArray) -> None:
        """Keep the running rate, the cost correction and the drafter's backlog."""
        plan = feedback.plan
        tokens, num_requests = int(accepted.sum()), len(accepted)
        self._backlog = min(self._backlog + tokens, BACKLOG_TOKENS * num_requests) if plan.draft_steps == 0 else 0
        table_ms = plan.table_ms
        if table_ms <= 0.0:
            table_ms = self.costs.target_ms(num_requests + int(verified.sum()), num_requests, self._context)
        expected = time = self._drift.correct(table_ms)
        if feedback.measured_ms is not None:
            time = min(max(feedback.measured_ms, expected / 3.0), expected * 3.0)
            if self.options.drift:
                self._drift.update(table_ms, feedback.measured_ms)
        off_ms = self._drift.correct(self.costs.target_ms(num_requests, num_requests, self._context))
        self._pace.update(tokens / num_requests, time / max(off_ms, 1e-9))


class _Outcome(NamedTuple):
    """A round's feedback, checked: int[N] each, confidence float[N, K]."""

    verified: IntArray
    accepted: IntArray
    proposed: IntArray
    confidence: FloatArray | None
    request_ids: IntArray | None


def _whole(name: str, values: object) -> IntArray:
    """One whole number per request."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise FeedbackError(f"{name}: expected one number per request, got rows of several lengths") from None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise FeedbackError(
            f"{name}: expected one whole number per request, got shape {array.shape} and dtype {array.dtype}"
        )
    return array.astype(np.int64, copy=False)


def _is_time(value: Any) -> bool:
    try:
        return math.isfinite(value) and value > 0
    except TypeError:
        return False


def _proposed(feedback: RoundFeedback, verified: IntArray) -> IntArray:
    """Drafts that were up for verification; those verified, where the plan does not say."""
    proposed = feedback.plan.proposed
    return verified if proposed is None or len(proposed) != len(verified) else proposed
