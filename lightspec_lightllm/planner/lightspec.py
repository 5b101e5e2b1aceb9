"""The ``lightspec`` strategy: search the verify budget, then the draft steps, every round."""

from __future__ import annotations

import math

import numpy as np

from lightspec_lightllm.errors import FeedbackError, PlanError
from lightspec_lightllm.planner.batch_costs import BatchCosts
from lightspec_lightllm.planner.budget import FoundBudget, best_budget
from lightspec_lightllm.planner.chain import ChainRule
from lightspec_lightllm.planner.confidence import codes_of
from lightspec_lightllm.planner.costs import CostModel, draft_terms
from lightspec_lightllm.planner.estimator import WARM_VERSIONS, AcceptanceEstimator
from lightspec_lightllm.planner.gain import NO_GAIN, GainCurve, SurvivalMass
from lightspec_lightllm.planner.intake import (
    NUMBERS,
    Outcome,
    read_backlog,
    read_confidence,
    read_feedback,
    read_ids,
    read_proposals,
)
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.options import PlannerOptions
from lightspec_lightllm.planner.pace import Pace
from lightspec_lightllm.planner.probe import ProbeSchedule
from lightspec_lightllm.planner.served_costs import ServedCosts
from lightspec_lightllm.planner.steps import catching_up_ms, compared_steps, legal_steps, steps_values
from lightspec_lightllm.planner.survival_table import SureDrafts
from lightspec_lightllm.planner.trials import Reading, SeenRound
from lightspec_lightllm.planner.types import (
    BY_STEP,
    BatchView,
    DrafterKind,
    FloatArray,
    IntArray,
    Plan,
    PlannerCounters,
    RoundFeedback,
)

BACKLOG_TOKENS = 32
"""Tokens per request that a drafter is taken to catch up on at most, where the host does not count its backlog."""

CONTEXT_STEP = 0.03
"""Relative change of the mean context that costs are read anew for; in between, tables that were read are kept."""

PROBE_HOPE = 10.0
"""By how many times the options' share of time probes may take more, per unit of acceptance that may be missed."""

PROBE_ROWS = 8
"""Drafted rows that a probe verifies at most; no more than requests."""

CHOICE_SHARE = 1 / 64
"""Weight of the newest round in what choosing by the drafts at hand brings."""

