"""What is known of the drafts: the acceptance models behind one interface."""

from __future__ import annotations

from typing import cast

import numpy as np

from lightspec_lightllm.planner.acceptance import (
    LEAST_SPREAD,
    LEVELS,
    AcceptanceModel,
    ChangeDetector,
    RequestOffsets,
    confidence_bins,
    logit,
    sums,
)
from lightspec_lightllm.planner.gain import GainCurve, SurvivalHistory, SurvivalMass
from lightspec_lightllm.planner.options import PlannerOptions
from lightspec_lightllm.planner.types import FloatArray, IntArray

FUTURE_ROUNDS = 8
"""Rounds after which the expected drafts of a small batch are looked at anew."""


class AcceptanceEstimator:
    """Survivals of waiting and of future drafts, learned from what rounds accepted.

    Two models are kept. The *marginal* one knows depth and request. The *calibrated* one also knows the drafter's
    confidence: given it, which rows were trimmed says nothing more, so trimming by confidence does not bias it.

    Attributes:
        changes: how often a change of the workload was detected.
    """

    def __init__(self, max_draft_steps: int, options: PlannerOptions) -> None:
        self.max_draft_steps = max_draft_steps
        self.changes = 0
        self._depths = np.arange(max_draft_steps)
        prior = logit(options.prior_acceptance)
        memory = options.memory_trials
        self._marginal = AcceptanceModel(max_draft_steps, prior_logit=prior, use_confidence=False, memory_trials=memory)
        self._calibrated = AcceptanceModel(
            max_draft_steps, prior_logit=prior, use_confidence=True, memory_trials=memory
        )
        self._offsets = RequestOffsets(
            memory_trials=options.request_memory_trials, prior_trials=options.request_prior_trials
        )
        self._history = SurvivalHistory(max_draft_steps)
        self._detector = ChangeDetector()
        self._future: tuple[int, int, SurvivalMass] | None = None
        self._future_age = 0
        self._refresh()

    def _refresh(self) -> None:
        """Rebuild what is read off the marginal table."""
        self._neutral_survival = np.multiply.accumulate(self._marginal.acceptance())
        self._table_survival: FloatArray | None = None
        self._table_order = np.zeros(0, dtype=np.int64)

    def _survivals(self) -> FloatArray:
        """float[LEVELS, K], survival by level and depth; built when first read after a change."""
        if self._table_survival is None:
            self._table_survival = np.multiply.accumulate(self._marginal.table, axis=1)
            self._table_order = np.argsort(-self._table_survival, axis=None, kind="stable")
        return self._table_survival

    # --- reading ------------------------------------------------------------------------------------------------------

    def levels(self, request_ids: IntArray | None) -> IntArray | None:
        """int[N], the level of each request's offset, or None without ids."""
        return None if request_ids is None else self._offsets.levels(self._offsets.entries(request_ids))

    def waiting(
        self, proposed: IntArray, levels: IntArray | None, confidence: FloatArray | None
    ) -> tuple[GainCurve, FloatArray | None]:
        """Gain curve of the waiting drafts, and the float[N, K] survivals to take rows by.

        The survivals are None where requests cannot be told apart, and where the confidences are not known yet but the
        host will rank by them on its own; the curve is then that of the population of recent rounds.
        """
        num_requests, num_depths = len(proposed), self.max_draft_steps
        if confidence is not None:
            survival = self._survival(confidence, proposed, levels)
            waiting = np.sort(survival[self._depths < proposed[:, None]])[::-1]
            return GainCurve.of(np.ones(len(waiting)), waiting), survival
        counts = _count_at_least(proposed, levels, num_depths)
        if len(self._history):
            mass = self.future(num_requests, levels)
            share = counts.sum(axis=0) / num_requests
            return GainCurve.of(mass.count * share[mass.depth - 1], mass.value), None
        if levels is None:
            return GainCurve.of(counts[0], self._neutral_survival), None
        return self._table_mass(counts).curve(), self._survivals()[levels]

    def future(self, num_requests: int, levels: IntArray | None) -> SurvivalMass:
        """The drafts of a round in which every request proposes K.

        With confidences this is the same object for some rounds, unless much of the recent drafts is new.
        """
        if len(self._history):
            pushed, held = self._history.num_pushed, self._future
            self._future_age += 1
            if (
                held is None
                or held[0] != num_requests
                or pushed - held[1] >= SurvivalHistory.WINDOW // 8
                or self._future_age >= FUTURE_ROUNDS
            ):
                held = self._future = (num_requests, pushed, self._history.mass(num_requests))
                self._future_age = 0
            return held[2]
        if levels is None:
            count = np.full(self.max_draft_steps, float(num_requests))
            return SurvivalMass(self._neutral_survival, self._depths + 1, count, ladder=True)
        return self._table_mass(np.repeat(np.bincount(levels, minlength=LEVELS)[:, None], self.max_draft_steps, axis=1))

    def _survival(self, confidence: FloatArray, proposed: IntArray, levels: IntArray | None) -> FloatArray:
        """float[N, K]: calibrated survivals of the waiting drafts, extrapolated by depth past what was proposed."""
        known = self._calibrated.of_bins(confidence_bins(confidence), levels)
        acceptance = np.where(self._depths < proposed[:, None], known, self._marginal.acceptance())
        return cast(FloatArray, np.multiply.accumulate(acceptance, axis=1))

    def next_survival(self, confidence: FloatArray, request_ids: IntArray) -> FloatArray:
        """float[n]: expected survival of the draft after float[n, j] drafts, before its own confidence is known."""
        steps = confidence.shape[1]
        levels = self._offsets.levels(self._offsets.entries(request_ids))
        known = self._calibrated.of_bins(confidence_bins(confidence), levels)
        ahead = self._marginal.acceptance()[min(steps, self.max_draft_steps - 1)]
        return cast(FloatArray, known.prod(axis=1) * ahead)

    def _table_mass(self, counts: IntArray) -> SurvivalMass:
        """Drafts counted by level and depth, int[LEVELS, K], as a sorted mass."""
        survivals = self._survivals()
        present = counts[:, 0].nonzero()[0]
        if len(present) == 1:
            level = present[0]
            return SurvivalMass(survivals[level], self._depths + 1, counts[level].astype(np.float64), ladder=True)
        count = counts.ravel()[self._table_order]
        held = count.nonzero()[0]
        order = self._table_order[held]
        return SurvivalMass(survivals.ravel()[order], order % self.max_draft_steps + 1, count[held].astype(np.float64))

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        trials: IntArray,
        successes: IntArray,
        *,
        request_ids: IntArray | None,
        confidence: FloatArray | None,
        proposed: IntArray,
    ) -> float:
        """Take in one round.

        Args:
            trials: int[N], drafts verified whose predecessors were all accepted.
            successes: int[N], drafts accepted, ``trials - 1 <= successes <= trials``.
            confidence: float[N, K] of the ``proposed`` drafts, in 0..1, or None.

        Returns:
            Accepted drafts above what was expected.
        """
        entries = None if request_ids is None else self._offsets.entries(request_ids)
        levels = None if entries is None else self._offsets.levels(entries)
        accepted = _at_least(successes, self.max_draft_steps)
        if confidence is None and entries is not None and levels is not None:
            scores = _request_scores(self._marginal.table, levels, trials, successes)
            tried = _count_at_least(trials, levels, self.max_draft_steps).astype(np.float64)
            residual, information = self._marginal.learn(tried, accepted)
            self._offsets.learn(entries, *scores)
        else:
            residual, information = self._marginal.learn_neutral(_at_least(trials, self.max_draft_steps), accepted)
        if confidence is not None:
            residual, information = self._learn_calibrated(trials, successes, confidence, entries, levels)
            self._history.push(self._survival(confidence, proposed, levels)[proposed > 0])
        if self._detector.update(residual, information):
            self.changes += 1
            self._marginal.forget(0.25)
            self._calibrated.forget(0.25)
            self._future = None
        self._refresh()
        return residual

    def look(self, confidence: FloatArray, proposed: IntArray, *, request_ids: IntArray | None) -> None:
        """Take in the confidences of a round that verified no draft: they still say what drafts are like by now."""
        self._history.push(self._survival(confidence, proposed, self.levels(request_ids))[proposed > 0])

    def _learn_calibrated(
        self,
        trials: IntArray,
        successes: IntArray,
        confidence: FloatArray,
        entries: IntArray | None,
        levels: IntArray | None,
    ) -> tuple[float, float]:
        requests, depths = (self._depths < trials[:, None]).nonzero()
        bins = confidence_bins(confidence)
        expected = self._calibrated.of_bins(bins, levels)[requests, depths]
        residual = (depths < successes[requests]) - expected
        information = expected * np.maximum(1.0 - expected, LEAST_SPREAD)
        outcome = self._calibrated.learn_bins(depths, bins[requests, depths], residual, information)
        if entries is not None:
            count = len(trials)
            self._offsets.learn(entries, sums(requests, residual, count), sums(requests, information, count))
        return outcome


