"""Loops that drive an engine as a host would, well-behaved or not."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lightspec_lightllm.engine import Engine, SamplingParams, Sequence

Drafts = Callable[[Sequence, int], list[int]]


@dataclass
class Case:
    """A request and what became of it."""

    prompt: list[int]
    params: SamplingParams
    request_id: int
    expected: Sequence | None = None
    cancel_after: int | None = None
    sequence: Sequence | None = field(default=None, repr=False)


def step(engine: Engine, rows: int, drafts: Drafts, counts: Callable[[Sequence], int]) -> list[Sequence]:
    """One round: verify drafts in counts(sequence) rows each, commit the longest prefix the target agrees with."""
    seqs = engine.schedule(rows)
    engine.check()
    if not seqs:
        return seqs
    tokens = np.full((len(seqs), rows), -1, dtype=np.int64)
    own_rows = np.array([counts(sequence) for sequence in seqs])
    for index, sequence in enumerate(seqs):
        tokens[index, 0] = sequence.tokens[-1]
        tokens[index, 1 : own_rows[index]] = drafts(sequence, int(own_rows[index]) - 1)
    forward = engine.forward(seqs, tokens, own_rows)
    sampled = engine.sample(forward, seqs, own_rows)
    committed = np.full((len(seqs), rows), -1, dtype=np.int64)
    accepted = np.ones(len(seqs), dtype=np.int64)
    ends = np.cumsum(own_rows)
    for index, count in enumerate(own_rows.tolist()):
        row = sampled[ends[index] - count : ends[index]]
        committed[index, :count] = row
        while accepted[index] < count and row[accepted[index] - 1] == tokens[index, accepted[index]]:
            accepted[index] += 1
    kept = engine.commit(seqs, committed, accepted)
    assert (kept >= 1).all()
    assert (kept <= accepted).all()
    engine.check()
    return seqs


def no_drafts(sequence: Sequence, count: int) -> list[int]:
    return [0] * count


def run_plain(engine: Engine) -> None:
    """Decode everything one token at a time."""
    while engine.has_work:
        step(engine, 1, no_drafts, lambda _: 1)


def decode_alone(engine: Engine, prompt: list[int], params: SamplingParams, request_id: int = 0) -> Sequence:
    """The reference: the request by itself, without drafts."""
    sequence = engine.submit(prompt, params, request_id)
    run_plain(engine)
    return sequence


def run_wild(engine: Engine, cases: list[Case], rng: np.random.Generator, max_rows: int) -> None:
    """Serve the cases with random arrivals, rows, drafts (right, half right or noise) and cancels."""
    waiting = list(cases)
    by_id = {case.request_id: case for case in cases}
    vocab_size = engine.model.config.vocab_size

    def drafts(sequence: Sequence, count: int) -> list[int]:
        case = by_id[sequence.request_id]
        assert case.expected is not None
        future = case.expected.tokens[len(sequence.tokens) :][:count]
        noise: list[int] = rng.integers(vocab_size, size=count).tolist()
        right = int(rng.integers(count + 1))
        return (future[:right] + noise[len(future[:right]) :])[:count]

    for _ in range(2000):
        if not (engine.has_work or waiting):
            return
        while waiting and rng.random() < 0.5:
            case = waiting.pop(0)
            case.sequence = engine.submit(case.prompt, case.params, case.request_id)
        for case in cases:
            sequence = case.sequence
            if sequence is not None and case.cancel_after is not None and sequence.num_generated >= case.cancel_after:
                engine.cancel(case.request_id)
        rows = int(rng.integers(1, max_rows + 1))
        step(engine, rows, drafts, lambda _: int(rng.integers(1, rows + 1)))  # noqa: B023 - called at once
    raise AssertionError("the engine makes no progress")