SETTLED_ROUNDS = 16
"""Rounds after which prices and draft steps are looked at anew though nothing was learned."""


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
        INNER.prepare()
        self._legal = legal_steps(drafter, max_draft_steps)
        self._served = ServedCosts(costs, drafter=drafter, legal=self._legal)
        self._estimator = AcceptanceEstimator(max_draft_steps, options)
        self._pace = Pace(options.pace_rounds)
        self._probes = ProbeSchedule(options.probe_rounds)
        self._steps = 0
        self._backlog = 0
        self._context = 0.0
        self._drafted_to_probe = False
        self._state = (0, 0, 0.0)
        self._age = 0
        self._price = 0.0
        self._last_budget: FoundBudget | None = None
        self._found_steps = 0
        self._search_in = -1
        """Rounds until the draft steps are searched, negative: not before something was learned."""
        self._choice = 0.0
        self._doomed = False
        self._expected_choice: tuple[tuple[float, ...], float] = ((), 0.0)

    @property
    def loops(self) -> str:
        """What runs the loops over requests and drafts: ``compiled``, or ``numpy`` and why. Plans are the same."""
        return INNER.described

    # --- plan ---------------------------------------------------------------------------------------------------------

    def plan(self, view: BatchView) -> Plan:
        """Choose the verify budget of this round and the draft steps for the next.

        Raises:
            PlanError: the view's arrays do not fit the number of requests or hold impossible values.
        """
        num_requests = view.num_requests
        if num_requests == 0:
            return Plan(0, 0)
        proposed, tally, available = read_proposals(view, self.max_draft_steps)
        levels, drafts, reading = self._read(view, proposed, tally)
        backlog = min(read_backlog(view, self._backlog), BACKLOG_TOKENS * num_requests)
        fresh = self._settle(num_requests)

        curve, survival, rows = self._choose_budget(proposed, tally, available, levels, drafts, backlog)
        if fresh and self._search_in < 0:
            self._search_in = 0 if self._estimator.version <= WARM_VERSIONS else 1  # no round does everything
        if self._search_in == 0:
            self._found_steps = self._choose_steps(num_requests, levels, backlog)
        self._search_in = max(self._search_in - 1, -1)
        rows, steps, probe = self._maybe_probe(num_requests, available, rows, self._found_steps, backlog)

        self._steps = steps
        self.counters.plans += 1
        costs = self._served.of(num_requests, self._context)
        table_ms = costs.round_ms(rows, steps, backlog)
        return Plan(
            verify_rows=rows,
            draft_steps=steps,
            num_requests=num_requests,
            survival=survival,
            proposed=proposed,
            table_ms=table_ms,
            step_ms=costs.step_ms if self.drafter in BY_STEP else 0.0,
            predicted_ms=self._served.drift.correct(table_ms),
            predicted_tokens=num_requests + curve.gain_of(rows - num_requests),
            probe=probe,
            chain=self._chain_rule(costs, rows),
            reading=reading,
        )

    def _chain_rule(self, costs: BatchCosts, rows: int) -> ChainRule | None:
        if self.drafter not in BY_STEP or not self._estimator.trusts_confidence:
            return None
        return ChainRule(self._estimator, self._price * costs.row_ms(rows), self._price * costs.step_ms)

    def _settle(self, num_requests: int) -> bool:
        """Set the price of time, and keep it until something was learned or the batch changed; whether it was set."""
        state = (self._estimator.version, num_requests, self._context)
        self._age += 1
        if state == self._state and self._age < SETTLED_ROUNDS:
            return False
        self._state, self._age = state, 0
        self._price = self._price_at(self._served.of(num_requests, self._context).off_ms, num_requests)
        self._last_budget = None
        return True

    def _choose_budget(  # noqa: PLR0917 - the parts of a view, in its order
        self,
        proposed: IntArray,
        tally: IntArray,
        available: int,
        levels: IntArray | None,
        drafts: SureDrafts | None,
        backlog: int,
    ) -> tuple[GainCurve, FloatArray | None, int]:
        """Gain curve of the waiting drafts, the survivals to take rows by, and the verify budget."""
        num_requests = len(proposed)
        if not available:
            return NO_GAIN, None, num_requests
        fills = draft_terms(self.drafter, self._steps)[1]
        drafter = (fills, backlog if fills else 0)
        batch = tally
        if drafts is None:
            self._choice *= 1.0 - CHOICE_SHARE
            if levels is not None:
                batch = np.concatenate((tally, self._estimator.level_tally(levels)))
            last = self._last_budget
            if last is not None and last.fits(batch, drafter, num_requests, available):
                return last.curve, self._estimator.survival(levels), last.rows
        if drafts is None:
            curve, survival = self._estimator.waiting(proposed, tally, levels)
        else:
            curve, survival = drafts.curve, drafts.survival
        rows = self._best_rows(curve, num_requests, available, drafter)
        if drafts is not None and available == num_requests * self._steps:
            self._note_choice(curve, rows, num_requests, drafter)
        if rows == num_requests and self._estimator.hopes:
            known = None if drafts is None else survival
            hopeful = self._estimator.hopeful_curve(proposed, tally, levels, known)
            rows = self._best_rows(hopeful, num_requests, available, drafter)
        self._last_budget = FoundBudget(batch, drafter, curve, rows) if drafts is None else None
        return curve, survival, rows

    def _best_rows(self, curve: GainCurve, num_requests: int, available: int, drafter: tuple[float, int]) -> int:
        fills, backlog = drafter
        limit = num_requests + available
        if self.costs.max_rows is not None:
            limit = max(num_requests, min(limit, self.costs.max_rows))
        budgets = self._served.of(num_requests, self._context).budgets(backlog)
        return best_budget(curve, budgets, limit, price=self._price, fills=fills)

    def _note_choice(self, curve: GainCurve, rows: int, num_requests: int, drafter: tuple[float, int]) -> None:
        """Learn what it brings to choose the budget by the drafts at hand instead of those to be expected."""
        fills, backlog = drafter
        budgets = self._served.of(num_requests, self._context).budgets(backlog)

        def value(curve: GainCurve, rows: int) -> float:
            return curve.gain_of(rows - num_requests) - self._price * budgets.ms_of(rows, fills)

        key = (*self._state, self._steps)
        if self._expected_choice[0] != key:
            expected = self._estimator.future(num_requests, None).curve(self._steps)
            best = self._best_rows(expected, num_requests, num_requests * self._steps, drafter)
            self._expected_choice = (key, value(expected, best))
        brought = (value(curve, rows) - self._expected_choice[1]) / num_requests
        self._choice += CHOICE_SHARE * (brought - self._choice)

    def price(self, num_requests: int, context: float) -> float:
        """Lambda, in tokens per table millisecond: what a batch of N brings in one at the running speed-up."""
        return self._price_at(self._served.tables.target_ms(num_requests, num_requests, context), num_requests)

    def _price_at(self, off_ms: float, num_requests: int) -> float:
        drift = self._served.drift
        return self._pace.speedup * num_requests / max(drift.correct(off_ms), 1e-9) * drift.slope

    def _read(
        self, view: BatchView, proposed: IntArray, tally: IntArray
    ) -> tuple[IntArray | None, SureDrafts | None, Reading | None]:
        """The requests' levels, and the waiting drafts by the confidences they are from; notes the batch's context.
        Only as many depths are read as some request proposes."""
        context = view.context_tokens
        if not isinstance(context, NUMBERS):
            context = np.asarray(context)
            context = float(np.add.reduce(context, axis=None)) / (context.size or math.nan)
        if not 0.0 <= context < math.inf:
            raise PlanError(f"context_tokens: expected a number of tokens of at least 0, got a mean of {context}")
        if not abs(context - self._context) <= CONTEXT_STEP * self._context + 8.0:
            self._context = context
        levels = self._estimator.levels(read_ids(view))
        if view.confidence is None:
            return levels, None, None
        confidence, num_unknown = read_confidence(view.confidence, proposed, self.max_draft_steps)
        self.counters.unknown_confidences += num_unknown
        if not self._estimator.trusts_confidence:
            return levels, None, None
        deepest = len(tally) - 1 if tally[-1] else int(tally.nonzero()[0][-1])
        ragged = None if tally[deepest] == len(proposed) else proposed
        drafts = self._estimator.drafts(
            confidence, deepest, proposed=ragged, levels=levels, some_unknown=num_unknown > 0
        )
        return levels, drafts, Reading(view.confidence, drafts.codes)

    def _choose_steps(self, num_requests: int, levels: IntArray | None, backlog: int) -> int:
        """The draft steps of the next round, from a steady state that does not depend on how few are waiting now."""
        if self.drafter == "free":
            return self.max_draft_steps
        mass = self._estimator.future(num_requests, levels)
        compared = self._legal if mass.ladder else compared_steps(self._legal, self._steps)
        values = self._steps_values(mass, num_requests, compared, backlog)
        best, current = int(values.argmax()), compared.index(self._steps)
        if values[best] - values[current] <= self.options.steps_margin * num_requests:
            best = current
        # Drafting ends when two searches in a row are without hope: the drafts of some rounds are but a sample.
        doomed = best == 0 and not self._is_hopeful(num_requests, levels, compared, backlog)
        if best == 0 and (not doomed or (current and not self._doomed)):
            best = 1 + int(values[1:].argmax())
        self._doomed = doomed
        return compared[best]

    def _is_hopeful(self, num_requests: int, levels: IntArray | None, compared: tuple[int, ...], backlog: int) -> bool:
        """Whether drafting would pay if what was seen so far was bad luck."""
        if not self._estimator.hopes:
            return False
        mass = self._estimator.hopeful(num_requests, levels)
        return bool(self._steps_values(mass, num_requests, compared, backlog).argmax())

    def _steps_values(
        self, mass: SurvivalMass, num_requests: int, compared: tuple[int, ...], backlog: int
    ) -> FloatArray:
        """What a round with each of the draft steps is worth, the drafter's catching up included."""
        tables, context = self._served.tables, self._context
        resumed = catching_up_ms(self.drafter, num_requests, backlog, costs=tables, context=context)
        return steps_values(
            mass,
            num_requests,
            compared,
            kind=self.drafter,
            block=self.max_draft_steps,
            costs=tables,
            context=context,
            price=self._price,
            more=num_requests * max(self._choice, 0.0) - self._price * resumed,
        )

    def steps_worth(self, num_requests: int) -> tuple[tuple[int, ...], FloatArray]:
        """The legal draft steps and what a round with each is worth by now, in tokens; for whoever explains a plan."""
        mass = self._estimator.future(num_requests, None)
        return self._legal, self._steps_values(mass, num_requests, self._legal, self._backlog)

    def _maybe_probe(
        self, num_requests: int, available: int, rows: int, steps: int, backlog: int
    ) -> tuple[int, int, bool]:
        """Once in a long while, draft or verify what does not pay by what is known.

        Where nothing is waiting that takes two rounds: one drafts, the next verifies.
        """
        drafted, self._drafted_to_probe = self._drafted_to_probe, False
        if steps > 0 if self.drafter != "free" else rows > num_requests:
            self._probes.worthwhile()
        most = num_requests + min(available or num_requests, num_requests, PROBE_ROWS)
        probe_rows = most if self.costs.max_rows is None else min(most, self.costs.max_rows)
        drafted = drafted and rows < probe_rows and available > 0
        if not drafted and (rows > num_requests or (available == 0 and steps > 0)):
            return rows, steps, False
        self.counters.skips += rows == num_requests
        if probe_rows <= num_requests or not (drafted or self._probes.due()):
            return rows, steps, False
        probe_steps = max(steps, self._legal[1])
        costs = self._served.of(num_requests, self._context)
        extra_ms = costs.round_ms(probe_rows, probe_steps, backlog) - costs.off_ms
        share = self.options.probe_cost * (1.0 + PROBE_HOPE * self._estimator.upside)
        if not (drafted or self._probes.due(extra_ms / (share * max(costs.off_ms, 1e-9)))):
            return rows, steps, False
        self.counters.probes += 1
        self._drafted_to_probe = available == 0
        if available:
            self._probes.planned()
            return probe_rows, steps, True
        return rows, probe_steps, True

    # --- observe ------------------------------------------------------------------------------------------------------

    def observe(self, feedback: RoundFeedback) -> None:
        """Learn from a round: once per round, late or not.

        Raises:
            FeedbackError: no round can have given this feedback; it is counted and changes nothing.
        """
        reading = feedback.plan.reading
        read = reading is not None and reading.source is feedback.confidence
        try:
            outcome = read_feedback(feedback, self.max_draft_steps, confidence=not read)
            if read and reading is not None and reading.codes.shape[1] != len(outcome.verified):
                read_feedback(feedback, self.max_draft_steps)  # they are of another batch
        except FeedbackError:
            self.counters.refused_feedback += 1
            raise
        if not len(outcome.verified):
            return
        self.counters.observed += 1
        self._account(feedback, outcome)
        trials, num_trials = outcome.trials, outcome.num_trials
        surprise = self._estimator.surprise(trials, outcome.accepted) if feedback.plan.probe else 0.0
        codes = self._codes(feedback, outcome)
        if num_trials or codes is not None:
            self._estimator.learn(
                SeenRound(trials, num_trials, outcome.accepted, outcome.proposed, outcome.request_ids, codes)
            )
        else:
            self._estimator.pass_round(len(trials))
        self.counters.changes = self._estimator.changes
        self._probes.observed(num_trials, feedback.plan.probe, surprise, grow=not self._estimator.hopes)

    def _codes(self, feedback: RoundFeedback, outcome: Outcome) -> IntArray | None:
        """The round's confidences: as they were read when it was planned, else as they are fed back."""
        self.counters.unknown_confidences += outcome.num_unknown
        reading = feedback.plan.reading
        if feedback.confidence is None:
            return None
        if reading is not None and reading.codes.shape[1] == len(outcome.verified):
            return reading.codes
        if outcome.confidence is None:
            return None
        return codes_of(outcome.confidence, self.max_draft_steps, some_unknown=outcome.num_unknown > 0)

    def _account(self, feedback: RoundFeedback, outcome: Outcome) -> None:
        """Keep the running rate, the cost correction and the drafter's backlog."""
        plan = feedback.plan
        tokens, num_requests = outcome.num_accepted, len(outcome.accepted)
        costs = self._served.of(num_requests, self._context)
        made = plan.draft_steps if feedback.draft_steps is None else int(feedback.draft_steps)
        self._backlog = 0 if made else min(self._backlog + tokens, BACKLOG_TOKENS * num_requests)
        table_ms = plan.table_ms
        if table_ms <= 0.0:
            table_ms = self._served.tables.target_ms(num_requests + outcome.num_verified, num_requests, self._context)
        table_ms += (made - plan.draft_steps) * plan.step_ms
        if feedback.measured_ms is not None and self.options.drift:
            rows = num_requests + outcome.num_verified
            time, changed = self._served.learn(costs, rows, table_ms, feedback.measured_ms)
            if changed:
                self._last_budget, self._age = None, SETTLED_ROUNDS
        else:
            time = self._served.drift.correct(table_ms)
        self._pace.update(tokens / num_requests, time / max(self._served.drift.correct(costs.off_ms), 1e-9))
