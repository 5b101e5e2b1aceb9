"""Keeps an engine up: starts it, notices its end, starts it again, or gives up and says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from lightspec_lightllm.errors import EngineError
from lightspec_lightllm.server.engine_client import EngineClient
from lightspec_lightllm.server.engine_process import RunningEngine
from lightspec_lightllm.server.errors import EngineUnavailableError
from lightspec_lightllm.server.listener import Listener
from lightspec_lightllm.server.messages import EngineInfo, Loading

State = Literal["starting", "ready", "restarting", "ended"]

logger = logging.getLogger(__name__)


class Supervisor:
    """One engine after the other, for one client.

    Args:
        launch: starts an engine.
        max_restarts: ends in a row, without one finished answer between them, that are mended.
        listener: hears when an engine is lost.
        on_loading: hears of the steps of a start.
        on_end: called once when there will be no engine any more, unless `stop` was called.
    """

    def __init__(
        self,
        client: EngineClient,
        launch: Callable[[], RunningEngine],
        *,
        max_restarts: int,
        listener: Listener,
        on_loading: Callable[[Loading], None],
        on_end: Callable[[], None],
    ) -> None:
        self.client = client
        self.state: State = "starting"
        self.num_restarts = 0
        self._launch = launch
        self._max_restarts = max_restarts
        self._listener = listener
        self._on_loading = on_loading
        self._on_end = on_end
        self._stopping = asyncio.Event()
        self._engine: RunningEngine | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        """Returns when the engine is ready. Raises EngineError when it does not start."""
        try:
            info = await self._start_engine()
        except EngineUnavailableError as error:
            await self._wait()
            raise EngineError(str(error)) from None
        self._watching = asyncio.create_task(self._watch())
        return info

    async def stop(self) -> None:
        """End the engine."""
        self._stopping.set()
        self.client.stop()
        if self._engine is not None:
            await self._wait()
            await self.client.closed.wait()
        if self._watching is not None:
            await self._watching
        self.state = "ended"

    async def _start_engine(self) -> EngineInfo:
        self._engine = self._launch()
        info = await self.client.connect(self._engine.connection, on_loading=self._on_loading)
        self.state = "ready"
        return info

    async def _wait(self) -> str:
        assert self._engine is not None  # noqa: S101 - one was launched
        return await asyncio.to_thread(self._engine.wait)

    async def _watch(self) -> None:
        failures, finished = 0, self.client.num_finished
        while True:
            await self.client.closed.wait()
            if not self._stopping.is_set():
                self.state = "restarting"
            failures = 1 if self.client.num_finished > finished else failures + 1
            finished = self.client.num_finished
            lost, end = self.client.num_lost, await self._wait()
            if self._stopping.is_set():
                return
            logger.error("the engine %s; %d sequences in flight were answered with an error", end, lost)
            self._listener.engine_lost(f"the engine {end}")
            if failures > self._max_restarts:
                self.state = "ended"
                logger.error("the engine ended %d times without finishing an answer; the server ends", failures)
                self._on_end()
                return
            self.num_restarts += 1
            with suppress(EngineUnavailableError):  # it ends, so that the loop sees it
                info = await self._start_engine()
                logger.warning("the engine is up again (process %d, restart %d)", info.pid, self.num_restarts)
            if self._stopping.is_set():
                self.client.stop()
