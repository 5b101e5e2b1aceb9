"""Recorded drafts: what a drafter proposed at every position of finished texts, and what of it was right.

A text does not depend on how its rounds were planned, and a drafter's proposals depend on the text alone. So a file
that knows the proposals from *every* position replays under any plan, whichever positions that plan drafts from.

The file is JSON, plain or gzipped::

    {"format": "lightspec-trace/1", "date": "20260102-030405",
     "source":   {"backend": .., "model_id": .., "model_sha256": .., "weights": .., "threads": .., "concurrency": [4],
                  "max_tokens": 48, "temperature": 0.0, "seed": 0, "machine": {"cpu": .., "commit": .., ..}},
     "drafter":  {"name": "ngram", "kind": "free", "max_draft_steps": 15},
     "costs":    {"target": {"1": 47.8, ..}, ..},                           as `CostTables`
     "requests": [{"dataset": "gsm8k", "key": .., "prompt_tokens": 93, "answer_tokens": 48,
                   "drafts": [0, 15, ..], "right": [0, 2, ..], "confidence": [[], [0.49, ..], ..]}, ..]}
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.config import parse_mapping
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import MAX_DRAFT_STEPS, DrafterKind

FORMAT = "lightspec-trace/1"

PLAIN_BYTES = 1 << 20
"""Larger files are gzipped."""

DIGITS = 4
"""Of a confidence."""


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """Where a recording was made.

    Attributes:
        backend: the engine.
        model_id: name of the model's file.
        model_sha256: of the model's file.
        weights: how they were kept.
        threads: of the engine.
        concurrency: requests in flight of the benchmark's cells.
        max_tokens: tokens per answer at most.
        temperature: of the sampling; 0: greedy.
        seed: chose the prompts and seeded the sampling.
        machine: hardware, versions and commit.
    """

    backend: str
    model_id: str
    model_sha256: str
    weights: str
    threads: int
    concurrency: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    machine: dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class RecordedDrafter:
    """What proposed.

    Attributes:
        name: of the drafter.
        kind: what a step of it costs, see `planner.DrafterKind`.
        max_draft_steps: K, the drafts that were asked for at every position.
    """

    name: str
    kind: DrafterKind
    max_draft_steps: int

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_steps <= MAX_DRAFT_STEPS:
            raise ConfigError(f"max_draft_steps: expected 1 to {MAX_DRAFT_STEPS}, got {self.max_draft_steps}")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One answer of G tokens. Its first token comes with the prompt, so drafting begins at position 1: entry p - 1 of
    each list is for position p = 1..G-1, where p tokens have been generated and drafts 1, 2, .. guess tokens p, p+1, ..
    of the answer, counted from 0.

    Attributes:
        dataset: where the prompt is from.
        key: of the prompt in it.
        prompt_tokens: length of the prompt.
        answer_tokens: G, at least 2.
        drafts: int[G - 1], drafts that a round would find waiting: those made, less those past the answer's limit.
        right: int[G - 1], how many of them are right before the first wrong one. A draft past the answer's end is
            wrong: it could not be kept.
        confidence: float[G - 1, drafts], what the drafter told of each.
    """

    dataset: str
    key: str
    prompt_tokens: int
    answer_tokens: int
    drafts: tuple[int, ...]
    right: tuple[int, ...]
    confidence: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("dataset: expected a name, got none")
        if self.prompt_tokens < 1 or self.answer_tokens < 2:
            raise ConfigError(
                f"expected a prompt of at least 1 token and an answer of at least 2, got {self.prompt_tokens} and "
                f"{self.answer_tokens}"
            )
        positions = self.answer_tokens - 1
        for name in ("drafts", "right", "confidence"):
            if len(getattr(self, name)) != positions:
                raise ConfigError(
                    f"{name}: expected an entry for each of {positions} positions, got {len(getattr(self, name))}"
                )
        for at, (drafts, right, told) in enumerate(zip(self.drafts, self.right, self.confidence, strict=True)):
            most = min(drafts, positions - at)
            if drafts < 0 or not 0 <= right <= most:
                raise ConfigError(f"right.{at}: expected 0 to {max(most, 0)} of {drafts} drafts, got {right}")
            if len(told) != drafts or not all(0.0 <= value <= 1.0 for value in told):
                raise ConfigError(f"confidence.{at}: expected a value from 0 to 1 for each of {drafts} drafts")


@dataclass(frozen=True, slots=True)
class Recording:
    """Drafts of finished texts with all that a replay needs to know of the engine that wrote them.

    Attributes:
        format: of the file, `FORMAT`.
        date: ``YYYYMMDD-HHMMSS``.
        source: where it was made.
        drafter: what proposed.
        costs: what rounds cost there, as the planner was told.
        requests: in the order in which they were asked.
    """

    format: str
    date: str
    source: RecordedSource
    drafter: RecordedDrafter
    costs: CostTables
    requests: tuple[RecordedRequest, ...]

    def __post_init__(self) -> None:
        if not self.requests:
            raise ConfigError("requests: expected at least one")
        for number, request in enumerate(self.requests):
            if max(request.drafts) > self.drafter.max_draft_steps:
                raise ConfigError(
                    f"requests.{number}.drafts: expected at most {self.drafter.max_draft_steps} "
                    f"(drafter.max_draft_steps), got {max(request.drafts)}"
                )

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the sets, in the order recorded."""
        return tuple(dict.fromkeys(request.dataset for request in self.requests))


def to_text(recording: Recording) -> str:
    """The file's content, a line per request."""
    content = dataclasses.asdict(recording)
    requests = [
        request | {"confidence": [[round(value, DIGITS) for value in line] for line in request["confidence"]]}
        for request in content.pop("requests")
    ]
    head = json.dumps(content, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(request, separators=(",", ":")) for request in requests)
    return f'{head},\n "requests": [\n{lines}\n ]\n}}\n'


def to_bytes(recording: Recording) -> tuple[str, bytes]:
    """The file's ending and content: plain, or gzipped where it is larger than `PLAIN_BYTES`."""
    raw = to_text(recording).encode()
    return (".trace.json", raw) if len(raw) <= PLAIN_BYTES else (".trace.json.gz", gzip.compress(raw, mtime=0))


def load_recording(path: Path) -> Recording:
    """Read a file that `to_bytes` wrote, or one of rounds that LightLLM served (`lightllm.plan_trace`).

    Raises:
        ConfigError: it cannot be read, is of another format, or a key or value of it is wrong; the message names it.
    """
    from lightspec_lightllm.adapters.lightllm import plan_trace  # which makes recordings of what it reads

    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {path} cannot be read: {error}") from None
    if plan_trace.is_rounds(text):
        try:
            return plan_trace.to_recording(text.splitlines(keepends=True))
        except ConfigError as error:
            raise ConfigError(f"trace {path}: {error}") from None
    try:
        content = json.loads(text, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise ConfigError(f"trace {path} is not JSON: {error}") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ConfigError(
            f"trace {path}: format: expected {FORMAT!r}, got {found!r}; record one with lightspec bench --record"
        )
    try:
        return parse_mapping(content, Recording)
    except ConfigError as error:
        raise ConfigError(f"trace {path}: {error}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        repeated = next(_repeats(key for key, _ in pairs))
        raise ValueError(f"the key {repeated!r} is given twice")
    return content


def _repeats(keys: Iterable[str]) -> Iterator[str]:
    seen = set[str]()
    for key in keys:
        if key in seen:
            yield key
        seen.add(key)
