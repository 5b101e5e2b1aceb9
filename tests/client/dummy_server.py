"""A server of all three APIs on sockets of asyncio alone, so that a test decides every byte that is sent.

``python -m tests.client.dummy_server PORT DELAY EVENTS`` runs it alone: ``EVENTS`` events per answer, one every
``DELAY`` seconds.
"""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal[
    "busy", "refused", "dropped", "unended", "error event", "not json", "other form", "not a stream", "silent"
]
WORDS = ("one ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ")


@dataclass
class DummyServer:
    """What it answers, and what it was asked. ``fault`` chooses what goes wrong with a request, by its number."""

    num_events: int = 4
    tokens_per_event: int = 1
    delay: float = 0.0
    """Seconds before every event."""
    text: str | None = None
    """Of the whole answer, in the first event; None: a word per token."""
    usage: bool = True
    knows_usage: bool = True
    """Whether ``stream_options`` is known; otherwise requests with it are refused."""
    fault: Callable[[int], Fault | None] = lambda _: None
    retry_after: str = "0"
    metrics: Callable[["DummyServer"], str] | None = None
    models: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    posted: list[str] = field(default_factory=list)
    """Every path that was POSTed, in order."""
    in_flight: int = 0
    most_in_flight: int = 0
    release: asyncio.Event | None = None
    """Where set: no answer begins before this is."""
    url: str = ""
    loop: asyncio.AbstractEventLoop | None = None
    """The one that serves, while `running`."""

    async def serve(self, port: int = 0) -> asyncio.Server:
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                lines = head.decode().split("\r\n")[1:]
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "POST":
                    self.posted.append(path)
                await self._answer(writer, path, headers, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: bytes) -> None:
        streams: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/generate_stream": self._lightllm,
        }
        if path in streams:
            number = len(self.bodies)
            self.bodies.append(json.loads(body))
            self.headers.append(headers)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await self._stream(writer, number, streams[path])
            finally:
                self.in_flight -= 1
        elif path == "/v1/models" and self.models:
            _respond(writer, 200, {"data": [{"id": "dummy"}]})
        elif path == "/metrics" and self.metrics is not None:
            _respond(writer, 200, self.metrics(self), "text/plain")
        elif path == "/flush_cache":
            _respond(writer, 200, {})
        else:
            _respond(writer, 404, {"detail": "Not Found"})

    async def _stream(
        self, writer: asyncio.StreamWriter, number: int, stream: Callable[[asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        fault = self.fault(number)
        if self.release is not None:
            await self.release.wait()
        if not self.knows_usage and "stream_options" in self.bodies[number]:
            _respond(writer, 400, {"error": {"message": "unknown field stream_options"}})
        elif fault == "busy":
            _respond(writer, 429, {"error": {"message": "queue is full"}}, extra=f"Retry-After: {self.retry_after}\r\n")
        elif fault == "refused":
            _respond(writer, 400, {"error": {"message": "prompt is too long", "type": "invalid_request_error"}})
        elif fault == "not a stream":
            _respond(writer, 200, {"choices": []})
        elif fault == "silent":
            await asyncio.Event().wait()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            if fault is None:
                await stream(writer)
            else:
                await self._broken(writer, fault)
            await _chunk(writer, b"")

    async def _broken(self, writer: asyncio.StreamWriter, fault: Fault) -> None:
        first = {"choices": [{"index": 0, "delta": {"content": "one "}, "text": "one ", "finish_reason": None}]}
        await _event(writer, first)
        if fault == "dropped":
            writer.close()
            raise ConnectionResetError
        if fault == "error event":
            await _event(writer, {"error": {"message": "out of memory", "type": "server_error"}})
        elif fault == "not json":
            await _chunk(writer, b"data: {oops\n\n")
        elif fault == "other form":
            await _event(writer, {"object": "cat"})

    def _pieces(self) -> list[str]:
        """Texts of the events."""
        if self.text is not None:
            return [self.text] + [" "] * (self.num_events - 1)
        size = self.tokens_per_event
        words = [WORDS[at % len(WORDS)] for at in range(self.num_events * size)]
        return ["".join(words[at : at + size]) for at in range(0, len(words), size)]

    async def _chat(self, writer: asyncio.StreamWriter) -> None:
        await _event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await self._openai(writer, lambda text: {"delta": {"content": text} if text else {}})

    async def _completion(self, writer: asyncio.StreamWriter) -> None:
        await self._openai(writer, lambda text: {"text": text})

    async def _openai(self, writer: asyncio.StreamWriter, choice: Callable[[str], dict[str, Any]]) -> None:
        asked = "stream_options" in self.bodies[-1]
        null = {"usage": None} if asked else {}
        for text in self._pieces():
            await self._pause()
            await _event(writer, {"choices": [{"index": 0, "finish_reason": None} | choice(text)]} | null)
        await _event(writer, {"choices": [{"index": 0, "finish_reason": "stop"} | choice("")]} | null)
        if asked and self.usage:
            count = self.num_events * self.tokens_per_event
            await _event(writer, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
        await _chunk(writer, b"data: [DONE]\n\n")

    async def _lightllm(self, writer: asyncio.StreamWriter) -> None:
        pieces = self._pieces()
        for number, text in enumerate(pieces, start=1):
            await self._pause()
            last = number == len(pieces)
            token = {"id": 5, "text": text, "prompt_tokens": 7, "count_output_tokens": number * self.tokens_per_event}
            if not self.usage:
                token |= {"prompt_tokens": 0, "count_output_tokens": 0}
            await _event(writer, {"token": token, "finished": last, "finish_reason": "length" if last else None}, b"")

    async def _pause(self) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)


def _respond(
    writer: asyncio.StreamWriter, status: int, content: object, kind: str = "application/json", *, extra: str = ""
) -> None:
    body = (content if isinstance(content, str) else json.dumps(content)).encode()
    head = f"HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _event(writer: asyncio.StreamWriter, content: object, space: bytes = b" ") -> None:
    await _chunk(writer, b"data:" + space + json.dumps(content).encode() + b"\n\n")


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


@contextlib.contextmanager
def running(server: DummyServer) -> Iterator[DummyServer]:
    """Serves in a thread of its own, as an engine's process would."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    server.loop = loop

    async def until_stopped() -> None:
        sockets = await server.serve()
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            sockets.close()
            others = asyncio.all_tasks() - {task}
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    task = loop.create_task(until_stopped())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


async def _main(port: int, delay: float, events: int) -> None:
    server = await DummyServer(delay=delay, num_events=events).serve(port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
