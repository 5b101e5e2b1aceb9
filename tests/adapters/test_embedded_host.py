"""The embedded engine under a round: what is drafted, who is drafted for, and what sampling comes to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters import calibration
from lightspec_lightllm.adapters.embedded import EmbeddedHost, EmbeddedRuntime
from lightspec_lightllm.config import Config, ModelConfig, PlannerConfig
from lightspec_lightllm.decode import Round, Verdict
from lightspec_lightllm.decode.host import IntArray
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.engine import Engine, SamplingParams, Sequence
from lightspec_lightllm.engine.options import EngineOptions
from lightspec_lightllm.engine.sampling import distribution
from lightspec_lightllm.planner import BatchView, Plan, Planner, RoundFeedback, make_planner
from tests.adapters.adversaries import KnowingDrafter, WildPlanner, serve
from tests.adapters.test_embedded_lossless import COSTS, GREEDY, SAMPLED, alone, requests, tiny_head_drafter
from tests.engine.driving import decode_alone
from tests.engine.tiny_llama import tiny_engine, write_tiny_gguf


def probability_transforms(texts: list[list[int]], prompt_length: int, params: SamplingParams) -> list[float]:
    """Where each token lies in the distribution that the target has at its place: uniform in 0..1 if it was drawn so.

    The target reads each finished text in one forward, with no draft and no cache of an earlier round.
    """
    rng = np.random.default_rng(0)
    engine = tiny_engine(max_rows=32)
    out = []
    for text in texts:
        sequence = engine.submit(text[:prompt_length], SamplingParams(max_tokens=40, ignore_eos=True))
        seqs = engine.schedule(rows=len(text) - prompt_length)
        sequence.tokens[-1] = text[prompt_length]
        rows = np.array([len(text) - prompt_length - 1])
        logits = engine.forward(seqs, np.array([text[prompt_length:-1]]), rows).logits.numpy()
        for line, token in zip(logits, text[prompt_length + 1 :], strict=True):
            chances = distribution(line, params)
            out.append(float(chances[:token].sum() + rng.random() * chances[token]))
        engine.cancel(sequence.request_id)
        engine.schedule(rows=1)
    return out


def chi_square(values: list[float], bins: int = 20) -> float:
    """Distance of values in 0..1 from being uniform."""
    counts = np.histogram(values, bins=bins, range=(0.0, 1.0))[0]
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


WARM = SamplingParams(max_tokens=12, temperature=1.2, top_k=40, ignore_eos=True)
PROMPT = [5, 9, 20, 11, 9, 20]
LIMIT = 52.4
"""The 0.9999 quantile of chi-square at 19 degrees of freedom."""


def sampled_texts(monkeypatch: pytest.MonkeyPatch | None = None) -> list[list[int]]:
    """300 texts of one prompt under wild plans, with drafts half of which are right."""
    wanted = [(PROMPT, replace(WARM, seed=seed)) for seed in range(300)]
    off = make_planner("off", COSTS, max_draft_steps=1)
    plain = serve(tiny_engine(max_requests=32, num_slots=2048), off, None, wanted, concurrency=32)[0]
    drafter = KnowingDrafter(7, {index: seq.tokens for index, seq in enumerate(plain)}, spoil=0.4)
    if monkeypatch is not None:
        break_verification(monkeypatch)
    engine = tiny_engine(max_requests=32, num_slots=2048)
    served, records = serve(engine, WildPlanner(7, seed=3), drafter, wanted, concurrency=32)
    assert sum(int(record.accepted.sum()) - record.num_requests for record in records) > 300
    return [seq.tokens for seq in served]


def break_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every verified draft."""
    right = EmbeddedHost.verify

    def gullible(host: EmbeddedHost, verified: IntArray) -> Verdict:
        tokens = right(host, verified).tokens.copy()
        for row, count in enumerate(verified.tolist()):
            tokens[row, :count] = host._tokens[row, 1 : 1 + count]
        return Verdict(1 + verified, tokens)

    monkeypatch.setattr(EmbeddedHost, "verify", gullible)


def test_every_token_is_drawn_from_the_targets_own_distribution_under_wild_plans() -> None:
    assert chi_square(probability_transforms(sampled_texts(), len(PROMPT), WARM)) < LIMIT


