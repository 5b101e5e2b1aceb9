"""Which characters of an answer came with which token."""

from __future__ import annotations

from collections.abc import Iterator

from lightspec_lightllm.engine.tokenizer import TextStream, Tokenizer
from lightspec_lightllm.server.messages import Delta


class TextPieces:
    """Splits the text of a sequence's deltas among their tokens.

    A character whose bytes several tokens share belongs to the last of them; text that was held back for a stop string
    to the token by which it was let go. The pieces add up to the text, whatever the tokens say.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._stream = TextStream(tokenizer)
        self._decoded = 0
        self._given = 0

    def split(self, delta: Delta) -> Iterator[tuple[int, str]]:
        """(offset in the text, piece) of each token of the sequence's next delta."""
        released = self._given + len(delta.text)
        text, start = delta.text, self._given
        for index, token in enumerate(delta.tokens):
            self._decoded += len(self._stream.append(token))
            last = index == len(delta.tokens) - 1
            end = released if last else min(max(self._decoded, self._given), released)
            yield self._given, text[self._given - start : end - start]
            self._given = end
