"""Simulated text: what is true of the drafts that wait, drawn from the scenario's classes of requests."""

from __future__ import annotations

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.batch import Batch, Drafts
from lightspec_lightllm.simulate.scenario import Scenario, Segment
from lightspec_lightllm.simulate.text import Text, levels, sigmoid

ENDLESS = 1 << 40


class World(Batch):
    """Requests of drawn text."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        self._classes = list(scenario.classes)
        self._levels = np.stack([levels(kind, self.depths) for kind in scenario.classes.values()])
        self._spread = np.array([kind.spread for kind in scenario.classes.values()])
        self._noise = np.array([kind.noise for kind in scenario.classes.values()])
        self._shares = [self._cumulated(segment) for segment in scenario.segments]
        self.text = Text(self.mixed, scenario.correlation, len(self.request))
        self.drafts = self.look(self.slots, self.slots)

    def _cumulated(self, segment: Segment) -> FloatArray:
        shares = np.cumsum([segment.mix.get(name, 0.0) for name in self._classes])
        return np.asarray(shares / shares[-1])

    def begin(self, slot: int, request: int) -> tuple[int, int, int]:
        """See `Batch`."""
        rng = self.text.open(slot, request)
        requests = self.scenario.requests
        prompt = int(rng.integers(requests.prompt_tokens[0], requests.prompt_tokens[1], endpoint=True))
        length, age = ENDLESS, rng.random()
        if requests.answer_tokens is not None:
            length = int(rng.integers(requests.answer_tokens[0], requests.answer_tokens[1], endpoint=True))
            # The first requests are found somewhere on their way, not all at their start.
            length = max(1, int(length * (1 - age))) if self.round == 0 else length
        return prompt, length, 0

    def look(self, slots: IntArray, start: IntArray) -> Drafts:
        """See `Batch`."""
        z, luck, error = self.text.read(slots, start, self.depths)
        log_odds = self.log_odds(slots, z)
        truth = sigmoid(log_odds)
        right = np.logical_and.accumulate(luck < truth, axis=1)
        available = np.full(len(slots), self.depths)
        return Drafts(truth, self._told(log_odds, truth, error), right.sum(axis=1), available, z)

    def log_odds(self, slots: IntArray, z: FloatArray) -> FloatArray:
        """float[..., N, K], log-odds of drafts 1..K of each slot's request where z_token is float[..., N, K]."""
        base, noise = self.levels_of(slots)
        return np.asarray(noise[:, None] * z + base)

    def levels_of(self, slots: IntArray) -> tuple[FloatArray, FloatArray]:
        """float[N, K], log-odds of drafts 1..K of each slot's request at its middle token; float[N], the tokens'
        standard deviation."""
        kind = np.searchsorted(self._shares[self.segment], self.text.kind[slots], side="right")
        return (self._spread[kind] * self.text.ease[slots])[:, None] + self._levels[kind], self._noise[kind]

    def _told(self, log_odds: FloatArray, truth: FloatArray, error: FloatArray) -> FloatArray:
        drafter = self.scenario.drafter
        if drafter.quality == "constant":
            return np.full_like(truth, 0.5)
        if drafter.quality == "random":
            return sigmoid(1.702 * error)  # near the normal distribution function: near uniform
        if not drafter.noise and not drafter.bias:
            return truth
        return sigmoid(log_odds + drafter.noise * error + drafter.bias)
