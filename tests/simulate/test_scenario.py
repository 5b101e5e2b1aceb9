"""Scenario files: every key matters, and what is wrong with a file is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.cli import main
from lightspec_lightllm.config import known_keys
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.simulate.arms import find_references, make_arm
from lightspec_lightllm.simulate.experiment import run_cell
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.options import PlanTime, SimulateOptions
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import Scenario, load_scenario
from tests.simulate.workloads import CONTENT, Scripted, content, scenario, signature

SCENARIOS = Path(__file__).parent.parent.parent / "configs" / "scenarios"

MOVES: dict[str, Any] = {
    "seed": 2,
    "correlation": 0.9,
    "cost_noise": 0.2,
    "costs.target": {8: 5.0, 32: 7.0, 128: 12.0},
    "costs.draft": {8: 0.5, 32: 0.9, 128: 1.0},
    "costs.fill": {8: 0.5, 32: 0.9, 128: 1.0},
    "costs.draft_start": {1: 0.1, 8: 0.4},
    "costs.by_requests": {4: {4: 6.0, 32: 9.0}},
    "costs.interpolate": True,
    "costs.overhead_ms": 0.2,
    "costs.request_ms": 0.02,
    "costs.request_token_ms": 1e-4,
    "drafter.kind": "chained",
    "drafter.max_draft_steps": 3,
    "drafter.confidence": "none",
    "drafter.quality": "random",
    "drafter.noise": 1.0,
    "drafter.bias": 1.0,
    "drafter.max_backlog": 2,
    "requests.count": 7,
    "requests.prompt_tokens": [100, 300],
    "requests.answer_tokens": [10, 30],
    "requests.arrivals": 0.9,
    "requests.pauses": 0.3,
    "requests.pause_rounds": 6,
    "classes.easy.acceptance": [0.7, 0.6],
    "classes.easy.spread": 1.5,
    "classes.easy.noise": 2.0,
    "segments.0.rounds": 10,
    "segments.0.mix": {"easy": 1.0, "hard": 9.0},
    "segments.0.cost_factor": 1.5,
    "segments.1.count": [6, 8],
}
"""A second value for every key of `CONTENT` that a round can feel."""

FELT_ELSEWHERE = {"name", "feedback_delay", "costs_file", "roofline_file", "costs.max_rows", "trace_file"}
"""Keys with a test of their own."""


def general(key: str) -> str:
    parts = key.split(".")
    if parts[0] in ("classes", "segments"):
        parts[1] = "*"
    return ".".join(parts)


def test_every_key_of_a_scenario_is_moved_by_a_test() -> None:
    assert {general(key) for key in MOVES} | FELT_ELSEWHERE == set(known_keys(Scenario))


@pytest.mark.parametrize("key", list(MOVES))
def test_a_round_feels_the_key(key: str) -> None:
    changed = scenario(**{key.replace(".", "__"): MOVES[key]})
    assert signature(changed) != signature(scenario())


def test_the_same_scenario_has_the_same_rounds() -> None:
    assert signature(scenario()) == signature(scenario())


def test_a_planner_keeps_to_the_largest_batch() -> None:
    def most_rows(max_rows: int) -> int:
        small = scenario(costs__max_rows=max_rows)
        host = ScenarioHost(small, 0)
        nothing = find_references(small, (), (0,), rounds=10, report=lambda _: None)
        return int(run(host, make_arm("fixed:4", host, nothing, 0), 20).rows.max())

    assert most_rows(12) == 12
    assert most_rows(14) == 14


def test_the_name_is_the_scenarios() -> None:
    assert scenario(name="other").name == "other"


def test_a_planner_hears_of_rounds_as_late_as_the_scenario_says() -> None:
    heard = []
    for delay in (0, 2):
        late = scenario(feedback_delay=delay)
        planner = Scripted(late, (2,))
        run(ScenarioHost(late, 0), planner, 10, delay=late.feedback_delay)
        heard.append(len(planner.feedbacks))
        rows = [feedback.plan.verify_rows for feedback in planner.feedbacks]
        assert rows == [view.num_requests + int(view.proposed.sum()) for view in planner.views[: 10 - delay]]
    assert heard == [10, 8]


def test_the_delay_is_that_of_arms_that_plan() -> None:
    def rows(delay: int, arm: str) -> list[int]:
        late = scenario(feedback_delay=delay)
        options = SimulateOptions(arms=(arm,), seeds=(0,), plan_time=PlanTime(0.0))
        return [int(rows) for rows in run_cell(late, options, lambda _: None).traces[arm, 0].rows]

    assert rows(0, "lightspec") != rows(3, "lightspec")
    assert rows(0, "fixed:2") == rows(3, "fixed:2")


def test_costs_may_come_from_a_file_of_tables_or_of_a_roofline(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump(CONTENT["costs"]), encoding="utf-8")
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(content(costs=None, costs_file="costs.yaml")), encoding="utf-8")
    assert load_scenario(path) == scenario()
    roofline = SCENARIOS.parent / "costs" / "h200-qwen3-14b.yaml"
    path.write_text(yaml.safe_dump(content(costs=None, roofline_file=str(roofline))), encoding="utf-8")
    tables = load_scenario(path).tables
    assert tables.model().target_ms(1, 1, 2.0) == pytest.approx(7.2 + 0.3, rel=0.01)


def test_a_factor_slows_every_part_of_a_round() -> None:
    tables = scenario().tables
    slow, fast = tables.model(2.0), tables.model()
    assert slow.target_ms(20, 4, 300.0) == pytest.approx(2 * fast.target_ms(20, 4, 300.0))
    assert slow.draft_ms("serial", 4, 20, 3, block=4) == pytest.approx(2 * fast.draft_ms("serial", 4, 20, 3, block=4))


def test_costs_may_depend_on_the_context() -> None:
    tables = CostTables({0: {8: 1.0}, 1000: {8: 3.0}})
    assert tables.model(2.0).target_ms(4, 1, 500.0) == pytest.approx(4.0)


def test_numbers_can_be_varied() -> None:
    varied = scenario().varied(count=3, max_draft_steps=2, kind="free", confidence="late", rounds=5, seed=9)
    assert [varied.requests_in(s).count for s in (0, 1)] == [3, 3]
    assert (varied.drafter.max_draft_steps, varied.drafter.kind, varied.drafter.confidence) == (2, "free", "late")
    assert (varied.num_rounds, varied.seed) == (10, 9)
    with pytest.raises(ConfigError, match=r"kind: expected one of serial, .*'telepathy'"):
        scenario().varied(kind="telepathy")


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_file_runs(path: Path) -> None:
    loaded = load_scenario(path)
    assert loaded.name == path.stem
    short = loaded.varied(rounds=6)
    arms = ("static", "static+ranking", "optimum", "clairvoyant") if loaded.name in ("day", "block-unsure") else ()
    references = find_references(short, arms, (0,), rounds=10, report=lambda _: None)
    for arm in ("lightspec", *arms):
        host = ScenarioHost(short, 0, ranks=arm == "lightspec")
        trace = run(host, make_arm(arm, host, references, 0), short.num_rounds)
        assert len(trace.ms) == short.num_rounds
        assert trace.rate() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter__max_draft_steps": 16}, "drafter.max_draft_steps: expected 1 to 15, got 16"),
        ({"drafter__max_draft_steps": "7"}, "drafter.max_draft_steps: it should be a valid integer"),
        ({"drafter__kind": "psychic"}, "drafter.kind: it should be 'serial'"),
        ({"drafter__confidence": "soon"}, "drafter.confidence: it should be 'live'"),
        ({"drafter__noise": -1.0}, "drafter.noise: expected 0 to 8"),
        ({"drafter__noise": ".inf"}, "drafter.noise"),
        ({"drafter__bias": 9.0}, "drafter.bias: expected -8 to 8"),
        ({"drafter__max_backlog": -1}, "drafter.max_backlog: expected 0 to 4096"),
        ({"drafter__kidn": "serial"}, "drafter.kidn is not a known key; did you mean drafter.kind?"),
        ({"requests__count": 0}, "requests.count: expected 1 to 4096"),
        ({"requests__count": [5, 2]}, "requests.count: expected 1 to 4096, or [low, high]"),
        ({"requests__answer_tokens": [0, 2]}, "requests.answer_tokens: expected [low, high] in 1 to"),
        ({"requests__prompt_tokens": [3, 2]}, "requests.prompt_tokens: expected [low, high]"),
        ({"requests__arrivals": 1.5}, "requests.arrivals: expected a share from 0 to 1"),
        ({"requests__pauses": 1.0}, "requests.pauses: expected a probability"),
        ({"requests__pause_rounds": 0}, "requests.pause_rounds: expected at least 1"),
        ({"classes__easy__acceptance": [1.0]}, "classes.easy.acceptance: expected one or more probabilities"),
        ({"classes__easy__acceptance": []}, "classes.easy.acceptance: expected one or more probabilities"),
        ({"classes__easy__noise": -0.1}, "classes.easy.noise: expected 0 to 8"),
        ({"classes__easy__acceptance": None}, "classes.easy.acceptance: expected a value, the key is missing"),
        ({"classes__easy": 3}, "classes.easy: expected a mapping of acceptance, spread, noise, got 3"),
        ({"classes__easy__noize": 1.0}, "classes.easy.noize is not a known key; did you mean classes.easy.noise?"),
        ({"segments__0__rounds": 0}, "segments.0.rounds: expected 1 to 1000000"),
        ({"segments__1__mix": {"medium": 1.0}}, "segments.1.mix: expected names of classes (easy, hard), got 'medium'"),
        ({"segments__1__mix": {"hard": 0.0}}, "segments.1.mix: expected shares of at least 0, one of them above"),
        ({"segments__1__cost_factor": 0.0}, "segments.1.cost_factor: expected 0.01 to 100"),
        ({"segments__1__count": [9, 8]}, "count: expected 1 to 4096"),
        ({"segments": []}, "segments: expected at least one segment"),
        ({"segments": 3}, "segments: it should be a valid"),
        ({"correlation": 1.0}, "correlation: expected 0 to 0.99"),
        ({"cost_noise": -1.0}, "cost_noise: expected 0 to 1"),
        ({"feedback_delay": 9}, "feedback_delay: expected 0 to 8"),
        ({"seed": -1}, "seed: expected at least 0"),
        ({"costs": None}, "costs: expected one of costs, costs_file and roofline_file"),
        ({"costs_file": "x.yaml"}, "costs: expected one of costs, costs_file and roofline_file"),
        ({"costs__target": {}}, "target table: expected a table"),
        ({"costs__target": {8: -1.0}}, "target table: expected"),
        ({"costs__overhead_ms": -1.0}, "overhead_ms: expected a finite time"),
        ({"costs": None, "costs_file": "nowhere.yaml"}, "cannot be read"),
        ({"name": " "}, "name: expected a name"),
    ],
)
def test_a_bad_file_is_one_clear_line_and_exit_code_2(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(content(**changes)), encoding="utf-8")
    assert main(["simulate", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err
    assert not (tmp_path / "out").exists()
