"""The paths of OpenAI's API."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightspec_lightllm.server.errors import UnknownModelError
from lightspec_lightllm.server.intake import Intake
from lightspec_lightllm.server.openai import chat, completions
from lightspec_lightllm.server.openai.request import ChatRequest, CompletionRequest
from lightspec_lightllm.server.openai.response import ApiErrorBody, ChatCompletion, Completion, Model, ModelList
from lightspec_lightllm.server.responses import CLIENT_GONE, EventStream, unless_gone

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ApiErrorBody, "description": "The request cannot be served as it was asked"},
    404: {"model": ApiErrorBody, "description": "Another model is served"},
    413: {"model": ApiErrorBody, "description": "The body is too large"},
    429: {"model": ApiErrorBody, "description": "The queue is full; Retry-After says when to ask again"},
    503: {"model": ApiErrorBody, "description": "The engine is being restarted"},
}


def openai_router(intake: Intake) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    created = int(time.time())

    def served() -> Model:
        length = intake.info.max_context
        return Model(id=intake.served_name, object="model", created=created, owned_by="lightspec", max_model_len=length)

    @router.post("/completions", response_model=Completion, responses=ERRORS)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        generation = await completions.submit(intake, body)
        if body.stream:
            return EventStream(generation, completions.events(intake, body, generation))
        async with generation:
            return _json(await unless_gone(request.receive, completions.answer(intake, body, generation)))

    @router.post("/chat/completions", response_model=ChatCompletion, responses=ERRORS)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        generation = await chat.submit(intake, body)
        if body.stream:
            return EventStream(generation, chat.events(intake, body, generation))
        async with generation:
            return _json(await unless_gone(request.receive, chat.answer(intake, body, generation)))

    @router.get("/models", response_model=ModelList, responses={503: ERRORS[503]})
    async def list_models() -> Response:
        return _json(ModelList(object="list", data=[served()]))

    @router.get("/models/{name:path}", response_model=Model, responses={404: ERRORS[404], 503: ERRORS[503]})
    async def retrieve_model(name: str) -> Response:
        if name != intake.served_name:
            raise UnknownModelError(name, intake.served_name)
        return _json(served())

    return router


def _json(answer: Completion | ChatCompletion | ModelList | Model | None) -> Response:
    if answer is None:
        return Response(status_code=CLIENT_GONE)
    return Response(answer.to_json(), media_type="application/json")
