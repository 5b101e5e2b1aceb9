"""What rounds of the embedded engine cost, measured at start: the CPU's counterpart of capturing CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from lightspec_lightllm.drafters import Drafter
from lightspec_lightllm.engine import Engine
from lightspec_lightllm.engine.fetch import ProgressListener
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.engine.sampling import sample_rows
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS
from lightspec_lightllm.planner.types import FloatArray

REPEATS = 6
"""Times that every size is measured, if there is time."""

LEAST_REPEATS = 3
"""Times that it is measured however long that takes."""

SECONDS = 60.0
"""What measuring may take: on a slow machine sizes are measured less often, and corrected while serving."""

OFTEN = 2
"""Times as often that the sizes of `USUAL` are: a few per cent between them decide most plans, and they take less."""

USUAL = (16, 32)
"""Requests and rows of a forward up to which sizes are measured often; drafts by their requests."""

CONTEXT = 256

SHAPES = {
    1: (1, 2, 3, 4, 6, 8, 12, 16),
    2: (2, 3, 4, 6, 8, 16, 32),
    4: (*range(4, 17), *range(18, 33, 2), *range(36, 65, 4)),
    8: (8, 10, 12, 16, 24, 32, 64, 96),
    16: (16, 20, 24, 32, 48, 64, 128),
    32: (32, 40, 64),
}
"""Rows of the target by requests, measured at `CONTEXT`: one number of requests finely, for the rest see
`cost_cache.refined`."""

CONTEXTS = ((8, 8, 64), (8, 8, 768), (4, 16, 64), (4, 16, 768))
"""(requests, rows, context): what a token of context adds."""

DRAFT_REQUESTS = (1, 2, 4, 8, 16, 32)

CAUGHT_UP = 2
"""Rows accepted of each request before a draft that is timed."""

DRAFT_STEPS = 4
"""Steps of the longer draft that is timed; the shorter one has a single step."""

POLISHES = 4
"""Times that the speed of passes is estimated anew from the shapes of the last estimate."""

LEAST_MS = 0.01
"""No forward is taken to be quicker than this: noise alone would make it free."""

Run = Callable[[], float]
"""Does something once and returns the milliseconds of what of it is timed."""


def measure(engine: Engine, drafter: Drafter, progress: ProgressListener | None = None) -> dict[str, Any]:
    """Measure an idle engine and its drafter.

    On a CPU rows cost more if they are of more requests, whose contexts are all read; so there is a table for each of
    several numbers of requests. Rows are dealt to requests as unevenly as a planner deals them (see `uneven_rows`).
    Sampling is part of it, since every row is sampled.

    What the drafter takes is measured in the same passes, so that a machine that changes its speed does not make
    drafts cheaper or dearer than rows: see `draft_tables`. The first draft of a pass is made twice and counts once: one
    that follows forwards of the target alone finds less of the drafter in the caches than one in serving does.
    """
    shapes, drafts = _shapes(engine), _draft_shapes(engine, drafter)
    stands = _Stands(engine, drafter, max((num_requests for num_requests, _ in drafts), default=0))
    capture, engine.model.capture_layers = engine.model.capture_layers, drafter.capture_layers
    try:
        stands.begin()
        runs = [_target_run(engine, *shape) for shape in shapes]
        runs += [stands.run(*draft) for draft in (*drafts[:1], *drafts)]
        often = [count <= USUAL[0] and rows <= USUAL[1] for count, rows, _ in shapes]
        often += [count <= USUAL[0] for count, _ in (*drafts[:1], *drafts)]
        times = steady(_times(runs, often, progress)).tolist()
    finally:
        engine.model.capture_layers = capture
        stands.release()
    target, request_token_ms = tabulate(shapes, times[: len(shapes)])
    start, step = draft_tables(dict(zip(drafts, times[len(runs) - len(drafts) :], strict=True)))
    return {"target_ms": target, "request_token_ms": request_token_ms, "draft_ms": step, "draft_start_ms": start}


def _shapes(engine: Engine) -> list[tuple[int, int, int]]:
    """(requests, rows, context) that the engine has room for; a small pool is measured at short contexts."""
    options = engine.options

    def fits(count: int, rows: int) -> bool:
        mean = -(-rows // count)
        return count <= options.max_requests and mean <= options.max_rows and count * mean <= options.num_slots

    sizes = [(count, rows) for count, all_rows in SHAPES.items() for rows in all_rows if fits(count, rows)]
    room = min(CONTEXT, engine.max_context)
    usual = [(n, rows, max(-(-rows // n), min(room, options.num_slots // n))) for n, rows in sizes]
    return usual + [
        (n, rows, context)
        for n, rows, context in CONTEXTS
        if fits(n, rows) and n * context <= options.num_slots and context <= engine.max_context
    ]


def measured_sizes(engine: Engine) -> str:
    """What of `_shapes` tells engines apart: a table of a smaller one says too little of a larger one."""
    requests, rows, context = (max(sizes) for sizes in zip(*_shapes(engine), strict=True))
    return f"up to {requests} requests, {rows} rows, {context} tokens of context"


def timed_steps(drafter: Drafter) -> tuple[int, ...]:
    """The draft steps that are timed, one or two numbers: a single one, and `DRAFT_STEPS` or as many as it can."""
    return tuple(sorted({1, min(DRAFT_STEPS, drafter.max_draft_steps)}))


def _draft_shapes(engine: Engine, drafter: Drafter) -> list[tuple[int, int]]:
    """(requests, draft steps) that are timed: as many requests as the engine runs; none for a free drafter."""
    if drafter.kind == "free":
        return []
    options = engine.options
    counts = [n for n in DRAFT_REQUESTS if n <= options.max_requests and n * CAUGHT_UP <= options.num_slots]
    return [(n, steps) for n in counts for steps in timed_steps(drafter)]


def draft_tables(times: Mapping[tuple[int, int], float]) -> tuple[dict[int, float], dict[int, float]]:
    """``{requests: ms}`` of what a draft takes beside its steps, and of a step, from ``{(requests, steps): ms}``.

    A draft of d steps takes ``start(N) + d Td(N)``: before its first step a drafter takes in the rows that were
    accepted, behind a target forward that has left little of it in the caches. So of drafts of 1 and d steps
    ``Td = (t_d - t_1) / (d - 1)`` and ``start = t_1 - Td``. Of a drafter that can make no second step the start is 0,
    all of it is the step. No table falls with the requests.
    """
    start: dict[int, float] = {}
    step: dict[int, float] = {}
    for num_requests in sorted({count for count, _ in times}):
        most = max(steps for count, steps in times if count == num_requests)
        first, last = times[num_requests, 1], times[num_requests, most]
        each = (last - first) / (most - 1) if most > 1 else first
        step[num_requests] = max(each, LEAST_MS, *step.values())
        start[num_requests] = max(first - step[num_requests] if most > 1 else 0.0, 0.0, *start.values())
    return start, step


def tabulate(
    shapes: Sequence[tuple[int, int, int]], times: Sequence[float]
) -> tuple[dict[int, dict[int, float]], float]:
    """``{requests: {rows: ms}}``, and the milliseconds that a token of context adds per request.

    The times are ``table[requests][rows] + requests * context * request_token_ms``. The first shape of a number of
    requests and rows is the one of the table; what a token adds is fitted to how the others differ from it, by least
    squares, and is at least 0. Tables do not fall with rows.
    """
    usual: dict[tuple[int, int], tuple[int, float]] = {}
    tokens, extra = [], []
    for (count, rows, context), ms in zip(shapes, times, strict=True):
        if (count, rows) in usual:
            first, first_ms = usual[count, rows]
            tokens.append(float(count * (context - first)))
            extra.append(ms - first_ms)
        else:
            usual[count, rows] = context, ms
    weight = float(np.dot(tokens, tokens))
    per_token = max(float(np.dot(tokens, extra)) / weight, 0.0) if weight else 0.0
    table: dict[int, dict[int, float]] = {}
    for (count, rows), (context, ms) in sorted(usual.items()):
        line = table.setdefault(count, {})
        line[rows] = max(ms - count * context * per_token, LEAST_MS, *line.values())
    return table, per_token


def steady(times: FloatArray) -> FloatArray:
    """float[S]: what shapes take on an undisturbed machine, from float[P, S] passes; NaN: not of that pass.

    A machine whose speed changes from one pass to the next changes all shapes of a pass alike, so passes are first
    brought to one speed, as the shapes tell that are of every pass: by medians of passes and of shapes in turn (Tukey's
    median polish), since a shape's first median depends on which of its passes were disturbed. Other processes can only
    add time, so the lower quartile of a shape's times counts.
    """
    whole = times[:, ~np.isnan(times).any(axis=0)]
    speed = np.ones((len(times), 1))
    for _ in range(POLISHES):
        speed = np.median(whole / np.median(whole / speed, axis=0), axis=1, keepdims=True)
    return cast(FloatArray, np.nanquantile(times / speed, 0.25, axis=0))


def _times(runs: list[Run], often: Sequence[bool], progress: ProgressListener | None = None) -> FloatArray:
    """float[P, S], milliseconds of each run, in passes after one that warms up: one over all, then those over the runs
    that are measured `OFTEN`, and NaN for the others, in turn. As many as there is time for by what the first one took.
    """
    every, few = list(range(len(runs))), [index for index, wanted in enumerate(often) if wanted]
    turn = [every, *[few] * (OFTEN - 1)] if few else [every]
    length, repeats, done = sum(map(len, turn)), REPEATS, 0

    def ran(index: int) -> float:
        nonlocal done
        ms = runs[index]()
        done += 1
        if progress is not None:
            progress("measuring costs", done, len(every) + repeats * length)
        return ms

    seconds = np.zeros(len(runs))
    for index in every:
        started = time.perf_counter()
        ran(index)
        seconds[index] = time.perf_counter() - started
    left, needed = SECONDS - float(seconds.sum()), float(sum(seconds[indices].sum() for indices in turn))
    repeats = min(max(int(left / max(needed, 1e-9)), LEAST_REPEATS), REPEATS)
    times = np.full((len(turn) * repeats, len(runs)), np.nan)
    for number, indices in enumerate(turn * repeats):
        times[number, indices] = [ran(index) for index in indices]
    return times


def _target_run(engine: Engine, num_requests: int, rows: int, context: int) -> Run:
    logits = np.zeros((rows, engine.model.config.vocab_size), dtype=np.float32)
    greedy = [SamplingParams()] * num_requests
    ids = list(range(num_requests))
    counts = uneven_rows(num_requests, rows, min(engine.options.max_rows, context, 1 + MAX_DRAFT_STEPS))

    def run() -> float:
        started = time.perf_counter()
        engine.probe_forward(counts, context)
        sample_rows(logits, greedy, ids, ids, counts)
        return (time.perf_counter() - started) * 1e3

    return run


def uneven_rows(num_requests: int, total: int, most: int) -> list[int]:
    """Rows per request, 1 to ``most``, ``total`` in all, neighbours unlike each other.

    What a request has beyond its own row follows an exponential distribution: a few have many drafts worth a row, most
    have few or none.
    """
    order = np.argsort(np.arange(num_requests) * 0.6180339887 % 1.0)  # golden-ratio steps scatter the ranks
    quantile = -np.log1p(-(np.arange(num_requests) + 0.5) / num_requests)
    rows = np.ones(num_requests, dtype=np.int64)
    while (left := total - int(rows.sum())) > 0:
        room = most - rows
        share = np.where(room > 0, quantile, 0.0)
        wanted = np.minimum(np.floor(share / share.sum() * left).astype(np.int64), room)
        if not wanted.any():
            wanted[np.argmax(np.where(room > 0, quantile, -1.0))] = 1
        rows += wanted
    return [int(count) for count in rows[order]]


class _Stand:
    """A request that only the drafter sees. Its text does not repeat itself, so that nothing in it can be looked up: it
    counts through the vocabulary, and through a small one again and again in other strides, so that no pair recurs.
    """

    def __init__(self, request_id: int, length: int, vocab_size: int) -> None:
        self.request_id = request_id
        self.prompt_length = length - 1
        at = np.arange(4 * length)
        self._text: list[int] = ((at * (1 + 2 * (at // vocab_size)) - request_id) % vocab_size).tolist()
        self.tokens: list[int] = self._text[:length]

    def grow(self, count: int) -> None:
        """Commit more of the text."""
        self.tokens = self._text[: len(self.tokens) + count]


class _Stands:
    """Requests that the drafter drafts for as in serving: behind a target forward, with `CAUGHT_UP` rows accepted each.

    A draft for fewer of them is for the first, so that it reads the drafter's cache as a whole batch does.
    """

    def __init__(self, engine: Engine, drafter: Drafter, count: int) -> None:
        self._engine = engine
        self._drafter = drafter
        self._width = len(drafter.capture_layers) * engine.model.config.hidden_size
        self._seqs = [_Stand(-1 - number, CONTEXT, engine.model.config.vocab_size) for number in range(count)]

    def begin(self) -> None:
        """Hand the drafter the prompts, and let it take them in."""
        for seq in self._seqs:
            self._drafter.prefill(seq, 0, torch.zeros(CONTEXT - 1, self._width))
        if self._seqs:
            self._drafter.propose(self._seqs, 1)

    def run(self, num_requests: int, steps: int) -> Run:
        """A draft of the first N. Only proposing is timed: a round that drafts nothing has the forward, and hands the
        drafter its rows, all the same (`EmbeddedHost.verify`).
        """
        engine, seqs = self._engine, self._seqs[:num_requests]
        rows = np.full(num_requests, CAUGHT_UP)
        hidden = torch.zeros(num_requests * CAUGHT_UP, self._width)
        context = min(CONTEXT, engine.max_context, engine.options.num_slots // num_requests)
        counts = [min(CAUGHT_UP, engine.options.max_rows, context)] * num_requests

        def run() -> float:
            engine.probe_forward(counts, context)
            self._drafter.observe(seqs, hidden, rows, rows)
            for seq in seqs:
                seq.grow(CAUGHT_UP)
            started = time.perf_counter()
            self._drafter.propose(seqs, steps)
            return (time.perf_counter() - started) * 1e3

        return run

    def release(self) -> None:
        """Make the drafter forget them."""
        for seq in self._seqs:
            self._drafter.release(seq.request_id)
