"""Whatever is planned and drafted, the text is the one that the target gives alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.head.network import DraftHead, HeadShape
from lightspec_lightllm.adapters.embedded import EmbeddedHost
from lightspec_lightllm.decode import Round, Verdict
from lightspec_lightllm.decode.host import IntArray
from lightspec_lightllm.drafters import Drafter, NgramDrafter
from lightspec_lightllm.drafters.checkpoint import HeadGeometry
from lightspec_lightllm.drafters.head import HeadDrafter
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.engine import Engine, SamplingParams
from lightspec_lightllm.planner import CostModel, make_planner
from tests.adapters.adversaries import KnowingDrafter, NoiseDrafter, WildPlanner, serve
from tests.engine.tiny_llama import tiny_engine

COSTS = CostModel.from_tables(
    {rows: 8.0 + 0.5 * rows for rows in (1, 2, 4, 8, 16, 32, 64, 128)},
    {rows: 0.6 + 0.02 * rows for rows in (1, 2, 4, 8, 16)},
    interpolate=True,
)
GREEDY = SamplingParams(max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.8, top_k=20, top_p=0.95)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Some with a repeated part, which the n-gram drafter goes for."""
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(2, 44, int(rng.integers(3, 20))).tolist() for _ in range(count)]
    return [prompt + prompt if index % 2 else prompt for index, prompt in enumerate(drawn)]


def requests(params: SamplingParams, count: int = 8) -> list[tuple[list[int], SamplingParams]]:
    return [(prompt, replace(params, seed=100 + index)) for index, prompt in enumerate(prompts(count))]


def alone(params: SamplingParams, count: int = 8) -> list[list[int]]:
    """Every request on its own, without speculation."""
    engine = tiny_engine()
    planner = make_planner("off", COSTS, max_draft_steps=1)
    return [seq.tokens for seq in serve(engine, planner, None, requests(params, count), concurrency=1)[0]]


@pytest.fixture(scope="module")
def greedy_texts() -> list[list[int]]:
    return alone(GREEDY)


@pytest.fixture(scope="module")
def sampled_texts() -> list[list[int]]:
    return alone(SAMPLED)


def tiny_head_drafter(engine: Engine, max_draft_steps: int) -> HeadDrafter:
    """A head of random weights: it guesses badly, but through all of the real head's state.

    Its weights are float16 on any machine: what reaches it of a float32 target is the same up to rounding only, and
    bfloat16 would make that visible.
    """
    torch.manual_seed(0)
    config = engine.model.config
    geometry = HeadGeometry("tiny", (0, 1, 2), config.num_heads, config.num_kv_heads, 1e4, 1e-5)
    module = DraftHead(geometry, HeadShape(config.hidden_size, 40, config.head_dim))
    weights = module.export(torch.arange(0, config.vocab_size))
    return HeadDrafter(engine.model.embedding, weights, max_draft_steps=max_draft_steps, weight_kind="float16")


def drafters(engine: Engine, name: str, max_draft_steps: int, texts: list[list[int]]) -> Drafter:
    if name == "ngram":
        return NgramDrafter(max_draft_steps=max_draft_steps)
    if name == "head":
        return tiny_head_drafter(engine, max_draft_steps)
    if name == "hybrid":
        return HybridDrafter(NgramDrafter(max_draft_steps=max_draft_steps), tiny_head_drafter(engine, max_draft_steps))
    if name == "noise":
        return NoiseDrafter(max_draft_steps, 64, seed=1)
    return KnowingDrafter(max_draft_steps, dict(enumerate(texts)), spoil=0.3)


def planner_for(name: str, max_draft_steps: int, seed: int = 0) -> Any:
    if name == "wild":
        return WildPlanner(max_draft_steps, seed)
    return make_planner(name, COSTS, max_draft_steps=max_draft_steps, drafter="serial_no_kv")


