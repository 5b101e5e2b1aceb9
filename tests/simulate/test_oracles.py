"""Oracles: no arm beats the optimum by more than noise, and each knows what it says it knows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.decode import Round
from lightspec_lightllm.planner import DrafterKind
from lightspec_lightllm.simulate.arms import OPTIMUM, expand, find_references, skipped
from lightspec_lightllm.simulate.comparison import summaries
from lightspec_lightllm.simulate.experiment import run_cell
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.knowledge import Belief, FullKnowledge, knowledge_of
from lightspec_lightllm.simulate.options import PlanTime, SimulateOptions
from lightspec_lightllm.simulate.oracles import ClairvoyantPlanner, OptimumPlanner, Setting, StaticPlanner
from lightspec_lightllm.simulate.references import solve_price, trial_rate
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import Scenario
from lightspec_lightllm.simulate.world import World
from tests.simulate.workloads import GPU_COSTS, Scripted, plain, scenario

NO_PLAN_TIME = PlanTime(0.0)

WORLDS: dict[str, Scenario] = {
    "steep serial": plain(acceptance=(0.6,), spread=0.8, noise=1.5, count=48, steps=5, rounds=80, correlation=0.5),
    "flat serial": plain(acceptance=(0.7,), spread=0.5, noise=1.0, count=4, steps=7, rounds=100),
    "block": plain(
        acceptance=(0.65,), spread=0.8, noise=1.5, count=48, rounds=100, drafter={"kind": "block", "max_draft_steps": 5}
    ),
    "untold": plain(
        acceptance=(0.6,), spread=0.8, noise=1.0, count=48, rounds=100, correlation=0.7, drafter={"confidence": "none"}
    ),
    "dear to begin": plain(
        acceptance=(0.7,),
        spread=0.5,
        noise=1.0,
        count=16,
        steps=6,
        rounds=100,
        drafter={"kind": "serial_no_kv", "max_draft_steps": 6},
        costs=GPU_COSTS | {"draft_start": {1: 2.0, 16: 4.0}},
    ),
    "hopeless": plain(acceptance=(0.1,), count=128, steps=3, rounds=100),
    "free": plain(acceptance=(0.5,), spread=1.0, count=64, rounds=120, drafter={"kind": "free", "confidence": "none"}),
    "arriving": plain(noise=1.0, rounds=70, requests={"count": 24, "arrivals": 1.0, "answer_tokens": [20, 80]}),
}


@pytest.mark.parametrize("name", list(WORLDS))
def test_no_arm_beats_the_optimum_by_more_than_noise(name: str) -> None:
    world = WORLDS[name]
    arms = ("off", "fixed", "static", "static+ranking", "lightspec", "mean-ema", "dspark", "optimum", "clairvoyant")
    options = SimulateOptions(arms=arms, seeds=(0, 1), plan_time=NO_PLAN_TIME, search_rounds=40)
    found = {line.arm: line for line in summaries(run_cell(world, options, lambda _: None))}
    for arm, line in found.items():
        if arm != "clairvoyant":
            assert line.to[OPTIMUM].median < 1.01, arm
    assert found["clairvoyant"].to[OPTIMUM].median > 1.0 - 0.005 * (name == "hopeless")
    fixed = max(line.rate.median for arm, line in found.items() if arm.startswith(("fixed", "off")))
    assert found["static"].rate.median > 0.99 * fixed
    if "static+ranking" in found and name == "block":
        assert found["static+ranking"].rate.median > 1.02 * found["static"].rate.median


def test_the_clairvoyant_verifies_only_what_is_accepted() -> None:
    world = WORLDS["steep serial"]
    host = ScenarioHost(world, 0)
    loop = Round(host, ClairvoyantPlanner(host, [8.0]))
    accepted = 0
    for _ in range(60):
        record = loop.step()
        assert record is not None
        assert (record.accepted == 1 + record.verified).all()
        accepted += int(record.verified.sum())
    assert accepted > 60


@pytest.mark.parametrize("oracle", [OptimumPlanner, ClairvoyantPlanner])
def test_layers_that_only_take_rows_in_are_priced_by_their_own_table(
    oracle: type[OptimumPlanner | ClairvoyantPlanner],
) -> None:
    """Chained layers run over all verified rows alone: what any other forward of theirs costs is no matter."""
    sizes = (8, 32, 128)
    world = scenario(
        drafter__kind="chained", costs__draft=dict.fromkeys(sizes, 1e3), costs__fill=dict.fromkeys(sizes, 1e-3)
    )
    host = ScenarioHost(world, 0)
    loop = Round(host, oracle(host, [8.0] * len(world.segments)))
    records = [loop.step() for _ in range(20)]
    assert all(record is not None and record.plan.draft_steps for record in records)


@pytest.mark.parametrize("oracle", [OptimumPlanner, ClairvoyantPlanner])
def test_a_draft_that_is_too_dear_to_begin_is_not_made(oracle: type[OptimumPlanner | ClairvoyantPlanner]) -> None:
    steps = []
    for start in (0.01, 1e3):
        host = ScenarioHost(scenario(drafter__kind="serial_no_kv", costs__draft_start={1: start}), 0)
        loop = Round(host, oracle(host, [2.0] * len(host.scenario.segments)))
        records = [loop.step() for _ in range(20)]
        steps.append(sum(record.plan.draft_steps for record in records if record is not None))
    assert steps[0] > 0
    assert steps[1] == 0


def test_the_best_static_setting_pays_for_the_start_of_a_draft() -> None:
    found = {}
    for start in (0.0, 3.0, 100.0):
        world = plain(
            acceptance=(0.6,),
            count=8,
            steps=6,
            rounds=60,
            drafter={"kind": "serial_no_kv"},
            costs=GPU_COSTS | {"draft_start": {8: start}},
        )
        found[start] = find_references(world, ("static",), (0,), rounds=60, report=lambda _: None).static[0].steps
    assert 0 < found[0.0] <= found[3.0]
    assert found[100.0] == 0


def test_a_price_is_the_rate_that_planning_with_it_reaches() -> None:
    world = WORLDS["steep serial"].only(0, 80)
    price = solve_price(world, 0)
    assert 1e-3 * trial_rate(world, 0, lambda host: OptimumPlanner(host, [price])) == pytest.approx(price, rel=0.003)
    for other in (0.5 * price, 2.0 * price):
        planner = partial(OptimumPlanner, prices=[other])
        assert 1e-3 * trial_rate(world, 0, planner) < price


def test_the_scan_of_static_settings_agrees_with_running_them() -> None:
    world = WORLDS["steep serial"]
    references = find_references(world, ("static",), (0, 1), rounds=80, report=lambda _: None)
    best = references.static[0]
    rates = {}
    for setting in (best, *(Setting(d, b) for d in (1, 2, 3, 4) for b in (0.5, 1.0, 1.5, 2.0, 3.0) if b <= d)):
        planner = partial(StaticPlanner, settings=[setting])
        rates[setting] = np.mean([trial_rate(world, seed, planner) for seed in (5, 6)])
    assert rates[best] > 0.99 * max(rates.values())


def test_a_static_arm_verifies_its_budget_and_changes_with_the_segment() -> None:
    changing = plain(
        count=10,
        noise=1.0,
        classes={"only": {"acceptance": [0.7], "noise": 1.0}},
        segments=[{"rounds": 10, "mix": {"only": 1.0}}, {"rounds": 10, "mix": {"only": 1.0}}],
    )
    for ranked in (False, True):
        host = ScenarioHost(changing, 0)
        planner = StaticPlanner(host, [Setting(4, 1.5), Setting(1, 1.0)], ranked=ranked)
        trace = run(host, planner, 20)
        assert trace.steps.tolist() == [4] * 10 + [1] * 10
        assert trace.rows[1:10].tolist() == [25] * 9
        assert trace.rows[11:].tolist() == [20] * 9


def test_a_ranked_arm_takes_the_rows_of_the_highest_confidence() -> None:
    world = plain(noise=2.0, count=20)
    rates = []
    for ranked in (False, True):
        host = ScenarioHost(world, 0)
        rates.append(run(host, StaticPlanner(host, [Setting(4, 1.0)], ranked=ranked), 100).expected.sum())
    assert rates[1] > 1.05 * rates[0]


def outcome_score(world: Scenario, seeds: tuple[int, ...]) -> tuple[float, float]:
    """Standardised surplus of first drafts that were right over a belief's survival; and how much beliefs vary."""
    surplus = variance = 0.0
    believed = []
    for seed in seeds:
        host = ScenarioHost(world, seed)
        planner = Scripted(world, (4,))
        assert isinstance(host.world, World)
        loop, belief = Round(host, planner), Belief(host.world)
        for _ in range(world.num_rounds):
            # The belief must be read before the round's requests end: the planner's view is the moment.
            states: list[Any] = []
            original = planner.plan

            def plan(view: Any, states: list[Any] = states, original: Any = original, belief: Belief = belief) -> Any:
                states.append(belief.survival(belief.states()))
                return original(view)

            planner.plan = plan  # type: ignore[method-assign]
            record = loop.step()
            planner.plan = original  # type: ignore[method-assign]
            assert record is not None
            held = record.drafted > 0
            told = states[0][held, 0]
            surplus += float(((record.accepted[held] > 1) - told).sum())
            variance += float((told * (1 - told)).sum())
            believed += told.tolist()
            belief.learn(record.verified, record.accepted)
    return surplus / variance**0.5, float(np.std(believed))


