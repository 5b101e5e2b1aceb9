"""What rounds did, on the way to the log, the router and the metric server."""

from __future__ import annotations

import dataclasses
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lightspec_lightllm import metric_names as names
from lightspec_lightllm.adapters.lightllm import exposition, metrics, options, router
from lightspec_lightllm.adapters.lightllm.exposition import PUSH_NAME, Exposition
from lightspec_lightllm.adapters.lightllm.metrics import FORGET_SECONDS, Reporter, Sample, Totals
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from lightspec_lightllm.adapters.lightllm.router import RoundState
from tests.adapters.lightllm.reports import made


class Board:
    """Keeps what was published."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def publish(self, rows_per_request: float, draft_steps: float) -> None:
        self.seen.append((rows_per_request, draft_steps))


def exposed(samples: tuple[Sample, ...], positions: int = 3) -> dict[str, float]:
    """What a scrape reads after these samples; a position or a bucket is added to the name after a slash."""
    registry = CollectorRegistry()
    Exposition(registry, positions).labels(model_name="m").inc(samples)
    read = [sample for family in registry.collect() for sample in family.samples]
    assert all(sample.labels.pop("model_name") == "m" for sample in read)
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for sample in read
        if not sample.name.endswith("_created")
    }


def test_two_rounds_are_summed_as_vllm_sums_them() -> None:
    totals = Totals()
    totals.add(made([3, 3], [2, 1], [3, 1]))
    totals.add(made([0, 3], [0, 3], [1, 2], measured_ms=None, probe=True))
    seen = exposed(totals.samples())
    assert {
        name: seen[f"lightspec_{name}_total"]
        for name in ("rounds", "request_rounds", "committed_tokens", "wasted_rows", "probes", "fallback_rounds")
    } == {
        "rounds": 2,
        "request_rounds": 4,
        "committed_tokens": 7,
        "wasted_rows": 3 + 2,  # rejected drafts and padding
        "probes": 1,
        "fallback_rounds": 0,
    }
    spec = "lightspec_spec_decode_num"
    assert [seen[f"{spec}_{name}_total"] for name in ("drafts", "draft_tokens", "verified_tokens")] == [3, 9, 6]
    assert [seen[f"{spec}_{name}_total"] for name in ("trimmed_tokens", "accepted_tokens")] == [3, 3]
    assert [seen[f"{spec}_accepted_tokens_per_pos_total/{place}"] for place in range(3)] == [2, 1, 0]
    assert [seen[f"{spec}_verified_tokens_per_pos_total/{place}"] for place in range(3)] == [3, 2, 1]
    assert seen["lightspec_round_seconds_sum"] == pytest.approx(0.012)
    assert seen["lightspec_predicted_round_seconds_count"] == 1
    assert seen["lightspec_planner_seconds_total"] == pytest.approx(0.004)
    assert seen["lightspec_verify_rows_sum"] == 5 + 5
    assert seen["lightspec_draft_steps_count"] == 2


def test_every_counter_and_every_position_is_there_before_the_first_round() -> None:
    seen = exposed((), positions=5)
    for metric in names.ROUND_METRICS:
        ending = "_total" if metric.kind == "counter" else "_"
        shown = [name for name in seen if name.startswith(metric.name + ending)]
        assert len(shown) >= (5 if metric.labels else 1), metric.name
        assert all(seen[name] == 0 for name in shown)


def test_names_are_unique_and_prefixed() -> None:
    every = [metric.name for metric in (*names.ROUND_METRICS, *names.SERVER_METRICS)]
    assert len(set(every)) == len(every)
    assert all(name.startswith(names.PREFIX) and not name.endswith("_total") for name in every)
    assert all(
        bool(metric.buckets) == (metric.kind == "histogram") and list(metric.buckets) == sorted(set(metric.buckets))
        for metric in (*names.ROUND_METRICS, *names.SERVER_METRICS)
    )


def test_refused_feedback_is_counted() -> None:
    totals = Totals()
    for refused in (True, False, True):
        totals.add(dataclasses.replace(made([3], [2], [3]), refused=refused))
    assert exposed(totals.samples())["lightspec_refused_feedback_total"] == 2


def test_samples_of_unknown_names_leave_the_metric_server_alone() -> None:
    assert exposed((("lightspec_of_tomorrow", "", 1.0, 1),)) == exposed(())


def test_samples_cross_a_process_border_as_plain_values() -> None:
    totals = Totals()
    totals.add(made([3], [2], [3]))
    samples = totals.samples()
    assert json.loads(json.dumps(samples)) == [list(sample) for sample in samples]
    assert all(list(map(type, sample)) == [str, str, float, int] for sample in samples)


@pytest.fixture
def monitor() -> Any:
    """LightLLM's monitor, as far as it matters here."""

    class Monitor:
        def __init__(self) -> None:
            self.registry = CollectorRegistry()
            self.model_name = "m"
            self.monitor_registry: dict[str, Any] = {}
            self.init_metrics(SimpleNamespace())

        def init_metrics(self, args: Any) -> None:
            self.monitor_registry["lightllm_queue_size"] = "its own"

        def counter_inc_by(self, name: str, amount: Any) -> None:
            self.monitor_registry[name].labels(model_name=self.model_name).inc(amount)

    return Monitor


