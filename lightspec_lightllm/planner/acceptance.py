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
from typing import NamedTuple, cast

import numpy as np

from lightspec_lightllm.planner.confidence import BIN_CENTRES, NUM_BINS
from lightspec_lightllm.planner.types import FloatArray, IntArray

INFO_PER_TRIAL = 0.2
"""Fisher information on the log-odds of a trial at an acceptance of 0.28 or 0.72."""

LEVELS = 17
"""Request offsets are read at this many levels, so that tables replace per-request arithmetic."""

LEVEL_STEP = 0.25
NEUTRAL_LEVEL = LEVELS // 2
LEVEL_OFFSETS: FloatArray = LEVEL_STEP * (np.arange(LEVELS) - NEUTRAL_LEVEL).astype(np.float64)

LEAST_SPREAD = 0.02
"""A trial at acceptance q informs by q (1 - q), taken as q times at least this: certainty must stay corrigible."""

HOPE = 1.5
"""Standard errors, beyond those that many trials leave, by which an acceptance is taken to be better than it looks."""

STALE = 0.5
"""How fast what is known of a request or a bin that is not tried is forgotten, relative to one with as many trials as
most have: a run of bad luck must not end its trials for good."""

SHIFT_PRIOR = 20.0
"""Information behind a confidence that needs no shift."""

SCALE_PRIOR = 150.0
"""Information, times squared log-odds, behind a confidence that needs no scaling."""

_POWERS = np.stack((np.ones(NUM_BINS), BIN_CENTRES, BIN_CENTRES * BIN_CENTRES))


def logit(probability: float) -> float:
    """Log-odds of a probability in (0, 1)."""
    return math.log(probability / (1.0 - probability))


def sums(keys: IntArray, values: FloatArray, size: int) -> FloatArray:
    """float[size], the sum of the values of each key."""
    return cast(FloatArray, np.bincount(keys, weights=values, minlength=size))


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
        self._refresh()

    def _refresh(self) -> None:
        self._read_bins()
        self._read_depths()

    def _read_depths(self) -> None:
        prior, strength = self._theta_prior, self._theta_prior_info
        read = []
        for value, info in zip(self._theta.tolist(), self._theta_info.tolist(), strict=True):
            prior = (info * value + strength * prior) / (info + strength)
            read.append(prior)
        self._theta_read = np.array(read)

    def _read_bins(self) -> None:
        if self.num_bins > 1:
            seen = self._phi_info
            believed = self._phi_prior_info * self._scaled_confidence()
            self._phi_read = (seen * self._phi + believed) / (seen + self._phi_prior_info)

    def _scaled_confidence(self) -> FloatArray:
        """float[bins], what a bin's acceptance is taken to be before its own trials: the log-odds of the confidence,
        scaled and shifted as the bins with trials say (Platt 1999).

        Bins that are seldom tried because they look hopeless thus learn from the others, so that a confidence that
        means nothing is found out.
        """
        seen, first, second = (_POWERS @ self._phi_info).tolist()
        total, cross = (_POWERS[:2] @ (self._phi_info * self._phi)).tolist()
        shift_info, scale_info = seen + SHIFT_PRIOR, second + SCALE_PRIOR
        determinant = shift_info * scale_info - first * first
        scale = (shift_info * (cross + SCALE_PRIOR) - first * total) / determinant
        scale = min(max(scale, 0.0), 2.0)
        shift = (total - scale * first) / shift_info
        return cast(FloatArray, np.minimum(np.maximum(shift + scale * BIN_CENTRES, -2.5), 2.5))

    @property
    def depth_terms(self) -> FloatArray:
        """float[K], log-odds by depth, beside those of a bin where there are bins; a new array after every change."""
        return self._theta_read

    @property
    def bin_terms(self) -> FloatArray:
        """float[bins], log-odds by bin of confidences; a new array after every change."""
        return self._phi_read

    def acceptance(self) -> FloatArray:
        """float[K]: conditional acceptance per depth of a request like the batch (single bin only)."""
        return _sigmoid(self._theta_read)

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
        return _sigmoid(self._theta_read + self.hope() + 0.5 * offset)

    def learn(self, residual: FloatArray, information: FloatArray) -> float:
        """Take in trials by depth: float[K] accepted above expectation, and float[K] information.

        Returns:
            By how much the log-odds of these trials are now expected higher, in the mean: what the terms that are
            learned next need not explain any more.
        """
        before = self._theta_read
        # A depth that is not tried while shallower ones are grows stale, eight times as slowly as one that is.
        self._theta_info *= np.exp((information + 0.125 * information[0]) / -self._memory)
        _blend(self._theta, self._theta_info, before, residual=residual, information=information)
        self._read_depths()
        return _mean_rise(self._theta_read, before, information)

    def learn_bins(self, residual: FloatArray, information: FloatArray) -> float:
        """Take in trials by bin: float[bins] each. Returns what `learn` does."""
        before = self._phi_read
        stale = STALE * float(np.add.reduce(information)) / self.num_bins
        self._phi_info *= np.exp(np.maximum(information, stale) / -self._memory)
        _blend(self._phi, self._phi_info, before, residual=residual, information=information)
        self._read_bins()
        return _mean_rise(self._phi_read, before, information)

    def forget(self, keep: float) -> None:
        """Keep only a share of what was learned, after a change of the workload was detected."""
        self._theta_info *= keep
        self._phi_info *= keep


