"""OpenAI's API: the text is the engine's, streamed or not, and the counts are right."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.engine import SamplingParams
from tests.server.serving import Client, alone, serving

SAMPLED = {"temperature": 1.1, "top_p": 0.95, "top_k": 30, "seed": 5, "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving() as running:
        yield running.client


def complete(client: Client, prompt: Any, **fields: Any) -> Any:
    reply = client.post("/v1/completions", {"model": "tiny", "prompt": prompt} | fields)
    assert reply.status == 200, reply.body
    return reply.json


def chat(client: Client, content: Any, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}]} | fields
    reply = client.post("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return reply.json


def test_a_completion_is_the_engines_text_with_the_right_counts(client: Client) -> None:
    expected = alone("the an then the an", SamplingParams(max_tokens=30))
    answer = complete(client, "the an then the an", max_tokens=30)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": expected.finish_reason}
    ]
    assert answer["usage"] == {
        "prompt_tokens": expected.prompt_length,
        "completion_tokens": expected.num_generated,
        "total_tokens": len(expected.tokens),
    }


def test_sixteen_clients_at_once_get_the_text_that_each_gets_alone(client: Client) -> None:
    prompts = [f"the {'an ' * count}x{count}" for count in range(16)]
    expected = [
        alone(prompt, SamplingParams(max_tokens=40, temperature=1.1, top_p=0.95, top_k=30, seed=5, ignore_eos=True))
        for prompt in prompts
    ]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda prompt: complete(client, prompt, **SAMPLED), prompts))
    assert [answer["choices"][0]["text"] for answer in answers] == [sequence.text for sequence in expected]


def test_streamed_text_is_the_text_that_is_not_streamed(client: Client) -> None:
    whole = complete(client, "the an é", n=3, **SAMPLED)
    events = list(
        client.events(
            "/v1/completions",
            {"prompt": "the an é", "n": 3, "stream": True, "stream_options": {"include_usage": True}} | SAMPLED,
        )
    )
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert all(event["usage"] is None for event in events)
    for choice in whole["choices"]:
        pieces = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [piece["finish_reason"] for piece in pieces][-1] == choice["finish_reason"]
        assert all(piece["finish_reason"] is None for piece in pieces[:-1])
    assert len({event["id"] for event in events}) == 1


def test_choice_i_has_seed_plus_i(client: Client) -> None:
    together = complete(client, "the an", n=3, **SAMPLED)["choices"]
    apart = [complete(client, "the an", **SAMPLED | {"seed": 5 + index})["choices"][0] for index in range(3)]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in apart]


def test_without_a_seed_answers_differ(client: Client) -> None:
    fields = {key: value for key, value in SAMPLED.items() if key != "seed"}
    assert len({choice["text"] for choice in complete(client, "the an", n=4, **fields)["choices"]}) == 4


def test_several_prompts_as_text_or_tokens_make_choices_in_order(client: Client) -> None:
    texts = ["the an", "then", "a then the"]
    tokens = [alone(text, SamplingParams(max_tokens=1)).tokens[:-1] for text in texts]
    whole = complete(client, texts, max_tokens=6, n=2)
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert complete(client, tokens, max_tokens=6, n=2)["choices"] == whole["choices"]
    assert whole["usage"]["prompt_tokens"] == sum(map(len, tokens))
    assert whole["choices"][2] | {"index": 0} == complete(client, texts[1], max_tokens=6)["choices"][0]
    assert complete(client, tokens[0], max_tokens=6)["choices"][0] == whole["choices"][0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_is_not_part_of_it(client: Client, stream: bool) -> None:
    text = complete(client, "the an", **SAMPLED)["choices"][0]["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    expected = text[: text.index(stop)]
    body = {"prompt": "the an", "stop": [stop, "☃"], "stream": stream} | SAMPLED
    if stream:
        parts = [event["choices"][0] for event in client.events("/v1/completions", body) if event != "[DONE]"]
    else:
        parts = client.post("/v1/completions", body).json["choices"]
    assert "".join(part["text"] for part in parts) == expected
    assert parts[-1]["finish_reason"] == "stop"


def test_chat_is_the_models_template_and_streams_its_role_first(client: Client) -> None:
    expected = alone("the an", SamplingParams(max_tokens=20), chat=True)
    answer = chat(client, "the an", max_completion_tokens=20)
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "an"}]
    assert chat(client, parts, max_tokens=20)["choices"] == answer["choices"]
    body = {"messages": [{"role": "user", "content": "the an"}], "max_tokens": 20, "stream": True}
    *events, done = client.events("/v1/chat/completions", body)
    assert done == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text
    assert events[-1]["choices"][0]["finish_reason"] == expected.finish_reason


def test_log_probabilities_are_those_of_the_model(client: Client) -> None:
    fields = SAMPLED | {"max_tokens": 12}
    (choice,) = complete(client, "the an", logprobs=5, **fields)["choices"]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {12}
    for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert own <= max(top.values()) <= 0.0
        assert sum(np.exp(list(top.values()))) <= 1.0 + 1e-9
        assert token not in top or top[token] == pytest.approx(own)
    message = [{"role": "user", "content": "the an"}]
    body = {"messages": message, "logprobs": True, "top_logprobs": 64 - 44, **fields}
    (choice,) = client.post("/v1/chat/completions", body).json["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 12
    assert all(len(entry["top_logprobs"]) == 20 for entry in content)
    text = b"".join(bytes(entry["bytes"]) for entry in content if not entry["token"].startswith("<"))
    assert text.decode("utf-8", "replace") == choice["message"]["content"]


def test_streamed_log_probabilities_have_the_offsets_of_the_whole(client: Client) -> None:
    body = {"prompt": "the an é", "logprobs": 2} | SAMPLED
    whole = client.post("/v1/completions", body).json["choices"][0]["logprobs"]
    events = [event for event in client.events("/v1/completions", body | {"stream": True}) if event != "[DONE]"]
    pieces = [event["choices"][0]["logprobs"] for event in events]
    for name in ("tokens", "text_offset", "token_logprobs"):
        joined = [value for piece in pieces for value in piece[name]]
        assert joined == (pytest.approx(whole[name], abs=1e-4) if name == "token_logprobs" else whole[name])


def test_detail_tells_what_every_round_did(client: Client) -> None:
    answer = complete(client, "the an the an the an", max_tokens=40, ignore_eos=True, lightspec={"detail": True})
    (choice,) = answer["choices"]
    detail = choice["lightspec"]
    assert 1 + sum(detail["accept_lengths"]) == answer["usage"]["completion_tokens"] == 40
    rows = list(zip(detail["accept_lengths"], detail["verified"], detail["drafted"], strict=True))
    assert all(1 <= length <= 1 + verified and verified <= drafted for length, verified, drafted in rows)
    body = {"prompt": "the an the an the an", "max_tokens": 40, "ignore_eos": True, "stream": True}
    *events, _ = client.events("/v1/completions", body | {"lightspec": {"detail": True}})
    assert 1 + sum(events[-1]["choices"][0]["lightspec"]["accept_lengths"]) == 40
    assert all("lightspec" not in event["choices"][0] for event in events[:-1])


def test_models_names_what_is_served(client: Client) -> None:
    (model,) = client.get("/v1/models").json["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 256)
    assert client.get("/v1/models/tiny").json == model
    assert client.get("/v1/models/gpt-4").status == 404


def test_what_a_request_leaves_out_is_the_configurations(client: Client) -> None:
    answer = complete(client, "the an", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == SamplingParams().max_tokens
    long = "an " * 110
    answer = complete(client, long, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 256  # less where the context is full
