"""A server on a free port around a tiny engine, and a plain client for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
from lightspec_lightllm.config import Config, ModelConfig, PlannerConfig
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.server.command import Server, server_on
from lightspec_lightllm.server.options import ServerOptions
from tests.adapters.test_embedded_lossless import COSTS
from tests.engine.tiny_llama import tiny_engine

STEPS = 7
OPTIONS = ServerOptions(port=0, drain_seconds=20)
CONFIG = Config(model=ModelConfig(path="tiny.gguf"), planner=PlannerConfig(max_draft_steps=STEPS))


def tiny_runtime(**options: Any) -> EmbeddedRuntime:
    return EmbeddedRuntime(tiny_engine(**options), NgramDrafter(max_draft_steps=STEPS), COSTS, STEPS)


def alone(prompt: str | list[int], params: SamplingParams, *, chat: bool = False) -> Any:
    """The finished sequence of a fresh engine that serves nothing else, without speculation."""
    runtime = tiny_runtime()
    tokens = runtime.engine.tokenizer.chat(prompt) if chat and isinstance(prompt, str) else prompt
    sequence, rounds = runtime.submit(tokens, params), runtime.round("off")
    while sequence.finish_reason is None:
        rounds.step()
    return sequence


@dataclass(frozen=True)
class Reply:
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, which must be in the API's form."""
        (error,) = self.json.values()
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"]
        return dict(error)


@dataclass
class Client:
    """Talks to one server; every call has a connection of its own."""

    url: str
    timeout: float = 60.0

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPConnection:
        """A connection with a request on its way; bytes go as they are."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=self.timeout)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json"} | headers)
        return connection

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        connection = self.open(method, path, body, **headers)
        try:
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, lower, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.call("GET", path)

    def post(self, path: str, body: Any) -> Reply:
        return self.call("POST", path, body)

    def events(self, path: str, body: Any) -> Generator[Any, None, None]:
        """What follows ``data:`` of each event; JSON read, ``[DONE]`` as it is."""
        connection = self.open("POST", path, body)
        try:
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.getheader("content-type", "").startswith("text/event-stream")
            for line in response:
                if line.startswith(b"data:"):
                    content = line[5:].strip()
                    yield content.decode() if content == b"[DONE]" else json.loads(content)
        finally:
            connection.close()

    def status(self) -> Any:
        return self.get("/lightspec/status").json

    def metrics(self) -> dict[str, float]:
        lines = self.get("/metrics").body.decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}


@dataclass
class Serving:
    """A server in a thread."""

    server: Server
    client: Client
    thread: threading.Thread
    result: list[int | BaseException] = field(default_factory=list)

    def stop(self) -> int:
        self.server.stop()
        self.thread.join(30)
        (result,) = self.result
        assert isinstance(result, int), result
        return result


def start(server: Server) -> Serving:
    """Returns when it is ready."""
    ready: threading.Event = threading.Event()
    serving = Serving(server, Client(""), threading.Thread(target=lambda: None))

    def on_ready(url: str) -> None:
        serving.client.url = url
        ready.set()

    def run() -> None:
        try:
            serving.result.append(asyncio.run(server.run(on_ready)))
        except BaseException as error:
            serving.result.append(error)
            raise
        finally:
            ready.set()

    serving.thread = threading.Thread(target=run, daemon=True)
    serving.thread.start()
    assert ready.wait(60)
    assert serving.client.url, serving.result
    return serving


@contextmanager
def serving(runtime: EmbeddedRuntime | None = None, config: Config = CONFIG, **options: Any) -> Iterator[Serving]:
    """A server whose engine is a thread; every slot must be free in the end."""
    runtime = runtime or tiny_runtime()
    running = start(server_on(runtime, config, replace(OPTIONS, **options)))
    try:
        yield running
    finally:
        assert running.stop() == 0
    runtime.engine.check()
    assert runtime.engine.slots.num_free == runtime.engine.options.num_slots
