"""Many clients, clients that leave, a full queue, an end while answers are in flight."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lightspec_lightllm.decode import Round
from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.server import command
from lightspec_lightllm.server.engine_client import EngineClient
from tests.server.serving import Client, alone, serving, tiny_runtime

LONG = {"prompt": "the an", "max_tokens": 240, "ignore_eos": True}


def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def leave(client: Client, path: str, body: Any, *, after: int) -> None:
    """Go away in the middle of an answer: after some lines of a stream, or at once."""
    connection = client.open("POST", path, body)
    if after:
        response = connection.getresponse()
        for _ in range(after):
            response.readline()
        response.close()
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slots(stream: bool) -> None:
    runtime = tiny_runtime(max_context=100_000, num_slots=200_000)
    runtime.engine.max_context = 400  # the model's positions
    with serving(runtime) as running:
        body = LONG | {"stream": stream, "max_tokens": 390, "n": 4}
        leave(running.client, "/v1/completions", body, after=3 if stream else 0)
        until(lambda: running.client.status()["ended"]["cancelled"] == 4)
        until(lambda: running.client.status()["load"] == {"running": 0, "waiting": 0, "free_slots": 200_000})
        assert running.client.status()["in_flight"] == 0


def test_texts_are_those_of_each_alone_while_others_come_and_go() -> None:
    rng = random.Random(3)
    sampled = SamplingParams(max_tokens=50, temperature=1.2, seed=9, ignore_eos=True)
    prompts = [f"the {'an ' * rng.randrange(8)}x{index}" for index in range(12)]
    expected = [alone(prompt, sampled).text for prompt in prompts]
    fields = {"max_tokens": 50, "temperature": 1.2, "seed": 9, "ignore_eos": True}
    with serving(tiny_runtime(num_slots=700)) as running:
        client, done = running.client, threading.Event()

        def disturb(seed: int) -> None:
            own = random.Random(seed)
            while not done.is_set():
                path, after = own.choice(["/v1/completions", "/generate_stream"]), own.randrange(0, 12)
                body = LONG | {"stream": True} if path.startswith("/v1") else {"inputs": "the an"}
                leave(client, path, body, after=after)

        threads = [threading.Thread(target=disturb, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        try:
            with ThreadPoolExecutor(6) as pool:
                answers = list(
                    pool.map(lambda prompt: client.post("/v1/completions", {"prompt": prompt} | fields), prompts)
                )
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert [answer.json["choices"][0]["text"] for answer in answers] == expected
        until(lambda: client.status()["load"]["free_slots"] == 700)


def test_a_full_queue_is_429_with_the_time_to_come_back() -> None:
    with serving(tiny_runtime(max_requests=2), max_waiting=1) as running:
        client = running.client
        streams = [client.events("/v1/completions", LONG | {"stream": True}) for _ in range(3)]
        for stream in streams[:2]:
            next(stream)
        threading.Thread(target=lambda: next(streams[2])).start()
        until(lambda: client.status()["in_flight"] == 3)
        reply = client.post("/v1/completions", LONG)
        assert (reply.status, reply.error["code"]) == (429, "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        for stream in streams[:2]:
            stream.close()
        until(lambda: client.status()["in_flight"] <= 1)
        assert client.post("/v1/completions", {"prompt": "an", "max_tokens": 2}).status == 200


def test_a_server_that_is_told_to_end_finishes_what_is_in_flight() -> None:
    expected = alone("the an", SamplingParams(max_tokens=240, ignore_eos=True)).text
    with serving() as running:
        client = running.client
        watcher = client.open("GET", "/lightspec/events")  # would keep a server up for ever
        stream = client.events("/v1/completions", LONG | {"stream": True})
        pieces = [next(stream)]
        running.server.stop()
        pieces += [piece for piece in stream if piece != "[DONE]"]
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == expected
        watcher.getresponse().read()
        watcher.close()
        with pytest.raises(OSError, match=r"refused|reset"):
            client.get("/health")


@pytest.fixture
def slow_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Round.step

    def slow(rounds: Round) -> Any:
        time.sleep(0.1)
        return step(rounds)

    monkeypatch.setattr(Round, "step", slow)


@pytest.mark.usefixtures("slow_rounds")
def test_what_a_drain_has_no_time_for_is_answered_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with serving(drain_seconds=1) as running, ThreadPoolExecutor() as pool:
        client = running.client
        whole = pool.submit(client.post, "/v1/completions", LONG)
        stream = client.events("/v1/completions", LONG | {"stream": True})
        next(stream)
        running.server.stop()
        *_, last = stream
        assert "the server ended" in last["error"]["message"]
        assert whole.result().status == 503
        assert "the server ended" in whole.result().error["message"]
    assert "2 sequences did not end within 1 s" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.usefixtures("slow_rounds")
def test_a_client_that_does_not_even_read_the_error_is_left_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command, "GOODBYE_SECONDS", 0)
    monkeypatch.setattr(EngineClient, "abandon", lambda _: None)  # as if it never arrived
    with serving(drain_seconds=1) as running:
        stream = running.client.events("/v1/completions", LONG | {"stream": True})
        next(stream)
        running.server.stop()
        assert "[DONE]" not in list(stream)
    assert "Traceback" not in caplog.text
