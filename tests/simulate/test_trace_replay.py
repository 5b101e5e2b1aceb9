"""Recorded texts: a replay serves them as the engine did, whatever the plan."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.planner import BatchView, ChainRule, DrafterKind, Plan, make_planner
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.replay import Replay
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import load_scenario
from tests.adapters.adversaries import WildPlanner, serve
from tests.adapters.test_embedded_lossless import COSTS, requests
from tests.engine.tiny_llama import tiny_engine
from tests.simulate.replays import COUNT, PARAMS, STEPS, drafter_of, recorded, scenario_file
from tests.simulate.workloads import Scripted


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
