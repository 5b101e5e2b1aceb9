"""One run: a list of prompts through one strategy, with a fixed number of requests in flight (a closed loop)."""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, cast

from lightspec_lightllm.decode import DecodeCounters, RoundRecord
from lightspec_lightllm.engine.options import SamplingParams


class Request(Protocol):
    """What a run reads of a request in flight."""

    @property
    def request_id(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def num_generated(self) -> int: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def text(self) -> str: ...


class Stepper(Protocol):
    """Rounds, one at a time; `decode.Round` is one."""

    @property
    def counters(self) -> DecodeCounters: ...
    def step(self) -> RoundRecord | None: ...


class Submit(Protocol):
    def __call__(self, prompt: list[int], params: SamplingParams, /) -> Request: ...


@dataclass(frozen=True)
class RequestResult:
    """One finished request. Times are seconds since it was submitted."""

    prompt_tokens: int
    tokens: tuple[int, ...]
    finish_reason: str
    ttft: float
    latency: float
    gaps: tuple[float, ...]
    """Time between one arrival of tokens and the next (a round may bring several tokens at once)."""


@dataclass(frozen=True)
class RoundTrace:
    """One round as the report and the plots need it. Counts are over the whole batch."""

    time: float
    """Seconds since the run began, at the end of the round."""
    num_requests: int
    context_tokens: int
    verify_rows: int
    draft_steps: int
    drafted: int
    verified: int
    accepted: int
    """Accept lengths summed: drafts that held plus one token of the target's own for every request."""
    committed: int
    plan_ms: float
    schedule_ms: float
    target_ms: float
    draft_ms: float
    commit_ms: float


@dataclass(frozen=True)
class RunResult:
    """A whole run. ``requests`` are in the order of the prompts."""

    requests: tuple[RequestResult, ...]
    rounds: tuple[RoundTrace, ...]
    duration: float
    fallback: str | None = None
    """Why dynamic planning was given up for fixed steps during the run; None when it was not."""


@dataclass
class _InFlight:
    index: int
    request: Request
    submitted: float
    arrivals: list[float] = field(default_factory=list)
    seen: int = 0

    def note(self, now: float) -> None:
        if self.request.num_generated > self.seen:
            self.seen = self.request.num_generated
            self.arrivals.append(now)

    def result(self) -> RequestResult:
        request, times = self.request, self.arrivals
        return RequestResult(
            prompt_tokens=request.prompt_length,
            tokens=tuple(request.tokens[request.prompt_length :]),
            finish_reason=str(request.finish_reason),
            ttft=times[0] - self.submitted,
            latency=times[-1] - self.submitted,
            gaps=tuple(after - before for before, after in pairwise(times)),
        )


def run_closed_loop(
    submit: Submit,
    rounds: Stepper,
    prompts: Sequence[tuple[list[int], SamplingParams]],
    *,
    concurrency: int,
    on_finish: Callable[[RequestResult], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> RunResult:
    """Keeps ``concurrency`` requests in flight until every prompt is answered; a finished one is replaced at once."""
    loop = closed_loop(submit, rounds, prompts, concurrency=concurrency, on_finish=on_finish, clock=clock)
    while True:
        try:
            next(loop)
        except StopIteration as end:
            return cast(RunResult, end.value)


def closed_loop(
    submit: Submit,
    rounds: Stepper,
    prompts: Sequence[tuple[list[int], SamplingParams]],
    *,
    concurrency: int,
    on_finish: Callable[[RequestResult], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[int, None, RunResult]:
    """`run_closed_loop` one round at a time: yields how many tokens were generated so far, returns the result."""
    began = clock()
    pending = deque(enumerate(prompts))
    live: list[_InFlight] = []
    results: dict[int, RequestResult] = {}
    traces: list[RoundTrace] = []
    while pending or live:
        while pending and len(live) < concurrency:
            index, (tokens, params) = pending.popleft()
            live.append(_InFlight(index, submit(tokens, params), clock()))
        record = rounds.step()
        now = clock()
        if record is not None:
            traces.append(trace_of(record, now - began))
        for flight in live:
            flight.note(now)
            if flight.request.finish_reason is not None:
                results[flight.index] = flight.result()
                on_finish(results[flight.index])
        live = [flight for flight in live if flight.index not in results]
        yield sum(len(result.tokens) for result in results.values()) + sum(flight.seen for flight in live)
    return RunResult(
        tuple(results[i] for i in range(len(prompts))), tuple(traces), clock() - began, rounds.counters.fallback
    )


def trace_of(record: RoundRecord, at: float) -> RoundTrace:
    seconds = record.seconds
    return RoundTrace(
        time=at,
        num_requests=record.num_requests,
        context_tokens=record.context_tokens,
        verify_rows=record.plan.verify_rows,
        draft_steps=record.draft_steps,
        drafted=int(record.drafted.sum()),
        verified=int(record.verified.sum()),
        accepted=int(record.accepted.sum()),
        committed=int(record.committed.sum()),
        plan_ms=1e3 * seconds["plan"],
        schedule_ms=1e3 * seconds["schedule"],
        target_ms=1e3 * seconds["target"],
        draft_ms=1e3 * seconds["draft"],
        commit_ms=1e3 * seconds["commit"],
    )
