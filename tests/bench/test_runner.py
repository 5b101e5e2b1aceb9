"""The closed loop: how many requests are in flight, and what is recorded of each."""

import itertools
import math
from dataclasses import replace

import pytest

from lightspec_lightllm.bench.metrics import measure
from lightspec_lightllm.bench.runner import UNFINISHED, ClosedLoop, RequestResult
from lightspec_lightllm.engine.options import SamplingParams
from tests.bench.fakes import FakeHost, FakeRequest


@pytest.mark.parametrize(("concurrency", "prompts"), [(1, 3), (4, 4), (4, 11), (16, 5)])
def test_as_many_requests_as_asked_are_in_flight_until_the_prompts_run_out(concurrency: int, prompts: int) -> None:
    host = FakeHost()
    requests = [([index], SamplingParams(max_tokens=5 + index % 3)) for index in range(prompts)]
    finished: list[RequestResult] = []
    run = ClosedLoop(requests, concurrency, on_finish=finished.append).run(host, host.rounds("off"))
    assert host.most_in_flight == min(concurrency, prompts)
    assert len(finished) == len(run.requests) == prompts
    assert [len(result.tokens) for result in run.requests] == [5 + index % 3 for index in range(prompts)]


def test_times_are_taken_when_tokens_arrive() -> None:
    host, ticks = FakeHost(), itertools.count()
    requests = [([1], SamplingParams(max_tokens=7))]
    run = ClosedLoop(requests, 1).run(host, host.rounds("lightspec"), lambda: float(next(ticks)))
    # Readings: begin, submit, then one after each of the three rounds of 3, 3 and 1 tokens, and the end.
    (result,) = run.requests
    assert (result.ttft, result.latency, result.gaps) == (1.0, 3.0, (1.0, 1.0))
    assert [trace.committed for trace in run.rounds] == [3, 3, 1]
    assert run.duration == 5.0


def test_metrics_follow_their_definitions() -> None:
    host, ticks = FakeHost(), itertools.count()
    requests = [([1, 2], SamplingParams(max_tokens=7))]
    run = ClosedLoop(requests, 1).run(host, host.rounds("lightspec"), lambda: float(next(ticks)))
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


def test_times_of_decoding_are_those_of_rounds_that_read_no_prompts() -> None:
    host = FakeHost()
    run = ClosedLoop([([1, 2], SamplingParams(max_tokens=7))], 1).run(host, host.rounds("lightspec"))
    first, *rest = run.rounds
    slow = replace(first, prompt_tokens=9, target_ms=50.0, draft_ms=20.0)
    metrics = measure(replace(run, rounds=(slow, *rest)))
    assert metrics.decode_throughput == pytest.approx((7 - first.committed) / (2 * 0.004))
    assert (metrics.target_ms_per_round, metrics.draft_ms_per_round) == pytest.approx((1.0, 1.0))
    assert metrics.mean_accept_length == measure(run).mean_accept_length
    metrics = measure(replace(run, rounds=(slow,)))
    assert metrics.decode_throughput is metrics.target_ms_per_round is metrics.draft_ms_per_round is None


def test_what_never_happened_has_no_number() -> None:
    host = FakeHost()
    metrics = measure(ClosedLoop([([1], SamplingParams(max_tokens=1))], 1).run(host, host.rounds("off")))
    assert metrics.median_tpot_ms is None
    assert metrics.mean_itl_ms is None
    assert metrics.accepted_per_verified is None
    assert metrics.accepted_per_drafted is None


@pytest.mark.parametrize(("concurrency", "prompts", "tokens"), [(1, 1, 17), (4, 3, 30), (4, 9, 31), (16, 5, 1)])
def test_a_run_that_ends_by_its_tokens_is_full_to_the_end(concurrency: int, prompts: int, tokens: int) -> None:
    host = FakeHost()
    requests = [([index], SamplingParams(max_tokens=5 + index % 3)) for index in range(prompts)]
    finished: list[RequestResult] = []
    run = ClosedLoop(requests, concurrency, tokens, finished.append).run(host, host.rounds("off"))
    assert all(trace.num_requests == concurrency for trace in run.rounds)
    generated = [len(result.tokens) for result in run.requests]
    assert tokens <= sum(generated) < tokens + concurrency
    assert sum(trace.committed for trace in run.rounds) == sum(generated)
    assert [result.finish_reason for result in run.requests].count("length") == len(finished)
    assert [result.finish_reason for result in run.requests].count(UNFINISHED) <= concurrency
    for index, result in enumerate(run.requests):
        most = 5 + index % prompts % 3
        assert len(result.tokens) == most if result.finish_reason == "length" else len(result.tokens) < most
    metrics = measure(run)
    assert (metrics.completed, metrics.total_output_tokens) == (len(finished), sum(generated))
    assert not host.live, "what was given up is in the way of the next run"


def test_requests_that_are_given_up_count_with_the_times_they_had() -> None:
    host, ticks = FakeHost(), itertools.count()
    run = ClosedLoop([([1, 2], SamplingParams(max_tokens=9))], 1, output_tokens=4).run(
        host, host.rounds("off"), lambda: float(next(ticks))
    )
    metrics = measure(run)
    assert (metrics.completed, metrics.request_throughput) == (0, 0.0)
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (2, 4)
    assert metrics.mean_ttft_ms == metrics.mean_tpot_ms == metrics.mean_itl_ms == pytest.approx(1000.0)


def test_a_request_that_is_given_up_before_its_first_token_has_no_times() -> None:
    class Slow(FakeHost):
        """Never begins the second request."""

        def submit(self, prompt: list[int], params: SamplingParams, /) -> FakeRequest:
            request = super().submit(prompt, params)
            if request.request_id:
                self.live.remove(request)
            return request

    host = Slow()
    requests = [([index], SamplingParams(max_tokens=9)) for index in range(2)]
    run = ClosedLoop(requests, 2, output_tokens=4).run(host, host.rounds("off"))
    begun, never = run.requests
    assert (len(begun.tokens), len(never.tokens)) == (4, 0)
    assert math.isnan(never.ttft)
    assert math.isnan(never.latency)
    assert measure(run).mean_ttft_ms == pytest.approx(1e3 * begun.ttft)
    assert measure(run).total_input_tokens == begun.prompt_tokens
