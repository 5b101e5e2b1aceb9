"""The ``mean-ema`` strategy: budget and steps from running means, the published recipe, kept as a baseline."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from lightspec_lightllm.errors import FeedbackError
from lightspec_lightllm.planner.costs import CostModel, draft_terms
from lightspec_lightllm.planner.intake import read_feedback, read_view
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

KEEP = 0.9
"""Share of a running mean that a new round leaves."""

WARM_UP_ROUNDS = 10
"""Rounds of the most steps, all verified, from which survival is first taken: one round of few requests is luck."""

COST_CONTEXT = 2.0
"""Context tokens at which costs are read: those of a graph that was measured while it was captured."""

MAX_CONFIGURATIONS = 4096
"""Pairs of (N, d) that are remembered; the one that ran longest ago makes room."""


class MeanEmaPlanner:
    """Maximises expected tokens per millisecond in two stages, each an exhaustive scan of a table of means.

    *Statistics.* A round of N requests that proposed d drafts each and verified B rows updates the running mean
    ``r(N, B, d)`` of committed tokens per row, ``r = 0.9 r + 0.1 tokens / B``, kept for that very configuration. A
    round that verified every draft also updates the survivals, ``s_j = 0.9 s_j + 0.1 share(accept length > j)`` for
    j up to d. Means start as plain averages.

    *Expected tokens* of (N, B, d): ``B r(N, B, d)`` where that configuration ran; otherwise the survivals, with rows
    taken breadth-first: ``N + sum_j s_j rows_j(B)``.

    *Stage 1* takes the budget with the most expected tokens per millisecond for the drafts that are waiting, *stage 2*
    the draft steps with the most at their own best budget. Until `WARM_UP_ROUNDS` rounds taught survival, the most
    steps are drafted and all of them verified.

    What the recipe leaves out is part of it: means of configurations that no longer run stay as they are; survival
    stays as it is once rows are trimmed; batches in which requests proposed different numbers (one of them is new)
    teach nothing; nothing is tried that does not seem to pay; there is always at least one draft step; requests,
    tokens and their confidence are not told apart; costs are those of an almost empty cache.
    """

    def __init__(self, costs: CostModel, *, max_draft_steps: int, drafter: DrafterKind) -> None:
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.counters = PlannerCounters()
        by_step = drafter in BY_STEP
        self._legal = tuple(range(1, max_draft_steps + 1)) if by_step else (max_draft_steps,)
        self._depths = np.arange(1, max_draft_steps + 1)
        self._survival = np.zeros(max_draft_steps)
        self._taught = np.zeros(max_draft_steps)
        self._warm_up = WARM_UP_ROUNDS
        self._rates: OrderedDict[tuple[int, int], dict[int, tuple[float, int]]] = OrderedDict()
        self._steps = max_draft_steps

    # --- plan ---------------------------------------------------------------------------------------------------------

    def plan(self, view: BatchView) -> Plan:
        """Choose the verify budget of this round and the draft steps for the next.

        Raises:
            PlanError: the view's arrays do not fit the number of requests or hold impossible values.
        """
        num_requests = view.num_requests
        proposed, _, num_unknown = read_view(view, self.max_draft_steps)
        if num_requests == 0:
            return Plan(0, 0)
        self.counters.plans += 1
        self.counters.unknown_confidences += num_unknown
        rows, tokens, _ = self._best_budget(num_requests, proposed, self._steps)
        self._steps = self._best_steps(num_requests)
        time = float(self._round_ms(num_requests, np.array([rows]), self._steps)[0])
        return Plan(
            verify_rows=rows,
            draft_steps=self._steps,
            num_requests=num_requests,
            proposed=proposed.copy(),
            table_ms=time,
            predicted_ms=time,
            predicted_tokens=tokens,
        )

    def _best_budget(self, num_requests: int, proposed: IntArray, next_steps: int) -> tuple[int, float, float]:
        """Stage 1: ``argmax_B tokens(N, B, d) / (T(B) + D(N, B, next_steps))``, as (B, tokens, tokens per ms)."""
        limit = self._cap(num_requests, num_requests + int(proposed.sum()))
        rows = np.array([limit])
        if not self._warm_up:
            rows = self.costs.for_requests(num_requests).budgets((num_requests, limit), COST_CONTEXT, 0).rows
        tokens = self._expected_tokens(num_requests, rows, proposed)
        rate = tokens / np.maximum(self._round_ms(num_requests, rows, next_steps), 1e-9)
        best = int(rate.argmax())
        return int(rows[best]), float(tokens[best]), float(rate[best])

    def _best_steps(self, num_requests: int) -> int:
        """Stage 2: ``argmax_d max_B tokens(N, B, d) / (T(B) + D(N, B, d))``; while warming up, the most that fit."""
        if self._warm_up:
            whole = [num_requests * (1 + d) for d in self._legal]
            fitting = [d for d, rows in zip(self._legal, whole, strict=True) if self._cap(num_requests, rows) == rows]
            return fitting[-1] if fitting else self._legal[0]
        rates = [self._best_budget(num_requests, np.full(num_requests, d), d)[2] for d in self._legal]
        return self._legal[int(np.argmax(rates))]

    def _cap(self, num_requests: int, rows: int) -> int:
        return rows if self.costs.max_rows is None else max(num_requests, min(rows, self.costs.max_rows))

    def _expected_tokens(self, num_requests: int, rows: IntArray, proposed: IntArray) -> FloatArray:
        """float[C], committed tokens expected of each of int[C] ascending budgets."""
        waiting = (proposed[:, None] >= self._depths).sum(axis=0)
        filled = np.concatenate(([0], waiting.cumsum()))
        gain = np.concatenate(([0.0], (waiting * self._survival).cumsum()))
        tokens = num_requests + np.interp(rows - num_requests, filled, gain)
        for budget, (rate, _) in self._rates.get((num_requests, int(proposed.max())), {}).items():
            at = int(np.searchsorted(rows, budget))
            if at < len(rows) and rows[at] == budget:
                tokens[at] = rate * budget
        return np.asarray(tokens)

    def _round_ms(self, num_requests: int, rows: IntArray, steps: int) -> FloatArray:
        """float[C], the time of a round of each of int[C] ascending budgets that then drafts ``steps``."""
        chained, fills = draft_terms(self.drafter, steps)
        chain_rows = num_requests * self.max_draft_steps if self.drafter == "block" else num_requests
        most = max(int(rows[-1]), chain_rows)
        target, draft = self.costs.for_requests(num_requests).lines(most, COST_CONTEXT)
        time = (
            target[rows]
            + fills * self.costs.fill_line(most, COST_CONTEXT)[rows]
            + chained * float(draft[chain_rows])
            + self.costs.draft_start_ms(self.drafter, num_requests, steps)
        )
        return np.asarray(time + self.costs.base_ms(num_requests, COST_CONTEXT))

    # --- observe ------------------------------------------------------------------------------------------------------

    def observe(self, feedback: RoundFeedback) -> None:
        """Learn from a round in which every request had as many drafts waiting.

        Raises:
            FeedbackError: no round can have given this feedback; it is counted and changes nothing.
        """
        try:
            verified, accepted, proposed, *_ = read_feedback(feedback, self.max_draft_steps, confidence=False)
        except FeedbackError:
            self.counters.refused_feedback += 1
            raise
        if not len(verified):
            return
        self.counters.observed += 1
        steps = int(proposed[0])
        if steps == 0 or (proposed != steps).any():
            return
        self._learn_rate(len(verified), len(verified) + int(verified.sum()), steps, int(accepted.sum()))
        if (verified == steps).all():
            self._learn_survival(accepted, steps)

    def _learn_rate(self, num_requests: int, rows: int, steps: int, tokens: int) -> None:
        rates = self._rates.setdefault((num_requests, steps), {})
        self._rates.move_to_end((num_requests, steps))
        if len(self._rates) > MAX_CONFIGURATIONS:
            self._rates.popitem(last=False)
        rate, count = rates.get(rows, (0.0, 0))
        weight = max(1.0 - KEEP, 1.0 / (count + 1))
        rates[rows] = rate + weight * (tokens / rows - rate), count + 1

    def _learn_survival(self, accepted: IntArray, steps: int) -> None:
        share = (accepted[:, None] > self._depths[:steps]).mean(axis=0)
        self._taught[:steps] += 1.0
        weight = np.maximum(1.0 - KEEP, 1.0 / self._taught[:steps])
        self._survival[:steps] += weight * (share - self._survival[:steps])
        self._warm_up = max(self._warm_up - 1, 0)
