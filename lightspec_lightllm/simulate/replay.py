"""Recorded text: which drafts were right, from every position of real answers."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path

import numpy as np

from lightspec_lightllm.adapters.recording import Recording, load_recording
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner.types import BY_STEP, FloatArray, IntArray
from lightspec_lightllm.simulate.batch import Batch, Drafts
from lightspec_lightllm.simulate.scenario import Scenario, Segment
from lightspec_lightllm.simulate.world import World

_GOLDEN = (5**0.5 - 1) / 2


class Replay(Batch):
    """Recorded requests, each in the order of its tokens, as a closed loop: one that ends is replaced at once.

    An outcome is all that is known of a draft, so its acceptance is 1 or 0 and what is expected is what is drawn. As in
    an engine, a request comes with its first token, and nothing is drafted past its limit. Where the embedded engine
    was recorded its prompt takes a round of the others, who are one fewer then, and it comes with drafts.

    Attributes:
        recording: what is replayed.
        source: int[slots], number in the recording of the request in each slot.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        self.recording = _recording_of(scenario)
        drafter = self.recording.drafter
        self.waits = self.reads = scenario.drafter.confidence == "live"
        # A hybrid makes its lookups at once.
        self.by_step = self.waits and drafter.name != "hybrid" and drafter.kind in BY_STEP
        self.source = np.zeros(len(self.request), dtype=np.int64)
        self._shift = np.random.default_rng((self.mixed, 1)).random()
        self._lines = _Lines(self.recording, self.depths)
        self._pools = {name: self._pool(number, name) for number, name in enumerate(("", *self.recording.datasets))}
        self._shares = [_shares(segment) for segment in scenario.segments]
        self.drafts = self.look(self.slots, self.slots)

    def _pool(self, number: int, dataset: str) -> itertools.cycle[int]:
        """The requests of a set, or of all, again and again."""
        held = [at for at, request in enumerate(self.recording.requests) if dataset in ("", request.dataset)]
        return itertools.cycle(np.random.default_rng((self.mixed, 2, number)).permutation(held).tolist())

    def begin(self, slot: int, request: int) -> tuple[int, int, int]:
        """See `Batch`."""
        names, shares = self._shares[self.segment]
        # Evenly spread over requests: every batch has each set in its share.
        name = names[int(np.searchsorted(shares, (self._shift + request * _GOLDEN) % 1.0, side="right"))]
        self.source[slot] = source = next(self._pools[name])
        recorded = self.recording.requests[source]
        return recorded.prompt_tokens, recorded.answer_tokens, 1

    def look(self, slots: IntArray, start: IntArray) -> Drafts:
        """See `Batch`."""
        at = self._lines.at(self.source[slots], start)
        runs, available = self._lines.runs[at], self._lines.available[at]
        truth = (np.arange(self.depths) < runs[:, None]).astype(np.float64)
        return Drafts(truth, self._lines.told[at], runs, available, np.full(truth.shape, np.nan))

    def propose(self, steps: int) -> None:
        """See `Batch`; a drafter that found fewer proposes fewer."""
        slots = self.drafted_for
        at = self._lines.at(self.source[slots], self.position[slots])
        self.proposed[slots] = np.minimum(steps, self._lines.available[at])


class _Lines:
    """All positions of all requests, one after the other; the last of each request stands for all that follow.

    Attributes:
        runs: int[L], drafts that are right before the first wrong one.
        available: int[L], drafts made.
        told: float[L, K], what the drafter told of them, 0 past those made.
    """

    def __init__(self, recording: Recording, depths: int) -> None:
        requests = recording.requests
        lengths = [request.answer_tokens + 1 for request in requests]
        self._first = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._last = np.array(lengths) - 1
        self.runs = np.zeros(sum(lengths), dtype=np.int64)
        self.available = np.zeros(sum(lengths), dtype=np.int64)
        self.told = np.zeros((sum(lengths), depths))
        for first, request in zip(self._first.tolist(), requests, strict=True):
            place = slice(first + 1, first + request.answer_tokens)
            self.runs[place] = np.minimum(request.right, depths)
            self.available[place] = np.minimum(request.drafts, depths)
            for at, told in enumerate(request.confidence, start=first + 1):
                self.told[at, : min(len(told), depths)] = told[:depths]

    def at(self, source: IntArray, position: IntArray) -> IntArray:
        """int[N], the lines of positions of requests."""
        return np.asarray(self._first[source] + np.minimum(position, self._last[source]))


def open_batch(scenario: Scenario, seed: int) -> Batch:
    """The requests of a scenario: drawn, or recorded."""
    return World(scenario, seed) if scenario.trace_file is None else Replay(scenario, seed)


def check_trace(scenario: Scenario) -> None:
    """Raises ConfigError when a scenario asks for drafts that its trace does not have."""
    if scenario.trace_file is None:
        return
    own, asked = _recording_of(scenario).drafter, scenario.drafter
    if asked.kind != own.kind:
        raise ConfigError(f"kind: expected that of the trace's drafter {own.name}, {own.kind}, got {asked.kind!r}")
    if asked.max_draft_steps > own.max_draft_steps:
        raise ConfigError(
            f"max_draft_steps: expected at most the {own.max_draft_steps} of the trace, got {asked.max_draft_steps}"
        )


def _recording_of(scenario: Scenario) -> Recording:
    path = Path(scenario.trace_file or "")
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(f"trace {path} cannot be read: {error}") from None
    return _load(path, changed)


@lru_cache(maxsize=4)
def _load(path: Path, changed: int) -> Recording:  # noqa: ARG001 - a file written anew is another one
    return load_recording(path)


def _shares(segment: Segment) -> tuple[list[str], FloatArray]:
    """Names of the sets that a segment mixes, and their cumulated shares; one without a name where it mixes none."""
    mix = {name: share for name, share in segment.mix.items() if share} or {"": 1.0}
    shares = np.cumsum(list(mix.values()))
    return list(mix), np.asarray(shares / shares[-1])
