"""The Python API."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lightspec_lightllm.config import Config, ModelConfig
from lightspec_lightllm.engine import EngineOptions, SamplingParams
from lightspec_lightllm.errors import ConfigError, RequestError
from lightspec_lightllm.pipeline import MTPPipeline
from tests.engine.tiny_llama import write_tiny_gguf
from tests.server.serving import CONFIG, Client, alone, tiny_runtime


@pytest.fixture
def pipeline() -> MTPPipeline:
    return MTPPipeline(tiny_runtime(), CONFIG)


def test_generate_is_what_the_engine_says_alone(pipeline: MTPPipeline) -> None:
    expected = alone("the an", SamplingParams(max_tokens=20, temperature=1.0, seed=3), chat=True)
    found = pipeline.generate("the an", max_tokens=20, temperature=1.0, seed=3)
    assert (found.text, list(found.tokens), found.finish_reason) == (
        expected.text,
        expected.generated,
        expected.finish_reason,
    )
    assert found.prompt_tokens == expected.prompt_length
    assert 1 + sum(found.accept_lengths) == len(found.tokens)
    turns = [{"role": "user", "content": "the an"}]
    assert pipeline.generate(turns, max_tokens=20, temperature=1.0, seed=3).tokens == found.tokens


def test_a_list_is_answered_together_and_in_order(pipeline: MTPPipeline) -> None:
    prompts = ["the an", "then", "a then an"]
    together = pipeline.generate(prompts, max_tokens=15)
    assert [one.text for one in together] == [pipeline.generate(prompt, max_tokens=15).text for prompt in prompts]


def test_stream_adds_up_to_generate_and_may_be_left(pipeline: MTPPipeline) -> None:
    whole = pipeline.generate("the an", max_tokens=30, ignore_eos=True).text
    assert "".join(pipeline.stream("the an", max_tokens=30, ignore_eos=True)) == whole
    stream = pipeline.stream("the an", max_tokens=200, ignore_eos=True)
    begun = next(stream)
    assert pipeline.generate("the an", max_tokens=30, ignore_eos=True).text == whole  # beside the open stream
    stream.close()  # type: ignore[attr-defined] # a generator
    assert whole.startswith(begun[:1])
    pipeline.runtime.engine.check()
    assert pipeline.runtime.engine.slots.num_free == pipeline.runtime.engine.options.num_slots


def test_bad_prompts_and_parameters_are_named_and_leave_nothing_behind(pipeline: MTPPipeline) -> None:
    with pytest.raises(RequestError, match=r"max_token: expected one of .*max_tokens"):
        pipeline.generate("the an", max_token=3)
    with pytest.raises(RequestError, match="exceeds the context"):
        pipeline.generate(["the", "an " * 300], max_tokens=3)
    assert not pipeline.runtime.engine.has_work
    nothing: list[str] = []
    assert pipeline.generate(nothing) == []


def test_from_pretrained_takes_a_file_a_configuration_and_overrides(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "small.gguf")
    config = Config(engine=EngineOptions(threads=1, num_slots=512, max_context=200, max_rows=16))
    with pytest.raises(ConfigError, match="strategy: expected"):
        MTPPipeline.from_pretrained(model, config=config, strategy="best", max_draft_steps=3)
    pipeline = MTPPipeline.from_pretrained(model, config=config, strategy="fixed:2", max_draft_steps=3, drafter="ngram")
    assert pipeline.config.planner.strategy == "fixed:2"
    assert pipeline.config.model == ModelConfig(path=str(model))
    assert len(pipeline.generate("the an", max_tokens=9, ignore_eos=True).tokens) == 9


def test_serve_answers_with_what_is_loaded(pipeline: MTPPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightspec_lightllm.server import command

    whole = pipeline.generate("the an", max_tokens=10).text
    urls: list[str] = []
    ready = threading.Event()
    run = command.Server.run

    async def watched(self: command.Server) -> int:
        def on_ready(url: str) -> None:
            urls.extend([url])
            servers.append(self)
            ready.set()

        return await run(self, on_ready)

    servers: list[command.Server] = []
    monkeypatch.setattr(command.Server, "run", watched)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(pipeline.serve(port=0)))
    thread.start()
    assert ready.wait(30)
    body = {"messages": [{"role": "user", "content": "the an"}], "max_tokens": 10}
    reply = Client(urls[0]).post("/v1/chat/completions", body)
    assert reply.json["choices"][0]["message"]["content"] == whole
    servers[0].stop()
    thread.join(30)
    assert codes == [0]
    assert pipeline.generate("the an", max_tokens=10).text == whole
