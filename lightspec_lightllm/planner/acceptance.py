"""How likely a draft is to be accepted: an online logistic model over depth, confidence and request.

The conditional acceptance of draft j of request i, given that its drafts 1..j-1 were accepted, is modelled as

    logit a_ij = theta_j + phi_b(ij) + o_i

with a term per depth, a term per bin of the drafter's confidence (none for a drafter without confidence) and an offset
per request. Only *trials* teach: draft j counts if it was verified and all drafts before it were accepted (the
censoring of a Kaplan-Meier estimate), so trimming rows removes trials but never biases those that remain.

Terms are learned one after the other, each from what those before it left unexplained: first the bins, then the
depths, then the requests. Otherwise a small batch would be explained three times over.

Every term is a decayed, information-weighted mean of working observations (one step of iteratively reweighted least
squares per round): with residual R and Fisher information I of a round, a term x becomes
``(I_old x + I x~ + R) / (I_old + I)``, where x~ is the value that the round was predicted with. ``I_old`` is decayed by
the information that arrives, so 4 requests are not noise and 256 are not slow. Priors enter when a value is read, not
when it is stored: ``x~ = (I x + m x_prior) / (I + m)``. A depth's prior is the depth before it, so depths never seen
are extrapolated, and stale ones drift back to what shallower depths say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lightspec_lightllm.planner.confidence import NUM_BINS
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.loops.plain.arithmetic import sigmoid
from lightspec_lightllm.planner.loops.plain.learning import read_depths
from lightspec_lightllm.planner.scale import INFO_PER_TRIAL, LEVEL_STEP, NEUTRAL_LEVEL, SPREAD_MEMORY
from lightspec_lightllm.planner.types import FloatArray, IntArray

HOPE = 1.5
"""Standard errors, beyond those that many trials leave, by which an acceptance is taken to be better than it looks."""


def logit(probability: float) -> float:
    """Log-odds of a probability in (0, 1)."""
    return math.log(probability / (1.0 - probability))


class AcceptanceModel:
    """The terms ``theta`` and ``phi`` and the table of acceptances they give.

    One instance has a single bin (nothing is known of a draft but its depth and request), another the bins of
    confidences; they differ only in their priors. What is learned is taken in from time to time, several rounds
    at once; between two such times the table stands still.
    """

    def __init__(self, max_draft_steps: int, *, prior_logit: float, use_confidence: bool, memory_trials: float) -> None:
        self.num_depths = max_draft_steps
        self.num_bins = NUM_BINS if use_confidence else 1
        self._memory = memory_trials * INFO_PER_TRIAL
        # With confidence the bins carry the level and depths are a correction; without, depths carry the level.
        self._theta_prior = 0.0 if use_confidence else prior_logit
        self._theta_prior_info = 20 * INFO_PER_TRIAL if use_confidence else 5 * INFO_PER_TRIAL
        self._phi_prior_info = 6 * INFO_PER_TRIAL
        self._least_doubt = 1.0 / math.sqrt(self._memory + self._theta_prior_info)
        self._theta = np.full(max_draft_steps, self._theta_prior)
        self._theta_info = np.zeros(max_draft_steps)
        self._phi = np.zeros(self.num_bins)
        self._phi_info = np.zeros(self.num_bins)
        self._theta_read = read_depths(self._theta, self._theta_info, self._theta_prior, self._theta_prior_info)
        self._phi_read = self._phi
        if use_confidence:
            self._phi_read = INNER.loops.read_bins(self._phi, self._phi_info, self._phi_prior_info)

    @property
    def depth_terms(self) -> FloatArray:
        """float[K], log-odds by depth, beside those of a bin where there are bins; a new array after every change."""
        return self._theta_read

    @property
    def bin_terms(self) -> FloatArray:
        """float[bins], log-odds by bin of confidences; a new array after every change."""
        return self._phi_read

    def hope(self) -> FloatArray:
        """float[K], log-odds by which an acceptance may be better than it looks; 0 once trials are many."""
        doubt = 1.0 / np.sqrt(self._theta_info + self._theta_prior_info) - self._least_doubt
        return HOPE * np.maximum(doubt, 0.0)

    def first_hope(self) -> float:
        """The same of the first depth alone."""
        doubt = 1.0 / math.sqrt(float(self._theta_info[0]) + self._theta_prior_info) - self._least_doubt
        return HOPE * max(doubt, 0.0)

    def hopeful(self, levels: IntArray | None) -> FloatArray:
        """float[K]: acceptance of a batch of int[N] levels if what was seen, and half of what these requests have in
        common, was bad luck."""
        offset = 0.0 if levels is None else LEVEL_STEP * (float(np.add.reduce(levels)) / len(levels) - NEUTRAL_LEVEL)
        return sigmoid(self._theta_read + self.hope() + 0.5 * offset)

    def learn(self, residual: FloatArray, information: FloatArray) -> float:
        """Take in trials by depth: float[K] accepted above expectation, and float[K] information.

        Returns:
            By how much the log-odds of these trials are now expected higher, in the mean: what the terms that are
            learned next need not explain any more.
        """
        self._theta_read, rise = INNER.loops.learn_depths(
            self._theta,
            self._theta_info,
            self._theta_read,
            residual,
            information,
            self._memory,
            self._theta_prior,
            self._theta_prior_info,
        )
        return rise

    def learn_bins(self, residual: FloatArray, information: FloatArray) -> float:
        """Take in trials by bin: float[bins] each. Returns what `learn` does."""
        self._phi_read, rise = INNER.loops.learn_bins(
            self._phi, self._phi_info, self._phi_read, residual, information, self._memory, self._phi_prior_info
        )
        return rise

    def forget(self, keep: float) -> None:
        """Keep only a share of what was learned, after a change of the workload was detected."""
        self._theta_info *= keep
        self._phi_info *= keep


def raised(probability: FloatArray, log_odds: float) -> FloatArray:
    """Probabilities with so much added to their log-odds."""
    odds = math.exp(log_odds)
    return probability * odds / (1.0 - probability + probability * odds)


class Scores(NamedTuple):
    """What trials say of requests.

    Attributes:
        request_ids: int[M], of which some may be the same.
        residual: float[M], drafts accepted above expectation.
        information: float[M], how much that tells.
    """

    request_ids: IntArray
    residual: FloatArray
    information: FloatArray

    @classmethod
    def joined(cls, scores: list[Scores]) -> Scores:
        """One after the other."""
        return scores[0] if len(scores) == 1 else cls(*map(np.concatenate, zip(*scores, strict=True)))


class RequestOffsets:
    """One log-odds offset per request, shrunk towards the batch; bounded in memory.

    How much to shrink is learned too (empirical Bayes): an offset estimated with information I has the variance
    ``tau^2 + 1 / I`` over requests, so ``tau^2`` is the mean of ``deviation^2 I - 1`` over that of ``I``, the deviation
    being that from the mean of the batch. Requests that
    are alike are then not told apart by noise.

    Requests are found by a hash of their id in a table of ``2 ** bits`` entries. Two that fall on the same entry push
    each other out, which costs what was known of them; among 256 live requests that meets two.
    """

    def __init__(self, *, memory_trials: float, prior_trials: float, bits: int = 15) -> None:
        self._memory = memory_trials * INFO_PER_TRIAL
        self._prior = prior_trials * INFO_PER_TRIAL
        # The prior variance counts as much as this much information does.
        self._excess, self._weight = SPREAD_MEMORY / self._prior, SPREAD_MEMORY
        self._bits = bits
        capacity = 1 << bits
        self._owner = np.full(capacity, -1, dtype=np.int64)
        self._offset = np.zeros(capacity)
        self._info = np.zeros(capacity)
        self._level = np.full(capacity, NEUTRAL_LEVEL, dtype=np.int64)
        self._position = np.zeros(capacity, dtype=np.int64)
        self._last_ids = b""
        self._last_entries = np.zeros(0, dtype=np.int64)

    def entries(self, request_ids: IntArray) -> IntArray:
        """Table entries of the batch's requests, cleared for those that are new. The same array for the same batch."""
        ids = request_ids.tobytes()
        if ids != self._last_ids:
            self._last_ids, self._last_entries = ids, self.find(request_ids)
        return self._last_entries

    def find(self, request_ids: IntArray) -> IntArray:
        """The same, of any requests, in any number."""
        return INNER.loops.find_entries(request_ids, self._owner, self._offset, self._info, self._level, self._bits)

    def levels(self, entries: IntArray) -> IntArray:
        """int[N], level of each request in 0..LEVELS-1."""
        return self._level.take(entries)

    def learn(self, scores: Scores, rise: float) -> None:
        """Take in what trials say of requests. Those that lost their entry to another since are left out.

        Args:
            rise: mean rise of the log-odds that the terms of the whole batch have taken up already.
        """
        self._excess, self._weight, self._prior = INNER.loops.learn_offsets(
            *scores,
            rise,
            self._memory,
            self._owner,
            self._position,
            self._offset,
            self._info,
            self._level,
            (self._excess, self._weight, self._prior),
        )


class ChangeDetector:
    """Two-sided CUSUM of standardised residuals (E. S. Page, 1954), one per time that rounds are taken in.

    Under a right model a residual has mean 0 and variance 1; with this slack and threshold, false alarms are some ten
    thousand residuals apart, and a shift by one standard deviation is seen after about 25 of them, one by four after
    two.
    """

    def __init__(self, slack: float = 0.75, threshold: float = 6.0) -> None:
        self._slack = slack
        self._threshold = threshold
        self._up = 0.0
        self._down = 0.0

    def update(self, residual: float, information: float) -> bool:
        """Whether the statistics have changed."""
        if information <= 0.0:
            return False
        score = max(-6.0, min(6.0, residual / math.sqrt(information + 0.5)))
        self._up = max(0.0, self._up + score - self._slack)
        self._down = max(0.0, self._down - score - self._slack)
        if self._up > self._threshold or self._down > self._threshold:
            self._up = self._down = 0.0
            return True
        return False
