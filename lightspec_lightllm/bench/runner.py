"""One run: a list of prompts through one strategy, with a fixed number of requests in flight (a closed loop)."""

import itertools
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
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


class Server(Protocol):
    """Takes requests in and gives them up."""

    def submit(self, prompt: list[int], params: SamplingParams, /) -> Request: ...

    def cancel(self, request_id: int, /) -> None:
        """Give a request up with the next round."""
        ...


UNFINISHED = "unfinished"
"""Why a request ended that its run did not wait for."""


@dataclass(frozen=True)
class RequestResult:
    """One request, finished or as far as it came. Times are seconds since it was submitted, nan before any token."""

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
    prompt_tokens: int = 0
    """Read beside the rows, or since the round before: the round's times are then theirs too."""


@dataclass(frozen=True)
class RunResult:
    """A whole run. ``requests`` are in the order of the prompts, which may have begun anew."""

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
            finish_reason=request.finish_reason or UNFINISHED,
            ttft=times[0] - self.submitted if times else math.nan,
            latency=times[-1] - self.submitted if times else math.nan,
            gaps=tuple(after - before for before, after in itertools.pairwise(times)),
        )


@dataclass(frozen=True)
class ClosedLoop:
    """Keeps requests in flight until every prompt is answered; a finished one is replaced at once.

    Attributes:
        prompts: token ids and how they are answered.
        concurrency: requests in flight.
        output_tokens: with it the loop goes on until so many tokens were generated: prompts begin anew where they run
            out, so that it is full to the end, and what has not finished then is given up.
        on_finish: hears each finished request.
    """

    prompts: Sequence[tuple[list[int], SamplingParams]]
    concurrency: int
    output_tokens: int | None = None
    on_finish: Callable[[RequestResult], None] = lambda _: None

    def run(self, server: Server, rounds: Stepper, clock: Callable[[], float] = time.perf_counter) -> RunResult:
        """The whole loop on one server."""
        steps = self.steps(server, rounds, clock)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(RunResult, end.value)

    def steps(self, server: Server, rounds: Stepper, clock: Callable[[], float]) -> Generator[int, None, RunResult]:
        """`run` one round at a time: yields how many tokens were generated so far, returns the result."""
        began = clock()
        pending = iter(enumerate(self.prompts if self.output_tokens is None else itertools.cycle(self.prompts)))
        live: list[_InFlight] = []
        results: dict[int, RequestResult] = {}
        traces: list[RoundTrace] = []
        generated = answered = 0
        while self.output_tokens is None or generated < self.output_tokens:
            for index, (tokens, params) in itertools.islice(pending, self.concurrency - len(live)):
                live.append(_InFlight(index, server.submit(tokens, params), clock()))
            if not live:
                break
            record = rounds.step()
            now = clock()
            if record is not None:
                traces.append(trace_of(record, now - began))
            for flight in live:
                flight.note(now)
                if flight.request.finish_reason is not None:
                    results[flight.index] = flight.result()
                    answered += len(results[flight.index].tokens)
                    self.on_finish(results[flight.index])
            live = [flight for flight in live if flight.index not in results]
            generated = answered + sum(flight.seen for flight in live)
            yield generated
        duration = clock() - began
        for flight in live:
            results[flight.index] = flight.result()
            server.cancel(flight.request.request_id)
        if live:
            rounds.step()  # in which they are given up
        return RunResult(
            tuple(results[i] for i in range(len(results))), tuple(traces), duration, rounds.counters.fallback
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
        prompt_tokens=record.prompt_tokens,
    )
