"""Planners and drafters that do their worst, and a loop that runs them to the end."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightspec_lightllm.adapters.embedded import EmbeddedHost
from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.drafters import Drafter, Proposals, SequenceView
from lightspec_lightllm.drafters.base import StepRule
from lightspec_lightllm.engine import Engine, SamplingParams
from lightspec_lightllm.engine import Sequence as Request
from lightspec_lightllm.planner import BatchView, Plan, PlannerCounters, RoundFeedback


class WildPlanner:
    """Any legal budget, any draft steps and any ranking, anew every round."""

    def __init__(self, max_draft_steps: int, seed: int) -> None:
        self.max_draft_steps = max_draft_steps
        self.counters = PlannerCounters()
        self._rng = np.random.default_rng(seed)

    def plan(self, view: BatchView) -> Plan:
        available = int(np.sum(view.proposed))
        budget = view.num_requests + int(self._rng.integers(0, available + 1))
        survival = self._rng.random((view.num_requests, self.max_draft_steps)) if self._rng.random() < 0.7 else None
        steps = int(self._rng.integers(0, self.max_draft_steps + 1))
        return Plan(budget, steps, view.num_requests, survival=survival)

    def observe(self, feedback: RoundFeedback) -> None:
        self.counters.observed += 1


class BlankDrafter:
    """The parts of a drafter without state."""

    name = "blank"
    kind: Any = "free"
    capture_layers: tuple[int, ...] = ()

    def __init__(self, max_draft_steps: int) -> None:
        self.max_draft_steps = max_draft_steps

    def prefill(self, seq: SequenceView, start: int, hidden: Any) -> None: ...

    def observe(self, seqs: Sequence[SequenceView], hidden: Any, rows: Any, accepted: Any) -> None: ...

    def backlog(self, seqs: Sequence[SequenceView]) -> int:
        return 0

    def release(self, request_id: int) -> None: ...


class NoiseDrafter(BlankDrafter):
    """Random drafts of random length with random confidence, a few of them right by chance."""

    def __init__(self, max_draft_steps: int, vocab_size: int, seed: int) -> None:
        super().__init__(max_draft_steps)
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(seed)

    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: StepRule | None = None) -> Proposals:
        proposals = Proposals.empty(len(seqs), steps)
        for row in range(len(seqs)):
            length = int(self._rng.integers(0, steps + 1))
            proposals.put(
                row, self._rng.integers(0, self._vocab_size, length).tolist(), self._rng.random(length).tolist()
            )
        return proposals


class KnowingDrafter(BlankDrafter):
    """Drafts what the target will say, by having read it; spoils each draft with some probability."""

    def __init__(self, max_draft_steps: int, texts: dict[int, list[int]], spoil: float = 0.0, seed: int = 0) -> None:
        super().__init__(max_draft_steps)
        self._texts = texts
        self._spoil = spoil
        self._rng = np.random.default_rng(seed)

    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: StepRule | None = None) -> Proposals:
        proposals = Proposals.empty(len(seqs), steps)
        for row, seq in enumerate(seqs):
            drafts = list(self._texts[seq.request_id][len(seq.tokens) : len(seq.tokens) + steps])
            spoilt = [(token + 1) % 64 if self._rng.random() < self._spoil else token for token in drafts]
            proposals.put(row, spoilt, [0.9] * len(drafts))
        return proposals


def serve(
    engine: Engine,
    planner: Any,
    drafter: Drafter | None,
    requests: list[tuple[list[int], SamplingParams]],
    *,
    concurrency: int = 8,
    cancel: dict[int, int] | None = None,
) -> tuple[list[Request], list[RoundRecord]]:
    """Run requests to the end, ``concurrency`` at a time; request ids are their positions.

    Slots are checked after every round. ``cancel`` maps a request to the round in which it is cancelled.
    """
    rounds = Round(EmbeddedHost(engine, drafter, planner.max_draft_steps), planner)
    pending = list(enumerate(requests))[::-1]
    sequences: dict[int, Request] = {}
    records = []
    for turn in range(10_000):
        while pending and sum(seq.status != "finished" for seq in sequences.values()) < concurrency:
            index, (prompt, params) = pending.pop()
            sequences[index] = engine.submit(prompt, params, request_id=index)
        for index, when in (cancel or {}).items():
            if when == turn:
                engine.cancel(index)
        record = rounds.step()
        rounds.host.check_slots()
        if record is not None:
            records.append(record)
        if not pending and not engine.has_work:
            break
    assert rounds.counters.fallback is None
    assert rounds.counters.num_refused_feedback == 0
    assert engine.slots.num_free == engine.options.num_slots
    engine.take_finished()
    return [sequences[index] for index in range(len(requests))], records
