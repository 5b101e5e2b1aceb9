"""From what a client asks to sequences that an engine can serve, with the errors that a client can act on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.errors import RequestError
from lightspec_lightllm.server.engine_client import EngineClient, Generation, Prompt
from lightspec_lightllm.server.errors import BadRequestError, EngineUnavailableError, UnknownModelError
from lightspec_lightllm.server.fields import MAX_SEED
from lightspec_lightllm.server.messages import EngineInfo


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of each of its sequences.

    Attributes:
        fields: sampling parameters that it gives.
        max_tokens: the most tokens of an answer; None: what the configuration says, or less where the context is full.
        cut_to_fit: also shorten a ``max_tokens`` that was given.
        seed: of the first sequence of a prompt, the next ones count on; None: each draws its own.
        copies: sequences per prompt.
    """

    fields: Mapping[str, Any]
    max_tokens: int | None = None
    cut_to_fit: bool = False
    seed: int | None = None
    copies: int = 1
    top_logprobs: int | None = None
    detail: bool = False


class Intake:
    """The door of one server.

    Args:
        defaults: sampling parameters for what a request leaves out.
        served_name: what the model is called.
    """

    def __init__(self, client: EngineClient, defaults: SamplingParams, served_name: str) -> None:
        self.client = client
        self.defaults = defaults
        self.served_name = served_name

    @property
    def info(self) -> EngineInfo:
        if self.client.info is None:
            raise EngineUnavailableError("the engine is being restarted; try again in a moment", seconds=2)
        return self.client.info

    def check_model(self, name: str | None) -> None:
        """Raises UnknownModelError; None is whatever is served."""
        if name is not None and name != self.served_name:
            raise UnknownModelError(name, self.served_name)

    def check_count(self, count: int) -> None:
        """Raises BadRequestError where a request asks for more sequences than there can ever be in flight."""
        most = self.info.max_requests + self.client.max_waiting
        if count > most:
            raise BadRequestError(f"the request asks for {count} sequences, the server takes {most} at a time")

    async def encode(self, text: str, *, param: str) -> tuple[int, ...]:
        """Tokens of a text as it stands."""
        self._check_length(len(text), param)
        return self._checked(await asyncio.to_thread(self.info.tokenizer.encode, text), param)

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Tokens of a conversation."""
        self._check_length(sum(len(message["content"]) for message in messages), "messages")
        try:
            tokens = await asyncio.to_thread(self.info.tokenizer.chat, messages)
        except RequestError as error:
            raise BadRequestError(str(error), param="messages") from None
        return self._checked(tokens, "messages")

    def tokens(self, tokens: Sequence[int], *, param: str) -> tuple[int, ...]:
        """Tokens that a client has made itself."""
        size = self.info.vocab_size
        if any(token >= size for token in tokens):
            raise BadRequestError(f"{param}: tokens must be in 0..{size - 1}, got {max(tokens)}", param=param)
        return self._checked(tokens, param)

    def generate(self, prompts: Sequence[tuple[int, ...]], wanted: Wanted) -> Generation:
        """Hand over every prompt ``copies`` times, the copies of a prompt beside each other."""
        self.check_count(len(prompts) * wanted.copies)
        return self.client.generate(
            [
                Prompt(tokens, self._params(tokens, wanted, copy), wanted.top_logprobs, wanted.detail)
                for tokens in prompts
                for copy in range(wanted.copies)
            ]
        )

    def _params(self, prompt: tuple[int, ...], wanted: Wanted, copy: int) -> SamplingParams:
        room = self.info.max_context - len(prompt)
        asked = self.defaults.max_tokens if wanted.max_tokens is None else wanted.max_tokens
        if wanted.max_tokens is None or wanted.cut_to_fit:
            asked = min(asked, room)
        if asked > room:
            raise BadRequestError(
                f"this model's context is {self.info.max_context} tokens; the prompt has {len(prompt)} and max_tokens "
                f"is {shown_number(asked)}; shorten the prompt or lower max_tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        first = self.defaults.seed if wanted.seed is None else wanted.seed
        seed = secrets.randbelow(MAX_SEED) if first is None else first + copy
        try:
            return replace(self.defaults, **wanted.fields, max_tokens=asked, seed=seed)
        except RequestError as error:
            raise BadRequestError(str(error)) from None

    def _check_length(self, characters: int, param: str) -> None:
        """Refuse what cannot fit before the time is spent to find out how many tokens it is."""
        info = self.info
        if characters > info.max_context * info.tokenizer.max_token_bytes:
            raise BadRequestError(
                f"{param}: {characters} characters are more than the {info.max_context} tokens of this model's context "
                "can be; shorten the prompt",
                param=param,
                code="context_length_exceeded",
            )

    def _checked(self, tokens: Sequence[int], param: str) -> tuple[int, ...]:
        info = self.info
        if not tokens:
            raise BadRequestError(f"{param}: expected at least one token, the prompt is empty", param=param)
        if len(tokens) >= info.max_context:
            raise BadRequestError(
                f"{param}: {len(tokens)} tokens leave no room for an answer in this model's context of "
                f"{info.max_context}; shorten the prompt",
                param=param,
                code="context_length_exceeded",
            )
        return tuple(tokens)


def shown_number(number: int) -> str:
    """A number that may have thousands of digits."""
    return str(number) if abs(number) < 10**12 else f"about 1e{number.bit_length() * 3 // 10}"
