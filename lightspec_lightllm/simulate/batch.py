"""Who is in the batch, whatever their text is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.scenario import Scenario


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """The next K tokens of every request, as far as anything is known of them.

    Attributes:
        truth: float[N, K], conditional acceptance of each draft; where only outcomes are known, 1 if it is right.
        told: float[N, K], the drafter's confidence.
        runs: int[N], how many drafts are right before the first wrong one.
        available: int[N], drafts that the drafter makes if it is asked for K.
        z: float[N, K], z_token of each; NaN where there is none.
    """

    truth: FloatArray
    told: FloatArray
    runs: IntArray
    available: IntArray
    z: FloatArray

    @property
    def survival(self) -> FloatArray:
        """float[N, K], probability that drafts 1..j are all right."""
        return np.asarray(np.cumprod(self.truth, axis=1))


class Batch(ABC):
    """The requests of a scenario, round by round.

    Which requests there are depends on the seed, the rounds and the tokens they were committed; what their tokens are,
    on the seed, the request and the position alone.

    Attributes:
        round: of the scenario, from 0, once the first was opened.
        slots: int[N], where the requests of the batch are kept, longest-running first.
        request: int[slots], id of the request in each.
        position: int[slots], tokens of the answer so far.
        proposed: int[slots], drafts that wait.
        unseen: int[slots], committed tokens that the drafter has yet to catch up on.
        drafts: what is true of the batch's drafts.
        waits: whether the host knows who has ended before it drafts: an asynchronous GPU host does not.
        reads: whether a request that comes while others run joins them a round later, with drafts: its prompt is read
            beside their rows.
        by_step: whether it knows the confidences of all requests after every draft step, so that it can end a draft.
        mixed: a number drawn from the scenario's seed and the run's, which further draws begin with.
    """

    drafts: Drafts
    waits = False
    reads = False
    by_step = False

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.depths = scenario.drafter.max_draft_steps
        self.round = -1
        self.mixed = int(np.random.SeedSequence((scenario.seed, seed)).generate_state(1)[0])
        self._segment_of = np.repeat(np.arange(len(scenario.segments)), [s.rounds for s in scenario.segments])
        self._counts = _counts(scenario, np.random.default_rng((self.mixed, 5)))
        self._events = np.random.default_rng((self.mixed, 4))
        capacity = 2 * int(self._counts.max()) + 2
        self.slots = np.zeros(0, dtype=np.int64)
        self.request = np.zeros(capacity, dtype=np.int64)
        self.position = np.zeros(capacity, dtype=np.int64)
        self.proposed = np.zeros(capacity, dtype=np.int64)
        self.unseen = np.zeros(capacity, dtype=np.int64)
        self._length = np.zeros(capacity, dtype=np.int64)
        self._prompt = np.zeros(capacity, dtype=np.int64)
        self._paused: dict[int, int] = {}
        self._reading: list[int] = []
        self._free = list(range(capacity))[::-1]
        self._num_requests = 0

    @abstractmethod
    def look(self, slots: IntArray, start: IntArray) -> Drafts:
        """The K tokens of each slot from a position on, as drafts 1..K."""

    @abstractmethod
    def begin(self, slot: int, request: int) -> tuple[int, int, int]:
        """Put the next request into a slot. Returns the tokens of its prompt and of its answer, and where in the
        answer it begins."""

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

    @property
    def drafted_for(self) -> IntArray:
        """int[M], slots of those that are drafted for once a round has ended: who goes on, and who joins next."""
        return np.concatenate((self.slots, np.array(self._reading, dtype=np.int64)))

    # --- the batch ----------------------------------------------------------------------------------------------------

    def open_round(self) -> None:
        """Pause, resume, end and admit requests, and look at the drafts that wait."""
        self.round += 1
        at = min(self.round, len(self._counts) - 1)
        wanted = int(self._counts[at])
        chance = self._events.random(2 + int(self._counts.max()))
        requests = self.scenario.requests
        running = [*self.slots.tolist(), *self._reading]
        self._reading = []
        beside = self.reads and bool(running)
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
        while len(running) + len(self._reading) < wanted:
            slot = back.pop(0) if back else self._admit()
            joins = self._paused.pop(slot, None) is not None or not beside
            (running if joins else self._reading).append(slot)
        self.slots = np.array(running, dtype=np.int64)
        self.drafts = self.look(self.slots, self.position[self.slots])

    def _pause(self, slot: int, until: int) -> None:
        self._paused[slot] = until
        self.proposed[slot] = 0

    def _admit(self) -> int:
        slot = self._free.pop()
        self.request[slot] = self._num_requests
        self._prompt[slot], self._length[slot], self.position[slot] = self.begin(slot, self._num_requests)
        self._num_requests += 1
        self.proposed[slot] = self.unseen[slot] = 0
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

    def propose(self, steps: int) -> None:
        """Draft so many tokens for each of `drafted_for`."""
        self.proposed[self.drafted_for] = steps

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
