"""What rounds did, told to the world: LightLLM's ``/metrics``, a line in the log, the router, a trace file.

::

    model rank 0                                              metric server           router
    Reporter.add(report)   O(1), once per round
       `- its thread, about once a second
            Totals         sums and histograms
            |- push        one call of MetricClient ------->  exposition.py
            |- log line    every observe.log_seconds
            |- RoundState  shared memory ------------------------------------------>  router.py
            `- PlanTrace   observe.trace_file
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lightspec_lightllm import metric_names as names
from lightspec_lightllm.metric_names import Metric
from lightspec_lightllm.planner import CostModel, Plan
from lightspec_lightllm.planner.types import FloatArray, IntArray

PUSH_SECONDS = 1.0
"""Between two calls of the metric server."""

MAX_PENDING = 4096
"""Rounds that may wait for the reporter's thread; later ones are counted and forgotten."""

FORGET_SECONDS = 30.0
"""A request that was in no round for so long has ended. One that was paused for longer counts twice."""

Sample = tuple[str, str, float, int]
"""(name, label, value, count): a counter grows by ``value``; a histogram takes in ``value`` ``count`` times."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundReport:
    """What one round did. Arrays are in batch order, int[N]; they must not change afterwards.

    Attributes:
        plan: what was planned.
        num_requests: N.
        context_tokens: tokens in the KV cache over all requests before the round.
        request_ids: the same for a request in all its rounds.
        drafted: drafts that were waiting.
        verified: of them had a row.
        accepted: accept lengths, the target's own token included.
        draft_steps: steps drafted for the next round.
        padded_rows: rows that filled the target's batch up to a captured size.
        plan_seconds: time spent planning and learning.
        measured_ms: the whole round's time, or None.
        fallback: whether planning had been given up.
        refused: whether the planner refused the round's feedback.
        confidence: float[N, K] of the waiting drafts, or None.
    """

    plan: Plan
    num_requests: int
    context_tokens: int
    request_ids: IntArray
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    draft_steps: int
    padded_rows: int = 0
    plan_seconds: float = 0.0
    measured_ms: float | None = None
    fallback: bool = False
    refused: bool = False
    confidence: FloatArray | None = None


class Totals:
    """Sums over rounds."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, str], float] = {}
        self.histograms: dict[tuple[str, float], int] = {}
        self.predicted_ms = self.measured_ms = 0.0

    def count(self, metric: Metric, amount: float = 1.0, label: str = "") -> None:
        """Add to a counter."""
        if amount:
            self.counters[metric.name, label] = self.counters.get((metric.name, label), 0.0) + amount

    def observe(self, metric: Metric, value: float) -> None:
        """Add to a histogram."""
        self.histograms[metric.name, value] = self.histograms.get((metric.name, value), 0) + 1

    def __getitem__(self, metric: Metric) -> float:
        """A counter's sum, over its labels where it has any."""
        return sum(amount for (name, _), amount in self.counters.items() if name == metric.name)

    def add(self, report: RoundReport) -> None:
        """Take in a round."""
        drafts, verified = int(report.drafted.sum()), int(report.verified.sum())
        committed = int(report.accepted.sum())
        accepted = committed - report.num_requests
        self.count(names.ROUNDS)
        self.count(names.REQUEST_ROUNDS, report.num_requests)
        self.count(names.COMMITTED_TOKENS, committed)
        self.count(names.DRAFTS, int(np.count_nonzero(report.drafted)))
        self.count(names.DRAFT_TOKENS, drafts)
        self.count(names.VERIFIED_TOKENS, verified)
        self.count(names.TRIMMED_TOKENS, drafts - verified)
        self.count(names.ACCEPTED_TOKENS, accepted)
        self.count(names.WASTED_ROWS, verified - accepted + report.padded_rows)
        self.count(names.PLANNER_SECONDS, report.plan_seconds)
        self.count(names.PROBES, report.plan.probe)
        self.count(names.FALLBACK_ROUNDS, report.fallback)
        self.count(names.REFUSED_FEEDBACK, report.refused)
        for metric, reached in (
            (names.VERIFIED_PER_POSITION, report.verified),
            (names.ACCEPTED_PER_POSITION, report.accepted - 1),
        ):
            deeper = np.bincount(reached)[::-1].cumsum()[::-1][1:]
            for position, amount in enumerate(deeper.tolist()):
                self.count(metric, amount, str(position))
        self.observe(names.VERIFY_ROWS, report.num_requests + verified)
        self.observe(names.DRAFT_STEPS, report.draft_steps)
        if report.measured_ms is not None:
            self.predicted_ms += report.plan.predicted_ms
            self.measured_ms += report.measured_ms
            self.observe(names.PREDICTED_SECONDS, report.plan.predicted_ms / 1e3)
            self.observe(names.ROUND_SECONDS, report.measured_ms / 1e3)

    def samples(self) -> tuple[Sample, ...]:
        """For the metric server."""
        return (
            *((name, label, float(amount), 1) for (name, label), amount in self.counters.items()),
            *((name, "", float(value), count) for (name, value), count in self.histograms.items()),
        )

    def line(self) -> str:
        """For the log: means over the rounds."""
        rounds, requests = max(self[names.ROUNDS], 1.0), max(self[names.REQUEST_ROUNDS], 1.0)
        rows = requests + self[names.VERIFIED_TOKENS]
        steps = sum(v * n for (name, v), n in self.histograms.items() if name == names.DRAFT_STEPS.name)
        timed = max(sum(n for (name, _), n in self.histograms.items() if name == names.ROUND_SECONDS.name), 1)
        accepted = self[names.ACCEPTED_TOKENS]
        return (
            f"lightspec: {rounds:.0f} rounds of {requests / rounds:.1f} requests, {rows / rounds:.1f} rows "
            f"({rows / requests:.2f} per request), {steps / rounds:.1f} steps; "
            f"accept length {self[names.COMMITTED_TOKENS] / requests:.2f}, "
            f"accepted/verified {accepted / max(self[names.VERIFIED_TOKENS], 1):.2f}, "
            f"accepted/drafted {accepted / max(self[names.DRAFT_TOKENS], 1):.2f}; "
            f"predicted {self.predicted_ms / timed:.2f} ms, measured {self.measured_ms / timed:.2f} ms, "
            f"planning {1e3 * self[names.PLANNER_SECONDS] / rounds:.2f} ms"
            + (f"; {self[names.PROBES]:.0f} probes" if self[names.PROBES] else "")
            + ("; fixed steps, planning was given up" if self[names.FALLBACK_ROUNDS] else "")
        )


