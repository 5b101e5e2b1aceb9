"""The front's side of the seam: sequences handed to an engine, their deltas as an async stream."""

from __future__ import annotations

import asyncio
import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType

from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.server.errors import ApiError, BadRequestError, EngineUnavailableError, QueueFullError
from lightspec_lightllm.server.listener import Listener
from lightspec_lightllm.server.messages import (
    Cancel,
    Command,
    Delta,
    Deltas,
    EngineInfo,
    Event,
    Load,
    Loading,
    Refused,
    Report,
    Stop,
    Submit,
)

MAX_RETRY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence that is wanted; see `messages.Submit`."""

    tokens: tuple[int, ...]
    params: SamplingParams
    top_logprobs: int | None = None
    detail: bool = False


class Generation:
    """The sequences of one HTTP request: an async iterator of (index of the sequence, delta), in the order of arrival.

    Used as ``async with``: what has not finished when the block is left, for whatever reason, is cancelled.
    """

    def __init__(self, client: EngineClient, prompts: Sequence[Prompt]) -> None:
        self.prompts = prompts
        self._client = client
        self._events: asyncio.Queue[tuple[int, Delta] | ApiError] = asyncio.Queue()
        self._unfinished = len(prompts)

    async def __aenter__(self) -> Generation:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what has not finished."""
        self._client.forget(self)

    def put(self, event: tuple[int, Delta] | ApiError) -> None:
        self._events.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        """Ends when every sequence has. Raises ApiError when the engine refuses one or ends."""
        while self._unfinished:
            event = await self._events.get()
            if isinstance(event, ApiError):
                raise event
            self._unfinished -= event[1].finish_reason is not None
            yield event


@dataclass(slots=True)
class _Flight:
    generation: Generation
    index: int
    arrived: float
    latest: float | None = None
    num_tokens: int = 0