def test_a_host_that_accepts_every_draft_does_not_keep_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sampled_texts(monkeypatch)
    monkeypatch.undo()
    assert chi_square(probability_transforms(texts, len(PROMPT), WARM)) > 2 * LIMIT


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    slots=st.sampled_from([96, 160, 400]),
    concurrency=st.integers(2, 8),
    hybrid=st.booleans(),
    sampled=st.booleans(),
)
def test_a_head_keeps_up_with_pauses_resumes_cancels_and_skipped_drafts(
    *, seed: int, slots: int, concurrency: int, hybrid: bool, sampled: bool
) -> None:
    rng = np.random.default_rng(seed)
    wanted = requests(replace(SAMPLED if sampled else GREEDY, max_tokens=int(rng.integers(5, 30))))
    plain, _ = serve(tiny_engine(), make_planner("off", COSTS, max_draft_steps=1), None, wanted, concurrency=1)
    engine = tiny_engine(num_slots=slots, max_context=72, max_rows=8, prefill_chunk=int(rng.choice([3, 256])))
    head = tiny_head_drafter(engine, 7)
    drafter = HybridDrafter(NgramDrafter(max_draft_steps=7), head) if hybrid else head
    cancelled = {int(rng.integers(8)): int(rng.integers(1, 8))}
    served, _ = serve(engine, WildPlanner(7, seed), drafter, wanted, concurrency=concurrency, cancel=cancelled)
    for index, (left, right) in enumerate(zip(served, plain, strict=True)):
        length = len(left.tokens) if index in cancelled else len(right.tokens)
        assert left.tokens == right.tokens[:length]
    assert not head._backlogs
    assert len(head._cache) == 0


@pytest.mark.parametrize("name", ["head", "ngram"])
def test_strategies_may_change_while_requests_run(name: str) -> None:
    engine = tiny_engine(num_slots=160, max_context=100, prefill_chunk=5)
    drafter = NgramDrafter(max_draft_steps=3) if name == "ngram" else tiny_head_drafter(engine, 3)
    runtime = EmbeddedRuntime(engine, drafter, COSTS, 3)
    params = replace(GREEDY, max_tokens=40, ignore_eos=True)
    live = [runtime.submit(prompt, own) for prompt, own in requests(params, 6)]
    strategies = ["lightspec", "off", "fixed:3", "off", "lightspec", "fixed:1"]
    turn = 0
    while engine.has_work:
        loop = runtime.round(strategies[turn % len(strategies)])
        for _ in range(3):
            loop.step()
            loop.host.check_slots()
        assert loop.counters.fallback is None
        turn += 1
    assert turn > 6
    assert [seq.tokens for seq in live] == alone(params, 6)


def test_no_more_is_drafted_than_a_request_may_still_generate() -> None:
    engine = tiny_engine()
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    wanted = [(prompt, replace(params, max_tokens=3 + index)) for index, (prompt, _) in enumerate(requests(params, 5))]
    plain, _ = serve(tiny_engine(), make_planner("off", COSTS, max_draft_steps=1), None, wanted)
    drafter = KnowingDrafter(7, {index: seq.tokens + [1] * 20 for index, seq in enumerate(plain)})
    served, records = serve(engine, make_planner("fixed:7", COSTS, max_draft_steps=7), drafter, wanted)
    assert [seq.tokens for seq in served] == [seq.tokens for seq in plain]
    left = {index: own.max_tokens - 1 for index, (_, own) in enumerate(wanted)}
    for record in records:
        for request, drafted, kept in zip(record.request_ids, record.drafted, record.committed, strict=True):
            assert drafted <= left[int(request)] - 1
            left[int(request)] -= int(kept)
    assert set(left.values()) == {0}


class ListeningPlanner:
    """A planner that notes what it is fed back."""

    def __init__(self, inner: Planner) -> None:
        self.inner = inner
        self.max_draft_steps = inner.max_draft_steps
        self.counters = inner.counters
        self.heard: list[RoundFeedback] = []

    def plan(self, view: BatchView) -> Plan:
        return self.inner.plan(view)

    def observe(self, feedback: RoundFeedback) -> None:
        self.heard.append(feedback)
        self.inner.observe(feedback)


@pytest.mark.parametrize("name", ["head", "ngram"])
def test_a_prompt_that_is_read_beside_rows_is_drafted_for_in_the_same_round(name: str) -> None:
    engine = tiny_engine()
    drafter = NgramDrafter(max_draft_steps=3) if name == "ngram" else tiny_head_drafter(engine, 3)
    loop = Round(EmbeddedHost(engine, drafter, 3), make_planner("fixed:3", COSTS, max_draft_steps=3))
    params = replace(GREEDY, max_tokens=20, ignore_eos=True)
    engine.submit([5, 9, 5, 9, 5, 9], params)
    loop.step()
    new = engine.submit([7, 8, 7, 8, 7, 8, 7, 8], params)
    during, after = loop.step(), loop.step()
    assert during is not None
    assert after is not None
    assert (during.num_requests, during.prompt_tokens) == (1, 8)
    assert after.request_ids.tolist()[1] == new.request_id
    looked_up = NgramDrafter(max_draft_steps=3).propose([seq_of(new.tokens[:9], 8)], 3).lengths[0]
    assert after.drafted[1] == (looked_up if name == "ngram" else 3)
    loop.host.check_slots()


