"""The closed loop: how many requests are in flight, and what is recorded of each."""

import itertools

import pytest

from lightspec_lightllm.bench.metrics import measure
from lightspec_lightllm.bench.runner import RequestResult, run_closed_loop
from lightspec_lightllm.engine.options import SamplingParams
from tests.bench.fakes import FakeHost


@pytest.mark.parametrize(("concurrency", "prompts"), [(1, 3), (4, 4), (4, 11), (16, 5)])
def test_as_many_requests_as_asked_are_in_flight_until_the_prompts_run_out(concurrency: int, prompts: int) -> None:
    host = FakeHost()
    requests = [([index], SamplingParams(max_tokens=5 + index % 3)) for index in range(prompts)]
    finished: list[RequestResult] = []
    run = run_closed_loop(host.submit, host.rounds("off"), requests, concurrency=concurrency, on_finish=finished.append)
    assert host.most_in_flight == min(concurrency, prompts)
    assert len(finished) == len(run.requests) == prompts
    assert [len(result.tokens) for result in run.requests] == [5 + index % 3 for index in range(prompts)]


def test_times_are_taken_when_tokens_arrive() -> None:
    host, ticks = FakeHost(), itertools.count()
    requests = [([1], SamplingParams(max_tokens=7))]
    run = run_closed_loop(
        host.submit, host.rounds("lightspec"), requests, concurrency=1, clock=lambda: float(next(ticks))
    )
    # Readings: begin, submit, then one after each of the three rounds of 3, 3 and 1 tokens, and the end.
    (result,) = run.requests
    assert (result.ttft, result.latency, result.gaps) == (1.0, 3.0, (1.0, 1.0))
    assert [trace.committed for trace in run.rounds] == [3, 3, 1]
    assert run.duration == 5.0


def test_metrics_follow_their_definitions() -> None:
    host, ticks = FakeHost(), itertools.count()
    requests = [([1, 2], SamplingParams(max_tokens=7))]
    run = run_closed_loop(
        host.submit, host.rounds("lightspec"), requests, concurrency=1, clock=lambda: float(next(ticks))
    )
    metrics = measure(run)
    assert metrics.completed == 1
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (2, 7)
    assert metrics.output_throughput == pytest.approx(7 / 5)
    assert metrics.total_token_throughput == pytest.approx(9 / 5)
    assert metrics.mean_ttft_ms == pytest.approx(1000.0)
    assert metrics.median_tpot_ms == pytest.approx(1000.0 * 2 / 6)
    assert metrics.mean_itl_ms == pytest.approx(1000.0)
    assert metrics.mean_accept_length == pytest.approx(3.0)
    assert metrics.accepted_per_verified == metrics.accepted_per_drafted == pytest.approx(1.0)
    assert (metrics.verify_rows_per_round, metrics.draft_steps_per_round) == (3.0, 2.0)
    assert metrics.decode_throughput == pytest.approx(7 / (3 * 0.004))


def test_what_never_happened_has_no_number() -> None:
    host = FakeHost()
    metrics = measure(
        run_closed_loop(host.submit, host.rounds("off"), [([1], SamplingParams(max_tokens=1))], concurrency=1)
    )
    assert metrics.median_tpot_ms is None
    assert metrics.mean_itl_ms is None
    assert metrics.accepted_per_verified is None
    assert metrics.accepted_per_drafted is None
