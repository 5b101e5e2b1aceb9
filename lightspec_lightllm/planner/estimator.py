"""What is known of the drafts: the acceptance models behind one interface."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.planner.acceptance import (
    LEVELS,
    NEUTRAL_LEVEL,
    NUM_BINS,
    AcceptanceModel,
    ChangeDetector,
    RequestOffsets,
    confidence_bins,
    information_of,
    logit,
    raised,
    sums,
)
from lightspec_lightllm.planner.gain import GainCurve, SurvivalHistory, SurvivalMass
from lightspec_lightllm.planner.options import PlannerOptions
from lightspec_lightllm.planner.types import FloatArray, IntArray

LEARN_ROUNDS = 4
"""Rounds that are taken in together once the planner has warmed up: counting costs little, rebuilding tables more."""

SCORED_TRIALS = 512
"""Trials after which further ones with confidences are not looked at until the tables are rebuilt."""

CELL = NUM_BINS + 1
"""Entries per level and depth of the table of acceptances: one per bin, and one for a draft that is not there yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the confidences of a batch say, as the planner read them once.

    Attributes:
        confidence: the array that was read.
        bins: int[N, K], bin of each confidence; `NUM_BINS` where nothing is proposed.
        acceptance: float[N, K], calibrated conditional acceptance, extrapolated by depth past what is proposed.
        survival: float[N, K], its running product.
    """

    confidence: FloatArray
    bins: IntArray
    acceptance: FloatArray
    survival: FloatArray


class LevelTable:
    """Acceptances and survivals by level of request and depth, and their order.

    Attributes:
        survival: float[LEVELS, K].
        value, depth, level: the same entries, highest survival first, the shallower first where equal.
    """

    def __init__(self, acceptance: FloatArray) -> None:
        self.survival: FloatArray = np.multiply.accumulate(acceptance, axis=1)
        num_depths = acceptance.shape[1]
        self._order = np.argsort(-self.survival, axis=None, kind="stable")
        self.value = self.survival.ravel()[self._order]
        self.level, self.depth = np.divmod(self._order, num_depths)
        self.depth += 1
        # What t trials of a level are expected to bring, and how much they tell, by int[LEVELS, K + 1] cells.
        self._expected = np.zeros((2, len(acceptance), num_depths + 1))
        np.add.accumulate(acceptance, axis=1, out=self._expected[0, :, 1:])
        np.add.accumulate(information_of(acceptance), axis=1, out=self._expected[1, :, 1:])

    def curve(self, counts: IntArray) -> GainCurve:
        """Gain of int[LEVELS, K] drafts."""
        return GainCurve.of(counts.ravel().take(self._order), self.value)

    def mass(self, levels: IntArray) -> SurvivalMass:
        """The drafts of a batch of int[N] levels in which every request proposes K."""
        count = np.bincount(levels, minlength=LEVELS)
        if np.maximum.reduce(count) == len(levels):
            return SurvivalMass.ladder_of(self.survival[levels[0]], len(levels))
        return SurvivalMass(self.value, self.depth, count.take(self.level).astype(np.float64))

    def scores(self, levels: IntArray, trials: IntArray) -> tuple[FloatArray, FloatArray]:
        """float[N] each: accepted drafts expected of each request's trials, and their information."""
        cell = levels * self._expected.shape[2] + trials
        return self._expected[0].ravel().take(cell), self._expected[1].ravel().take(cell)


class Pending:
    """Trials that were counted and not taken in yet.

    Attributes:
        rounds: rounds with trials, or with confidences alone.
        scored: trials compared with their confidences.
        trials: int[K + 1], requests with 0, 1, .. K trials, not told apart.
        level_trials: int[LEVELS, K + 1], the same of requests that are, or None.
        accepted: int[K + 2], accept lengths of 0, 1, .. K + 1.
        bins: float[2, bins], residuals and information of trials with a confidence.
        depths: float[2, K], the same by depth.
    """

    def __init__(self, max_draft_steps: int) -> None:
        self.rounds = 0
        self.scored = 0
        self.trials = np.zeros(max_draft_steps + 1, dtype=np.int64)
        self.level_trials: IntArray | None = None
        self.accepted = np.zeros(max_draft_steps + 2, dtype=np.int64)
        self.bins = np.zeros((2, NUM_BINS))
        self.depths = np.zeros((2, max_draft_steps))


