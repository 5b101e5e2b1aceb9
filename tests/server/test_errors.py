"""What cannot be served is answered in the API's form, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.serving import Client, serving

HI = [{"role": "user", "content": "the"}]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(max_body_mb=2) as running:
        yield running.client


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": None}, "messages", "valid list"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages.0.role", "'king'"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type", "'text'"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "surrogate"),
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature", "finite"),
        ({"temperature": float("inf")}, "temperature", "finite"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": True}, "top_p", "valid number"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"max_tokens": 1e30}, "max_tokens", "integer"),
        ({"max_tokens": 10**30}, "max_tokens", "context is 256"),
        ({"max_tokens": 255}, "max_tokens", "context is 256"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "newer name"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 129}, "n", "less than or equal to 128"),
        ({"seed": 2**63}, "seed", "less than or equal"),
        ({"seed": 10**4000}, "seed", "less than or equal"),
        ({"stop": ["a", ""]}, "stop.1", "at least 1"),
        ({"stop": [str(number) for number in range(17)]}, "stop", "at most 16"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"logprobs": 3}, "logprobs", "valid boolean"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "supports only 0"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "supports only {}"),
        ({"tools": [{"type": "function"}]}, "tools", "supports only []"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "'text'"),
        ({"lightspec": {"details": True}}, "lightspec.details", "not known"),
        ({"temprature": 1}, "temprature", "not known"),
    ],
)
def test_a_bad_field_is_named(client: Client, fields: dict[str, Any], param: str, word: str) -> None:
    reply = client.post("/v1/chat/completions", {"messages": HI} | fields)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param
    assert word in reply.error["message"]
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "required"),
        (b"{", "not JSON"),
        (b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1', "not JSON"),
        (b"[]", "dictionary"),
        (b"null", "dictionary"),
        (b"\xff\xfe", ""),
        (b'{"messages": ' + b"[" * 50_000 + b"}", ""),
        (b'{"seed": ' + b"9" * 5000 + b"}", ""),
    ],
)
def test_a_body_that_is_no_request_is_400(client: Client, body: bytes, word: str) -> None:
    reply = client.post("/v1/chat/completions", body)
    assert reply.status == 400, reply.body
    assert word in reply.error["message"]


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ("", "empty"),
        ([], "at least 1"),
        ([[]], "empty"),
        (["the", ""], "empty"),
        ([-1], "greater than or equal to 0"),
        ([64], "0..63"),
        ([True], "valid"),
        ([1, "the"], "valid"),
        ({"a": 1}, "valid"),
        ("an " * 300, "no room"),
        ("x" * 1_000_000, "characters are more"),
        (["the"] * 10_000, "asks for 10000 sequences"),
    ],
)
def test_a_bad_prompt_is_named(client: Client, prompt: Any, word: str) -> None:
    reply = client.post("/v1/completions", {"prompt": prompt})
    assert reply.status == 400, reply.body
    assert word in reply.error["message"]
    assert len(reply.body) < 1000


def test_a_long_prompt_and_an_unknown_model_have_openais_codes(client: Client) -> None:
    assert client.post("/v1/completions", {"prompt": "an " * 300}).error["code"] == "context_length_exceeded"
    reply = client.post("/v1/completions", {"prompt": "an", "model": "gpt-4"})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")


def test_a_body_that_is_too_large_is_413_announced_or_not(client: Client) -> None:
    body = b'{"prompt": "' + b"x" * 2_000_001 + b'"}'
    assert client.post("/v1/completions", body).status == 413
    connection = client.open("GET", "/health")
    connection.getresponse().read()
    chunks = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    connection.request("POST", "/v1/completions", chunks, {"Content-Type": "application/json"}, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert b"larger than 2000000 bytes" in response.read()
    connection.close()


def test_paths_and_methods_that_do_not_exist_are_in_the_same_form(client: Client) -> None:
    assert client.get("/v1/nothing").error["type"] == "invalid_request_error"
    reply = client.get("/v1/completions")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.error["message"] == "Method Not Allowed"
    assert client.call("POST", "/v1/completions", b"prompt=x", **{"Content-Type": "text/plain"}).status == 400


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["prompt", "messages", "max_tokens", "n", "stop", "seed", "temperature", "logprobs", "stream", "model", "lightspec"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(["completions", "chat/completions"]), fields=st.dictionaries(names, values, max_size=4))
def test_any_values_are_served_or_refused_and_never_an_internal_error(
    client: Client, path: str, fields: dict[str, Any]
) -> None:
    reply = client.post(f"/v1/{path}", {"max_tokens": 1} | fields)
    assert reply.status in {200, 400, 404}, reply.body
    if reply.status != 200:
        assert reply.error["message"]
