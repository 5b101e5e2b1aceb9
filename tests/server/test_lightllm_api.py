"""LightLLM's API: its names, its defaults, its form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightspec_lightllm.engine import SamplingParams
from tests.server.serving import Client, alone, serving


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving() as running:
        yield running.client


def generate(client: Client, inputs: str, **parameters: Any) -> Any:
    reply = client.post("/generate", {"inputs": inputs, "parameters": parameters})
    assert reply.status == 200, reply.body
    return reply.json


def test_an_answer_has_lightllms_form(client: Client) -> None:
    expected = alone("the an", SamplingParams(max_tokens=20))
    answer = generate(client, "the an", max_new_tokens=20)
    logprobs = answer.pop("logprobs")
    assert answer == {
        "generated_text": [expected.text],
        "count_output_tokens": expected.num_generated,
        "finish_reason": expected.finish_reason,
        "prompt_tokens": expected.prompt_length,
    }
    assert [int(token) for entry in logprobs for token in entry] == expected.generated
    assert all(shown["rank"] == 1 for entry in logprobs for shown in entry.values())  # greedy


def test_do_sample_decides_whether_the_rest_counts(client: Client) -> None:
    greedy = generate(client, "the an", max_new_tokens=20)
    ignored = generate(client, "the an", max_new_tokens=20, temperature=1.5, top_k=5, seed=3)
    assert ignored["generated_text"] == greedy["generated_text"]
    params = SamplingParams(max_tokens=20, temperature=1.5, top_k=5, seed=3)
    sampled = generate(client, "the an", max_new_tokens=20, do_sample=True, temperature=1.5, top_k=5, seed=3)
    assert sampled["generated_text"] == [alone("the an", params).text]


def test_without_a_limit_the_answer_fills_the_context(client: Client) -> None:
    answer = generate(client, "the an", ignore_eos=True)
    assert answer["prompt_tokens"] + answer["count_output_tokens"] == 256
    assert answer["finish_reason"] == "length"


def test_several_answers_are_lists(client: Client) -> None:
    answer = generate(client, "the an", max_new_tokens=8, n=2, best_of=2, do_sample=True, seed=1, ignore_eos=True)
    assert len(answer["generated_text"]) == 2
    assert answer["count_output_tokens"] == [8, 8]
    assert answer["finish_reason"] == ["length", "length"]


@pytest.mark.parametrize("stops", [[], ["e"], ["é", "th", " a"]])
def test_the_stream_has_an_event_per_token_and_the_same_text(client: Client, stops: list[str]) -> None:
    parameters = {"max_new_tokens": 60, "do_sample": True, "seed": 4, "temperature": 1.2, "stop_sequences": stops}
    whole = generate(client, "the é an", return_details=True, **parameters)
    events = list(client.events("/generate_stream", {"inputs": "the é an", "parameters": parameters}))
    assert "".join(event["token"]["text"] for event in events) == whole["generated_text"][0]
    assert [event["token"]["id"] for event in events] == [token["id"] for token in whole["tokens"]]
    assert [event["token"]["count_output_tokens"] for event in events] == list(range(1, len(events) + 1))
    assert [event["finished"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["finish_reason"] == whole["finish_reason"]
    assert "".join(token["text"] for token in whole["tokens"]) == whole["generated_text"][0]


def test_detail_tells_what_every_round_did(client: Client) -> None:
    body = {"inputs": "the an the an", "parameters": {"max_new_tokens": 20, "ignore_eos": True}}
    body |= {"lightspec": {"detail": True}}
    assert 1 + sum(client.post("/generate", body).json["lightspec"]["accept_lengths"]) == 20
    *_, last = client.events("/generate_stream", body)
    assert 1 + sum(last["lightspec"]["accept_lengths"]) == 20


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "inputs"),
        ({"inputs": 3}, "inputs"),
        ({"inputs": "", "parameters": {}}, "inputs"),
        ({"inputs": "an", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"inputs": "an", "parameters": {"repetition_penalty": 1.2}}, "parameters.repetition_penalty"),
        ({"inputs": "an", "parameters": {"regular_constraint": "a+"}}, "parameters.regular_constraint"),
        ({"inputs": "an", "parameters": {"top_k": -2}}, "parameters.top_k"),
        ({"inputs": "an", "parameters": {"n": 2, "best_of": 3}}, "parameters.n"),
        ({"inputs": "an", "parameters": {"maxx": 2}}, "parameters.maxx"),
        ({"inputs": "an", "multimodal_params": {"images": [{}]}}, "multimodal_params"),
    ],
)
def test_what_this_engine_cannot_do_is_refused_by_name(client: Client, body: Any, param: str) -> None:
    for path in ("/generate", "/generate_stream"):
        reply = client.post(path, body)
        assert reply.status == 400
        assert reply.error["param"] == param


def test_a_stream_has_one_answer(client: Client) -> None:
    reply = client.post("/generate_stream", {"inputs": "an", "parameters": {"best_of": 2}})
    assert (reply.status, reply.error["param"]) == (400, "parameters.n")
