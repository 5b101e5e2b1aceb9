"""The three APIs that can be measured: where a request goes, what it holds, and what an event of its stream says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightspec_lightllm.client.options import SamplingOptions

Body = dict[str, Any]


class Piece(NamedTuple):
    """One event of a stream. Counts are those of the whole request so far; None: the event does not say."""

    text: str = ""
    thought: str = ""
    """Reasoning, which some servers stream beside the answer: it takes tokens and is no part of the answer."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Api:
    """One way to ask for a streamed answer.

    Attributes:
        path: below the server's URL.
        body: of a request: (model, prompt, sampling parameters, the request's number, whether to ask for token counts
            in the stream).
        read: an event; raises KeyError, TypeError, IndexError or AttributeError for one of another form.
    """

    name: str
    path: str
    body: Callable[[str, str, SamplingOptions, int, bool], Body]
    read: Callable[[Body], Piece]


def _openai_body(model: str, sampling: SamplingOptions, number: int, usage: bool) -> Body:
    body: Body = {
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stream": True,
    }
    if usage:
        body["stream_options"] = {"include_usage": True}
    if sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    if sampling.temperature > 0:
        body["seed"] = sampling.seed + number
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    return body


def _chat_body(model: str, prompt: str, sampling: SamplingOptions, number: int, usage: bool) -> Body:
    messages = [{"role": "user", "content": prompt}]
    return _openai_body(model, sampling, number, usage) | {"messages": messages} | sampling.extra_body


def _completion_body(model: str, prompt: str, sampling: SamplingOptions, number: int, usage: bool) -> Body:
    return _openai_body(model, sampling, number, usage) | {"prompt": prompt} | sampling.extra_body


def _lightllm_body(_model: str, prompt: str, sampling: SamplingOptions, number: int, _usage: bool) -> Body:
    parameters: Body = {"max_new_tokens": sampling.max_tokens, "do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        parameters |= {"temperature": sampling.temperature, "seed": sampling.seed + number}
    if sampling.top_p is not None:
        parameters["top_p"] = sampling.top_p
    if sampling.ignore_eos:
        parameters["ignore_eos"] = True
    return {"inputs": prompt, "parameters": parameters | sampling.extra_body}


def _read_openai(event: Body, text_of: Callable[[Body], tuple[str, str]]) -> Piece:
    if event.get("error"):
        return Piece(error=message_of(event))
    usage = event.get("usage") or {}
    text = thought = ""
    finish_reason = None
    if event["choices"]:  # empty in the event that brings the usage alone
        choice = event["choices"][0]
        text, thought = text_of(choice)
        finish_reason = choice.get("finish_reason")
    return Piece(text, thought, finish_reason, usage.get("prompt_tokens"), usage.get("completion_tokens"))


def _delta(choice: Body) -> tuple[str, str]:
    delta = choice["delta"]
    return delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""


def _text(choice: Body) -> tuple[str, str]:
    return choice["text"] or "", ""


def _read_chat(event: Body) -> Piece:
    return _read_openai(event, _delta)


def _read_completion(event: Body) -> Piece:
    return _read_openai(event, _text)


def _read_lightllm(event: Body) -> Piece:
    if event.get("error"):
        return Piece(error=message_of(event))
    token = event["token"]
    finish_reason = (event.get("finish_reason") or "unknown") if event["finished"] else None
    return Piece(
        token["text"],
        "",
        finish_reason,
        token.get("prompt_tokens") or None,
        token.get("count_output_tokens") or None,
    )


def message_of(answer: Any) -> str:
    """What an error answer says: OpenAI's ``{"error": {"message": ...}}``, FastAPI's ``detail``, or all of it."""
    if isinstance(answer, dict):
        for field in ("error", "message", "detail"):
            if answer.get(field):
                return message_of(answer[field])
    return answer if isinstance(answer, str) else repr(answer)


APIS = {
    api.name: api
    for api in (
        Api("openai-chat", "/v1/chat/completions", _chat_body, _read_chat),
        Api("openai", "/v1/completions", _completion_body, _read_completion),
        Api("lightllm", "/generate_stream", _lightllm_body, _read_lightllm),
    )
}
