"""The pieces of an answer's text add up to it, however tokens and deltas cut it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.engine import SamplingParams, Sequence
from lightspec_lightllm.server.messages import Delta
from lightspec_lightllm.server.text_pieces import TextPieces
from tests.engine.tiny_llama import tiny_model

_, TOKENIZER = tiny_model()
TEXT = st.lists(st.integers(1, 54), min_size=1, max_size=30)
"""Tokens with é, € and halves of them."""


@given(
    tokens=TEXT, stops=st.lists(st.sampled_from(["e", "th", "an", "é", "€", " a", "zq"]), max_size=3), data=st.data()
)
def test_pieces_are_the_text_in_order(tokens: list[int], stops: list[str], data: st.DataObject) -> None:
    sequence = Sequence(0, [1], SamplingParams(max_tokens=len(tokens), stop=tuple(stops)), 0, TOKENIZER)
    pieces, text, sent, joined = TextPieces(TOKENIZER), "", 0, ""
    while sequence.finish_reason is None:
        for _ in range(data.draw(st.integers(1, 4))):
            if sequence.finish_reason is None:
                sequence.append(tokens[sequence.num_generated])
        delta = Delta(0, tuple(sequence.generated[sent:]), sequence.text[len(text) :])
        sent, text = sequence.num_generated, sequence.text
        for (offset, piece), _ in zip(pieces.split(delta), delta.tokens, strict=True):
            assert offset == len(joined)
            joined += piece
        assert joined == text
    assert joined == sequence.text


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    tokens = [TOKENIZER.encode(text)[0] for text in ("t", "é")]
    euro = TOKENIZER.encode("€")
    delta = Delta(0, (*tokens, *euro), "té€")
    assert [piece for _, piece in TextPieces(TOKENIZER).split(delta)] == ["t", "é", *[""] * (len(euro) - 1), "€"]