@pytest.mark.parametrize("on", [True, False])
def test_lightllms_monitor_takes_a_seconds_samples_in_one_call(
    on: bool, monitor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "current", lambda: LightLLMConfig() if on else None)
    monkeypatch.setattr(monitor, "init_metrics", exposition.wrap_init_metrics(monitor.init_metrics))
    made_one = monitor()
    assert made_one.monitor_registry["lightllm_queue_size"] == "its own"
    assert (PUSH_NAME in made_one.monitor_registry) is on
    assert (b"lightspec_rounds" in generate_latest(made_one.registry)) is on
    if on:
        totals = Totals()
        totals.add(made([3], [2], [3]))
        made_one.counter_inc_by(PUSH_NAME, totals.samples())
        assert b'lightspec_rounds_total{model_name="m"} 1.0' in generate_latest(made_one.registry)


def test_a_reporter_passes_everything_on_once_a_second() -> None:
    pushed: list[tuple[Sample, ...]] = []
    lines: list[str] = []
    board = Board()
    reporter = Reporter(log=lines.append, push=pushed.append, log_seconds=0, board=board)
    reporter.add(made([3, 3], [2, 1], [3, 1], steps=3))
    reporter.add(made([3, 3], [3, 3], [1, 1], steps=1))
    reporter.flush(now=0.0)
    reporter.flush(now=1.0)
    assert len(pushed) == 1  # nothing new, no call
    assert exposed(pushed[0])["lightspec_rounds_total"] == 2
    assert board.seen == [((5 + 8) / 4, 2.0)]
    assert lines == []


def test_the_log_line_comes_once_per_interval_and_only_with_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    reporter = Reporter(log=lines.append, log_seconds=10)
    for second in range(25):
        if second < 12:
            reporter.add(made([3, 3], [2, 1], [3, 1]))
        reporter.flush(now=float(second))
    assert len(lines) == 2
    assert lines[0] == (
        "lightspec: 11 rounds of 2.0 requests, 5.0 rows (2.50 per request), 3.0 steps; accept length 2.00, "
        "accepted/verified 0.67, accepted/drafted 0.33; predicted 10.00 ms, measured 12.00 ms, planning 2.00 ms"
    )
    assert lines[1].startswith("lightspec: 1 rounds of 2.0 requests")


def test_a_log_line_without_measured_rounds_or_drafts_divides_by_nothing() -> None:
    totals = Totals()
    assert "0 rounds" not in totals.line()
    totals.add(made([0], [0], [1], measured_ms=None, fallback=True))
    assert "accepted/verified 0.00" in totals.line()
    assert totals.line().endswith("fixed steps, planning was given up")