class Trace(Protocol):
    """Where rounds are written down; see `plan_trace.PlanTrace`."""

    def write(self, report: RoundReport) -> None:
        """Append a round."""

    def flush(self) -> None:
        """Hand what was written to the system."""


class Board(Protocol):
    """Where the router looks; see `router.RoundState`."""

    def publish(self, rows_per_request: float, draft_steps: float) -> None:
        """Set both."""


class Reporter:
    """Takes in reports at no cost to the round and passes them on from a thread of its own, until `close`.

    Args:
        push: takes the samples of the rounds since the last call; None: no metrics. It may raise: metrics end then,
            with one line in the log.
        log: takes a line.
        log_seconds: between two lines; 0: none.
        trace: takes every report, or None.
        board: what the router reads, or None.
    """

    def __init__(
        self,
        *,
        log: Callable[[str], None],
        push: Callable[[tuple[Sample, ...]], None] | None = None,
        log_seconds: float = 10.0,
        trace: Trace | None = None,
        board: Board | None = None,
    ) -> None:
        self._push = push
        self._log = log
        self._log_seconds = log_seconds
        self._trace = trace
        self._board = board
        self._pending: deque[RoundReport] = deque()
        self._unreported = 0
        self._fallback = False
        self._requests = _Requests()
        self._pushed, self._logged = Totals(), Totals()
        self._log_due = time.monotonic() + log_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightspec-reporter", daemon=True)

    def start(self) -> Reporter:
        """Begin to pass reports on."""
        self._thread.start()
        return self

    def add(self, report: RoundReport) -> None:
        """Take in a round; from one thread at a time."""
        if len(self._pending) < MAX_PENDING:
            self._pending.append(report)
        else:
            self._unreported += 1

    def close(self) -> None:
        """Pass on what there is and end the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush(time.monotonic())

    def _run(self) -> None:
        while not self._ended.wait(PUSH_SECONDS):
            try:
                self.flush(time.monotonic())
            except Exception as error:  # noqa: BLE001 - whatever goes wrong in reporting, requests are served
                self._log(f"lightspec: rounds are no longer reported: {type(error).__name__}: {error}")
                return

    def flush(self, now: float) -> None:
        """Pass on what has come in since the last call; ``now`` is in seconds."""
        rows = steps = requests = 0
        for _ in range(len(self._pending)):
            report = self._pending.popleft()
            self._take(report, now)
            rows += report.num_requests + int(report.verified.sum())
            steps += report.num_requests * report.draft_steps
            requests += report.num_requests
            time.sleep(0)  # the thread that launches rounds never waits for more than one of them
        lost, self._unreported = self._unreported, 0
        self._pushed.count(names.UNREPORTED_ROUNDS, lost)
        for length in self._requests.ended(now):
            self._pushed.observe(names.REQUEST_ACCEPT_LENGTH, length)
        if requests and self._board is not None:
            self._board.publish(rows / requests, steps / requests)
        if self._trace is not None:
            self._trace.flush()
        if self._push is not None and (samples := self._pushed.samples()):
            try:
                self._push(samples)
            except Exception as error:  # noqa: BLE001 - as above
                self._push = None
                self._log(f"lightspec: /metrics will not show rounds: {type(error).__name__}: {error}")
        self._pushed = Totals()
        if now >= self._log_due and self._log_seconds:
            self._log_due = now + self._log_seconds
            if self._logged[names.ROUNDS]:
                self._log(self._logged.line())
                self._logged = Totals()

    def _take(self, report: RoundReport, now: float) -> None:
        self._pushed.add(report)
        self._logged.add(report)
        if report.fallback and not self._fallback:
            self._pushed.count(names.FALLBACKS)
        self._fallback = report.fallback
        self._requests.add(report, now)
        if self._trace is not None:
            self._trace.write(report)


class _Requests:
    """Rounds and tokens of each request, until it has been away for `FORGET_SECONDS`."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, int, float]] = {}

    def add(self, report: RoundReport, now: float) -> None:
        for request, accepted in zip(report.request_ids.tolist(), report.accepted.tolist(), strict=True):
            rounds, tokens, _ = self._held.get(request, (0, 0, now))
            self._held[request] = (rounds + 1, tokens + accepted, now)

    def ended(self, now: float) -> list[float]:
        """Mean accept lengths of the requests that have ended; they are forgotten."""
        gone = [request for request, (_, _, seen) in self._held.items() if now - seen >= FORGET_SECONDS]
        return [tokens / rounds for rounds, tokens, _ in map(self._held.pop, gone)]


def open_reporter(backend: Any, costs: CostModel | None) -> Reporter:
    """The reporter of a model rank, running; the rank's ``config.observe`` says what to tell.

    Args:
        costs: what the planner was told; None where no table could be had: rounds are not traced then.
    """
    from lightllm.utils.log_utils import init_logger

    from lightspec_lightllm.adapters.lightllm.exposition import MetricServer
    from lightspec_lightllm.adapters.lightllm.router import RoundState
    from lightspec_lightllm.adapters.lightllm.served_trace import open_trace

    observe, log = backend.config.observe, init_logger(__name__).info  # LightLLM's processes print nothing of others
    trace = None
    if observe.trace_file and costs is not None:
        trace = open_trace(Path(observe.trace_file), backend, costs, log)
    elif observe.trace_file:
        log("lightspec: rounds are not traced, a trace needs a cost table")
    return Reporter(
        log=log,
        push=MetricServer().push if observe.metrics else None,
        log_seconds=observe.log_seconds,
        trace=trace,
        board=RoundState.open(),
    ).start()
