"""What is known of the drafts: the acceptance models behind one interface."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

import numpy as np

from lightspec_lightllm.planner.acceptance import (
    AcceptanceModel,
    ChangeDetector,
    RequestOffsets,
    Scores,
    logit,
    raised,
)
from lightspec_lightllm.planner.confidence import NUM_BINS, NUM_CODES, codes_of
from lightspec_lightllm.planner.gain import GainCurve, SurvivalHistory, SurvivalMass
from lightspec_lightllm.planner.levels import LevelTable
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.options import PlannerOptions
from lightspec_lightllm.planner.scale import LEVELS
from lightspec_lightllm.planner.survival import CellArray, survival_of
from lightspec_lightllm.planner.survival_table import NONE, SureDrafts, SurvivalTable
from lightspec_lightllm.planner.trials import Learned, SeenRound, at_least, joined, joined_codes, trials_of
from lightspec_lightllm.planner.types import FloatArray, IntArray

LEARN_ROUNDS = 6
"""Rounds that are taken in together once the planner has warmed up: counting costs little, rebuilding tables more."""

LEARN_LARGE = 12
"""The same for a large batch, whose rounds each bring as many trials as many rounds of a small one."""

LARGE_BATCH = 64
"""Requests from which on learning is spread over rounds; what smaller batches take is calls rather than work."""

SPREAD, SPREAD_CONFIDENT = 1, 2
"""Parts of the learning that are done with one round of a large batch, without and with confidences: so many that the
work of a round with confidences, which take longer to read, is over in less than half of the rounds."""

WARM_VERSIONS = 4 * LEARN_ROUNDS
"""Versions of the tables after which a planner is warm."""

SKILL_TRIALS = 400.0
"""Trials over which confidences are judged."""

SKILL_DOUBT = 4.0
"""Log-likelihood ratio that it takes to think otherwise of confidences than before."""

LEAST_HOPE = 0.02
"""Log-odds that are not worth hoping for."""

SCORED_TRIALS = 384
"""Trials with confidences after which the older rounds of those taken in together are left out."""


class AcceptanceEstimator:
    """Survivals of waiting and of future drafts, learned from what rounds accepted.

    Two models are kept. The *marginal* one knows depth and request. The *calibrated* one also knows the drafter's
    confidence: given it, which rows were trimmed says nothing more, so trimming by confidence does not bias it.

    Attributes:
        changes: how often a change of the workload was detected.
        trusts_confidence: whether confidences told more than nothing of late; else they are learned from, not used.
        hope: log-odds by which drafts may be better than they look; 0 once trials are many.
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
        self._history = SurvivalHistory()
        self._detector = ChangeDetector()
        self._future: tuple[tuple[int, int], SurvivalMass] | None = None
        self._last_levels: tuple[IntArray, int, IntArray] | None = None
        self._last_tally: tuple[IntArray, IntArray] | None = None
        self.trusts_confidence = True
        self._skill = 0.0
        self._rounds: list[SeenRound] = []
        self._waited = 0
        self._work: Iterator[None] | None = None
        self._refresh()

    def _refresh(self) -> None:
        """Read the models; the tables of requests and of confidences are built when they are first asked for."""
        self.version += 1
        self._plain_terms = self._marginal.depth_terms
        self._neutral, self._neutral_survival = INNER.loops.acceptances(self._plain_terms)
        self._sure_terms = self._calibrated.bin_terms, self._calibrated.depth_terms
        self.hope = (self._calibrated if self._sure else self._marginal).first_hope()
        self._levels_built: LevelTable | None = None
        self._survivals_built: SurvivalTable | None = None

    def _levels_table(self) -> LevelTable:
        if self._levels_built is None:
            self._levels_built = LevelTable(self._plain_terms)
        return self._levels_built

    def _survivals(self) -> SurvivalTable:
        if self._survivals_built is None:
            self._survivals_built = SurvivalTable(*self._sure_terms, self._plain_terms)
        return self._survivals_built

    @property
    def _sure(self) -> bool:
        """Whether recent drafts had confidences to rely on."""
        return self.trusts_confidence and len(self._history) > 0

    # --- reading ------------------------------------------------------------------------------------------------------

    def levels(self, request_ids: IntArray | None) -> IntArray | None:
        """int[N], the level of each request's offset, or None without ids. The same array while nothing changes."""
        if request_ids is None:
            return None
        entries, last = self._offsets.entries(request_ids), self._last_levels
        if last is None or last[0] is not entries or last[1] != self.version:
            last = self._last_levels = (entries, self.version, self._offsets.levels(entries))
        return last[2]

    def level_tally(self, levels: IntArray) -> IntArray:
        """int[LEVELS], how many of the requests whose levels were just asked for are of each."""
        last = self._last_tally
        if last is None or last[0] is not levels:
            last = self._last_tally = (levels, np.bincount(levels, minlength=LEVELS))
        return last[1]

    def drafts(
        self,
        confidence: FloatArray,
        num_depths: int,
        *,
        proposed: IntArray | None,
        levels: IntArray | None,
        some_unknown: bool,
    ) -> SureDrafts:
        """Waiting drafts by their confidences (see `SurvivalTable.drafts`)."""
        return self._survivals().drafts(
            confidence, num_depths, proposed=proposed, levels=levels, some_unknown=some_unknown
        )

    def waiting(
        self, proposed: IntArray, tally: IntArray, levels: IntArray | None
    ) -> tuple[GainCurve, FloatArray | None]:
        """Gain curve of waiting drafts without confidences, and the float[N, K] survivals to take rows by.

        The survivals are None where requests cannot be told apart, and where the confidences are not known yet but the
        host will rank by them on its own; the curve is then that of the population of recent rounds.

        Args:
            tally: int[K + 1], how many requests propose 0, 1, .. K drafts.
        """
        num_requests = len(proposed)
        if self._sure:
            mass = self.future(num_requests, levels)
            share = at_least(tally) / num_requests
            return GainCurve.of(mass.count * share[mass.depth - 1], mass.value), None
        if levels is None:
            return GainCurve.waiting(tally, self._neutral_survival), None
        return self._levels_table().curve(proposed, levels), self.survival(levels)

    def survival(self, levels: IntArray | None) -> FloatArray | None:
        """float[N, K], survivals of requests without confidences, or None where nothing tells them apart."""
        if levels is None or self._sure:
            return None
        return self._levels_table().survival.take(levels, axis=0)

    def future(self, num_requests: int, levels: IntArray | None) -> SurvivalMass:
        """The drafts of a round in which every request proposes K."""
        if self._sure:
            if self._future is None or self._future[0] != (self.version, num_requests):
                self._future = ((self.version, num_requests), self._history.mass(num_requests))
            return self._future[1]
        if levels is None:
            return SurvivalMass.ladder_of(self._neutral_survival, num_requests)
        return self._levels_table().mass(levels)

    @property
    def hopes(self) -> bool:
        """Whether what was seen may be bad luck enough to matter."""
        return self.hope > LEAST_HOPE

    @property
    def upside(self) -> float:
        """By how much a first draft may be likelier to be accepted than it looks."""
        seen = float(self._neutral[0])
        return math.expm1(self.hope) * seen * (1.0 - seen) / (1.0 + math.expm1(self.hope) * seen)

    def hopeful(self, num_requests: int, levels: IntArray | None) -> SurvivalMass:
        """The drafts of N requests if what was seen was bad luck: what must not pay either before drafting ends."""
        if self._sure:
            mass = self.future(num_requests, levels)
            return SurvivalMass(raised(mass.value, self.hope), mass.depth, mass.count)
        return SurvivalMass.ladder_of(np.multiply.accumulate(self._marginal.hopeful(levels)), num_requests)

    def hopeful_curve(
        self, proposed: IntArray, tally: IntArray, levels: IntArray | None, survival: FloatArray | None
    ) -> GainCurve:
        """The same for the waiting drafts, of float[N, K] survivals where confidences tell them."""
        if survival is None:
            return GainCurve.waiting(tally, np.multiply.accumulate(self._marginal.hopeful(levels)))
        return GainCurve.of_survivals(raised(survival[self._depths < proposed[:, None]], self.hope))

    def next_survival(self, confidence: FloatArray, request_ids: IntArray, *, some_unknown: bool) -> FloatArray:
        """float[n]: expected survival of the draft after float[n, j] drafts, before its own confidence is known."""
        steps = min(confidence.shape[1], self.max_draft_steps - 1)
        codes = np.full((steps + 1, len(confidence)), NUM_CODES + steps)
        codes[:steps] = codes_of(confidence, steps, some_unknown=some_unknown)
        return survival_of(self._survivals().cells(codes, self.levels(request_ids))[steps])

    # --- learning -----------------------------------------------------------------------------------------------------

    def surprise(self, trials: IntArray, accepted: IntArray) -> float:
        """Accepted drafts above what the batch was expected to bring."""
        expected = np.concatenate((np.zeros(1), np.add.accumulate(self._neutral)))
        return float(np.add.reduce(accepted - 1) - np.add.reduce(expected[trials]))

    def learn(self, seen: SeenRound) -> None:
        """Note one round. Several are taken in together; the first ones at once. For a large batch that is spread: a
        part of the work is done with every round that follows."""
        num_requests = len(seen.trials)
        if seen.codes is not None and self._rounds and seen.num_trials >= SCORED_TRIALS:
            self._rounds[-1] = self._rounds[-1].without_codes()  # nobody will look at them
        self._rounds.append(seen)
        self._go_on(num_requests)

    def pass_round(self, num_requests: int) -> None:
        """Note a round that says nothing of drafts: what was noted before it is taken in all the same."""
        self._go_on(num_requests)

    def _go_on(self, num_requests: int) -> None:
        self._waited += 1
        together = LEARN_ROUNDS if num_requests < LARGE_BATCH else LEARN_LARGE
        if self._work is None and self._rounds and self._waited >= min(together, 1 + self.version // 4):
            rounds, self._rounds, self._waited = self._rounds, [], 0
            self._work = self._take_in(rounds)
        if self._work is not None:
            most = SPREAD_CONFIDENT if self._sure else SPREAD
            for done, _ in enumerate(self._work, 1):
                if done == most and num_requests >= LARGE_BATCH and self.version >= WARM_VERSIONS:
                    return
            self._work = None

    def _take_in(self, rounds: list[SeenRound]) -> Iterator[None]:
        """Learn from some rounds, in parts that each take less time than a plan, and read the models anew.

        What plans read changes in the last part alone, hopes excepted: a version is one state.
        """
        sure = [seen for seen in rounds if seen.codes is not None]
        learned = yield from self._learn_marginal(rounds)
        judged = [learned.requests]
        cells = proposed = None
        yield
        if sure:
            cells, proposed, told = yield from self._learn_calibrated(sure)
            if told is not None:
                learned = told
                judged.append(told.requests)
            yield
        if found := [scores for scores in judged if scores is not None]:
            self._offsets.learn(Scores.joined(found), learned.rise)
        if cells is None or proposed is None:
            self._history.clear()  # what drafts were like when there were confidences says nothing of those without
        else:
            self._history.push(cells, proposed, len(sure[-1].trials))
        if abs(self._skill) > SKILL_DOUBT:
            self.trusts_confidence = self._skill > 0.0
        if self._detector.update(float(np.add.reduce(learned.residual)), float(np.add.reduce(learned.information))):
            self.changes += 1
            self._marginal.forget(0.25)
            self._calibrated.forget(0.25)
        self._refresh()
        if sure:
            self._survivals()

    def _learn_marginal(self, rounds: list[SeenRound]) -> Generator[None, None, Learned]:
        """What trials say by depth and, where confidences are not used, by request."""
        trusted = self.trusts_confidence
        known = [s for s in rounds if s.request_ids is not None and (s.codes is None or not trusted)]
        scores = np.zeros((2, self.max_draft_steps))
        requests = None
        if len(known) < len(rounds):
            others = [s for s in rounds if s.request_ids is None or (s.codes is not None and trusted)]
            half = len(others) // 2
            if half:
                scores += INNER.loops.depth_scores(*trials_of(others[:half]), self._neutral)
                yield
            scores += INNER.loops.depth_scores(*trials_of(others[half:]), self._neutral)
        if known:
            trials, accepted = trials_of(known)
            ids = joined([seen.request_ids for seen in known if seen.request_ids is not None])
            levels, table = self._offsets.levels(self._offsets.find(ids)), self._levels_table()
            yield
            by_depth, by_request = INNER.loops.level_scores(trials, accepted, levels, table.acceptance, table.expected)
            scores += by_depth
            requests = Scores(ids, *by_request)
        yield
        residual, information = scores
        return Learned(residual, information, self._marginal.learn(residual, information), requests)

    def _learn_calibrated(
        self, rounds: list[SeenRound]
    ) -> Generator[None, None, tuple[CellArray, IntArray, Learned | None]]:
        """What trials say of their confidences: of the newest rounds, as many as there is anything to learn from.

        Returns:
            int16[K, M] cells and int[M] proposals of these rounds; and what was learned, None if there was no trial or
            confidences are not used.
        """
        chosen: list[SeenRound] = []
        num_trials = 0
        for seen in reversed(rounds):
            if num_trials >= SCORED_TRIALS:
                break
            chosen.append(seen)
            num_trials += seen.num_trials
        codes, proposed = joined_codes(chosen, self.max_draft_steps), joined([seen.proposed for seen in chosen])
        ids = levels = None
        if self.trusts_confidence and all(seen.request_ids is not None for seen in chosen):
            ids = joined([seen.request_ids for seen in chosen if seen.request_ids is not None])
            levels = self._offsets.levels(self._offsets.find(ids))
        yield
        table = self._survivals()
        cells = table.cells(codes, levels)
        if not num_trials:
            return cells, proposed, None
        trials, accepted = trials_of(chosen)
        by_bin, by_request = np.zeros((2, NUM_BINS)), np.zeros((2, len(trials)))
        by_depth = np.zeros((2, self.max_draft_steps))
        yield
        num_known, likelier = INNER.loops.score_trials(
            trials,
            accepted,
            codes,
            NONE if levels is None else levels,
            *table.against,
            self._neutral,
            by_bin,
            by_depth,
            by_request,
        )
        # How much more confidences tell than depths alone: by the likelihood of trials under both models.
        self._skill = math.exp(-num_known / SKILL_TRIALS) * self._skill + likelier
        yield
        rise = self._calibrated.learn_bins(*by_bin)
        residual, information = by_depth
        rise += self._calibrated.learn(residual - information * rise, information)
        if not self.trusts_confidence:
            return cells, proposed, None
        return cells, proposed, Learned(residual, information, rise, None if ids is None else Scores(ids, *by_request))