def _request_scores(
    acceptance: FloatArray, levels: IntArray, trials: IntArray, successes: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Each request's accepted drafts above what float[LEVELS, K] ``acceptance`` expects, and its information."""
    expected = np.zeros((2, LEVELS, acceptance.shape[1] + 1))
    np.add.accumulate(acceptance, axis=1, out=expected[0, :, 1:])
    np.add.accumulate(acceptance * (1.0 - acceptance), axis=1, out=expected[1, :, 1:])
    return successes - expected[0, levels, trials], expected[1, levels, trials]


def _at_least(counts: IntArray, largest: int) -> FloatArray:
    """float[largest]: how many of ``counts`` are at least 1, 2, .., largest."""
    tally = np.bincount(counts, minlength=largest + 1)
    return cast(FloatArray, tally[::-1].cumsum()[-2::-1].astype(np.float64))


def _count_at_least(counts: IntArray, levels: IntArray | None, largest: int) -> IntArray:
    """int[LEVELS, largest], or int[1, largest] without levels: requests of a level whose count is at least 1, 2, .."""
    width = largest + 1
    key = counts if levels is None else levels * width + counts
    tally = np.bincount(key, minlength=width if levels is None else LEVELS * width).reshape(-1, width)
    return cast(IntArray, tally[:, ::-1].cumsum(axis=1)[:, -2::-1])
