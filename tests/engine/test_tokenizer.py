import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.engine.tokenizer import TextStream, Tokenizer
from lightspec_lightllm.errors import ModelError, RequestError
from tests.engine.tiny_llama import TOKENS, tokenizer_data

TOKENIZER = Tokenizer(tokenizer_data())


def test_text_survives_encoding_and_decoding() -> None:
    text = "the end, an é and 2 € a.\n"
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_digits_are_split_and_merges_applied() -> None:
    assert [TOKENS[token] for token in TOKENIZER.encode("the 12 the")] == ["the", "Ġ", "1", "2", "Ġthe"]


def test_special_tokens_are_found_in_text_and_leave_none_behind() -> None:
    ids = TOKENIZER.encode("a<|eos|>b")
    assert ids[1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(ids) == "ab"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 63), max_size=30))
def test_a_stream_gives_the_text_of_the_whole_and_never_half_a_character(tokens: list[int]) -> None:
    stream = TextStream(TOKENIZER)
    text = ""
    for count, token in enumerate(tokens, start=1):
        text += stream.append(token)
        assert TOKENIZER.decode(tokens[:count]).startswith(text)
    assert text + stream.finish() == TOKENIZER.decode(tokens)


def test_the_bytes_of_a_character_appear_together() -> None:
    stream = TextStream(TOKENIZER)
    euro = [TOKENS.index(token) for token in ("â", "Ĥ", "¬")]
    assert [stream.append(token) for token in euro] == ["", "", "€"]
    assert stream.append(euro[0]) == ""
    assert stream.finish() == "\ufffd"


def test_a_chat_is_rendered_with_the_models_template() -> None:
    ids = TOKENIZER.chat("the end")
    assert ids == TOKENIZER.chat([{"role": "user", "content": "the end"}])
    assert TOKENS[ids[0]] == "<|user|>"
    assert TOKENIZER.decode(ids) == "the end\n"


def test_a_template_that_refuses_or_is_missing_is_an_error_of_the_request() -> None:
    refusing = Tokenizer(tokenizer_data() | {"chat_template": "{{ raise_exception('no system messages') }}"})
    with pytest.raises(RequestError, match="no system messages"):
        refusing.chat("hello")
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer(tokenizer_data() | {"chat_template": None}).chat("hello")


def test_what_is_no_unicode_is_an_error_of_the_request() -> None:
    for encode in (TOKENIZER.encode, TOKENIZER.chat):
        with pytest.raises(RequestError, match=r"Unicode text, got '\\ud800' in it"):
            encode("a\ud800")


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    escaping = Tokenizer(tokenizer_data() | {"chat_template": "{{ ''.__class__.__mro__ }}"})
    with pytest.raises(RequestError):
        escaping.chat("hello")


@pytest.mark.parametrize("changes", [{"model": "llama"}, {"pre": "llama-bpe"}])
def test_other_kinds_of_tokenizer_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ModelError, match="tokenizer of kind"):
        Tokenizer(tokenizer_data() | changes)


def test_a_beginning_token_is_added_where_the_model_wants_one() -> None:
    marked = Tokenizer(tokenizer_data() | {"bos": 1, "add_bos": True})
    assert marked.encode("a") == [1, *TOKENIZER.encode("a")]
