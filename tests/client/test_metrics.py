"""The numbers of a run, against their definitions written down a second time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.client.metrics import measure, meets
from lightspec_lightllm.client.request import RequestOutput

SECONDS = st.floats(0.001, 5.0)


@st.composite
def outputs(draw: st.DrawFn) -> list[RequestOutput]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        gaps = tuple(draw(st.lists(SECONDS, max_size=5)))
        ttft = draw(SECONDS)
        found.append(
            RequestOutput(
                number=number,
                start=draw(st.floats(0, 10)),
                prompt_tokens=draw(st.integers(1, 50)),
                output_tokens=(1 + len(gaps)) * draw(st.integers(1, 4)),
                ttft=ttft,
                itl=gaps,
                latency=ttft + math.fsum(gaps),
                error=draw(st.sampled_from(["", "", "", "HTTP 500"])),
            )
        )
    return found


@given(outputs(), st.floats(0.5, 60))
def test_the_numbers_are_those_of_vllm_bench_serve(given: list[RequestOutput], duration: float) -> None:
    found = measure(given, duration, percentiles=(50.0, 99.0), goodput={"ttft": 900.0, "tpot": 700.0})
    good = [output for output in given if not output.error]
    tokens, prompts = sum(o.output_tokens for o in good), sum(o.prompt_tokens or 0 for o in good)
    assert (found.completed, found.failed) == (len(good), len(given) - len(good))
    assert (found.total_output_tokens, found.total_input_tokens) == (tokens, prompts)
    assert found.output_throughput == pytest.approx(tokens / duration)
    assert found.total_token_throughput == pytest.approx((tokens + prompts) / duration)
    assert found.request_throughput == pytest.approx(len(good) / duration)
    tpots = [(o.latency - o.ttft) / (o.output_tokens - 1) for o in good if o.output_tokens > 1]
    for name, seconds in (
        ("ttft", [o.ttft for o in good]),
        ("tpot", tpots),
        ("itl", [gap for o in good for gap in o.itl]),
        ("e2el", [o.latency for o in good]),
    ):
        latency = found.latencies[name]
        if not seconds:
            assert (latency.mean, latency.median, latency.std) == (None, None, None)
            continue
        ms = 1000 * np.array(seconds)
        assert latency.mean == pytest.approx(ms.mean())
        assert [latency.median, latency.percentiles[50.0]] == pytest.approx([np.median(ms)] * 2)
        assert latency.std == pytest.approx(ms.std())
        assert latency.percentiles[99.0] == pytest.approx(np.percentile(ms, 99))
    kept = sum(
        o.ttft <= 0.9 and (o.output_tokens == 1 or (o.latency - o.ttft) / (o.output_tokens - 1) <= 0.7) for o in good
    )
    assert found.request_goodput == pytest.approx(kept / duration)


@given(outputs())
def test_the_best_second_has_no_more_tokens_than_the_run_and_no_fewer_than_its_mean(given: list[RequestOutput]) -> None:
    found = measure(given, 10.0, percentiles=(), goodput={})
    good = [output for output in given if not output.error]
    if not good:
        assert found.max_output_tokens_per_s == found.max_concurrent_requests == 0
        return
    length = max(o.start + o.latency for o in good) - min(o.start for o in good)
    assert found.total_output_tokens / (math.floor(length) + 2) <= found.max_output_tokens_per_s + 1e-9
    assert found.max_output_tokens_per_s <= found.total_output_tokens + 1e-9
    assert 1 <= found.max_concurrent_requests <= len(good)


def test_several_tokens_in_an_event_make_itl_the_time_of_a_round_and_tpot_that_of_a_token() -> None:
    # Nine tokens in three events, 30 ms apart: the first after 100 ms.
    output = RequestOutput(0, 0.0, output_tokens=9, ttft=0.1, itl=(0.03, 0.03), latency=0.16)
    found = measure([output], 1.0, percentiles=(), goodput={})
    assert found.latencies["itl"].mean == pytest.approx(30)
    assert found.latencies["tpot"].mean == pytest.approx(60 / 8)
    assert found.tokens_per_event == pytest.approx(3)


def test_one_that_ends_as_the_next_begins_is_not_in_flight_with_it() -> None:
    one, two = RequestOutput(0, 0.0, latency=1.0, output_tokens=1), RequestOutput(1, 1.0, latency=1.0, output_tokens=1)
    assert measure([one, two], 2.0, percentiles=(), goodput={}).max_concurrent_requests == 1


def test_prompts_that_nobody_counts_leave_the_total_unknown() -> None:
    found = measure([RequestOutput(0, 0.0, output_tokens=3)], 2.0, percentiles=(), goodput={})
    assert (found.total_input_tokens, found.total_token_throughput, found.request_goodput) == (None, None, None)


@pytest.mark.parametrize(
    ("objectives", "met"),
    [({"ttft": 100.0}, True), ({"ttft": 99.0}, False), ({"tpot": 1.0}, True), ({"e2el": 100.0, "ttft": 50.0}, False)],
)
def test_a_single_token_has_no_time_per_token_to_miss(objectives: dict[str, float], met: bool) -> None:
    assert meets(RequestOutput(0, 0.0, output_tokens=1, ttft=0.1, latency=0.1), objectives) is met
