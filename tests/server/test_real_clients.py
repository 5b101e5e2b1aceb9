"""Clients that others wrote: OpenAI's, and schemathesis, which makes requests of the OpenAPI document."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
from lightspec_lightllm.config import Config, ModelConfig
from lightspec_lightllm.engine import EngineOptions, SamplingParams
from tests.server.serving import Serving, alone, serving, tiny_runtime

pytestmark = pytest.mark.slow

QUESTIONS = ["Write a haiku about rivers.", "Count to ten.", "Say é and €.", "Who was Ada Lovelace?"]


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    with serving(tiny_runtime(num_slots=4096)) as started:
        yield started


def openai_client(running: Serving) -> Any:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    return openai.OpenAI(base_url=f"{running.client.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("concurrency", [1, 8, 32])
def test_openais_client_streams_what_it_gets_whole_with_the_right_usage(running: Serving, concurrency: int) -> None:
    client = openai_client(running)
    prompts = [f"the {'an ' * (index % 7)}x{index}" for index in range(2 * concurrency)]
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "seed": 7, "temperature": 1.1}

    def whole(prompt: str) -> tuple[str, str, Any]:
        chat = client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **fields)
        (choice,) = chat.choices
        return choice.message.content, choice.finish_reason, chat.usage.model_dump(exclude_unset=True)

    def streamed(prompt: str) -> tuple[str, str, Any]:
        text, reason, usage = "", "", None
        for chunk in client.chat.completions.create(
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            stream_options={"include_usage": True},
            **fields,
        ):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
            usage = chunk.usage or usage
        assert usage is not None
        return text, reason, usage.model_dump(exclude_unset=True)

    with ThreadPoolExecutor(concurrency) as pool:
        wholes = list(pool.map(whole, prompts))
        streams = list(pool.map(streamed, prompts))
    assert wholes == streams
    for prompt, (text, reason, usage) in zip(prompts, wholes, strict=True):
        expected = alone(prompt, SamplingParams(max_tokens=40, seed=7, temperature=1.1), chat=True)
        assert (text, reason) == (expected.text, expected.finish_reason)
        assert usage["prompt_tokens"] == expected.prompt_length
        assert usage["completion_tokens"] == expected.num_generated


def test_openais_client_raises_its_own_errors(running: Serving) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    client = openai_client(running)
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.completions.create(model="gpt-4", prompt="an")
    with pytest.raises(openai.BadRequestError, match="context is 256"):
        client.completions.create(model="tiny", prompt="an", max_tokens=1000)
    assert client.models.list().data[0].id == "tiny"


def test_malformed_requests_get_4xx_while_a_good_client_is_served(running: Serving) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    client, done, good = running.client, threading.Event(), []
    expected = client.post("/v1/completions", {"prompt": "the an", "max_tokens": 8}).json["choices"]

    def serve_on() -> None:
        while not done.is_set():
            good.append(
                client.post("/v1/completions", {"prompt": "the an", "max_tokens": 8}).json["choices"] == expected
            )

    thread = threading.Thread(target=serve_on)
    thread.start()
    try:
        words = ["run", f"{client.url}/openapi.json", "--mode", "negative", "--max-examples", "150", "--seed", "1"]
        words += ["--checks", "not_a_server_error,negative_data_rejection,response_schema_conformance", "--no-color"]
        words += ["--phases", "examples,fuzzing", "--continue-on-failure"]
        command = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
        environment = os.environ | {"PYTHONWARNINGS": "ignore"}
        ran = subprocess.run(
            [sys.executable, "-c", command, *words], capture_output=True, text=True, check=False, env=environment
        )
    finally:
        done.set()
        thread.join()
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert len(good) > 5
    assert all(good)


@pytest.mark.real_model
def test_sixteen_clients_get_the_text_of_the_engine_alone_from_the_real_model() -> None:
    """In float32, where a text cannot hang on the rows that happen to be in the batch."""
    config = Config(model=ModelConfig(path=None), engine=EngineOptions(weights="float32", threads=1))
    runtime = EmbeddedRuntime.open(config)
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=11)
    expected = []
    for question in QUESTIONS:
        sequence, rounds = runtime.submit(runtime.engine.tokenizer.chat(question), params), runtime.round("off")
        while sequence.finish_reason is None:
            rounds.step()
        expected.append(sequence.text)
    runtime.engine.take_finished()
    with serving(runtime, config) as started:

        def ask(index: int) -> str:
            body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTIONS[index % len(QUESTIONS)]}]}
            body |= {"max_tokens": 24, "temperature": 0.8, "seed": 11}
            reply = started.client.post("/v1/chat/completions", body)
            return str(reply.json["choices"][0]["message"]["content"])

        started.client.timeout = 600
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(16)))
    assert answers == expected * 4
