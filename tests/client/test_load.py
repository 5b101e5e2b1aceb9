"""Arrivals, requests in flight, interruption; and 256 streams at once through the whole client."""

import asyncio
import math
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.client.load import LoadResult, arrival_times, run_load
from lightspec_lightllm.client.options import ClientOptions, Load
from lightspec_lightllm.client.request import RequestOutput
from lightspec_lightllm.client.server import Server
from tests.client.dummy_server import DummyServer, running


@given(st.integers(1, 200), st.floats(0.01, 1000), st.integers(0, 99))
def test_arrivals_are_a_seeded_process_from_time_zero_on(count: int, rate: float, seed: int) -> None:
    times = arrival_times(count, rate, seed)
    assert len(times) == count
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times == arrival_times(count, rate, seed)
    assert arrival_times(count, math.inf, seed) == [0.0] * count


def test_gaps_between_arrivals_are_exponential() -> None:
    times = arrival_times(20_000, 5.0, seed=1)
    gaps = [after - before for before, after in pairwise(times)]
    mean = fmean(gaps)
    assert mean == pytest.approx(0.2, rel=0.03)
    assert fmean(gap * gap for gap in gaps) == pytest.approx(2 * mean * mean, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), rel=0.05)


class Answering:
    """Answers at once, or not before it is released."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.now = self.most = 0
        self.sent: list[int] = []

    async def __call__(self, number: int, _prompt: str, /, *, arrived: float | None = None) -> RequestOutput:
        self.now += 1
        self.most = max(self.most, self.now)
        self.sent.append(number)
        try:
            await (asyncio.Event().wait() if self.held and number >= 3 else asyncio.sleep(0))
        finally:
            self.now -= 1
        return RequestOutput(number, arrived or 0.0, output_tokens=1)


def offer(send: Answering, count: int, load: Load, stop_after: int | None = None) -> LoadResult:
    async def run() -> LoadResult:
        stop = asyncio.Event()
        answered: list[int] = []

        def finished(output: RequestOutput) -> None:
            answered.append(output.number)
            if len(answered) == stop_after:
                stop.set()

        return await run_load(send, ["p"] * count, load, seed=0, stop=stop, on_finish=finished)

    return asyncio.run(run())


@given(st.integers(1, 30), st.integers(1, 40))
def test_every_prompt_is_sent_once_with_no_more_in_flight_than_allowed(count: int, limit: int) -> None:
    send = Answering()
    found = offer(send, count, Load(max_concurrency=limit))
    assert sorted(send.sent) == list(range(count))
    assert send.most == min(count, limit)
    assert [output.number for output in found.outputs] == list(range(count))
    assert (found.cancelled, found.interrupted) == (0, False)


def test_an_interruption_keeps_what_was_answered_and_gives_up_the_rest() -> None:
    send = Answering(held=True)
    found = offer(send, 20, Load(max_concurrency=5), stop_after=3)
    assert [output.number for output in found.outputs] == [0, 1, 2]
    assert found.interrupted
    assert found.cancelled == len(send.sent) - 3
    assert send.now == 0


def test_a_fault_of_the_client_itself_is_not_taken_for_one_of_the_server() -> None:
    async def broken(_number: int, _prompt: str, /, *, arrived: float | None = None) -> RequestOutput:
        raise ZeroDivisionError(arrived)

    async def run() -> LoadResult:
        return await run_load(broken, ["p"], Load(), seed=0, stop=asyncio.Event())

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_256_streams_are_open_at_once_and_every_one_is_read_whole() -> None:
    dummy = DummyServer(num_events=5, tokens_per_event=3)

    async def run() -> LoadResult:
        async with Server(ClientOptions(dummy.url)) as server:
            sender = await server.sender()
            return await run_load(sender.send, ["p"] * 256, Load(max_concurrency=256), seed=0, stop=asyncio.Event())

    async def release_all() -> None:
        while dummy.in_flight < 256:
            await asyncio.sleep(0.01)
        assert dummy.release is not None
        dummy.release.set()

    dummy.release = asyncio.Event()
    with running(dummy):
        loop = dummy.loop
        assert loop is not None
        released = asyncio.run_coroutine_threadsafe(release_all(), loop)
        found = asyncio.run(run())
        released.result()
    assert dummy.most_in_flight == 256
    assert all(output.succeeded and output.output_tokens == 15 for output in found.outputs)
    assert {output.text for output in found.outputs} == {found.outputs[0].text}