class EngineClient:
    """Talks to one engine at a time, from one event loop.

    Args:
        max_waiting: sequences that may wait beside those that the engine decodes.
        listener: hears of every sequence and report.
    """

    def __init__(self, max_waiting: int, listener: Listener) -> None:
        self.info: EngineInfo | None = None
        self.load: Load | None = None
        self.fallback: str | None = None
        self.max_waiting = max_waiting
        self._listener = listener
        self._ids = itertools.count()
        self._flights: dict[int, _Flight] = {}
        self.closed = asyncio.Event()
        self.num_lost = 0
        """Sequences that were in flight when the engine ended."""
        self.num_finished = 0
        """Sequences that ended as they should."""
        self._commands: queue.SimpleQueue[Command | None] | None = None
        self._served: deque[float] = deque(maxlen=32)
        """Seconds that the latest sequences took."""

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def limit(self) -> int:
        """Sequences that may be in flight."""
        return self.max_waiting + (self.info.max_requests if self.info else 0)

    def connect(self, connection: Connection, *, on_loading: Callable[[Loading], None]) -> asyncio.Future[EngineInfo]:
        """Start talking. The future fails with EngineUnavailableError where the engine does not start; `closed` tells
        when it has ended."""
        loop = asyncio.get_running_loop()
        self.closed = asyncio.Event()
        ready: asyncio.Future[EngineInfo] = loop.create_future()
        commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._commands = commands

        def receive() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(self._dispatch, connection.recv(), ready, on_loading)
            except (EOFError, OSError):
                commands.put(None)
                loop.call_soon_threadsafe(self._lost, ready)
            finally:
                connection.close()

        def send() -> None:
            try:
                while (command := commands.get()) is not None:
                    connection.send(command)
            except OSError:
                return  # the receiving thread sees it too

        for target in (receive, send):
            threading.Thread(target=target, name=f"lightspec-{target.__name__}", daemon=True).start()
        return ready

    def abandon(self) -> None:
        """Answer what is in flight with an error, because the server ends."""
        self._fail_all("the server ended before the answer did; ask again when it is back")

    def stop(self) -> None:
        """Make the engine end, and abandon what is in flight."""
        self.abandon()
        if self._commands is not None:
            self._commands.put(Stop())

    def generate(self, prompts: Sequence[Prompt]) -> Generation:
        """Hand sequences to the engine, all or none.

        Raises:
            EngineUnavailableError: it is not up.
            QueueFullError: there is no room for them now.
            BadRequestError: there never will be.
        """
        if self._commands is None or self.info is None:
            raise EngineUnavailableError("the engine is being restarted; try again in a moment", seconds=2)
        if self.in_flight + len(prompts) > self.limit:
            raise QueueFullError(self.in_flight, self.limit, len(prompts), self._retry_seconds(self.info.max_requests))
        generation, now = Generation(self, prompts), time.monotonic()
        for index, prompt in enumerate(prompts):
            request_id = next(self._ids)
            self._flights[request_id] = _Flight(generation, index, now)
            self._commands.put(Submit(request_id, prompt.tokens, prompt.params, prompt.top_logprobs, prompt.detail))
            self._listener.arrived(len(prompt.tokens))
        return generation

    def forget(self, generation: Generation) -> None:
        """Cancel those of its sequences that are in flight."""
        gone = tuple(number for number, flight in self._flights.items() if flight.generation is generation)
        for request_id in gone:
            self._land(request_id, "cancelled")
        if gone and self._commands is not None:
            self._commands.put(Cancel(gone))

    def _dispatch(self, event: Event, ready: asyncio.Future[EngineInfo], on_loading: Callable[[Loading], None]) -> None:
        if isinstance(event, Deltas):
            for delta in event.deltas:
                self._deliver(delta)
        elif isinstance(event, Report):
            self.load, self.fallback = event.load, event.fallback
            self._listener.report(event)
        elif isinstance(event, Refused):
            if (flight := self._land(event.request_id, "error")) is not None:
                flight.generation.put(BadRequestError(event.message))
        elif isinstance(event, EngineInfo):
            self.info, self.load = event, Load(0, 0, event.num_slots)
            self._listener.engine_ready(event)
            if not ready.done():  # the start was given up
                ready.set_result(event)
        elif isinstance(event, Loading):
            on_loading(event)
        elif not ready.done():
            ready.set_exception(EngineUnavailableError(event.message))

    def _deliver(self, delta: Delta) -> None:
        flight = self._flights.get(delta.request_id)
        if flight is None:
            return  # cancelled while this was on its way
        now = time.monotonic()
        if delta.tokens:
            if flight.latest is None:
                self._listener.first_token(now - flight.arrived)
            else:
                self._listener.next_tokens(now - flight.latest)
            flight.latest = now
            flight.num_tokens += len(delta.tokens)
        if delta.finish_reason is not None:
            self._served.append(now - flight.arrived)
            self.num_finished += 1
            self._land(delta.request_id, delta.finish_reason, delta.num_rounds)
        flight.generation.put((flight.index, delta))

    def _lost(self, ready: asyncio.Future[EngineInfo]) -> None:
        """The engine has ended: every sequence in flight is answered with an error."""
        self.info = self.load = self._commands = None
        self.num_lost = len(self._flights)
        self._fail_all("the engine ended before the answer did; the server restarts it, ask again")
        if not ready.done():
            ready.set_exception(EngineUnavailableError("the engine ended while it was starting"))
        self.closed.set()

    def _fail_all(self, message: str) -> None:
        error = EngineUnavailableError(message, seconds=5)
        for request_id in tuple(self._flights):
            if (flight := self._land(request_id, "error")) is not None:
                flight.generation.put(error)

    def _land(self, request_id: int, reason: str, num_rounds: int = 0) -> _Flight | None:
        flight = self._flights.pop(request_id, None)
        if flight is not None:
            self._listener.finished(reason, flight.num_tokens, num_rounds)
        return flight

    def _retry_seconds(self, running: int) -> int:
        """A place is free after about the time of one sequence, divided by those that run at the same time."""
        if not self._served:
            return 1
        mean = sum(self._served) / len(self._served)
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(mean / min(running, self.in_flight))))
