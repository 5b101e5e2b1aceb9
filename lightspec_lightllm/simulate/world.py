"""Who is in the batch, and what is true of the drafts that wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.scenario import Scenario, Segment
from lightspec_lightllm.simulate.text import Text, levels, sigmoid

ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """The next K tokens of every request, as far as anything is known of them.

    Attributes:
        truth: float[N, K], conditional acceptance of each draft.
        told: float[N, K], the drafter's confidence.
        runs: int[N], how many drafts are right before the first wrong one.
        z: float[N, K], z_token of each.
    """

    truth: FloatArray
    told: FloatArray
    runs: IntArray
    z: FloatArray

    @property
    def survival(self) -> FloatArray:
        """float[N, K], probability that drafts 1..j are all right."""
        return np.asarray(np.cumprod(self.truth, axis=1))


class World:
    """The requests of a scenario, round by round.

    Which requests there are depends on the seed, the rounds and the tokens they were committed; what their tokens are,
    on the seed, the request and the position alone.

    Attributes:
        round: of the scenario, from 0, once the first was opened.
        slots: int[N], where the requests of the batch are kept, longest-running first.
        position: int[slots], tokens of the answer so far.
        proposed: int[slots], drafts that wait.
        unseen: int[slots], committed tokens that the drafter has yet to catch up on.
        drafts: what is true of the batch's drafts.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.depths = scenario.drafter.max_draft_steps
        self.round = -1
        self._seed = (scenario.seed, seed)
        mixed = int(np.random.SeedSequence(self._seed).generate_state(1)[0])
        self._segment_of = np.repeat(np.arange(len(scenario.segments)), [s.rounds for s in scenario.segments])
        self._counts = _counts(scenario, np.random.default_rng((mixed, 5)))
        self._events = np.random.default_rng((mixed, 4))
        self._classes = list(scenario.classes)
        self._levels = np.stack([levels(kind, self.depths) for kind in scenario.classes.values()])
        self._spread = np.array([kind.spread for kind in scenario.classes.values()])
        self._noise = np.array([kind.noise for kind in scenario.classes.values()])
        self._shares = [self._cumulated(segment) for segment in scenario.segments]
        capacity = 2 * int(self._counts.max()) + 2
        self.text = Text(mixed, scenario.correlation, capacity)
        self.slots = np.zeros(0, dtype=np.int64)
        self.request = np.zeros(capacity, dtype=np.int64)
        self.position = np.zeros(capacity, dtype=np.int64)
        self.proposed = np.zeros(capacity, dtype=np.int64)
        self.unseen = np.zeros(capacity, dtype=np.int64)
        self._length = np.zeros(capacity, dtype=np.int64)
        self._prompt = np.zeros(capacity, dtype=np.int64)
        self._paused: dict[int, int] = {}
        self._free = list(range(capacity))[::-1]
        self._num_requests = 0
        self.drafts = self.look(self.slots, self.slots)

    def _cumulated(self, segment: Segment) -> FloatArray:
        shares = np.cumsum([segment.mix.get(name, 0.0) for name in self._classes])
        return np.asarray(shares / shares[-1])

    @property
    def segment(self) -> int:
        """Number of the current segment; the last one goes on for ever."""
        return int(self._segment_of[min(max(self.round, 0), len(self._segment_of) - 1)])

    @property
    def request_ids(self) -> IntArray:
        """int[N]."""
        return self.request[self.slots]

    @property
    def context(self) -> IntArray:
        """int[N], tokens in the KV cache."""
        return np.asarray(self._prompt[self.slots] + self.position[self.slots])

    @property
    def left(self) -> IntArray:
        """int[N], tokens until the answer ends."""
        return np.asarray(self._length[self.slots] - self.position[self.slots])

    # --- the batch ----------------------------------------------------------------------------------------------------

    def open_round(self) -> None:
        """Pause, resume, end and admit requests, and look at the drafts that wait."""
        self.round += 1
        at = min(self.round, len(self._counts) - 1)
        wanted = int(self._counts[at])
        chance = self._events.random(2 + int(self._counts.max()))
        requests = self.scenario.requests
        running = self.slots.tolist()
        if requests.pauses:
            for slot, draw in zip(running[1:], chance[2:].tolist(), strict=False):
                if draw < requests.pauses:
                    running.remove(slot)
                    self._pause(slot, self.round + requests.pause_rounds)
        if chance[0] < requests.arrivals and running and self.round:
            self._close(running.pop(0))
        aside = sum(until > self.round for until in self._paused.values())
        wanted = max(1, wanted - aside)
        while len(running) > wanted:
            self._pause(running.pop(), self.round)
        back = [slot for slot, until in self._paused.items() if until <= self.round]
        while len(running) < wanted:
            slot = back.pop(0) if back else self._admit()
            self._paused.pop(slot, None)
            running.append(slot)
        self.slots = np.array(running, dtype=np.int64)
        self.drafts = self.look(self.slots, self.position[self.slots])

    def _pause(self, slot: int, until: int) -> None:
        self._paused[slot] = until
        self.proposed[slot] = 0

    def _admit(self) -> int:
        slot = self._free.pop()
        rng = self.text.open(slot, self._num_requests)
        requests = self.scenario.requests
        self.request[slot] = self._num_requests
        self._num_requests += 1
        self._prompt[slot] = rng.integers(requests.prompt_tokens[0], requests.prompt_tokens[1], endpoint=True)
        length, age = ENDLESS, rng.random()
        if requests.answer_tokens is not None:
            length = int(rng.integers(requests.answer_tokens[0], requests.answer_tokens[1], endpoint=True))
            # The first requests are found somewhere on their way, not all at their start.
            length = max(1, int(length * (1 - age))) if self.round == 0 else length
        self._length[slot] = length
        self.position[slot] = self.proposed[slot] = self.unseen[slot] = 0
        return slot

    def _close(self, slot: int) -> None:
        self.proposed[slot] = 0
        self._free.append(slot)

    def commit(self, accepted: IntArray) -> IntArray:
        """Append tokens, int[N]; returns those kept, which are fewer where an answer ends."""
        kept: IntArray = np.minimum(accepted, self.left)
        self.position[self.slots] += kept
        return kept

    def end_round(self) -> None:
        """Requests whose answer is complete leave."""
        done = self.position[self.slots] >= self._length[self.slots]
        for slot in self.slots[done].tolist():
            self._close(slot)
        self.slots = self.slots[~done]

    # --- its drafts ---------------------------------------------------------------------------------------------------

    def look(self, slots: IntArray, start: IntArray) -> Drafts:
        """The K tokens of each slot from a position on, as drafts 1..K."""
        z, luck, error = self.text.read(slots, start, self.depths)
        log_odds = self.log_odds(slots, z)
        truth = sigmoid(log_odds)
        right = np.logical_and.accumulate(luck < truth, axis=1)
        return Drafts(truth, self._told(log_odds, truth, error), right.sum(axis=1), z)

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

    def expected_tokens(self, verified: IntArray) -> float:
        """Tokens that verifying so many drafts of each request can be expected to keep."""
        counted = np.arange(self.depths) < np.minimum(verified, self.left - 1)[:, None]
        return len(self.slots) + float(np.cumprod(self.drafts.truth, axis=1)[counted].sum())


def _counts(scenario: Scenario, rng: np.random.Generator) -> IntArray:
    """int[rounds], N of every round."""
    parts = []
    for number, segment in enumerate(scenario.segments):
        count = scenario.requests_in(number).count
        if isinstance(count, int):
            parts.append(np.full(segment.rounds, count))
            continue
        low, high = count
        walk = (low + high) // 2 - low + np.cumsum(rng.integers(-2, 3, segment.rounds))
        # A walk between two mirrors.
        width = high - low
        folded = np.abs((walk + width) % (2 * width) - width) if width else np.zeros_like(walk)
        parts.append(low + folded)
    return np.concatenate(parts)
