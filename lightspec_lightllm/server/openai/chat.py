"""``/v1/chat/completions``: whole answers and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from lightspec_lightllm.engine.tokenizer import Tokenizer
from lightspec_lightllm.server.collected import collect
from lightspec_lightllm.server.engine_client import Generation
from lightspec_lightllm.server.intake import Intake, Wanted
from lightspec_lightllm.server.messages import Delta
from lightspec_lightllm.server.openai.completions import DONE, detail_of, usage_of
from lightspec_lightllm.server.openai.request import ChatRequest, fields_of
from lightspec_lightllm.server.openai.response import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    Head,
    TokenLogprob,
    TopLogprob,
)


async def submit(intake: Intake, request: ChatRequest) -> Generation:
    """Raises ApiError where the request cannot be served."""
    intake.check_model(request.model)
    prompt = await intake.chat([message.plain for message in request.messages])
    return intake.generate(
        [prompt],
        Wanted(
            fields_of(request),
            max_tokens=request.limit,
            seed=request.seed,
            copies=request.n or 1,
            top_logprobs=request.num_logprobs,
            detail=request.lightspec is not None and request.lightspec.detail,
        ),
    )


async def answer(intake: Intake, request: ChatRequest, generation: Generation) -> ChatCompletion:
    """All of it at once."""
    head, tokenizer = Head.new("chatcmpl", intake.served_name), intake.info.tokenizer
    deltas = await collect(generation)
    choices = [
        ChatChoice(
            index=index,
            message=ChatMessage(role="assistant", content=delta.text, refusal=None),
            logprobs=_logprobs(delta, tokenizer),
            finish_reason=delta.finish_reason,
            **detail_of(delta),
        )
        for index, delta in enumerate(deltas)
    ]
    usage = usage_of(generation, request.n or 1, sum(len(delta.tokens) for delta in deltas))
    return ChatCompletion(object="chat.completion", choices=choices, usage=usage, **head.model_dump())


async def events(intake: Intake, request: ChatRequest, generation: Generation) -> AsyncIterator[str]:
    """As it grows; each choice begins with its role."""
    head, tokenizer = Head.new("chatcmpl", intake.served_name).model_dump(), intake.info.tokenizer
    if request.include_usage:
        head["usage"] = None
    begun: set[int] = set()
    num_tokens = 0

    def chunk(*choices: ChatChunkChoice) -> str:
        return ChatChunk(object="chat.completion.chunk", choices=list(choices), **head).to_json()

    async for index, delta in generation:
        num_tokens += len(delta.tokens)
        if index not in begun:
            begun.add(index)
            role = ChatMessage(role="assistant", content="", refusal=None)
            yield chunk(ChatChunkChoice(index=index, delta=role, logprobs=None, finish_reason=None))
        logprobs = _logprobs(delta, tokenizer)
        if delta.text or logprobs or delta.finish_reason:
            content: ChatMessage | dict[str, Any] = ChatMessage(content=delta.text) if delta.text else {}
            yield chunk(
                ChatChunkChoice(
                    index=index,
                    delta=content,
                    logprobs=logprobs,
                    finish_reason=delta.finish_reason,
                    **detail_of(delta),
                )
            )
    if request.include_usage:
        usage = usage_of(generation, request.n or 1, num_tokens)
        yield ChatChunk(object="chat.completion.chunk", choices=[], **head | {"usage": usage}).to_json()
    yield DONE


def _logprobs(delta: Delta, tokenizer: Tokenizer) -> ChatLogprobs | None:
    if not delta.logprobs:
        return None

    def top(token: int, logprob: float) -> TopLogprob:
        return TopLogprob(token=tokenizer.token_text(token), logprob=logprob, bytes=_bytes(token, tokenizer))

    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=tokenizer.token_text(one.token),
                logprob=one.logprob,
                bytes=_bytes(one.token, tokenizer),
                top_logprobs=[top(token, logprob) for token, logprob in one.top],
            )
            for one in delta.logprobs
        ],
        refusal=None,
    )


def _bytes(token: int, tokenizer: Tokenizer) -> list[int]:
    return list(tokenizer.token_bytes(token) or tokenizer.token_text(token).encode())