def seq_of(tokens: list[int], prompt_length: int) -> Sequence:
    """A request with this text."""
    sequence = Sequence(0, tokens[:prompt_length], GREEDY, 0, tiny_engine().tokenizer)
    sequence.tokens = list(tokens)
    return sequence


def test_a_round_that_read_prompts_is_no_measure_of_its_plan() -> None:
    engine = tiny_engine(prefill_chunk=4)
    planner = ListeningPlanner(make_planner("lightspec", COSTS, max_draft_steps=3, drafter="free"))
    loop = Round(EmbeddedHost(engine, NgramDrafter(max_draft_steps=3), 3), planner)
    params = replace(GREEDY, max_tokens=12, ignore_eos=True)
    records = []
    for prompt in ([5, 9, 5], [7, 8, 7, 8, 7, 8, 7, 8, 7]):
        engine.submit(prompt, params)
        records += [record for _ in range(4) if (record := loop.step()) is not None]
    assert [record.prompt_tokens for record in records] == [3, 0, 0, 0, 4, 4, 1, 0]
    for record, feedback in zip(records, planner.heard, strict=True):
        assert (feedback.measured_ms is None) == (record.prompt_tokens > 0)
        if feedback.measured_ms is not None:
            assert feedback.measured_ms == record.round_ms > 0


def test_a_drafter_forgets_requests_that_end_under_another_host() -> None:
    engine = tiny_engine()
    head = tiny_head_drafter(engine, 3)
    runtime = EmbeddedRuntime(engine, head, COSTS, 3)
    for prompt, own in requests(replace(GREEDY, max_tokens=8, ignore_eos=True), 3):
        runtime.submit(prompt, own)
    runtime.round("fixed:3").step()
    assert head._backlogs
    off = runtime.round("off")
    while engine.has_work:
        off.step()
    assert not head._backlogs
    assert len(head._cache) == 0


def test_serving_goes_on_after_a_forward_that_failed_past_the_reading_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = replace(GREEDY, max_tokens=10, ignore_eos=True)
    prompts = [[5, 9, 5, 9], [7, 8, 7, 8, 7]]
    expected = [decode_alone(tiny_engine(), prompt, params).tokens for prompt in prompts]
    engine = tiny_engine(prefill_chunk=4)
    loop = Round(
        EmbeddedHost(engine, tiny_head_drafter(engine, 3), 3), make_planner("fixed:3", COSTS, max_draft_steps=3)
    )
    old = engine.submit(prompts[0], params)
    loop.step()
    new = engine.submit(prompts[1], params)
    loop.step()
    assert new.num_computed == 4

    def fail_once(*args: Any) -> IntArray:
        monkeypatch.undo()
        raise RuntimeError("out of memory")

    monkeypatch.setattr("lightspec_lightllm.engine.engine.sample_rows", fail_once)
    with pytest.raises(RuntimeError, match="out of memory"):
        loop.step()
    while engine.has_work:
        loop.step()
        loop.host.check_slots()
    assert [old.tokens, new.tokens] == expected


class FailingPlanner(WildPlanner):
    """Wild at first, then broken."""

    def plan(self, view: BatchView) -> Plan:
        if self.counters.observed >= 3:
            raise RuntimeError("broken")
        return super().plan(view)


def test_a_planner_that_breaks_while_serving_changes_no_text(caplog: pytest.LogCaptureFixture) -> None:
    engine = tiny_engine()
    loop = Round(EmbeddedHost(engine, NgramDrafter(max_draft_steps=7), 7), FailingPlanner(7, seed=1))
    live = [engine.submit(prompt, params) for prompt, params in requests(GREEDY)]
    while engine.has_work:
        loop.step()
        loop.host.check_slots()
    assert loop.counters.fallback == "RuntimeError: broken"
    assert len(caplog.records) == 1
    assert [seq.tokens for seq in live] == alone(GREEDY)


