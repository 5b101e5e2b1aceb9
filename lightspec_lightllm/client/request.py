"""One request: sent, timed event by event, sent again where the server was busy, and its failure in words.

Times. The clock starts when the request is handed to the connection. An event is timed when its bytes are read, before
they are parsed; events that arrive in one piece have the same time. Only events that bring text count as arrivals of
tokens, so a first event that merely names the role does not end the wait for the first token.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from lightspec_lightllm.client.apis import Api, Piece, message_of
from lightspec_lightllm.client.events import DONE, EventStream
from lightspec_lightllm.client.options import SamplingOptions

if TYPE_CHECKING:
    import aiohttp

BUSY = (429, 503)
"""Statuses that ask to come again."""
MAX_RETRY_DELAY = 30.0
"""Seconds; a server may ask for less with Retry-After."""
MAX_ERROR_TEXT = 300

CountedBy = Literal["usage", "tokenizer", "events"]


@dataclass(frozen=True)
class RequestOutput:
    """What came of one request. Times are seconds; of a failed one, those up to its failure."""

    number: int
    start: float
    """By the clock of the run."""
    queued: float = 0.0
    """From its arrival until it was sent: time in the client, waiting for others in flight."""
    text: str = ""
    prompt_tokens: int | None = None
    """None: nobody says."""
    output_tokens: int = 0
    counted_by: CountedBy | None = None
    """Who counted the output: the server, the tokenizer, or, the least exact, one token per event."""
    ttft: float = 0.0
    itl: tuple[float, ...] = ()
    """Between one event that brings text and the next. A speculative server brings several tokens at once."""
    latency: float = 0.0
    """From sending to the last event that belongs to the answer: its text or the reason of its end."""
    finish_reason: str | None = None
    error: str = ""
    """Empty: it succeeded."""
    status: int | None = None
    retries: int = 0

    @property
    def succeeded(self) -> bool:
        return not self.error


class _FailedError(Exception):
    """Why a request failed."""

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass
class _Arrivals:
    """What a stream has brought so far."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Of every event that brought text, reasoning included."""
    last: float = 0.0
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ended: bool = False

    def take(self, piece: Piece, now: float) -> None:
        if piece.error is not None:
            raise _FailedError(f"error in the stream: {piece.error}")
        if piece.text or piece.thought:
            self.texts.append(piece.text)
            self.thoughts.append(piece.thought)
            self.times.append(now)
            self.last = now
        if piece.finish_reason is not None:
            self.finish_reason = piece.finish_reason
            self.last = now
        if piece.prompt_tokens is not None:
            self.prompt_tokens = piece.prompt_tokens
        if piece.output_tokens is not None:
            self.output_tokens = piece.output_tokens


