"""Cost tables of the embedded engine: measured at start, the CPU's counterpart of capturing CUDA graphs."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightspec_lightllm.drafters import Drafter
from lightspec_lightllm.engine import Engine
from lightspec_lightllm.engine.fetch import ProgressListener, cache_dir
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.engine.sampling import sample_rows
from lightspec_lightllm.errors import CostTableError
from lightspec_lightllm.machine import cpu_name
from lightspec_lightllm.planner import CostModel
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS

FORMAT = 2
REPEATS = 3
CONTEXT = 256

SHAPES = (
    *((1, rows) for rows in (1, 2, 3, 4, 6, 8, 12, 16)),
    *((2, rows) for rows in (1, 2, 4, 8, 16)),
    *((4, rows) for rows in (1, 2, 4, 8, 16)),
    *((8, rows) for rows in (1, 2, 4, 8, 12)),
    *((16, rows) for rows in (1, 2, 4, 8)),
    (32, 1),
    (32, 2),
)
"""(requests, mean rows of each): the grid of target shapes at `CONTEXT`."""

CONTEXTS = ((8, 1, 64), (8, 1, 768), (4, 4, 768))
"""(requests, mean rows of each, context): what a token of context adds."""

DRAFT_REQUESTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a table was measured for; a table of any other key is foreign."""

    format: int
    model: str
    weights: str
    threads: int
    drafter: str
    device: str
    torch: str

    @classmethod
    def of(cls, engine: Engine, drafter: Drafter) -> CostKey:
        """The key of this engine, drafter and machine."""
        return cls(
            format=FORMAT,
            model=engine.model.config.sha256,
            weights=engine.options.weights,
            threads=engine.num_threads,
            drafter=drafter.name,
            device=f"{cpu_name()}, {os.cpu_count()} cores",
            torch=str(torch.__version__),
        )

    @property
    def path(self) -> Path:
        """Where its table is kept."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
        return cache_dir() / "costs" / f"{digest}.json"


def load_or_measure(engine: Engine, drafter: Drafter, progress: ProgressListener | None = None) -> CostModel:
    """The cost model of an idle engine: read from the cache, or measured and written there.

    Raises:
        CostTableError: the stored table is damaged or was measured for something else.
    """
    key = CostKey.of(engine, drafter)
    if key.path.exists():
        return load(key.path, key)
    table = measure(engine, drafter, progress)
    key.path.parent.mkdir(parents=True, exist_ok=True)
    scratch = key.path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps({"key": asdict(key), **table}, indent=1), encoding="utf-8")
    scratch.replace(key.path)
    return load(key.path, key)


def load(path: Path, key: CostKey) -> CostModel:
    """Read a stored table.

    Raises:
        CostTableError: it is damaged, or its key is another than ``key``.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = dict(stored["key"])
        target = {int(rows): float(ms) for rows, ms in stored["target_ms"].items()}
        draft = {int(rows): float(ms) for rows, ms in stored["draft_ms"].items()}
        request_ms, request_token_ms = float(stored["request_ms"]), float(stored["request_token_ms"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CostTableError(f"cost table {path} is damaged ({error}); delete it to measure again") from None
    if found != asdict(key):
        wrong = [f"{name} {found.get(name)!r}" for name, value in asdict(key).items() if found.get(name) != value]
        raise CostTableError(f"cost table {path} was measured for {', '.join(wrong)}; delete it to measure again")
    try:
        return CostModel.from_tables(
            target, draft, interpolate=True, request_ms=request_ms, request_token_ms=request_token_ms
        )
    except CostTableError as error:
        raise CostTableError(f"cost table {path} is damaged ({error}); delete it to measure again") from None


def measure(engine: Engine, drafter: Drafter, progress: ProgressListener | None = None) -> dict[str, Any]:
    """Measure an idle engine and its drafter: the fastest of rounds that visit every shape in turn.

    Rows are dealt to requests as unevenly as a planner deals them (see `uneven_rows`), which takes longer than equal
    ones: attention then runs in several calls.

    The target's time is fitted as ``table[rows] + requests * (request_ms + request_token_ms * context)``: on a CPU,
    attention is paid per request and weights per row. Sampling is part of it, since every row is sampled.
    """
    shapes = _shapes(engine)
    capture, engine.model.capture_layers = engine.model.capture_layers, drafter.capture_layers
    try:
        times = _fastest([_target_run(engine, *shape) for shape in shapes], progress)
    finally:
        engine.model.capture_layers = capture
    target, request_ms, request_token_ms = fit(shapes, times)
    return {
        "target_ms": target,
        "request_ms": request_ms,
        "request_token_ms": request_token_ms,
        "draft_ms": _measure_draft(engine, drafter),
        "measured": [{"shape": shape, "ms": ms} for shape, ms in zip(shapes, times, strict=True)],
    }


def _shapes(engine: Engine) -> list[tuple[int, int, int]]:
    """(requests, mean rows, context) that the engine has room for; a small pool is measured at short contexts."""
    options, shapes = engine.options, []
    for n, rows in SHAPES:
        if n <= options.max_requests and rows <= options.max_rows and n * rows <= options.num_slots:
            shapes.append((n, rows, max(rows, min(CONTEXT, engine.max_context, options.num_slots // n))))
    for n, rows, context in CONTEXTS:
        fits = n * context <= options.num_slots and context <= engine.max_context
        if fits and n <= options.max_requests and rows <= options.max_rows:
            shapes.append((n, rows, context))
    return shapes


def fit(shapes: list[tuple[int, int, int]], times: list[float]) -> tuple[dict[int, float], float, float]:
    """Least squares, by relative errors, of ``table[N * rows] + N * (request_ms + request_token_ms * context)``.

    Returns:
        The monotone table of rows to milliseconds, ``request_ms`` and ``request_token_ms`` (both at least 0).
    """
    sizes = sorted({n * rows for n, rows, _ in shapes})
    design = np.zeros((len(shapes), len(sizes) + 2))
    for line, (n, rows, context) in enumerate(shapes):
        design[line, sizes.index(n * rows)] = 1.0
        design[line, -2:] = n, n * context
    ms = np.array(times)
    free = [True, True]
    while True:
        columns = [*range(len(sizes)), *(len(sizes) + i for i in range(2) if free[i])]
        solution, *_ = np.linalg.lstsq(design[:, columns] / ms[:, None], np.ones(len(ms)), rcond=None)
        terms = dict(zip(columns, solution.tolist(), strict=True))
        negative = [i for i in range(2) if terms.get(len(sizes) + i, 0.0) < 0.0]
        if not negative:
            break
        for i in negative:
            free[i] = False
    table = np.maximum.accumulate([max(terms[i], 0.01) for i in range(len(sizes))])
    request_ms, request_token_ms = (terms.get(len(sizes) + i, 0.0) for i in range(2))
    return dict(zip(sizes, table.tolist(), strict=True)), request_ms, request_token_ms


def _fastest(runs: list[Callable[[], object]], progress: ProgressListener | None = None) -> list[float]:
    """Milliseconds of each run: all in turn, several times, the first to warm up.

    The fastest counts: another process on the machine can only add time, and a table outlives it.
    """
    times = [math.inf] * len(runs)
    for repeat in range(REPEATS + 1):
        for index, run in enumerate(runs):
            started = time.perf_counter()
            run()
            if repeat:
                times[index] = min(times[index], (time.perf_counter() - started) * 1e3)
            if progress is not None:
                progress("measuring costs", repeat * len(runs) + index + 1, (REPEATS + 1) * len(runs))
    return times


def _target_run(engine: Engine, num_requests: int, rows: int, context: int) -> Callable[[], object]:
    logits = np.zeros((num_requests * rows, engine.model.config.vocab_size), dtype=np.float32)
    greedy = [SamplingParams()] * num_requests
    ids = list(range(num_requests))
    counts = uneven_rows(num_requests, rows, min(engine.options.max_rows, context, 1 + MAX_DRAFT_STEPS))

    def run() -> None:
        engine.probe_forward(counts, context)
        sample_rows(logits, greedy, ids, ids, counts)

    return run


def uneven_rows(num_requests: int, mean: int, most: int) -> list[int]:
    """Rows per request, 1 to ``most``, summing to ``num_requests * mean``, neighbours unlike each other.

    What a request has beyond its own row follows an exponential distribution: a few have many drafts worth a row, most
    have few or none.
    """
    order = np.argsort(np.arange(num_requests) * 0.6180339887 % 1.0)  # golden-ratio steps scatter the ranks
    quantile = -np.log1p(-(np.arange(num_requests) + 0.5) / num_requests)
    rows = np.ones(num_requests, dtype=np.int64)
    while (left := num_requests * mean - int(rows.sum())) > 0:
        room = most - rows
        share = np.where(room > 0, quantile, 0.0)
        wanted = np.minimum(np.floor(share / share.sum() * left).astype(np.int64), room)
        if not wanted.any():
            wanted[np.argmax(np.where(room > 0, quantile, -1.0))] = 1
        rows += wanted
    return [int(count) for count in rows[order]]


class _Stand:
    """A request that only the drafter sees. Its text does not repeat itself: nothing in it can be looked up."""

    def __init__(self, request_id: int, length: int, vocab_size: int) -> None:
        self.request_id = request_id
        self.prompt_length = length - 1
        self._text = np.random.default_rng(abs(request_id)).integers(vocab_size, size=4 * length).tolist()
        self.tokens: list[int] = self._text[:length]

    def grow(self, count: int) -> None:
        """Commit more of the text."""
        self.tokens = self._text[: len(self.tokens) + count]


def _measure_draft(engine: Engine, drafter: Drafter) -> dict[int, float]:
    """Milliseconds of one draft step by requests, over a chain that catches up on two rows per request first.

    Empty for a free drafter.
    """
    if drafter.kind == "free":
        return {}
    width = len(drafter.capture_layers) * engine.model.config.hidden_size
    steps = min(4, drafter.max_draft_steps)
    out: dict[int, float] = {}
    for num_requests in DRAFT_REQUESTS:
        seqs = [_Stand(-1 - i, CONTEXT, engine.model.config.vocab_size) for i in range(num_requests)]
        for seq in seqs:
            drafter.prefill(seq, 0, torch.zeros(CONTEXT - 1, width))
        drafter.propose(seqs, 1)
        rows = np.full(num_requests, 2)
        hidden = torch.zeros(2 * num_requests, width)
        times = []
        for _ in range(REPEATS + 1):
            drafter.observe(seqs, hidden, rows, rows)
            for seq in seqs:
                seq.grow(2)
            started = time.perf_counter()
            drafter.propose(seqs, steps)
            times.append((time.perf_counter() - started) * 1e3)
        out[num_requests] = min(times) / steps
        for seq in seqs:
            drafter.release(seq.request_id)
    return out
