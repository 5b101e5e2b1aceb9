"""The default model itself. Needs its file in the cache; run `lightspec generate hello` once to get it."""

import numpy as np
import pytest

from lightspec_lightllm.engine import Engine, EngineOptions, SamplingParams, load_model
from tests.engine.driving import Case, decode_alone, run_wild

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def engine() -> Engine:
    model, tokenizer = load_model(None, "float32")
    return Engine(model, tokenizer, EngineOptions(weights="float32", threads=1, num_slots=2048, max_context=512))


def test_it_answers_in_its_chat_template(engine: Engine) -> None:
    ids = engine.tokenizer.chat("What is the capital of France?")
    assert engine.tokenizer.decode(ids).startswith("system\nYou are a helpful AI assistant named SmolLM")
    assert engine.tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n") == ids[-6:]
    sequence = decode_alone(engine, ids, SamplingParams(max_tokens=20))
    assert (sequence.text, sequence.finish_reason) == ("The capital of France is Paris.", "stop")


def test_digits_are_single_tokens(engine: Engine) -> None:
    ids = engine.tokenizer.encode("x = 1234")
    assert [engine.tokenizer.decode([token]) for token in ids] == ["x", " =", " ", "1", "2", "3", "4"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_wild_rounds_give_the_text_of_plain_decoding(engine: Engine, temperature: float) -> None:
    prompts = ["def add(a, b):", "Tell me a joke — in 日本語.", "What is 12 + 30?", "List three colours."]
    params = SamplingParams(max_tokens=16, temperature=temperature, top_k=50, top_p=0.95, seed=1, stop=("\n\n",))
    cases = []
    for request_id, prompt in enumerate(prompts):
        ids = engine.tokenizer.chat(prompt)
        cases.append(Case(ids, params, request_id, decode_alone(engine, ids, params, request_id)))
    run_wild(engine, cases, np.random.default_rng(0), max_rows=9)
    for case in cases:
        assert case.sequence is not None
        assert case.expected is not None
        assert case.sequence.tokens == case.expected.tokens
        assert case.sequence.text == case.expected.text
