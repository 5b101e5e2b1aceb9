"""What clients of OpenAI's API get. What was not set is left out, so that null is sent where it means something."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, Field

from lightspec_lightllm.server.messages import RoundDetail


class Answer(BaseModel):
    """A body of an answer, or of an event."""

    def to_json(self) -> str:
        return self.model_dump_json(exclude_unset=True)


class Usage(Answer):
    """Counts of tokens; a prompt counts once, whatever ``n`` is, and an answer's end-of-text token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Detail(Answer):
    """What every round did for a choice; see `messages.RoundDetail`."""

    accept_lengths: tuple[int, ...]
    verified: tuple[int, ...]
    drafted: tuple[int, ...]

    @classmethod
    def of(cls, detail: RoundDetail) -> Detail:
        return cls(accept_lengths=detail.accept_lengths, verified=detail.verified, drafted=detail.drafted)


class CompletionLogprobs(Answer):
    """Natural logarithms of the model's probabilities before temperature and filters, a list entry per token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    lightspec: Detail | None = None


class Completion(Answer):
    """The answer of ``/v1/completions``, and an event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(Answer):
    """A token that was likely at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """As `CompletionLogprobs`."""

    content: list[TokenLogprob]
    refusal: None


class ChatMessage(Answer):
    """An answer, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    lightspec: Detail | None = None


class ChatChunkChoice(Answer):
    """A piece of one answer."""

    index: int
    delta: ChatMessage | dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    lightspec: Detail | None = None


class ChatCompletion(Answer):
    """The answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunk(Answer):
    """An event of its stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class Model(Answer):
    """A model that is served; ``max_model_len`` is the most tokens of a prompt and its answer."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer):
    """The answer of ``/v1/models``."""

    object: Literal["list"]
    data: list[Model]


class ApiErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ApiErrorBody(BaseModel):
    """The answer of every path where it is an error."""

    error: ApiErrorDetail


class Head(BaseModel):
    """What every event of one answer repeats."""

    id: str
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> Head:
        return cls(id=f"{prefix}-{uuid.uuid4().hex}", model=model)
