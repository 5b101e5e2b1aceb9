"""A host without a model: it "decodes" a text that depends on the prompt alone, some tokens per round by arm."""

import itertools
from dataclasses import dataclass, field

import numpy as np

from lightspec_lightllm.decode import DecodeCounters, RoundRecord
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.planner.types import Plan

TOKENS_PER_ROUND = {"off": 1, "fixed:3": 2, "lightspec": 3}


@dataclass
class FakeRequest:
    request_id: int
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    wrong_at: int | None = None
    """Position of a token that this request gets wrong, as a faulty arm would."""
    finish_reason: str | None = None

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def text(self) -> str:
        return "".join(chr(97 + token % 26) for token in self.tokens[self.prompt_length :])

    def advance(self, count: int) -> int:
        kept = min(count, self.max_tokens - self.num_generated)
        for _ in range(kept):
            token = sum(self.tokens[: self.prompt_length]) + self.num_generated
            self.tokens.append(-1 if self.num_generated == self.wrong_at else token)
        if self.num_generated == self.max_tokens:
            self.finish_reason = "length"
        return kept


@dataclass
class FakeHost:
    """Implements `bench.experiment.Host`. ``wrong`` names an arm whose third token is wrong."""

    max_context: int = 256
    wrong: str | None = None
    gap: float | None = 2e-5
    interrupt_after: int | None = None
    opened: list[str] = field(default_factory=list)
    """Arms whose planners were made."""
    started: list[str] = field(default_factory=list)
    """Arms that ran, one entry per run."""
    live: list[FakeRequest] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    most_in_flight: int = 0
    fallback: str | None = None
    asked_gaps: list[list[int]] = field(default_factory=list)
    model_id: str = "fake"
    threads: int = 1
    steps: int = 0
    running: "FakeRounds | None" = None
    others: list["FakeHost"] = field(default_factory=list)
    """Hosts that were made beside this one."""

    def __post_init__(self) -> None:
        self.ids = itertools.count()

    def chat(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def submit(self, prompt: list[int], params: SamplingParams, /) -> FakeRequest:
        request = FakeRequest(next(self.ids), list(prompt), len(prompt), params.max_tokens)
        self.live.append(request)
        self.most_in_flight = max(self.most_in_flight, len(self.live))
        return request

    def cancel(self, request_id: int, /) -> None:
        self.cancelled.add(request_id)

    def rounds(self, arm: str, /) -> "FakeRounds":
        self.opened.append(arm)
        rounds = FakeRounds(self, arm, TOKENS_PER_ROUND[arm])
        rounds.counters.fallback = self.fallback if arm == "lightspec" else None
        return rounds

    def beside(self) -> "FakeHost":
        self.others.append(FakeHost(self.max_context, self.wrong, self.gap, fallback=self.fallback))
        return self.others[-1]

    def top_two_gap(self, tokens: list[int], /) -> float | None:
        self.asked_gaps.append(tokens)
        return self.gap


@dataclass
class FakeRounds:
    host: FakeHost
    arm: str
    tokens: int
    counters: DecodeCounters = field(default_factory=lambda: DecodeCounters(15))

    def step(self) -> RoundRecord | None:
        self.host.steps += 1
        if self.host.interrupt_after is not None and self.host.steps > self.host.interrupt_after:
            raise KeyboardInterrupt
        live = self.host.live = [request for request in self.host.live if request.request_id not in self.host.cancelled]
        if not live:
            return None
        if self.host.running is not self:
            assert not any(request.num_generated for request in live), "an arm began within the run of another"
            self.host.running = self
            self.host.started.append(self.arm)
        for request in live:
            if self.arm == self.host.wrong:
                request.wrong_at = 2
        committed = [request.advance(self.tokens) for request in live]
        count, drafts = len(live), self.tokens - 1
        record = RoundRecord(
            plan=Plan(count * self.tokens, drafts, count),
            request_ids=np.array([request.request_id for request in live]),
            drafted=np.full(count, drafts),
            verified=np.full(count, drafts),
            accepted=np.full(count, self.tokens),
            committed=np.array(committed),
            draft_steps=drafts,
            seconds=dict.fromkeys(("plan", "schedule", "target", "draft", "commit"), 0.001),
            num_requests=count,
            context_tokens=sum(len(request.tokens) for request in live),
        )
        self.host.live = [request for request in live if not request.finish_reason]
        return record
