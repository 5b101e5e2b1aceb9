"""One request to a real socket: every API, every way to fail, every way to count tokens."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from lightspec_lightllm.client.apis import APIS
from lightspec_lightllm.client.options import ClientOptions, SamplingOptions
from lightspec_lightllm.client.request import RequestOutput, Sender
from lightspec_lightllm.client.server import Server, check_installed
from lightspec_lightllm.errors import ConfigError, EndpointError
from tests.client.dummy_server import DummyServer, Fault, running

if TYPE_CHECKING:
    import aiohttp

CHAT = APIS["openai-chat"]


def ask(dummy: DummyServer, number: int = 0, **options: Any) -> RequestOutput:
    async def once() -> RequestOutput:
        async with Server(ClientOptions(**({"url": dummy.url} | options))) as server:
            return await (await server.sender()).send(number, "Hello")

    with running(dummy):
        options = {"url": dummy.url} | options
        return asyncio.run(once())


@pytest.mark.parametrize("api", APIS)
def test_an_answer_is_read_whole_and_its_tokens_are_those_that_the_server_counts(api: str) -> None:
    found = ask(DummyServer(num_events=3, tokens_per_event=2), api=api)
    assert found.text == "one two three four five six "
    assert (found.output_tokens, found.prompt_tokens, found.counted_by) == (6, 7, "usage")
    assert len(found.itl) == 2  # the event that names the role, the one of the end and the usage bring no text
    assert 0 < found.ttft <= found.latency
    assert found.error == ""
    assert found.finish_reason == ("length" if api == "lightllm" else "stop")


@pytest.mark.parametrize("api", APIS)
def test_without_the_servers_count_events_are_counted(api: str) -> None:
    found = ask(DummyServer(num_events=3, tokens_per_event=2, usage=False), api=api)
    assert (found.output_tokens, found.prompt_tokens, found.counted_by) == (3, None, "events")


@pytest.mark.parametrize("api", APIS)
def test_a_tokenizer_counts_where_the_server_does_not(api: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = ask(DummyServer(num_events=3, tokens_per_event=2, usage=False), api=api, tokenizer=tmp_path)
    assert (found.output_tokens, found.prompt_tokens, found.counted_by) == (6, 1, "tokenizer")


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no tokenizer"):
        ask(DummyServer(), tokenizer=tmp_path)
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        ask(DummyServer(), tokenizer=tmp_path / "nowhere")


@pytest.mark.parametrize("api", APIS)
def test_what_is_sent_is_what_was_asked_for(api: str) -> None:
    dummy = DummyServer()
    sampling = SamplingOptions(max_tokens=9, temperature=0.5, top_p=0.9, seed=3, ignore_eos=True, extra_body={"x": 1})
    ask(dummy, 4, api=api, sampling=sampling, headers={"X-Team": "a"})
    body = dummy.bodies[0]
    shared = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "ignore_eos": True, "x": 1}
    if api == "lightllm":
        assert body == {"inputs": "Hello", "parameters": shared | {"max_new_tokens": 9, "do_sample": True}}
    else:
        prompt = {"messages": [{"role": "user", "content": "Hello"}]} if api == "openai-chat" else {"prompt": "Hello"}
        stream = {"stream": True, "stream_options": {"include_usage": True}, "model": "dummy", "max_tokens": 9}
        assert body == shared | stream | prompt
    assert dummy.headers[0]["x-team"] == "a"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("refused", "HTTP 400 Status: prompt is too long"),
        ("busy", "HTTP 429 Status: queue is full"),
        ("dropped", "broken stream: the connection ended in the middle of the answer"),
        ("unended", "broken stream: it ended without the reason of its end"),
        ("error event", "error in the stream: out of memory"),
        ("not json", "broken stream: not an event of the API openai-chat: {oops"),
        ("other form", 'broken stream: not an event of the API openai-chat: {"object": "cat"}'),
        ("not a stream", "expected a stream of events (text/event-stream), got application/json: {'choices': []}"),
        ("silent", "timed out after 0.2 s"),
    ],
)
def test_a_failure_is_an_output_with_its_reason(fault: Fault, error: str) -> None:
    found = ask(DummyServer(fault=lambda _: fault), timeout=0.2 if fault == "silent" else 60.0)
    assert found.error == error
    assert not found.succeeded


def test_a_busy_server_is_asked_again_as_often_as_allowed() -> None:
    faults: Callable[[int], Fault | None] = lambda number: "busy" if number < 2 else None  # noqa: E731
    found = ask(DummyServer(fault=faults), max_retries=2)
    assert (found.error, found.retries) == ("", 2)
    found = ask(DummyServer(fault=faults), max_retries=1)
    assert (found.error, found.retries) == ("HTTP 429 Status: queue is full", 1)


def test_no_server_and_no_model_are_errors_that_say_what_to_do() -> None:
    dummy = DummyServer()
    with running(dummy):
        pass
    with pytest.raises(EndpointError, match=r"no server answers at http://127\.0\.0\.1:\d+ .*--wait"):
        ask_url(dummy.url)
    with pytest.raises(EndpointError, match=r"names no model \(HTTP 404\); check --url, or give --model"):
        ask(DummyServer(models=False))
    assert ask(DummyServer(models=False), model="mine").error == ""
    assert ask(DummyServer(models=False), api="lightllm").error == ""  # its requests do not name a model


def ask_url(url: str) -> None:
    async def once() -> None:
        async with Server(ClientOptions(url)) as server:
            await server.sender()

    asyncio.run(once())


def test_a_server_that_is_starting_is_waited_for() -> None:
    async def once() -> RequestOutput:
        dummy = DummyServer()
        free = await dummy.serve()
        port = free.sockets[0].getsockname()[1]
        free.close()

        async def start_later() -> asyncio.Server:
            await asyncio.sleep(0.1)
            return await dummy.serve(port)

        later = asyncio.create_task(start_later())
        try:
            async with Server(ClientOptions(f"http://127.0.0.1:{port}", wait=30.0)) as server:
                return await (await server.sender()).send(0, "Hello")
        finally:
            (await later).close()

    assert asyncio.run(once()).succeeded


class FakeStream:
    """A response whose pieces arrive at times of the test's choosing, one second after the other."""

    status, content_type = 200, "text/event-stream"

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.now = 100.0
        self.content = self

    def clock(self) -> float:
        return self.now

    def post(self, *_: object, **__: object) -> "FakeStream":
        return self

    async def __aenter__(self) -> "FakeStream":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.now += 1.0
            yield piece.encode()