def acceptance_by_level(depth_terms: FloatArray) -> FloatArray:
    """float[LEVELS, K], acceptance by level of request and depth, of float[K] log-odds."""
    return _sigmoid(LEVEL_OFFSETS[:, None] + depth_terms)


def information_of(acceptance: FloatArray) -> FloatArray:
    """Fisher information of one trial at each acceptance."""
    return acceptance * np.maximum(1.0 - acceptance, LEAST_SPREAD)


def raised(probability: FloatArray, log_odds: float) -> FloatArray:
    """Probabilities with so much added to their log-odds."""
    odds = math.exp(log_odds)
    return probability * odds / (1.0 - probability + probability * odds)


def _sigmoid(log_odds: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-log_odds))


def _mean_rise(after: FloatArray, before: FloatArray, information: FloatArray) -> float:
    return float((after - before) @ information) / (float(np.add.reduce(information)) + 1e-9)


def _blend(
    value: FloatArray, info: FloatArray, read: FloatArray, *, residual: FloatArray, information: FloatArray
) -> None:
    """Take a round's working observations into terms, in place (the update of the module's docstring)."""
    info += information
    value += (information * (read - value) + residual) / (info + 1e-9)
    np.minimum(np.maximum(value, -8.0, out=value), 8.0, out=value)


_HASH = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: its multiples are spread evenly (Knuth, TAOCP 3, 6.4)."""


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
        self._excess, self._weight = 64.0 / self._prior, 64.0
        self._shift = np.uint64(64 - bits)
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
        entries = self._hashed(request_ids)
        new = (self._owner.take(entries) != request_ids).nonzero()[0]
        if len(new):
            cleared = entries[new]
            self._owner[cleared] = request_ids[new]
            self._offset[cleared] = 0.0
            self._info[cleared] = 0.0
            self._level[cleared] = NEUTRAL_LEVEL
        return entries

    def levels(self, entries: IntArray) -> IntArray:
        """int[N], level of each request in 0..LEVELS-1."""
        return self._level.take(entries)

    def learn(self, scores: Scores, rise: float) -> None:
        """Take in what trials say of requests. Those that lost their entry to another since are left out.

        Args:
            rise: mean rise of the log-odds that the terms of the whole batch have taken up already.
        """
        entries, information, residual = self._by_entry(scores)
        if not len(entries):
            return
        residual = residual - information * rise
        info = self._info[entries]
        offset = self._offset[entries]
        read = info * offset / (info + self._prior)
        stale = STALE * float(np.add.reduce(information)) / len(entries)
        info *= np.exp(np.maximum(information, stale) / -self._memory)
        total = info + information
        offset += (information * (read - offset) + residual) / (total + 1e-9)
        np.minimum(np.maximum(offset, -8.0, out=offset), 8.0, out=offset)
        self._info[entries] = total
        self._offset[entries] = offset
        if len(entries) > 1:
            self._learn_spread(offset, total)
        shrunk = total * offset / (total + self._prior)
        level = np.rint(shrunk / LEVEL_STEP) + NEUTRAL_LEVEL
        self._level[entries] = np.minimum(np.maximum(level, 0, out=level), LEVELS - 1, out=level)

    def _by_entry(self, scores: Scores) -> tuple[IntArray, FloatArray, FloatArray]:
        """Entries without repetition, with the information and the residual of each: scores added up."""
        ids, residual, information = scores
        entries = self._hashed(ids)
        held = self._owner.take(entries) == ids
        if not held.all():
            entries, residual, information = entries[held], residual[held], information[held]
        positions = np.arange(len(entries))
        self._position[entries] = positions
        last = self._position.take(entries)  # where the same entry stands for the last time
        kept = (last == positions).nonzero()[0]
        if len(kept) == len(entries):
            return entries, information, residual
        information, residual = sums(last, information, len(entries)), sums(last, residual, len(entries))
        return entries.take(kept), information.take(kept), residual.take(kept)

    def _hashed(self, request_ids: IntArray) -> IntArray:
        return cast(IntArray, ((request_ids.view(np.uint64) * _HASH) >> self._shift).view(np.int64))

    def _learn_spread(self, offset: FloatArray, information: FloatArray) -> None:
        """How much the requests of a batch differ. What they have in common says nothing of it."""
        total = float(np.add.reduce(information)) + 1e-9
        deviation = offset - float(offset @ information) / total
        count = len(offset) - 1
        keep = 64.0 / (64.0 + count)
        self._excess = keep * self._excess + (1.0 - keep) * (float((deviation * deviation) @ information) - count)
        self._weight = keep * self._weight + (1.0 - keep) * total
        self._prior = 1.0 / min(max(self._excess / self._weight, 0.01), 2.0)


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