class AcceptanceEstimator:
    """Survivals of waiting and of future drafts, learned from what rounds accepted.

    Two models are kept. The *marginal* one knows depth and request. The *calibrated* one also knows the drafter's
    confidence: given it, which rows were trimmed says nothing more, so trimming by confidence does not bias it.

    Attributes:
        changes: how often a change of the workload was detected.
        version: grows whenever trials are taken in; between two versions the same batch is expected to do the same.
    """

    def __init__(self, max_draft_steps: int, options: PlannerOptions) -> None:
        self.max_draft_steps = max_draft_steps
        self.changes = 0
        self.version = 0
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
        self._future: tuple[tuple[int, int], SurvivalMass] | None = None
        self._last_levels: tuple[IntArray, int, IntArray] | None = None
        self._base: tuple[IntArray | None, IntArray] | None = None
        self._pending = Pending(max_draft_steps)
        self._refresh()

    def _refresh(self) -> None:
        """Read the models; the tables of requests and of confidences are built when they are first asked for."""
        self.version += 1
        self._neutral = self._marginal.acceptance()
        self._neutral_survival: FloatArray = np.multiply.accumulate(self._neutral)
        self._table: LevelTable | None = None
        self._cells: FloatArray | None = None

    def _levels_table(self) -> LevelTable:
        if self._table is None:
            self._table = LevelTable(self._marginal.table)
        return self._table

    # --- reading ------------------------------------------------------------------------------------------------------

    def levels(self, request_ids: IntArray | None) -> IntArray | None:
        """int[N], the level of each request's offset, or None without ids. The same array while nothing changes."""
        if request_ids is None:
            return None
        entries, last = self._offsets.entries(request_ids), self._last_levels
        if last is None or last[0] is not entries or last[1] != self.version:
            last = self._last_levels = (entries, self.version, self._offsets.levels(entries))
        return last[2]

    def read(self, confidence: FloatArray, proposed: IntArray, levels: IntArray | None) -> Reading:
        """Look up float[N, K] confidences, which are in 0..1 where a draft is proposed."""
        if self._cells is None:
            table = np.empty((LEVELS, self.max_draft_steps, CELL))
            table[:, :, :NUM_BINS] = self._calibrated.bins_table()
            table[:, :, NUM_BINS] = self._neutral
            self._cells = table.ravel()
        bins = confidence_bins(confidence)
        if int(np.minimum.reduce(proposed)) < self.max_draft_steps:
            bins = np.where(self._depths < proposed[:, None], bins, NUM_BINS)
        base = self._cell_base(len(bins), levels)
        acceptance = self._cells.take(bins + base)
        return Reading(confidence, bins, acceptance, np.multiply.accumulate(acceptance, axis=1))

    def _cell_base(self, num_requests: int, levels: IntArray | None) -> IntArray:
        """int[N, K]: where the entries of each request and depth begin in the table of acceptances."""
        held = self._base
        if held is None or held[0] is not levels or len(held[1]) != num_requests:
            row = self.max_draft_steps * CELL
            start = np.full(num_requests, NEUTRAL_LEVEL * row) if levels is None else levels * row
            held = self._base = (levels, start[:, None] + self._depths * CELL)
        return held[1]

    def waiting(
        self, proposed: IntArray, tally: IntArray, levels: IntArray | None, reading: Reading | None
    ) -> tuple[GainCurve, FloatArray | None]:
        """Gain curve of the waiting drafts, and the float[N, K] survivals to take rows by.

        The survivals are None where requests cannot be told apart, and where the confidences are not known yet but the
        host will rank by them on its own; the curve is then that of the population of recent rounds.

        Args:
            tally: int[K + 1], how many requests propose 0, 1, .. K drafts.
        """
        num_requests = len(proposed)
        if reading is not None:
            survival = reading.survival
            whole = tally[-1] == num_requests
            waiting = survival.ravel() if whole else survival[self._depths < proposed[:, None]]
            return GainCurve.of_survivals(waiting), survival
        if len(self._history):
            mass = self.future(num_requests, levels)
            share = at_least(tally) / num_requests
            return GainCurve.of(mass.count * share[mass.depth - 1], mass.value), None
        if levels is None:
            return GainCurve.of(at_least(tally), self._neutral_survival), None
        counts = at_least(_by_level(proposed, levels, self.max_draft_steps))
        return self._levels_table().curve(counts), self.survival(levels)

    def survival(self, levels: IntArray | None) -> FloatArray | None:
        """float[N, K], survivals of requests without confidences, or None where nothing tells them apart."""
        if levels is None or len(self._history):
            return None
        return self._levels_table().survival.take(levels, axis=0)

    def future(self, num_requests: int, levels: IntArray | None) -> SurvivalMass:
        """The drafts of a round in which every request proposes K."""
        if len(self._history):
            if self._future is None or self._future[0] != (self.version, num_requests):
                self._future = ((self.version, num_requests), self._history.mass(num_requests))
            return self._future[1]
        if levels is None:
            return SurvivalMass.ladder_of(self._neutral_survival, num_requests)
        return self._levels_table().mass(levels)

    def hopeful(self, num_requests: int) -> SurvivalMass:
        """The drafts of N requests if what was seen was bad luck: what must not pay either before drafting ends."""
        if len(self._history):
            mass = self.future(num_requests, None)
            return SurvivalMass(raised(mass.value, float(self._calibrated.hope()[0])), mass.depth, mass.count)
        return SurvivalMass.ladder_of(np.multiply.accumulate(self._marginal.hopeful()), num_requests)

    def hopeful_curve(self, proposed: IntArray, tally: IntArray, reading: Reading | None) -> GainCurve:
        """The same for the waiting drafts."""
        if reading is None:
            return GainCurve.of(at_least(tally), np.multiply.accumulate(self._marginal.hopeful()))
        waiting = reading.survival[self._depths < proposed[:, None]]
        return GainCurve.of_survivals(raised(waiting, float(self._calibrated.hope()[0])))

    def next_survival(self, confidence: FloatArray, request_ids: IntArray) -> FloatArray:
        """float[n]: expected survival of the draft after float[n, j] drafts, before its own confidence is known."""
        steps = confidence.shape[1]
        wide = np.zeros((len(confidence), self.max_draft_steps))
        wide[:, :steps] = confidence
        known = self.read(wide, np.full(len(wide), steps), self.levels(request_ids))
        return known.survival[:, min(steps, self.max_draft_steps - 1)]

    # --- learning -----------------------------------------------------------------------------------------------------

    def surprise(self, trials: IntArray, accepted: IntArray) -> float:
        """Accepted drafts above what the batch was expected to bring."""
        expected = np.concatenate((np.zeros(1), np.add.accumulate(self._neutral)))
        return float(np.add.reduce(accepted - 1) - np.add.reduce(expected[trials]))

    def learn(
        self,
        trials: IntArray,
        accepted: IntArray,
        tally: IntArray,
        *,
        request_ids: IntArray | None,
        reading: Reading | None,
        proposed: IntArray,
    ) -> None:
        """Take in one round.

        Args:
            trials: int[N], drafts verified whose predecessors were all accepted.
            accepted: int[N], accept lengths, ``trials <= accepted <= trials + 1``.
            tally: int[K + 2], how many accept lengths are 0, 1, .. K + 1.
            reading: of the ``proposed`` drafts' confidences, where they are known.
        """
        pending = self._pending
        entries = None if request_ids is None else self._offsets.entries(request_ids)
        pending.accepted += tally
        if reading is None and entries is not None:
            levels, table = self._offsets.levels(entries), self._levels_table()
            tried = _by_level(trials, levels, self.max_draft_steps)
            pending.level_trials = tried if pending.level_trials is None else pending.level_trials + tried
            expected, information = table.scores(levels, trials)
            self._offsets.add(entries, (accepted - 1) - expected, information)
        else:
            pending.trials += np.bincount(trials, minlength=self.max_draft_steps + 1)
        if reading is not None:
            if pending.scored < SCORED_TRIALS:
                self._score(trials, accepted, reading, request_ids, entries)
            self._history.push(reading.survival, proposed)
        self._count_round(entries)

    def look(self, reading: Reading, proposed: IntArray) -> None:
        """Take in the confidences of a round that verified no draft: they still say what drafts are like by now."""
        self._history.push(reading.survival, proposed)
        self._count_round(None)

    def _count_round(self, entries: IntArray | None) -> None:
        self._pending.rounds += 1
        if self._pending.rounds >= min(LEARN_ROUNDS, 1 + self.version // LEARN_ROUNDS):
            self._take_in(entries)

    def _score(
        self,
        trials: IntArray,
        accepted: IntArray,
        reading: Reading,
        request_ids: IntArray | None,
        entries: IntArray | None,
    ) -> None:
        """Compare trials with what their confidences promised; where they are many, those of a share of the requests,
        which is chosen by id and goes round."""
        pending = self._pending
        acceptance, bins = reading.acceptance, reading.bins
        share = 1 + int(np.add.reduce(trials)) // SCORED_TRIALS
        if request_ids is not None and share > 1:
            picked = (request_ids % share == self.version % share).nonzero()[0]
            trials, accepted, acceptance, bins = trials[picked], accepted[picked], acceptance[picked], bins[picked]
            entries = None if entries is None else entries[picked]
        num_requests, num_depths = len(trials), self.max_draft_steps
        if not num_requests or not trials.any():
            return
        ends = np.add.accumulate(trials)
        cells = np.repeat(np.arange(num_requests) * num_depths - ends + trials, trials)
        cells += np.arange(ends[-1])
        pending.scored += len(cells)
        expected = acceptance.ravel().take(cells)
        information = information_of(expected)
        residual = 1.0 - expected
        # Where there are as many trials as accepted tokens, the target's own among these, the last trial failed.
        residual[ends[trials == accepted] - 1] -= 1.0
        in_bin = bins.ravel().take(cells)
        requests, depths = np.divmod(cells, num_depths)
        pending.bins += sums(in_bin, residual, NUM_BINS), sums(in_bin, information, NUM_BINS)
        pending.depths += sums(depths, residual, num_depths), sums(depths, information, num_depths)
        if entries is not None:
            scores = sums(requests, residual, num_requests), sums(requests, information, num_requests)
            self._offsets.add(entries, *scores)

    def _take_in(self, entries: IntArray | None) -> None:
        """Learn from what is pending, and read the models anew."""
        pending, self._pending = self._pending, Pending(self.max_draft_steps)
        if not pending.accepted.any():
            self._refresh()
            return
        tried = at_least(pending.trials)
        expected = tried * self._neutral
        information = tried * information_of(self._neutral)
        if pending.level_trials is not None:
            tried, acceptance = at_least(pending.level_trials), self._marginal.table
            expected += np.add.reduce(tried * acceptance)
            information += np.add.reduce(tried * information_of(acceptance))
        residual = at_least(pending.accepted)[1:] - expected
        rise = self._marginal.learn(residual, information)
        if pending.scored:
            residual, information = pending.depths
            rise = self._calibrated.learn_bins(*pending.bins)
            rise += self._calibrated.learn(residual - information * rise, information)
        if entries is not None:
            self._offsets.learn(entries, rise)
        if self._detector.update(float(np.add.reduce(residual)), float(np.add.reduce(information))):
            self.changes += 1
            self._marginal.forget(0.25)
            self._calibrated.forget(0.25)
            self._future = None
        self._refresh()


def at_least(tally: IntArray) -> IntArray:
    """int[.., K]: from how many there are of 0, 1, .. K, how many are at least 1, 2, .. K."""
    return np.add.accumulate(tally[..., :0:-1], axis=-1)[..., ::-1]


def _by_level(counts: IntArray, levels: IntArray, largest: int) -> IntArray:
    """int[LEVELS, largest + 1]: how many of ``counts`` are 0, 1, .. largest, by level."""
    width = largest + 1
    return np.bincount(levels * width + counts, minlength=LEVELS * width).reshape(LEVELS, width)
