"""Offers requests to a server: Poisson arrivals or a closed loop, a limit of requests in flight, an end on demand."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lightspec_lightllm.client.options import Load
from lightspec_lightllm.client.request import RequestOutput

PULSE = 0.02
"""Seconds between two looks at how late the client itself is."""


class Send(Protocol):
    """`request.Sender.send` is one."""

    async def __call__(self, number: int, prompt: str, /, *, arrived: float | None = None) -> RequestOutput: ...


@dataclass(frozen=True)
class LoadResult:
    """What a run brought. ``outputs`` are in the order of the prompts; those that were never answered are missing."""

    outputs: tuple[RequestOutput, ...]
    duration: float
    """Seconds from the first arrival to the last answer, or to the interruption."""
    cancelled: int
    """Requests in flight when the run was interrupted: neither completed nor failed."""
    interrupted: bool
    client_lag_p99_ms: float
    """How late the client itself was: 99th percentile by which its timers overslept. Arrivals are timed that late."""
    client_cpu: float
    """Processor seconds of this process per second: near 1, the client is what is measured."""


def arrival_times(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which requests arrive: all at once (rate inf), or a Poisson process from time 0 on."""
    if math.isinf(rate):
        return [0.0] * count
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, size=count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


async def run_load(
    send: Send,
    prompts: Sequence[str],
    load: Load,
    *,
    seed: int,
    stop: asyncio.Event,
    on_finish: Callable[[RequestOutput], None] = lambda _: None,
) -> LoadResult:
    """Sends every prompt once and waits for all answers, or until ``stop`` is set."""
    gate = asyncio.Semaphore(load.max_concurrency or len(prompts))
    outputs: dict[int, RequestOutput] = {}
    in_flight: set[int] = set()

    async def one(number: int) -> None:
        arrived = time.perf_counter()
        async with gate:
            in_flight.add(number)
            outputs[number] = await send(number, prompts[number], arrived=arrived)
            in_flight.discard(number)
        on_finish(outputs[number])

    async def all_of_them() -> None:
        requests = []
        for number, at in enumerate(arrival_times(len(prompts), load.request_rate, seed)):
            if (delay := began + at - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            requests.append(asyncio.create_task(one(number)))
        try:
            await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()

    lags: list[float] = []
    watch = asyncio.create_task(_watch(lags))
    began, cpu = time.perf_counter(), time.process_time()
    run = asyncio.create_task(all_of_them())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({run, stopped}, return_when=asyncio.FIRST_COMPLETED)
    duration, cpu = time.perf_counter() - began, time.process_time() - cpu
    interrupted, cancelled = not run.done(), len(in_flight)
    for task in (run, stopped, watch):
        task.cancel()
    await asyncio.gather(run, stopped, watch, return_exceptions=True)
    if not interrupted:
        run.result()  # raises what a request raised: a fault of this program
    return LoadResult(
        outputs=tuple(outputs[number] for number in sorted(outputs)),
        duration=duration,
        cancelled=cancelled,
        interrupted=interrupted,
        client_lag_p99_ms=1e3 * float(np.percentile(lags or [0.0], 99)),
        client_cpu=cpu / duration,
    )


async def _watch(lags: list[float]) -> None:
    """Notes, until cancelled, by how many seconds a timer was late."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(PULSE)
        lags.append(time.perf_counter() - began - PULSE)
