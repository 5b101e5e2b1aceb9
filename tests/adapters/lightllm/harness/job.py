"""One run of LightLLM's backend and what came of it: frozen data, JSON on both sides."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kernels = Literal["fast", "interpreted", "checked"]
"""Triton kernels of the model: torch twins, the interpreter, or both with their results compared."""

IDS_PER_REQUEST = 8
"""LightLLM spaces request ids so that the samples of one request have ids of their own."""

FINISHED = -1
"""In `Request.after`: when the other request has ended."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        prompt: token ids.
        max_new_tokens: it ends there at the latest.
        sampling: LightLLM's sampling parameters by their names (``do_sample``, ``temperature``, ``top_p``, ``top_k``,
            ``seed``, ``repetition_penalty``, ``stop_sequences`` as lists of ids, ...). Greedy, and past the end-of-text
            token, unless they say otherwise.
        abort_after: the client goes away once it has seen so many tokens.
        after: (index of another request, tokens): sent once the other one has generated that many, or `FINISHED`.
            Requests without it are sent in one piece at the start.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 24
    sampling: dict[str, Any] = field(default_factory=dict)
    abort_after: int | None = None
    after: tuple[int, int] | None = None


@dataclass(frozen=True)
class Job:
    """A configuration and its requests.

    Attributes:
        target: folder of the served model.
        requests: see `Request`.
        mtp_mode: LightLLM's ``--mtp_mode``, or None.
        mtp_step: LightLLM's ``--mtp_step``: draft steps, or the most of them with ``lightspec``.
        drafts: folders of the drafters; one may serve as several (vanilla modes need ``mtp_step`` of them).
        lightspec: the plugin's configuration as the launcher resolves it; None runs LightLLM alone.
        planner: "module:factory" of a planner in place of the configured one, called with ``max_draft_steps`` and
            ``planner_options``.
        setup: "module:function" of functions called with the `rank.Rank` before its backend is built.
        kernels: see `Kernels`.
        keep_kv: write the KV of each finished request's cached tokens beside the result, see `recorder.save_kv`.
        start_args: any other of LightLLM's start arguments.
        timeout: seconds until the job counts as hung.
    """

    target: str
    requests: tuple[Request, ...]
    mtp_mode: str | None = None
    mtp_step: int = 0
    drafts: tuple[str, ...] = ()
    lightspec: dict[str, Any] | None = None
    planner: str | None = None
    planner_options: dict[str, Any] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    kernels: Kernels = "fast"
    keep_kv: bool = False
    tp: int = 1
    max_total_token_num: int = 1024
    batch_max_tokens: int = 128
    chunked_prefill_size: int = 128
    max_req_total_len: int = 256
    running_max_req_size: int = 8
    start_args: dict[str, Any] = field(default_factory=dict)
    timeout: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """What became of a request: its tokens, why it ended, and what LightLLM counts as accepted drafts."""

    tokens: tuple[int, ...]
    finish_reason: str
    accepted_drafts: int
    cached_tokens: int


@dataclass(frozen=True)
class Forward:
    """One forward: of the model "target" or "draft0", "draft1", ..."""

    model: str
    prefill: bool
    requests: int
    rows: int
    milliseconds: float


@dataclass(frozen=True)
class Round:
    """One verification. By request: its index in the job, its rows, and how many of them were accepted."""

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class Slots:
    """Where the KV slots are at the end. ``lost``: nowhere; ``doubled``: in more than one place."""

    total: int
    free: int
    in_tree: int
    lost: int
    doubled: int

    @property
    def intact(self) -> bool:
        return self.lost == self.doubled == 0 and self.free + self.in_tree == self.total


@dataclass(frozen=True)
class RankReport:
    """What one rank saw. ``notes``: whatever set-up functions put there."""

    backend: str
    forwards: tuple[Forward, ...]
    rounds: tuple[Round, ...]
    slots: Slots
    pauses: int
    compared_kernels: dict[str, int]
    notes: dict[str, Any]


@dataclass(frozen=True)
class JobResult:
    """``outcomes`` in the order of the job's requests; ``seconds``: of the start and of the requests."""

    outcomes: tuple[Outcome, ...]
    ranks: tuple[RankReport, ...]
    seconds: dict[str, float]
    kv: str | None = None

    @property
    def tokens(self) -> list[list[int]]:
        return [list(outcome.tokens) for outcome in self.outcomes]

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self.ranks[0].rounds

    def forwards(self, model: str = "target", *, prefill: bool = False) -> list[Forward]:
        return [step for step in self.ranks[0].forwards if step.model == model and step.prefill == prefill]

    def accept_lengths(self, request: int) -> list[int]:
        """Of each of the request's rounds."""
        return [
            accepted
            for step in self.rounds
            for who, accepted in zip(step.requests, step.accepted, strict=True)
            if who == request
        ]


def write(path: Path, value: Job | JobResult) -> None:
    path.write_text(json.dumps(dataclasses.asdict(value), indent=1))


def read_job(path: Path) -> Job:
    data = json.loads(path.read_text())
    requests = tuple(
        Request(**{**request, "prompt": tuple(request["prompt"]), "after": pair(request.get("after"))})
        for request in data["requests"]
    )
    tuples = {name: tuple(data.get(name, ())) for name in ("drafts", "setup")}
    return Job(**{**data, **tuples, "requests": requests})


def pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])


def read_result(path: Path) -> JobResult:
    data = json.loads(path.read_text())
    return JobResult(
        outcomes=tuple(Outcome(**{**one, "tokens": tuple(one["tokens"])}) for one in data["outcomes"]),
        ranks=tuple(read_report(one) for one in data["ranks"]),
        seconds=data["seconds"],
        kv=data["kv"],
    )


def read_report(data: dict[str, Any]) -> RankReport:
    rounds = tuple(Round(*(tuple(one[name]) for name in ("requests", "rows", "accepted"))) for one in data["rounds"])
    forwards = tuple(Forward(**one) for one in data["forwards"])
    return RankReport(**{**data, "forwards": forwards, "rounds": rounds, "slots": Slots(**data["slots"])})
