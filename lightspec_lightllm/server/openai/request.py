"""What clients of OpenAI's API send."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from lightspec_lightllm.server.fields import LightspecOptions, Only, RequestModel, Seed, StopText, StopTexts, Text

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20


class StreamOptions(RequestModel):
    """Attributes:
    include_usage: send one more event with the counts of tokens.
    """

    include_usage: bool | None = False
    include_obfuscation: Annotated[Any, Only(False, None)] = False


class GenerationRequest(RequestModel):
    """What both kinds of completions share. A field that is left out has the value of the server's configuration.

    ``top_k``, ``ignore_eos`` and ``lightspec`` are this server's; so is that choice i of ``n`` has seed ``seed + i``.
    Without a seed every choice draws its own.
    """

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    ignore_eos: bool | None = None
    lightspec: LightspecOptions | None = None

    frequency_penalty: Annotated[Any, Only(0, None)] = None
    presence_penalty: Annotated[Any, Only(0, None)] = None
    logit_bias: Annotated[Any, Only({}, None)] = None
    metadata: dict[str, str] | None = None
    service_tier: Annotated[Any, Only("auto", "default", None)] = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: expected only with stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...] | None:
        if self.stop is None:
            return None
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


T = TypeVar("T")
Token = Annotated[int, Field(ge=0)]
Some = Annotated[list[T], Field(min_length=1)]


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``: goes on from a text as it stands, or from tokens; several prompts make choices each."""

    prompt: Text | Some[Token] | Some[Text] | Some[list[Token]]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: int | None = None
    echo: Annotated[Any, Only(False, None)] = None
    suffix: Annotated[Any, Only("", None)] = None

    @model_validator(mode="after")
    def _best_of_is_n(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(f"best_of: this server supports only the value of n ({self.n or 1})")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each text, or list of tokens, by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [part for part in self.prompt if isinstance(part, int)]
        return [tokens] if tokens else [part for part in self.prompt if not isinstance(part, int)]

    @property
    def top_logprobs(self) -> int | None:
        return self.logprobs


class TextPart(RequestModel):
    """A piece of a message."""

    type: Literal["text"]
    text: Text


class Message(RequestModel):
    """One turn of a conversation; ``developer`` is another word for ``system``."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]
    name: str | None = None
    refusal: Annotated[Any, Only(None)] = None

    @property
    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class TextFormat(RequestModel):
    """Plain text, the only form of an answer."""

    type: Literal["text"]


class ChatRequest(GenerationRequest):
    """``POST /v1/chat/completions``: the next turn of a conversation, by the model's own chat template."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[Any, Only(["text"], None)] = None
    tools: Annotated[Any, Only([], None)] = None
    tool_choice: Annotated[Any, Only("none", "auto", None)] = None
    parallel_tool_calls: bool | None = None
    store: Annotated[Any, Only(False, None)] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: expected only with logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens: expected the same as max_completion_tokens, its newer name, or nothing")
        return self

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def fields_of(request: GenerationRequest) -> dict[str, Any]:
    """The sampling parameters that the request gives; see `engine.options.SamplingParams`."""
    given: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": None if request.top_p is None else float(request.top_p),
        "top_k": None if request.top_k is None else max(0, request.top_k),
        "stop": request.stops,
        "ignore_eos": request.ignore_eos,
    }
    return {name: value for name, value in given.items() if value is not None}
