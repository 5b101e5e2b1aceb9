"""The dashboard on rounds of a simulated host that takes real time: for its tests, and to look at it.

``python -m tests.server.simulated_server [PORT]`` serves it until it is stopped.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round
from lightspec_lightllm.planner import CostModel, make_planner
from lightspec_lightllm.server.dashboard import dashboard_router
from lightspec_lightllm.server.telemetry import About, RoundReporter, Telemetry

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
COSTS = CostModel.from_tables(
    {size: 9.0 + 0.22 * size for size in SIZES}, {size: 1.1 + 0.02 * size for size in SIZES}, overhead_ms=0.6
)
MAX_DRAFT_STEPS = 7
EASY = AcceptanceProfile((0.86, 0.8, 0.76, 0.72), spread=0.5, noise=0.8, confidence=True, bias=0.7)
HARD = AcceptanceProfile((0.6, 0.5, 0.45), spread=0.5, noise=0.8, confidence=True, bias=0.7)


class SleepingHost(SimulatedHost):
    """Spends its time for real, so that stages are measured as those of any other host."""

    def now(self) -> float:
        return time.perf_counter()

    def _spend(self, milliseconds: float) -> None:
        before = self._clock_ms
        super()._spend(milliseconds)
        time.sleep((self._clock_ms - before) / 1e3)


def requests_at(number: int) -> int:
    """Load that swells and ebbs within some hundred rounds, 2 to 38 requests."""
    return 20 + round(18 * math.sin(number / 220.0))


class SimulatedLoad:
    """A thread that runs rounds and reports them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._telemetry.set_load(0, 0)

    def _run(self) -> None:
        host = SleepingHost(
            COSTS,
            requests_at,
            lambda number: HARD if number // 700 % 2 else EASY,
            max_draft_steps=MAX_DRAFT_STEPS,
            lifetime=160,
            cost_noise=0.04,
        )
        rounds = Round(host, make_planner("lightspec", COSTS, max_draft_steps=MAX_DRAFT_STEPS))
        reporter = RoundReporter(rounds)
        while not self._stop.is_set():
            record = rounds.step()
            if record is not None:
                waiting = max(0, record.num_requests - 32)
                self._telemetry.add(reporter.event(record, num_waiting=waiting, time=time.time()))


def make_telemetry() -> Telemetry:
    return Telemetry(
        About("SmolLM2-135M-Instruct", "lightspec", "head", MAX_DRAFT_STEPS, engine="simulated", device="CPU")
    )


class DashboardServer:
    """The dashboard alone, on a free port of this machine."""

    def __init__(self, telemetry: Telemetry, port: int = 0) -> None:
        app = FastAPI()
        app.include_router(dashboard_router(telemetry))
        config = uvicorn.Config(app, "127.0.0.1", port, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._socket = config.bind_socket()
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/lightspec/"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@contextmanager
def serving(telemetry: Telemetry, port: int = 0) -> Iterator[DashboardServer]:
    """A server that is up inside and gone afterwards."""
    server = DashboardServer(telemetry, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    shown = make_telemetry()
    load = SimulatedLoad(shown)
    load.start()
    with serving(shown, int(sys.argv[1]) if len(sys.argv) > 1 else 8010) as running:
        sys.stdout.write(f"{running.url}\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            load.stop()
