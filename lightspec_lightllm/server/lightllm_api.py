"""LightLLM's own API: ``/generate`` and ``/generate_stream``, by its parameter names and in its form of answers.

What it can do and this engine cannot (penalties, constraints, images) is refused by name rather than ignored.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from lightspec_lightllm.engine.sampling import TokenLogprob
from lightspec_lightllm.engine.tokenizer import Tokenizer
from lightspec_lightllm.server.collected import collect
from lightspec_lightllm.server.engine_client import Generation
from lightspec_lightllm.server.errors import BadRequestError
from lightspec_lightllm.server.fields import MAX_SEED, LightspecOptions, Only, RequestModel, StopText, StopTexts, Text
from lightspec_lightllm.server.intake import Intake, Wanted
from lightspec_lightllm.server.messages import Delta, RoundDetail
from lightspec_lightllm.server.responses import CLIENT_GONE, EventStream, unless_gone
from lightspec_lightllm.server.text_pieces import TextPieces

MAX_BEST_OF = 8
GREEDY_BELOW = 1e-5
"""A temperature below it is greedy, as in LightLLM."""


class Parameters(RequestModel):
    """LightLLM's names and defaults. ``do_sample`` false is greedy; ``seed`` -1 draws one; ``max_new_tokens`` is cut to
    what the context has room for."""

    n: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] = 1
    do_sample: bool = False
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    ignore_eos: bool = False
    max_new_tokens: Annotated[int, Field(ge=1)] = 65535
    stop_sequences: StopText | StopTexts | None = None
    seed: Annotated[int, Field(ge=-1, le=MAX_SEED)] | None = -1
    return_details: bool = False

    presence_penalty: Annotated[Any, Only(0)] = 0.0
    frequency_penalty: Annotated[Any, Only(0)] = 0.0
    repetition_penalty: Annotated[Any, Only(1)] = 1.0
    exponential_decay_length_penalty: Annotated[Any, Only([1, 1.0])] = Field(default_factory=lambda: [1, 1.0])
    min_new_tokens: Annotated[Any, Only(1)] = 1
    logit_bias: Annotated[Any, Only({})] = Field(default_factory=dict)
    allowed_token_ids: Annotated[Any, Only([], None)] = None
    regular_constraint: Annotated[Any, Only("", None)] = None
    guided_grammar: Annotated[Any, Only("", None)] = None
    guided_json: Annotated[Any, Only("", None)] = None
    prompt_logprobs: Annotated[Any, Only(-1, None)] = None
    return_routed_experts: Annotated[Any, Only(False)] = False
    print_eos_token: Annotated[Any, Only(False)] = False
    skip_special_tokens: Annotated[Any, Only(True)] = True
    add_special_tokens: Annotated[Any, Only(True)] = True
    add_spaces_between_special_tokens: bool = True
    input_penalty: bool = False
    disable_prompt_cache: bool = False

    @model_validator(mode="after")
    def _n_is_best_of(self) -> Parameters:
        if self.n is not None and self.best_of not in {self.n, 1}:
            raise ValueError(f"n: expected the value of best_of ({self.best_of}), got {self.n}")
        return self

    @property
    def copies(self) -> int:
        return self.n or self.best_of

    def wanted(self, *, detail: bool) -> Wanted:
        greedy = not self.do_sample or self.temperature < GREEDY_BELOW or self.top_k == 1
        stops = self.stop_sequences or ()
        fields: dict[str, Any] = {
            "temperature": 0.0 if greedy else float(self.temperature),
            "top_p": float(self.top_p) if self.do_sample else 1.0,
            "top_k": max(0, self.top_k) if self.do_sample else 0,
            "stop": (stops,) if isinstance(stops, str) else tuple(stops),
            "ignore_eos": self.ignore_eos,
        }
        seed = None if self.seed in {None, -1} else self.seed
        return Wanted(
            fields, self.max_new_tokens, cut_to_fit=True, seed=seed, copies=self.copies, top_logprobs=0, detail=detail
        )


class GenerateRequest(RequestModel):
    """``inputs`` goes on as it stands, without a chat template; ``lightspec`` is this server's."""

    inputs: Text
    parameters: Parameters = Field(default_factory=Parameters)
    multimodal_params: Annotated[Any, Only({}, {"images": []}, {"images": [], "audios": []}, None)] = None
    lightspec: LightspecOptions | None = None