class Sender:
    """Sends prompts to one server. ``count`` counts the tokens of a text, where a tokenizer was given."""

    def __init__(
        self,
        session: "aiohttp.ClientSession",
        api: Api,
        base_url: str,
        model: str,
        sampling: SamplingOptions,
        *,
        count: Callable[[str], int] | None = None,
        timeout: float = 600.0,
        max_retries: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        import aiohttp

        self.session = session
        self.api = api
        self.url = base_url + api.path
        self.model = model
        self.sampling = sampling
        self.count = count
        self.seconds = timeout
        self.timeout = aiohttp.ClientTimeout(total=timeout)
        self.max_retries = max_retries
        self.clock = clock
        self.ask_for_usage = True

    async def send(self, number: int, prompt: str, *, arrived: float | None = None) -> RequestOutput:
        """Never raises but when cancelled: a failure is an output with an error."""
        start = self.clock()
        queued = 0.0 if arrived is None else start - arrived
        retries = 0
        while True:
            output, retry_after = await self._attempt(number, prompt, start)
            if output.status not in BUSY or retries == self.max_retries:
                return replace(output, queued=queued, retries=retries)
            retries += 1
            delay = min(2.0 ** (retries - 1), MAX_RETRY_DELAY) if retry_after is None else retry_after
            await asyncio.sleep(min(delay, MAX_RETRY_DELAY))

    async def _attempt(self, number: int, prompt: str, start: float) -> tuple[RequestOutput, float | None]:
        """The output and, of a busy server, the seconds after which it wants to be asked again."""
        import aiohttp

        arrivals = _Arrivals()
        error, status, retry_after = "", None, None
        try:
            await self._exchange(number, prompt, arrivals)
        except _FailedError as failure:
            error, status, retry_after = str(failure), failure.status, failure.retry_after
        except asyncio.TimeoutError:  # the built-in one only since Python 3.11
            error = f"timed out after {self.seconds:g} s"
        except aiohttp.ClientPayloadError:
            error = "broken stream: the connection ended in the middle of the answer"
        except (aiohttp.ClientError, OSError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        output = self._output(number, prompt, start, arrivals, _short(error))
        return replace(output, status=status), retry_after

    async def _exchange(self, number: int, prompt: str, arrivals: _Arrivals) -> None:
        body = self.api.body(self.model, prompt, self.sampling, number, self.ask_for_usage)
        async with self.session.post(self.url, json=body, timeout=self.timeout) as response:
            if response.status != 200:
                raise _FailedError(
                    f"HTTP {response.status} {response.reason or ''}: {_worded(await response.text(errors='replace'))}",
                    response.status,
                    _seconds(response.headers.get("Retry-After")),
                )
            if response.content_type != "text/event-stream":
                raise _FailedError(
                    f"expected a stream of events (text/event-stream), got {response.content_type}: "
                    + _worded(await response.text(errors="replace"))
                )
            events = EventStream()
            async for piece in response.content.iter_any():
                now = self.clock()
                for data in events.feed(piece):
                    self._read(data, now, arrivals)
            for data in events.end():
                self._read(data, self.clock(), arrivals)
        if arrivals.finish_reason is None and not (arrivals.ended and arrivals.times):
            raise _FailedError("broken stream: it ended without the reason of its end")

    def _read(self, data: bytes, now: float, arrivals: _Arrivals) -> None:
        if data == DONE:
            arrivals.ended = True
            return
        try:
            event: Any = json.loads(data.decode())
            piece = self.api.read(event)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            shown = data.decode("utf-8", errors="replace")
            raise _FailedError(f"broken stream: not an event of the API {self.api.name}: {shown}") from None
        arrivals.take(piece, now)

    def _output(self, number: int, prompt: str, start: float, arrivals: _Arrivals, error: str) -> RequestOutput:
        end = self.clock() if error or not arrivals.last else arrivals.last
        prompt_tokens = arrivals.prompt_tokens
        if prompt_tokens is None and self.count is not None:
            prompt_tokens = self.count(prompt)
        output_tokens, counted_by = self._count(arrivals)
        times = arrivals.times or [end]
        return RequestOutput(
            number=number,
            start=start,
            text="".join(arrivals.texts),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            counted_by=counted_by,
            ttft=times[0] - start,
            itl=tuple(after - before for before, after in pairwise(times)),
            latency=end - start,
            finish_reason=arrivals.finish_reason,
            error=error,
        )

    def _count(self, arrivals: _Arrivals) -> tuple[int, CountedBy]:
        if arrivals.output_tokens is not None:
            return arrivals.output_tokens, "usage"
        if self.count is not None:
            return self.count("".join(arrivals.thoughts) + "".join(arrivals.texts)), "tokenizer"
        return len(arrivals.times), "events"


def _worded(body: str) -> str:
    """The message in the body of an error answer."""
    try:
        return message_of(json.loads(body))
    except ValueError:
        return body


def _short(message: str) -> str:
    """On one line, of bounded length."""
    line = " ".join(message.split())
    return line if len(line) <= MAX_ERROR_TEXT else line[: MAX_ERROR_TEXT - 3] + "..."


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; its other form, a date, is not heeded."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
