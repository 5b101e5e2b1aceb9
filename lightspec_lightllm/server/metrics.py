"""`/metrics`: what the rounds and the sequences of this server add up to, in Prometheus' form."""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lightspec_lightllm import metric_names as names
from lightspec_lightllm.metric_names import Metric
from lightspec_lightllm.server.listener import Listener
from lightspec_lightllm.server.messages import EngineInfo, Load, Report, RoundCounts
from lightspec_lightllm.server.round_event import STAGES, RoundEvent, Tally

CALIBRATION_MEMORY = 0.99
"""Weight that the past keeps per round in the calibration error."""


class Metrics(Listener):
    """Counts since the server's start; an engine that is started again counts on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._metrics = {m.name: _make(m, self.registry) for m in (*names.ROUND_METRICS, *names.SERVER_METRICS)}
        self._calibration: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None = None
        self._fallback = False
        self._lost = False
        self._gauge(names.CALIBRATION_ERROR).set(float("nan"))
        for stage in STAGES:
            self._histogram(names.STAGE_SECONDS, stage)
        for reason in ("stop", "length", "cancelled", "error"):
            self._counter(names.REQUESTS_FINISHED, reason)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    # --- of sequences -------------------------------------------------------------------------------------------------

    def arrived(self, num_prompt_tokens: int) -> None:
        self._counter(names.PROMPT_TOKENS).inc(num_prompt_tokens)

    def first_token(self, seconds: float) -> None:
        self._histogram(names.TIME_TO_FIRST_TOKEN).observe(seconds)

    def next_tokens(self, seconds: float) -> None:
        self._histogram(names.INTER_TOKEN).observe(seconds)

    def finished(self, reason: str, num_tokens: int, num_rounds: int) -> None:
        self._counter(names.REQUESTS_FINISHED, reason).inc()
        self._counter(names.GENERATION_TOKENS).inc(num_tokens)
        if num_rounds:
            # The first token comes of the prompt, not of a round.
            self._histogram(names.REQUEST_ACCEPT_LENGTH).observe((num_tokens - 1) / num_rounds)

    # --- of the engine ------------------------------------------------------------------------------------------------

    def engine_ready(self, info: EngineInfo) -> None:
        self._fallback = False
        self._counter(names.ENGINE_RESTARTS).inc(self._lost)
        self._load(Load(0, 0, info.num_slots))

    def engine_lost(self, message: str) -> None:  # noqa: ARG002 - the interface's
        self._lost = True
        self._load(Load(0, 0, 0))

    def report(self, report: Report) -> None:
        for event in report.rounds:
            self._round(event)
        self._count(report.counts)
        self._load(report.load)
        if report.fallback is not None and not self._fallback:
            self._fallback = True
            self._counter(names.FALLBACKS).inc()

    def _load(self, load: Load) -> None:
        self._gauge(names.REQUESTS_RUNNING).set(load.running)
        self._gauge(names.REQUESTS_WAITING).set(load.waiting)
        self._gauge(names.FREE_SLOTS).set(load.free_slots)

    def _count(self, counts: RoundCounts) -> None:
        self._counter(names.DRAFTS).inc(counts.drafts)
        self._counter(names.REFUSED_FEEDBACK).inc(counts.refused_feedback)
        for metric, per_position in (
            (names.ACCEPTED_PER_POSITION, counts.accepted_per_position),
            (names.VERIFIED_PER_POSITION, counts.verified_per_position),
        ):
            for position, count in enumerate(per_position):
                self._counter(metric, str(position)).inc(count)

    def _round(self, event: RoundEvent) -> None:
        for metric, count in (
            (names.ROUNDS, 1),
            (names.REQUEST_ROUNDS, event.num_requests),
            (names.DRAFT_TOKENS, event.drafted),
            (names.VERIFIED_TOKENS, event.verified),
            (names.TRIMMED_TOKENS, event.drafted - event.verified),
            (names.ACCEPTED_TOKENS, event.accepted),
            (names.COMMITTED_TOKENS, event.committed),
            (names.WASTED_ROWS, event.num_requests + event.verified - event.committed),
            (names.PROBES, event.probe),
            (names.FALLBACK_ROUNDS, event.fallback),
        ):
            self._counter(metric).inc(count)
        self._counter(names.PLANNER_SECONDS).inc(event.planner_us / 1e6)
        self._histogram(names.VERIFY_ROWS).observe(event.verify_rows)
        self._histogram(names.DRAFT_STEPS).observe(event.draft_steps)
        if not event.prompt_tokens:
            self._histogram(names.ROUND_SECONDS).observe(event.measured_ms / 1e3)
        if event.predicted_ms > 0:
            self._histogram(names.PREDICTED_SECONDS).observe(event.predicted_ms / 1e3)
        for stage, ms in zip(STAGES, event.stage_ms, strict=True):
            self._histogram(names.STAGE_SECONDS, stage).observe(ms / 1e3)
        if event.by_depth is not None:
            self._calibrate(event.by_depth)

    def _calibrate(self, tally: Tally) -> None:
        """Drafts are weighed equally: sum over depths of |foretold - right|, over all drafts, the past fading."""
        latest = np.array([tally.count, tally.foretold, tally.right], dtype=np.float64)
        if self._calibration is None or self._calibration.shape != latest.shape:
            self._calibration = np.zeros_like(latest)
        self._calibration = CALIBRATION_MEMORY * self._calibration + latest
        count, foretold, right = self._calibration
        if count.sum() > 0:
            self._gauge(names.CALIBRATION_ERROR).set(float(np.abs(foretold - right).sum() / count.sum()))

    # --- by kind ------------------------------------------------------------------------------------------------------

    def _counter(self, metric: Metric, *labels: str) -> Counter:
        found = self._metrics[metric.name]
        assert isinstance(found, Counter)  # noqa: S101 - a metric's kind is fixed where it is named
        return found.labels(*labels) if labels else found

    def _gauge(self, metric: Metric) -> Gauge:
        found = self._metrics[metric.name]
        assert isinstance(found, Gauge)  # noqa: S101 - as above
        return found

    def _histogram(self, metric: Metric, *labels: str) -> Histogram:
        found = self._metrics[metric.name]
        assert isinstance(found, Histogram)  # noqa: S101 - as above
        return found.labels(*labels) if labels else found


def _make(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