def test_a_belief_from_outcomes_is_calibrated_and_tells_requests_apart() -> None:
    correlated = plain(acceptance=(0.6,), spread=0.0, noise=2.0, count=32, correlation=0.9, rounds=150)
    score, spread = outcome_score(correlated, (0, 1))
    assert abs(score) < 4.5
    assert spread > 0.1  # nothing but what happened before tells these requests apart


def test_what_can_be_known_depends_on_what_the_drafter_tells() -> None:
    def known(**drafter: Any) -> type:
        return type(knowledge_of(ScenarioHost(plain(drafter=drafter), 0).world))

    assert known(confidence="live") is FullKnowledge
    assert known(confidence="late") is FullKnowledge
    assert known(confidence="none") is Belief
    assert known(quality="random") is Belief
    assert known(quality="constant") is Belief


@pytest.mark.parametrize(("kind", "expected"), [("serial", [1, 2, 3, 4]), ("block", [4]), ("free", [1, 2, 3, 4])])
def test_fixed_stands_for_every_number_of_steps_that_the_drafter_can_take(
    kind: DrafterKind, expected: list[int]
) -> None:
    arms = expand(("fixed", "off", "fixed:4"), plain(drafter={"kind": kind, "max_draft_steps": 4}))
    assert arms == (*(f"fixed:{steps}" for steps in expected), "off")


def test_rows_cannot_be_ranked_by_a_confidence_that_nobody_tells() -> None:
    untold = WORLDS["untold"]
    assert expand(("static", "static+ranking"), untold) == ("static",)
    assert skipped("static+ranking", untold) is not None
    assert skipped("static+ranking", WORLDS["block"]) is None


def test_where_no_draft_pays_the_best_static_setting_is_none() -> None:
    world = WORLDS["hopeless"]
    references = find_references(world, ("static",), (0,), rounds=60, report=lambda _: None)
    assert references.static[0].steps == 0