def test_a_request_that_arrives_late_is_batched_with_those_that_run() -> None:
    engine = tiny_engine()
    loop = Round(EmbeddedHost(engine, NgramDrafter(max_draft_steps=3), 3), WildPlanner(3, seed=2))
    wanted = requests(replace(GREEDY, max_tokens=30, ignore_eos=True), 4)
    live = []
    sizes = []
    for index, (prompt, params) in enumerate(wanted):
        live.append(engine.submit(prompt, params))
        for _ in range(2 + index):
            record = loop.step()
            sizes.append(0 if record is None else record.num_requests)
            if record is not None:
                assert record.request_ids.tolist() == sorted(record.request_ids.tolist())
    while engine.has_work:
        loop.step()
    assert max(sizes) == 4
    assert [seq.tokens for seq in live] == alone(replace(GREEDY, max_tokens=30, ignore_eos=True), 4)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedRuntime:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "REPEATS", 1)
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    options = EngineOptions(weights="float32", threads=1, num_slots=4096, max_context=256, max_rows=16)
    config = Config(model=ModelConfig(str(model)), engine=options, planner=PlannerConfig(max_draft_steps=7))
    return EmbeddedRuntime.open(config, "ngram")


def test_a_runtime_serves_text_under_any_strategy(runtime: EmbeddedRuntime) -> None:
    texts = []
    for strategy in ("off", "fixed:3", "lightspec", "off"):
        loop = runtime.round(strategy)
        sequence = runtime.submit("the cat and the hat and the", SamplingParams(max_tokens=30))
        while runtime.engine.has_work:
            loop.step()
            loop.host.check_slots()
        assert loop.counters.fallback is None
        texts.append(sequence.text)
    assert len(set(texts)) == 1
    assert texts[0]


def test_runtimes_beside_each_other_share_weights_and_disturb_nothing(runtime: EmbeddedRuntime) -> None:
    """Rounds of three engines in turn, with and without a drafter that reads hidden states: the texts of each alone."""
    prompt, params = "the cat and the hat and the", SamplingParams(max_tokens=30)
    alone = runtime.submit(prompt, params)
    loop = runtime.round("off")
    while runtime.engine.has_work:
        loop.step()
    others = [runtime.beside("ngram") for _ in range(3)]
    loops = [other.round(strategy) for other, strategy in zip(others, ("lightspec", "off", "fixed:2"), strict=True)]
    seqs = [other.submit(prompt, params) for other in others]
    while any(other.engine.has_work for other in others):
        for other, each in zip(others, loops, strict=True):
            if other.engine.has_work:
                each.step()
    assert [seq.tokens for seq in seqs] == [alone.tokens] * 3
    assert all(other.engine.model.embedding is runtime.engine.model.embedding for other in others)
    assert len({id(other.engine.model) for other in others}) == 3
    for other in others:
        other.engine.check()


def test_options_of_a_strategy_reach_its_planner(runtime: EmbeddedRuntime) -> None:
    planner: Any = runtime.planner("lightspec", probe_rounds=3)
    assert planner.options.probe_rounds == 3
    assert planner.drafter == "free"
    assert planner.max_draft_steps == 7


@pytest.mark.parametrize("last", ["lightspec", "off"])
def test_of_several_hosts_of_an_engine_the_one_that_runs_is_connected(last: str) -> None:
    """As the arms of a benchmark take turns: whichever was made last, each drafts and captures as it would alone."""
    engine: Engine = tiny_engine()
    runtime = EmbeddedRuntime(engine, tiny_head_drafter(engine, 3), COSTS, 3)
    first = "off" if last == "lightspec" else "lightspec"
    rounds = {strategy: runtime.round(strategy if strategy == "off" else "fixed:3") for strategy in (first, last)}
    texts = set()
    for strategy in ("lightspec", "off", "lightspec"):
        seq = runtime.submit(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True))
        drafted = 0
        while seq.status != "finished":
            record = rounds[strategy].step()
            drafted += int(record.drafted.sum()) if record is not None else 0
        assert (drafted > 0) == (strategy == "lightspec")
        assert bool(engine.model.capture_layers) == (strategy == "lightspec")
        assert runtime.drafter.backlog([seq]) == 0, "released"
        texts.add(tuple(seq.tokens))
    assert len(texts) == 1


def test_without_speculation_nothing_is_captured_for_a_drafter() -> None:
    engine: Engine = tiny_engine()
    runtime = EmbeddedRuntime(engine, tiny_head_drafter(engine, 3), COSTS, 3)
    captured = []
    for strategy in ("lightspec", "off"):
        runtime.round(strategy)
        captured.append((engine.model.capture_layers, engine.prefill_listener is not None))
    assert captured == [((0, 1, 2), True), ((), False)]