def chat_event(text: str | None = None, end: str | None = None) -> str:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    return f"data: {json.dumps({'choices': [{'delta': delta, 'finish_reason': end}]})}\n\n"


def timed(*pieces: str) -> RequestOutput:
    stream = FakeStream(*pieces)
    session = cast("aiohttp.ClientSession", stream)
    return asyncio.run(Sender(session, CHAT, "", "m", SamplingOptions(), clock=stream.clock).send(0, "p", arrived=98.5))


def test_times_are_those_of_text_from_sending_to_the_end_of_the_answer() -> None:
    found = timed(
        chat_event(),  # the role: nothing that a reader could see
        chat_event("a"),
        chat_event("b") + chat_event("c"),  # two events at once
        chat_event("d")[:20],
        chat_event("d")[20:],
        chat_event("", "stop"),
        "data: [DONE]\n\n",  # no part of the answer
    )
    assert (found.ttft, found.itl, found.latency) == (2.0, (1.0, 0.0, 2.0), 6.0)
    assert (found.start, found.queued, found.text) == (100.0, 1.5, "abcd")


def test_an_answer_without_text_is_one_that_ends_at_once() -> None:
    found = timed(chat_event(), chat_event("", "stop"), "data: [DONE]\n\n")
    assert (found.error, found.text, found.output_tokens) == ("", "", 0)
    assert (found.ttft, found.itl, found.latency) == (2.0, (), 2.0)


def test_reasoning_takes_time_and_tokens_and_is_no_part_of_the_answer() -> None:
    thought = 'data: {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": null}]}\n\n'
    found = timed(thought, chat_event("a"), chat_event("", "stop"))
    assert (found.ttft, found.itl, found.text, found.output_tokens) == (1.0, (1.0,), "a", 2)


def test_without_the_http_client_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightspec_lightllm.client.server.version_of", lambda _: None)
    with pytest.raises(ConfigError, match=r"install lightspec_lightllm\[client\]"):
        check_installed()
