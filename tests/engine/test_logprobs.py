"""Reported probabilities: the target's own, of the kept tokens only, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest

from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.engine.sampling import token_logprob
from tests.adapters.adversaries import NoiseDrafter, WildPlanner
from tests.engine.driving import run_plain
from tests.engine.tiny_llama import tiny_engine


def test_a_rows_numbers_are_those_of_its_softmax() -> None:
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    for token in (0, int(logits.argmax()), int(logits.argmin())):
        found = token_logprob(logits, token, 5)
        assert (found.token, found.rank) == (token, 1 + int((logits > logits[token]).sum()))
        assert found.logprob == pytest.approx(expected[token])
        assert [other for other, _ in found.top] == np.argsort(-logits)[:5].tolist()
    assert token_logprob(logits, 3, 0).top == ()
    assert len(token_logprob(logits, 3, 50).top) == len(token_logprob(logits, 3, 80).top) == 50


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=30), SamplingParams(max_tokens=30, temperature=1.2, seed=1)]
)
def test_they_are_the_same_with_and_without_speculation(params: SamplingParams) -> None:
    from lightspec_lightllm.adapters.embedded import EmbeddedHost
    from lightspec_lightllm.decode import Round

    prompts = [[5, 9, 20, 11, 9, 20], [7, 8, 9], [30, 31]]
    plain = tiny_engine()
    alone = [plain.submit(prompt, params, top_logprobs=3) for prompt in prompts]
    run_plain(plain)
    engine = tiny_engine(num_slots=120, max_context=80, max_rows=8)
    rounds = Round(EmbeddedHost(engine, NoiseDrafter(7, 64, seed=1), 7), WildPlanner(7, seed=2))
    together = [engine.submit(prompt, params, top_logprobs=3) for prompt in prompts]
    silent = engine.submit(prompts[0], params)
    while engine.has_work:
        rounds.step()
    assert silent.logprobs == []
    for left, right in zip(alone, together, strict=True):
        assert [one.token for one in right.logprobs] == right.generated == left.generated
        assert [one.rank for one in right.logprobs] == [one.rank for one in left.logprobs]
        for mine, theirs in zip(right.logprobs, left.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
