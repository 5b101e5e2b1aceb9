"""Text to tokens and back, from a GGUF's own metadata."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as BytePairTokenizer

from lightspec_lightllm.errors import ModelError, RequestError

_CONTROL = 3  # token type of special tokens in GGUF
_SPLITS_DIGITS = {"smollm": True, "gpt-2": False, "gpt2": False, "default": False, None: False}


class Tokenizer:
    """Byte-level BPE. Special tokens are recognised in text and leave no trace in decoded text.

    `data` holds GGUF's tokenizer fields: model, pre, tokens, types, merges, bos, eos, add_bos, chat_template.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        if data.get("model") != "gpt2" or data.get("pre") not in _SPLITS_DIGITS:
            raise ModelError(
                f"the model has a tokenizer of kind {data.get('model')!r}/{data.get('pre')!r}; "
                "supported is byte-level BPE ('gpt2') with the split of smollm or gpt-2"
            )
        self._data = data
        self._tokens: list[str] = data["tokens"]
        types: list[int] = data.get("types") or [1] * len(self._tokens)
        self._special = {index for index, kind in enumerate(types) if kind == _CONTROL}
        self.eos_token_id: int = data["eos"]
        self._bos: int | None = data.get("bos")
        self._add_bos = bool(data.get("add_bos")) and self._bos is not None
        self._template: str | None = data.get("chat_template")
        merges = [tuple(merge.split(" ", 1)) for merge in data.get("merges") or ()]
        vocabulary = {token: index for index, token in enumerate(self._tokens)}
        self._encoder = BytePairTokenizer(models.BPE(vocab=vocabulary, merges=merges))
        self._encoder.add_special_tokens(
            [AddedToken(self._tokens[index], special=True, normalized=False) for index in sorted(self._special)]
        )
        splits: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if _SPLITS_DIGITS[data.get("pre")] else []
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence(splits)

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[Mapping[str, Any]]]:
        """For another process; a compiled chat template stays behind."""
        return Tokenizer, (self._data,)

    @cached_property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token: a text of n bytes has at least n / max_token_bytes tokens."""
        return max(len(token.encode()) for token in self._tokens)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """Tokens of the text as it stands, without a chat template. Raises RequestError where it is no Unicode text."""
        ids = self._ids(text)
        return [self._bos, *ids] if self._add_bos and self._bos is not None else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of whole tokens; bytes that are no UTF-8 become U+FFFD, special tokens nothing."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; none for a special token."""
        if token in self._special or not 0 <= token < len(self._tokens):
            return b""
        return b"".join(_BYTES.get(char) or char.encode() for char in self._tokens[token])

    def token_text(self, token: int) -> str:
        """A token by itself, to be shown: a special one by its name, bytes that are no UTF-8 as U+FFFD."""
        return self._tokens[token] if token in self._special else self.decode([token])

    def chat(self, messages: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, ready for the assistant's answer. A string is one user message.

        Messages are mappings with "role" and "content". Raises RequestError when the template refuses them.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        try:
            text = self._chat_template.render(
                messages=list(messages),
                add_generation_prompt=True,
                bos_token="" if self._bos is None else self._tokens[self._bos],
                eos_token=self._tokens[self.eos_token_id],
            )
        except TemplateError as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}") from None
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        except TypeError:  # how the tokenizer refuses what has no UTF-8
            stray = ascii("".join(char for char in text if "\ud800" <= char <= "\udfff")[:8])
            raise RequestError(f"a prompt must be Unicode text, got {stray} in it; give it as UTF-8") from None
        return ids

    @cached_property
    def _chat_template(self) -> Any:
        if not self._template:
            raise RequestError("the model has no chat template; give plain text or token ids")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        return environment.from_string(self._template)


class TextStream:
    """Text of a growing token list: characters appear once all of their bytes have."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, token: int) -> str:
        """The characters this token completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What an unfinished character leaves."""
        return self._decoder.decode(b"", True)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _byte_alphabet() -> dict[str, bytes]:
    """Byte-level BPE writes byte b as a printable character; this is the way back."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    alphabet.update({chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)})
    return alphabet


_BYTES = _byte_alphabet()
