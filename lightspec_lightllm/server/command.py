"""``lightspec serve``: options in, a server until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from lightspec_lightllm.config import Config
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.machine import cpu_name
from lightspec_lightllm.server.app import create_app
from lightspec_lightllm.server.engine_client import EngineClient
from lightspec_lightllm.server.engine_process import LOG_FORMAT, EngineProcess, EngineThread, RunningEngine, model_name
from lightspec_lightllm.server.intake import Intake
from lightspec_lightllm.server.listener import Listener, Listeners
from lightspec_lightllm.server.messages import EngineInfo, Loading, Report
from lightspec_lightllm.server.metrics import Metrics
from lightspec_lightllm.server.options import ServerOptions
from lightspec_lightllm.server.status import StatusBoard, Totals
from lightspec_lightllm.server.supervisor import Supervisor
from lightspec_lightllm.server.telemetry import About, Telemetry
from lightspec_lightllm.server.trace import TraceFile

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime

LOADING_SECONDS = 1.0
"""A step of the start that takes longer is mentioned."""

GOODBYE_SECONDS = 5
"""How long the errors that end a drain may take to reach their clients before connections are cut."""

logger = logging.getLogger(__name__)


def run_serve(config: Config, options: ServerOptions) -> int:
    """Serve in this process, with the engine in another, until SIGTERM or Ctrl-C and all answers are out.

    Returns:
        0, or 1 when the engine ended for good.

    Raises:
        ConfigError: the address is taken, or the trace cannot be written.
        EngineError: the engine does not start.
    """
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO)
    return asyncio.run(Server(config, options, lambda: EngineProcess(config)).run())


def server_on(runtime: EmbeddedRuntime, config: Config, options: ServerOptions) -> Server:
    """A server whose engine is a thread of this process, on a runtime that is loaded; it is not started again."""
    return Server(config, options, lambda: EngineThread(runtime, config), max_restarts=0)


class Server:
    """One server: a listening address, an engine, and what stands between them.

    Args:
        launch: starts an engine.
        max_restarts: see `Supervisor`.
    """

    def __init__(
        self, config: Config, options: ServerOptions, launch: Callable[[], RunningEngine], *, max_restarts: int = 3
    ) -> None:
        self.options = options
        self.served_name = options.served_model_name or model_name(config)
        self._failed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Future[EngineInfo] | None = None
        self._trace = None if options.trace is None else TraceFile(options.trace)
        self._telemetry = Telemetry(_about(config, self.served_name))
        metrics, totals = Metrics(), Totals()
        watchers = [metrics, totals, _Watched(self._telemetry), *([self._trace] if self._trace else [])]
        listener = Listeners(watchers)
        client = EngineClient(options.max_waiting, listener)
        self._supervisor = Supervisor(
            client,
            launch,
            max_restarts=max_restarts,
            listener=listener,
            on_loading=_LoadingLog(),
            on_end=self._fail,
        )
        app = create_app(
            Intake(client, config.sampling, self.served_name),
            self._supervisor,
            metrics,
            self._telemetry,
            StatusBoard(client, self._supervisor, totals, self.served_name, self._trace),
            max_body_bytes=options.max_body_mb * 1_000_000,
        )
        self._front = _Front(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=options.access_log,
                timeout_graceful_shutdown=options.drain_seconds + GOODBYE_SECONDS + 1,
            ),
            on_exit=self._telemetry.close,
            drain_seconds=options.drain_seconds,
            on_overdue=lambda: self._abandon(client),
        )

    async def run(self, on_ready: Callable[[str], None] = lambda _: None) -> int:
        """See `run_serve`; ``on_ready`` hears the server's URL. Outside the main thread signals are somebody else's."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            # uvicorn takes these over while it serves.
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self.stop)
        try:
            with _bound(self.options) as listener:
                self._starting = asyncio.ensure_future(self._supervisor.start())
                await asyncio.wait([self._starting])
                if self._starting.cancelled():
                    return 0
                await self._starting
                url = f"http://{self.options.host}:{listener.getsockname()[1]}"

                def listening() -> None:
                    logger.info("%s is served at %s (dashboard: /lightspec/, metrics: /metrics)", self.served_name, url)
                    on_ready(url)

                self._front.on_listening = listening
                await self._front.serve(sockets=[listener])
        finally:
            await self._supervisor.stop()
            if self._trace is not None:
                self._trace.close()
            logger.info("the server has ended")
        return 1 if self._failed else 0

    def stop(self) -> None:
        """Take no more requests, let those in flight finish, and end. From any thread, once `run` was called."""
        self._front.drain()
        if self._loop is not None and self._starting is not None:
            self._loop.call_soon_threadsafe(self._starting.cancel)

    def _abandon(self, client: EngineClient) -> None:
        if client.in_flight:
            logger.warning(
                "%d sequences did not end within %d s (--drain-seconds) and were answered with an error",
                client.in_flight,
                self.options.drain_seconds,
            )
        client.abandon()

    def _fail(self) -> None:
        self._failed = True
        self.stop()


class _Front(uvicorn.Server):
    """Tells when it listens, when it begins to drain, and when that has taken ``drain_seconds``."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_exit: Callable[[], None],
        drain_seconds: float,
        on_overdue: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._drain_seconds = drain_seconds
        self._on_overdue = on_overdue
        self.on_listening: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        overdue = loop.call_later(self._drain_seconds, self._on_overdue)
        cut = loop.call_later(self._drain_seconds + GOODBYE_SECONDS, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            overdue.cancel()
            cut.cancel()

    def _cut(self) -> None:
        """Clients that do not even read an error are left; uvicorn would cancel their tasks, each with a traceback."""
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    def drain(self) -> None:
        self.should_exit = True
        self._on_exit()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            logger.info("draining: answers in flight are finished, nothing new is taken")
        super().handle_exit(sig, frame)
        self._on_exit()


class _Watched(Listener):
    """The dashboard's ears."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def report(self, report: Report) -> None:
        for event in report.rounds:
            self._telemetry.add(event)
        self._telemetry.set_load(report.load.running, report.load.waiting)

    def engine_ready(self, info: EngineInfo) -> None:  # noqa: ARG002 - the interface's
        self._telemetry.set_notice(None)

    def engine_lost(self, message: str) -> None:
        self._telemetry.set_load(0, 0)
        self._telemetry.set_notice(f"{message}; it is being started again")


class _LoadingLog:
    """A log line when a step of the start begins, where it is one that takes long."""

    def __init__(self) -> None:
        self._steps: dict[str, float] = {}

    def __call__(self, loading: Loading) -> None:
        now = time.monotonic()
        began = self._steps.setdefault(loading.step, now)
        if now - began >= LOADING_SECONDS:
            self._steps[loading.step] = float("inf")
            logger.info("%s", loading.step)


def _about(config: Config, served_name: str) -> About:
    planner = config.planner
    return About(served_name, planner.strategy, config.drafter.name, planner.max_draft_steps, device=cpu_name())


def _bound(options: ServerOptions) -> socket.socket:
    """The address is taken before the model is loaded; connections are refused until the server is ready."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"--host/--port: cannot listen at {options.host}:{options.port} ({error.strerror}); give another address"
        ) from None
    return listener
