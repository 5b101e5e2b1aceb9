"""The real model on real prompts: the text with speculation is the text without.

The default suite runs a sample; the whole grid runs with --slow, takes most of an hour and prints its counts.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.bench.datasets import load_dataset
from lightspec_lightllm.drafters import Drafter, make_drafter
from lightspec_lightllm.engine import Engine, EngineOptions, SamplingParams, load_model
from lightspec_lightllm.planner import CostModel, DrafterKind, make_planner
from tests.adapters.adversaries import WildPlanner, serve

pytestmark = pytest.mark.real_model

NEAR_TIE = 1e-4
"""Where the target's two best logits are this close, the order of float additions may decide a greedy token."""

COSTS = CostModel.from_tables(
    {1: 23.0, 8: 34.0, 16: 44.0, 64: 85.0, 128: 141.0}, {1: 1.5, 16: 4.0}, interpolate=True, request_ms=1.5
)
DATASETS = ("humaneval", "gsm8k", "sharegpt")
GREEDY = SamplingParams(max_tokens=20)
SAMPLED = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95)


@dataclass(frozen=True)
class Verdict:
    """Texts compared: equal, different at a near-tie, different otherwise (request, position, gap)."""

    same: int
    near_ties: list[tuple[int, int, float]]
    wrong: list[tuple[int, int, float]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    model, tokenizer = load_model(None, "float32")
    return Engine(model, tokenizer, EngineOptions(weights="float32", threads=1, num_slots=8192, max_context=1024))


def chosen_prompts(engine: Engine, per_dataset: int) -> list[list[int]]:
    """The shortest of each set, so that a test is more than prefill."""
    chosen: list[list[int]] = []
    for name in DATASETS:
        tokens = [engine.tokenizer.chat(prompt.text) for prompt in load_dataset(name).prompts]
        chosen += sorted(tokens, key=len)[:per_dataset]
    return chosen


def gap(engine: Engine, tokens: list[int], position: int) -> float:
    """How far apart the target's two best logits are for the token at ``position``."""
    sequence = engine.submit(tokens[: position - 1], SamplingParams(max_tokens=2, ignore_eos=True))
    while sequence.status != "running":
        engine.schedule(rows=1)
    row = np.array([[tokens[position - 1]]], dtype=np.int64)
    best = engine.forward([sequence], row, np.ones(1, dtype=np.int64)).logits[0].topk(2).values
    engine.cancel(sequence.request_id)
    engine.schedule(rows=1)
    return float(best[0] - best[1])


def compare(engine: Engine, expected: list[list[int]], served: list[list[int]], params: SamplingParams) -> Verdict:
    """What differs. The gap of the best two logits excuses nothing where a token is sampled."""
    near: list[tuple[int, int, float]] = []
    wrong: list[tuple[int, int, float]] = []
    for request, (right, got) in enumerate(zip(expected, served, strict=True)):
        if right == got:
            continue
        position = next(i for i, pair in enumerate(zip(right, got, strict=False)) if pair[0] != pair[1])
        found = (request, position, gap(engine, right, position))
        excused = params.temperature == 0 and found[2] < NEAR_TIE
        (near if excused else wrong).append(found)
    return Verdict(len(expected) - len(near) - len(wrong), near, wrong)


@dataclass(frozen=True)
class Setting:
    """How a set of prompts is served."""

    drafter: str
    strategy: str
    steps: int
    flight: int

    def serve(self, engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
        """Tokens of every prompt; seeds are the prompts' places."""
        requests = [(prompt, replace(params, seed=index)) for index, prompt in enumerate(prompts)]
        drafter: Drafter | None = None
        kind: DrafterKind = "free"
        if self.strategy != "off":
            drafter = make_drafter(self.drafter, embedding=engine.model.embedding, max_draft_steps=self.steps)
            kind = "free" if drafter.kind == "free" else "serial_no_kv"
        planner: Any = WildPlanner(self.steps, seed=self.steps)
        if self.strategy != "wild":
            planner = make_planner(self.strategy, COSTS, max_draft_steps=self.steps, drafter=kind)
        return [seq.tokens for seq in serve(engine, planner, drafter, requests, concurrency=self.flight)[0]]


ALONE = Setting("ngram", "off", steps=1, flight=1)


@pytest.mark.parametrize(
    ("setting", "params"),
    [
        (Setting("ngram", "lightspec", 15, 4), GREEDY),
        (Setting("ngram", "wild", 7, 8), SAMPLED),
        (Setting("head", "lightspec", 7, 6), GREEDY),
        (Setting("hybrid", "wild", 11, 3), GREEDY),
    ],
    ids=str,
)
def test_a_sample_of_real_prompts_keeps_its_text(engine: Engine, setting: Setting, params: SamplingParams) -> None:
    prompts = chosen_prompts(engine, 2)
    verdict = compare(engine, ALONE.serve(engine, prompts, params), setting.serve(engine, prompts, params), params)
    assert verdict.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "head", "hybrid"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_sixty_real_prompts_keep_their_text(
    engine: Engine, drafter: str, params: SamplingParams, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every K and every strategy, with another number of requests in flight each; counts are printed as they come."""
    prompts = chosen_prompts(engine, 20)
    assert len(prompts) >= 60
    expected = ALONE.serve(engine, prompts, params)
    strategies = ("wild", "lightspec", "fixed")
    settings = [(steps, strategies[index % 3]) for index, steps in enumerate((1, 3, 7, 11, 15))]
    settings.append((15, "lightspec"))
    wrong = []
    for index, (steps, strategy) in enumerate(settings):
        name = f"fixed:{steps}" if strategy == "fixed" else strategy
        setting = Setting(drafter, name, steps, flight=1 + (3 * index + len(drafter)) % 8)
        verdict = compare(engine, expected, setting.serve(engine, prompts, params), params)
        wrong += verdict.wrong
        with capsys.disabled():
            sys.stdout.write(
                f"{setting}: {verdict.same} of {len(prompts)} the same, near-ties {verdict.near_ties}, "
                f"different {verdict.wrong}\n"
            )
    assert wrong == []