@pytest.mark.parametrize("drafter", ["ngram", "head", "hybrid", "noise", "knowing"])
@pytest.mark.parametrize("max_draft_steps", [1, 3, 7, 11, 15])
@pytest.mark.parametrize("strategy", ["fixed:1", "lightspec", "wild"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_text_is_that_of_the_target_alone(  # noqa: PLR0917 - the grid's axes
    drafter: str,
    max_draft_steps: int,
    strategy: str,
    params: SamplingParams,
    greedy_texts: list[list[int]],
    sampled_texts: list[list[int]],
) -> None:
    texts = greedy_texts if params is GREEDY else sampled_texts
    engine = tiny_engine()
    chosen = drafters(engine, drafter, max_draft_steps, texts)
    concurrency = 1 + (max_draft_steps + len(drafter)) % 8
    finished, _ = serve(
        engine, planner_for(strategy, max_draft_steps), chosen, requests(params), concurrency=concurrency
    )
    assert [seq.tokens for seq in finished] == texts


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slots=st.sampled_from([96, 160, 400]), concurrency=st.integers(1, 8))
@example(seed=8, slots=160, concurrency=3)  # a short context at the very end of the pool beside a longer one
def test_small_pools_cancels_and_stops_change_no_text(seed: int, slots: int, concurrency: int) -> None:
    rng = np.random.default_rng(seed)
    stops = ("a", "th", "e.", "1")
    wanted = []
    for prompt, params in requests(SAMPLED if seed % 2 else GREEDY):
        stop = tuple(rng.choice(stops, int(rng.integers(0, 3)), replace=False).tolist())
        wanted.append((prompt, replace(params, stop=stop, max_tokens=int(rng.integers(1, 30)))))
    plain, _ = serve(tiny_engine(), make_planner("off", COSTS, max_draft_steps=1), None, wanted, concurrency=1)
    cancelled = dict.fromkeys(rng.choice(8, 2, replace=False).tolist(), int(rng.integers(1, 8)))
    engine = tiny_engine(num_slots=slots, max_context=72, max_rows=8)
    drafter = KnowingDrafter(7, {i: seq.tokens for i, seq in enumerate(plain)}, spoil=0.2, seed=seed)
    served, _ = serve(engine, WildPlanner(7, seed), drafter, wanted, concurrency=concurrency, cancel=cancelled)
    for index, (left, right) in enumerate(zip(served, plain, strict=True)):
        if left.finish_reason == "cancelled":
            assert index in cancelled
            assert right.tokens[: len(left.tokens)] == left.tokens
        else:
            assert (left.tokens, left.text, left.finish_reason) == (right.tokens, right.text, right.finish_reason)


def test_a_pool_too_small_for_all_pauses_and_resumes() -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    engine = tiny_engine(num_slots=140, max_context=110, max_rows=8)
    planner = make_planner("fixed:7", COSTS, max_draft_steps=7, drafter="free")
    rounds = Round(EmbeddedHost(engine, NgramDrafter(max_draft_steps=7), 7), planner)
    live = [engine.submit(prompt, params, request_id=i) for i, (prompt, params) in enumerate(requests(params))]
    paused: set[int] = set()
    while engine.has_work:
        rounds.step()
        rounds.host.check_slots()
        paused |= {seq.request_id for seq in engine.waiting if seq.status == "paused"}
    assert paused
    assert [seq.tokens for seq in live] == alone(params)
    assert engine.slots.num_free == 140


def test_a_drafter_that_knows_the_text_commits_k_plus_one_tokens_a_round(greedy_texts: list[list[int]]) -> None:
    engine = tiny_engine()
    drafter = KnowingDrafter(7, dict(enumerate(greedy_texts)))
    planner = make_planner("fixed:7", COSTS, max_draft_steps=7, drafter="free")
    finished, records = serve(engine, planner, drafter, requests(GREEDY), concurrency=1)
    assert [seq.tokens for seq in finished] == greedy_texts
    drafted = np.concatenate([record.drafted for record in records])
    accepted = np.concatenate([record.accepted for record in records])
    assert (accepted == drafted + 1).all()
    assert accepted.max() == 8


def test_a_host_that_accepts_everything_is_found_out(
    greedy_texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison of texts does fail when verification is broken."""
    right = EmbeddedHost.verify

    def gullible(host: EmbeddedHost, verified: IntArray) -> Verdict:
        verdict = right(host, verified)
        tokens = verdict.tokens.copy()
        for row, count in enumerate(verified.tolist()):
            tokens[row, :count] = host._tokens[row, 1 : 1 + count]
        return Verdict(1 + verified, tokens)

    monkeypatch.setattr(EmbeddedHost, "verify", gullible)
    engine = tiny_engine()
    finished, _ = serve(engine, planner_for("fixed:7", 7), NoiseDrafter(7, 64, seed=1), requests(GREEDY))
    assert [seq.tokens for seq in finished] != greedy_texts


def test_sampling_keeps_the_targets_distribution_under_adversarial_budgets() -> None:
    """Chi-square of the third token over 600 seeds against the frequencies without speculation."""
    prompt = prompts(1)[0]
    params = SamplingParams(max_tokens=3, temperature=1.3, ignore_eos=True)
    count = 600

    def third_tokens(planner: Any, drafter_seed: int | None, first_seed: int) -> np.ndarray:
        engine = tiny_engine(num_slots=4096, max_requests=32)
        drafter = None if drafter_seed is None else NoiseDrafter(3, 64, seed=drafter_seed)
        wanted = [(prompt, replace(params, seed=first_seed + index)) for index in range(count)]
        return np.array([seq.tokens[-1] for seq in serve(engine, planner, drafter, wanted, concurrency=32)[0]])

    plain = np.bincount(third_tokens(make_planner("off", COSTS, max_draft_steps=3), None, 10_000), minlength=64)
    wild = np.bincount(third_tokens(WildPlanner(3, 5), 9, 20_000), minlength=64)
    common = np.argsort(-(plain + wild))[:14]
    table = np.array([[*plain[common], count - plain[common].sum()], [*wild[common], count - wild[common].sum()]])
    expected = table.sum(axis=0) / 2
    chi_square = float(((table - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    assert chi_square < 36.1  # the 0.999 quantile at 14 degrees of freedom