def lightllm_router(intake: Intake, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["LightLLM"])

    async def submit(body: GenerateRequest) -> Generation:
        tokens = await intake.encode(body.inputs, param="inputs")
        detail = body.lightspec is not None and body.lightspec.detail
        return intake.generate([tokens], body.parameters.wanted(detail=detail))

    @router.post("/generate", response_model=None, responses=errors)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        async with await submit(body) as generation:
            deltas = await unless_gone(request.receive, collect(generation))
            if deltas is None:
                return Response(status_code=CLIENT_GONE)
            num_prompt_tokens = len(generation.prompts[0].tokens)
            return JSONResponse(_answer(deltas, body, intake.info.tokenizer, num_prompt_tokens))

    @router.post("/generate_stream", response_model=None, responses=errors)
    async def generate_stream(body: GenerateRequest) -> Response:
        if body.parameters.copies != 1:
            raise BadRequestError("parameters.n: a stream has one answer, expected 1", param="parameters.n")
        generation = await submit(body)
        return EventStream(generation, _events(generation, intake.info.tokenizer), space="")

    return router


def _answer(deltas: list[Delta], body: GenerateRequest, tokenizer: Tokenizer, num_prompt_tokens: int) -> dict[str, Any]:
    """Lists have an entry per answer; where there is one answer all but its text stands by itself, as in LightLLM."""

    def each(values: list[Any]) -> Any:
        return values[0] if len(values) == 1 else values

    answer: dict[str, Any] = {
        "generated_text": [delta.text for delta in deltas],
        "count_output_tokens": each([len(delta.tokens) for delta in deltas]),
        "finish_reason": each([delta.finish_reason for delta in deltas]),
        "prompt_tokens": num_prompt_tokens,
        "logprobs": each([[_logprobs(one, tokenizer) for one in delta.logprobs] for delta in deltas]),
    }
    if body.parameters.return_details:
        answer["tokens"] = each([list(_tokens(delta, TextPieces(tokenizer), tokenizer)) for delta in deltas])
    details = [_detail(delta.detail) for delta in deltas if delta.detail is not None]
    return answer | ({"lightspec": each(details)} if details else {})


async def _events(generation: Generation, tokenizer: Tokenizer) -> AsyncIterator[str]:
    """One event per token, however many a round brought."""
    pieces, count = TextPieces(tokenizer), 0
    num_prompt_tokens = len(generation.prompts[0].tokens)
    async for _, delta in generation:
        for index, token in enumerate(_tokens(delta, pieces, tokenizer)):
            count += 1
            finished = delta.finish_reason is not None and index == len(delta.tokens) - 1
            event = {
                "token": token | {"count_output_tokens": count, "prompt_tokens": num_prompt_tokens},
                "generated_text": None,
                "finished": finished,
                "finish_reason": delta.finish_reason if finished else None,
                "details": None,
            }
            if finished and delta.detail is not None:
                event["lightspec"] = _detail(delta.detail)
            yield json.dumps(event, ensure_ascii=False)


def _tokens(delta: Delta, pieces: TextPieces, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {
            "id": one.token,
            "text": text,
            "logprob": one.logprob,
            "special": not tokenizer.token_bytes(one.token),
            "logprobs": _logprobs(one, tokenizer),
        }
        for (_, text), one in zip(pieces.split(delta), delta.logprobs, strict=True)
    ]


def _logprobs(one: TokenLogprob, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    shown = {"logprob": one.logprob, "rank": one.rank, "decoded_token": tokenizer.token_text(one.token)}
    return {str(one.token): shown}


def _detail(detail: RoundDetail) -> dict[str, list[int]]:
    return {
        "accept_lengths": list(detail.accept_lengths),
        "verified": list(detail.verified),
        "drafted": list(detail.drafted),
    }
