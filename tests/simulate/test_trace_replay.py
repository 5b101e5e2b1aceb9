"""Recorded texts: a replay serves them as the engine did, whatever the plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.recorder import Written, find_drafts
from lightspec_lightllm.adapters.recording import (
    FORMAT,
    RecordedDrafter,
    RecordedRequest,
    RecordedSource,
    Recording,
    load_recording,
    to_bytes,
)
from lightspec_lightllm.cli import main
from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.drafters import Drafter, NgramDrafter, Proposals, SequenceView
from lightspec_lightllm.drafters.base import StepRule
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.engine import Engine, SamplingParams
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import BatchView, ChainRule, DrafterKind, Plan, make_planner
from lightspec_lightllm.simulate.arms import find_references, make_arm
from lightspec_lightllm.simulate.comparison import summaries
from lightspec_lightllm.simulate.experiment import run_cell
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.knowledge import knowledge_of
from lightspec_lightllm.simulate.options import FREE, SimulateOptions
from lightspec_lightllm.simulate.replay import Replay
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import load_scenario
from tests.adapters.adversaries import BlankDrafter, WildPlanner, serve
from tests.adapters.test_embedded_lossless import COSTS, alone, requests, tiny_head_drafter
from tests.engine.tiny_llama import tiny_engine
from tests.simulate.workloads import Scripted

SHIPPED = Path(__file__).parent.parent.parent / "configs" / "scenarios" / "replay.yaml"
PARAMS = SamplingParams(max_tokens=24)
STEPS = 5
COUNT = 8


class Reader(BlankDrafter):
    """Has read the texts, and gets some tokens wrong and makes fewer drafts here and there, by position alone."""

    name = "reader"

    def __init__(self, max_draft_steps: int, texts: list[list[int]]) -> None:
        super().__init__(max_draft_steps)
        self._texts = texts

    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: StepRule | None = None) -> Proposals:
        proposals = Proposals.empty(len(seqs), steps)
        for row, seq in enumerate(seqs):
            total = len(seq.tokens)
            prompt = list(seq.tokens)[: seq.prompt_length]
            text = next(text for text in self._texts if text[: seq.prompt_length] == prompt)
            known = (text[total:] + [1] * steps)[: min(steps, total % (self.max_draft_steps + 1))]
            drafts = [token if (total * 7 + j * j) % 5 else (token + 1) % 64 for j, token in enumerate(known)]
            proposals.put(row, drafts, [0.9 - 0.1 * j for j in range(len(drafts))])
        return proposals


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return alone(PARAMS, COUNT)


def drafter_of(name: str, engine: Engine, texts: list[list[int]]) -> Drafter:
    if name == "reader":
        return Reader(STEPS, texts)
    if name == "ngram":
        return NgramDrafter(max_draft_steps=STEPS)
    head = tiny_head_drafter(engine, STEPS)
    return head if name == "head" else HybridDrafter(NgramDrafter(max_draft_steps=STEPS), head)


MADE: dict[str, Recording] = {}


def recorded(name: str, texts: list[list[int]]) -> Recording:
    """What a drafter would have proposed at every position of the tiny model's texts; made once."""
    if name in MADE:
        return MADE[name]
    engine = tiny_engine()
    drafter = drafter_of(name, engine, texts)
    prompts = [prompt for prompt, _ in requests(PARAMS, COUNT)]
    written = [
        Written(tuple(prompt), tuple(text[len(prompt) :]), PARAMS.max_tokens)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    found = find_drafts(engine, drafter, written, STEPS)
    assert engine.slots.num_free == engine.options.num_slots
    MADE[name] = Recording(
        format=FORMAT,
        date="20260102-030405",
        source=RecordedSource("tiny", "tiny", "0" * 64, "float32", 1, (4,), PARAMS.max_tokens, 0.0, 0, {"cpu": "any"}),
        drafter=RecordedDrafter(name, "free" if drafter.kind == "free" else "serial_no_kv", STEPS),
        costs=CostTables.of(COSTS),
        requests=tuple(
            RecordedRequest(
                dataset="even" if at % 2 == 0 else "odd",
                key=f"p{at}",
                prompt_tokens=len(text.prompt),
                answer_tokens=len(text.answer),
                drafts=drafts.drafts,
                right=drafts.right,
                confidence=drafts.confidence,
            )
            for at, (text, drafts) in enumerate(zip(written, found, strict=True))
        ),
    )
    return MADE[name]


def scenario_file(folder: Path, recording: Recording, **changes: Any) -> Path:
    ending, content = to_bytes(recording)
    (folder / f"run{ending}").write_bytes(content)
    path = folder / "replayed.yaml"
    given = {"name": "replayed", "trace_file": f"run{ending}", "requests": {"count": 4}, "segments": [{"rounds": 60}]}
    merged = {key: value for key, value in (given | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(merged), encoding="utf-8")
    return path


@pytest.fixture
def replayed(tmp_path: Path, texts: list[list[int]]) -> Path:
    return scenario_file(tmp_path, recorded("reader", texts))


def order_of(path: Path, seed: int) -> list[int]:
    """The first requests that a replay serves, one after the other."""
    host = ScenarioHost(load_scenario(path).varied(count=1, rounds=1), seed)
    assert isinstance(host.world, Replay)
    sources = []
    for number in range(COUNT):
        host.world.begin(0, number)
        sources.append(int(host.world.source[0]))
    assert sorted(sources) == list(range(COUNT))
    return sources


def steady(records: list[RoundRecord], concurrency: int) -> list[RoundRecord]:
    """The rounds before the closed loop runs dry: whoever is missing joins in the next round."""

    def is_full(record: RoundRecord, after: RoundRecord) -> bool:
        return record.num_requests + len(np.setdiff1d(after.request_ids, record.request_ids)) >= concurrency

    pairs = itertools.takewhile(lambda pair: is_full(*pair), itertools.pairwise(records))
    return [record for record, _ in pairs]


@pytest.mark.parametrize("drafter", ["reader", "ngram", "head", "hybrid"])
@pytest.mark.parametrize("strategy", ["fixed:2", "fixed:5", "off", "wild"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_replay_is_round_for_round_the_engines_run(
    drafter: str, strategy: str, concurrency: int, texts: list[list[int]], tmp_path: Path
) -> None:
    path = scenario_file(tmp_path, recorded(drafter, texts), requests={"count": concurrency})
    order = order_of(path, seed=3)
    asked = requests(PARAMS, COUNT)

    def planner() -> Any:
        kind: DrafterKind = "free" if drafter in ("reader", "ngram") else "serial_no_kv"
        if strategy == "wild":
            return WildPlanner(STEPS, 7)
        return make_planner(strategy, COSTS, max_draft_steps=STEPS, drafter=kind)

    engine = tiny_engine()
    _, records = serve(
        engine, planner(), drafter_of(drafter, engine, texts), [asked[at] for at in order], concurrency=concurrency
    )
    real = steady(records, concurrency)
    assert len(real) > 10

    host = ScenarioHost(load_scenario(path), 3)
    loop = Round(host, planner())
    for record in real:
        again = loop.step()
        host.check_slots()
        assert again is not None
        assert again.num_requests == record.num_requests
        assert again.context_tokens == record.context_tokens
        assert again.drafted.tolist() == record.drafted.tolist()
        assert again.verified.tolist() == record.verified.tolist()
        assert again.committed.tolist() == record.committed.tolist()
        whole = record.committed == record.accepted  # past an answer's end nothing is recorded
        assert again.accepted[whole].tolist() == record.accepted[whole].tolist()
        assert again.confidence is not None
        assert record.confidence is not None
        waiting = np.arange(STEPS) < record.drafted[:, None]
        np.testing.assert_allclose(again.confidence[waiting], record.confidence[waiting], atol=2e-4)
    assert loop.counters.fallback is None
    assert strategy == "off" or drafter == "head" or max(record.accepted.max() for record in real) > 1


class Ender(WildPlanner):
    """Plans that end each draft after one step more than the draft before, whatever was planned."""

    def __init__(self) -> None:
        super().__init__(STEPS, 5)
        self.asked: list[np.ndarray] = []
        self._most = 0

    def plan(self, view: BatchView) -> Plan:
        self._most = self._most % STEPS + 1
        return replace(super().plan(view), chain=cast(ChainRule, self))

    def worth_another_step(self, confidence: np.ndarray, request_ids: np.ndarray) -> bool:
        assert len(request_ids) == len(confidence)
        self.asked.append(confidence.copy())
        return int(confidence.shape[1]) < self._most


def test_a_replay_ends_drafts_early_as_the_engine_does(texts: list[list[int]], tmp_path: Path) -> None:
    path = scenario_file(tmp_path, recorded("head", texts), requests={"count": 3})
    order, asked = order_of(path, seed=3), requests(PARAMS, COUNT)
    engine, real, again = tiny_engine(), Ender(), Ender()
    drafter = drafter_of("head", engine, texts)
    _, records = serve(engine, real, drafter, [asked[at] for at in order], concurrency=3)
    records = steady(records, 3)
    loop = Round(ScenarioHost(load_scenario(path), 3), again)
    for record in records:
        replayed = loop.step()
        assert replayed is not None
        assert replayed.draft_steps == record.draft_steps
        assert replayed.drafted.tolist() == record.drafted.tolist()
    assert {record.draft_steps for record in records} == set(range(STEPS + 1))
    assert sum((~np.isnan(told)).sum() for told in again.asked) > 100
    for ours, theirs in zip(again.asked, real.asked, strict=False):
        known = ~np.isnan(ours)  # drafts past an answer's limit are not recorded
        np.testing.assert_allclose(ours[known], theirs[known], atol=2e-4)


def test_nothing_is_drafted_once_every_answer_has_ended(texts: list[list[int]], tmp_path: Path) -> None:
    host = ScenarioHost(load_scenario(scenario_file(tmp_path, recorded("head", texts), requests={"count": 1})), 0)
    loop = Round(host, make_planner("fixed:3", COSTS, max_draft_steps=STEPS, drafter="serial_no_kv"))
    made: dict[bool, set[tuple[int, bool]]] = {}
    for _ in range(60):
        record = loop.step()
        assert record is not None
        ended = not len(host.world.slots)
        made.setdefault(ended, set()).add((record.draft_steps, record.seconds["draft"] > 0))
    assert made == {False: {(3, True)}, True: {(0, False)}}


def test_lookups_of_a_hybrid_are_replayed_as_planned(texts: list[list[int]], tmp_path: Path) -> None:
    planner = Ender()
    loop = Round(ScenarioHost(load_scenario(scenario_file(tmp_path, recorded("hybrid", texts))), 0), planner)
    for _ in range(9):
        record = loop.step()
        assert record is not None
        assert record.draft_steps == record.plan.draft_steps
    assert not planner.asked


def test_an_answer_brings_its_tokens_but_the_first_and_requests_come_again(replayed: Path) -> None:
    scenario = load_scenario(replayed)
    host = ScenarioHost(scenario, 0)
    world = host.world
    assert isinstance(world, Replay)
    total: dict[int, int] = {}
    source: dict[int, int] = {}
    loop = Round(host, Scripted(scenario, (STEPS, 0, 2)))
    for _ in range(200):
        record = loop.step()
        assert record is not None
        ids = record.request_ids.tolist()
        for request, tokens in zip(ids, record.committed.tolist(), strict=True):
            total[request] = total.get(request, 0) + tokens
        for slot in world.slots.tolist():
            source[int(world.request[slot])] = int(world.source[slot])
    ended = [request for request in source if request < min(world.request_ids)]
    assert len(ended) > 2 * COUNT
    assert {source[request] for request in ended} == set(range(COUNT))
    for request in ended:
        assert total[request] == world.recording.requests[source[request]].answer_tokens - 1


def test_what_is_expected_of_a_round_is_what_it_brings(replayed: Path) -> None:
    scenario = load_scenario(replayed)
    trace = run(ScenarioHost(scenario, 0), WildPlanner(STEPS, 1), 60)
    assert trace.expected.tolist() == trace.tokens.tolist()


def test_the_seed_draws_the_order(replayed: Path) -> None:
    assert order_of(replayed, 0) == order_of(replayed, 0)
    assert order_of(replayed, 0) != order_of(replayed, 1)


def test_a_segment_mixes_the_sets_of_the_trace(tmp_path: Path, texts: list[list[int]]) -> None:
    segments = [{"rounds": 80, "mix": {"odd": 1.0}}, {"rounds": 80, "mix": {"even": 3.0, "odd": 1.0}}]
    path = scenario_file(tmp_path, recorded("ngram", texts), segments=segments)
    host = ScenarioHost(load_scenario(path), 0)
    world = host.world
    assert isinstance(world, Replay)
    seen: list[dict[int, str]] = [{}, {}]
    loop = Round(host, Scripted(host.scenario, (0,)))
    for _ in range(160):
        loop.step()
        for slot in world.slots.tolist():
            name = world.recording.requests[int(world.source[slot])].dataset
            seen[world.segment].setdefault(int(world.request[slot]), name)
    assert set(seen[0].values()) == {"odd"}
    new = [name for request, name in seen[1].items() if request not in seen[0]]
    assert new.count("even") / len(new) == pytest.approx(0.75, abs=0.1)


def test_fewer_steps_and_a_later_confidence_can_be_asked_of_a_trace_more_steps_cannot(
    replayed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--seeds", "1", "--rounds", "12", "--search-rounds", "10", "--plan-time", "none", "--arms", "off", "fixed")
    out = ("--out", str(tmp_path / "out"))
    assert main(["simulate", str(replayed), *out, *flags, "--max-draft-steps", "2", "--confidence", "late"]) == 0
    assert "N 4, free K 2" in capsys.readouterr().out
    assert main(["simulate", str(replayed), *out, *flags, "--max-draft-steps", "6"]) == 2
    assert "max_draft_steps: expected at most the 5 of the trace, got 6" in capsys.readouterr().err
    assert main(["simulate", str(replayed), *out, *flags, "--drafter-kind", "serial"]) == 2
    assert "kind: expected that of the trace's drafter reader, free, got 'serial'" in capsys.readouterr().err


def test_all_arms_but_the_optimum_run_and_it_is_left_out_with_its_reason(
    replayed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--seeds", "2", "--rounds", "30", "--search-rounds", "20", "--plan-time", "none")
    assert main(["simulate", str(replayed), "--out", str(tmp_path / "out"), *flags]) == 0
    printed = capsys.readouterr().out
    assert "optimum left out: a trace says which drafts were right, not how likely each was" in printed
    for arm in ("off", "fixed:1", "static", "static+ranking", "mean-ema", "dspark", "lightspec", "clairvoyant"):
        assert f"\n {arm} " in printed


def test_the_clairvoyant_is_ahead_and_accepts_every_row_that_it_verifies() -> None:
    arms = ("off", "fixed:1", "fixed:2", "fixed:15", "static", "static+ranking", "lightspec", "clairvoyant")
    options = SimulateOptions(arms=arms, seeds=(0, 1), plan_time=FREE, search_rounds=60)
    cell = run_cell(load_scenario(SHIPPED).varied(rounds=60), options, lambda _: None)
    found = {line.arm: line for line in summaries(cell)}
    best = found["clairvoyant"]
    assert best.rows == pytest.approx(best.accept_length, rel=0.02)
    for line in found.values():
        assert line.arm == "clairvoyant" or line.rate.median < 0.95 * best.rate.median
    # The search runs what the first segment is made of: there nothing static is better than what it found.
    first = {arm: line.segment_rates[0].median for arm, line in found.items()}
    assert first["static"] >= 0.98 * max(first["off"], first["fixed:1"], first["fixed:2"], first["fixed:15"])


def test_the_optimum_refuses_recorded_text(replayed: Path) -> None:
    with pytest.raises(ConfigError, match="needs true probabilities: a trace has outcomes alone"):
        knowledge_of(ScenarioHost(load_scenario(replayed), 0).world)


def test_costs_are_the_traces_unless_the_scenario_says_others(
    replayed: Path, tmp_path: Path, texts: list[list[int]]
) -> None:
    own = load_scenario(replayed).tables.model()
    assert own.target_ms(12, 3, 100.0) == pytest.approx(COSTS.target_ms(12, 3, 100.0))
    assert load_scenario(replayed).drafter.max_draft_steps == STEPS
    other = scenario_file(tmp_path, recorded("ngram", texts), costs={"target": {64: 3.0}})
    assert load_scenario(other).tables.model().target_ms(12, 3, 100.0) == 3.0


def test_the_shipped_trace_is_small_and_a_real_run(tmp_path: Path) -> None:
    scenario = load_scenario(SHIPPED)
    path = Path(str(scenario.trace_file))
    assert path.stat().st_size < 300_000
    recording = load_recording(path)
    assert recording.drafter == RecordedDrafter("ngram", "free", 15)
    assert recording.datasets == ("humaneval", "gsm8k", "sharegpt")
    assert len(recording.requests) == 12
    assert recording.source.machine["commit"]
    host = ScenarioHost(scenario, 0)
    nothing = find_references(scenario, (), (0,), rounds=10, report=lambda _: None)
    trace = run(host, make_arm("fixed:3", host, nothing, 0), 60)
    assert 1.1 < trace.tokens.sum() / trace.num_requests.sum() < 2.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": {"chat": {"acceptance": [0.5]}}}, "classes: expected none beside trace_file"),
        ({"correlation": 0.5}, "correlation: expected none beside trace_file"),
        ({"drafter": {"kind": "free"}}, "drafter: expected none beside trace_file"),
        ({"drafter": {"max_draft_steps": 7}}, "drafter: expected none beside trace_file"),
        ({"drafter": {"noise": 1.0}}, "drafter: expected none beside trace_file"),
        (
            {"requests": {"answer_tokens": [5, 9]}},
            "requests.answer_tokens: expected none beside trace_file",
        ),
        ({"requests": {"prompt_tokens": [5, 9]}}, "requests.prompt_tokens: expected none beside trace_file"),
        (
            {"segments": [{"rounds": 5, "mix": {"mbpp": 1.0}}]},
            "segments.0.mix: expected names of sets in the trace",
        ),
        ({"costs_file": "a.yaml", "costs": {"target": {8: 1.0}}}, "costs: expected one of costs, costs_file"),
        ({"trace_file": "nowhere.trace.json"}, "nowhere.trace.json cannot be read"),
        ({"trace_file": None}, "classes: expected at least one class of requests, or a trace_file instead"),
        ({"trace_file": "replayed.yaml"}, "replayed.yaml is not JSON"),
    ],
)
def test_a_bad_replay_is_one_clear_line_and_exit_code_2(
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    texts: list[list[int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = scenario_file(tmp_path, recorded("ngram", texts), **changes)
    assert main(["simulate", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err
    assert not (tmp_path / "out").exists()
