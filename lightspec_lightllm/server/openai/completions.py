"""``/v1/completions``: whole answers and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lightspec_lightllm.engine.tokenizer import Tokenizer
from lightspec_lightllm.server.collected import collect
from lightspec_lightllm.server.engine_client import Generation
from lightspec_lightllm.server.intake import Intake, Wanted
from lightspec_lightllm.server.messages import Delta
from lightspec_lightllm.server.openai.request import CompletionRequest, fields_of
from lightspec_lightllm.server.openai.response import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Detail,
    Head,
    Usage,
)
from lightspec_lightllm.server.text_pieces import TextPieces

DONE = "[DONE]"


async def submit(intake: Intake, request: CompletionRequest) -> Generation:
    """Raises ApiError where the request cannot be served."""
    intake.check_model(request.model)
    intake.check_count(len(request.prompts) * (request.n or 1))
    prompts = await asyncio.gather(*(_tokens(intake, prompt) for prompt in request.prompts))
    return intake.generate(
        prompts,
        Wanted(
            fields_of(request),
            max_tokens=request.max_tokens,
            seed=request.seed,
            copies=request.n or 1,
            top_logprobs=request.top_logprobs,
            detail=request.lightspec is not None and request.lightspec.detail,
        ),
    )


async def _tokens(intake: Intake, prompt: str | list[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return await intake.encode(prompt, param="prompt")
    return intake.tokens(prompt, param="prompt")


async def answer(intake: Intake, request: CompletionRequest, generation: Generation) -> Completion:
    """All of it at once."""
    head, tokenizer = Head.new("cmpl", intake.served_name), intake.info.tokenizer
    deltas = await collect(generation)
    choices = [_choice(index, delta, TextPieces(tokenizer), tokenizer) for index, delta in enumerate(deltas)]
    usage = usage_of(generation, request.n or 1, sum(len(delta.tokens) for delta in deltas))
    return Completion(object="text_completion", choices=choices, usage=usage, **head.model_dump())


async def events(intake: Intake, request: CompletionRequest, generation: Generation) -> AsyncIterator[str]:
    """As it grows."""
    head, tokenizer = Head.new("cmpl", intake.served_name).model_dump(), intake.info.tokenizer
    pieces = [TextPieces(tokenizer) for _ in generation.prompts]
    if request.include_usage:
        head["usage"] = None
    num_tokens = 0
    async for index, delta in generation:
        num_tokens += len(delta.tokens)
        choice = _choice(index, delta, pieces[index], tokenizer)
        if choice.text or choice.logprobs or choice.finish_reason:
            yield Completion(object="text_completion", choices=[choice], **head).to_json()
    if request.include_usage:
        usage = usage_of(generation, request.n or 1, num_tokens)
        yield Completion(object="text_completion", choices=[], **head | {"usage": usage}).to_json()
    yield DONE


def usage_of(generation: Generation, copies: int, num_tokens: int) -> Usage:
    num_prompt_tokens = sum(len(prompt.tokens) for prompt in generation.prompts[::copies])
    return Usage(
        prompt_tokens=num_prompt_tokens, completion_tokens=num_tokens, total_tokens=num_prompt_tokens + num_tokens
    )


def detail_of(delta: Delta) -> dict[str, Detail]:
    """A field of a choice, where it was asked for and is known."""
    return {} if delta.detail is None else {"lightspec": Detail.of(delta.detail)}


def _choice(index: int, delta: Delta, pieces: TextPieces, tokenizer: Tokenizer) -> CompletionChoice:
    logprobs = None
    if delta.logprobs:
        logprobs = CompletionLogprobs(
            tokens=[tokenizer.token_text(one.token) for one in delta.logprobs],
            token_logprobs=[one.logprob for one in delta.logprobs],
            top_logprobs=[
                {tokenizer.token_text(token): logprob for token, logprob in reversed(one.top)} for one in delta.logprobs
            ],
            text_offset=[offset for offset, _ in pieces.split(delta)],
        )
    return CompletionChoice(
        index=index, text=delta.text, logprobs=logprobs, finish_reason=delta.finish_reason, **detail_of(delta)
    )