def test_giving_up_is_counted_once_and_its_rounds_each_time() -> None:
    pushed: list[tuple[Sample, ...]] = []
    reporter = Reporter(log=lambda _: None, push=pushed.append)
    for fallback in (False, True, True):
        reporter.add(made([3], [2], [3], fallback=fallback))
        reporter.flush(now=0.0)
    assert [exposed(samples)["lightspec_fallbacks_total"] for samples in pushed] == [0, 1, 0]
    assert [exposed(samples)["lightspec_fallback_rounds_total"] for samples in pushed] == [0, 1, 1]


def test_a_request_is_told_of_when_it_has_been_away_for_a_while() -> None:
    pushed: list[tuple[Sample, ...]] = []
    reporter = Reporter(log=lambda _: None, push=pushed.append)
    reporter.add(made([3, 3], [2, 2], [3, 1], ids=[5, 6]))
    reporter.add(made([3], [2], [2], ids=[5]))
    reporter.flush(now=0.0)
    reporter.add(made([3], [2], [3], ids=[6]))
    reporter.flush(now=FORGET_SECONDS - 1)
    reporter.flush(now=FORGET_SECONDS)
    assert exposed(pushed[-1])["lightspec_request_accept_length_sum"] == 2.5
    reporter.flush(now=2 * FORGET_SECONDS)
    assert exposed(pushed[-1])["lightspec_request_accept_length_sum"] == 2.0


def test_a_reporter_that_falls_behind_counts_what_it_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_PENDING", 10)
    pushed: list[tuple[Sample, ...]] = []
    reporter = Reporter(log=lambda _: None, push=pushed.append)
    report = made([3], [2], [3])
    for _ in range(13):
        reporter.add(report)
    reporter.flush(now=0.0)
    assert exposed(pushed[0])["lightspec_unreported_rounds_total"] == 3
    assert exposed(pushed[0])["lightspec_rounds_total"] == 10


def test_a_metric_server_that_is_not_there_costs_one_line() -> None:
    lines: list[str] = []

    def refuse(_: tuple[Sample, ...]) -> None:
        raise ConnectionRefusedError("no metric server")

    reporter = Reporter(log=lines.append, push=refuse, log_seconds=0)
    for now in range(3):
        reporter.add(made([3], [2], [3]))
        reporter.flush(now=float(now))
    assert lines == ["lightspec: /metrics will not show rounds: ConnectionRefusedError: no metric server"]


def test_the_thread_passes_on_what_is_left_when_it_is_closed() -> None:
    pushed: list[tuple[Sample, ...]] = []
    reporter = Reporter(log=lambda _: None, push=pushed.append).start()
    reporter.add(made([3], [2], [3]))
    reporter.close()
    assert sum(exposed(samples)["lightspec_rounds_total"] for samples in pushed) == 1


@pytest.fixture
def request_of_router() -> SimpleNamespace:
    return SimpleNamespace(input_len=10, shm_cur_output_len=3, shm_cur_kv_len=12)


def test_the_router_counts_what_rounds_took_and_never_more_than_before(
    request_of_router: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = RoundState(np.zeros(2))
    monkeypatch.setattr(router, "state", lambda: rounds)
    need = router.wrap_decode_need(lambda _: 16)
    assert need(request_of_router) == 16
    rounds.publish(1.8, 4.5)
    assert need(request_of_router) == 7
    rounds.publish(8.0, 15.0)
    assert need(request_of_router) == 16
    rounds.publish(1.0, 0.0)
    request_of_router.shm_cur_kv_len = 5  # it prefills still
    assert need(request_of_router) == 16


def test_the_routers_status_line_names_rows_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = RoundState(np.zeros(2))
    line = router.wrap_log_str(lambda _: "RouterStatics")
    monkeypatch.setattr(router, "state", lambda: rounds)
    assert line(None) == "RouterStatics lightspec: no rounds yet"
    rounds.publish(1.8, 5.0)
    assert line(None) == "RouterStatics lightspec: 1.8 rows per request, 5.0 draft steps"
    monkeypatch.setattr(router, "state", lambda: None)
    assert line(None) == "RouterStatics"
