"""What may be asked of a replay: arms, costs, drafters, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.adapters.recording import (
    RecordedDrafter,
    load_recording,
)
from lightspec_lightllm.cli import main
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.simulate.arms import find_references, make_arm
from lightspec_lightllm.simulate.comparison import summaries
from lightspec_lightllm.simulate.experiment import run_cell
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.knowledge import knowledge_of
from lightspec_lightllm.simulate.options import FREE, SimulateOptions
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import load_scenario
from tests.adapters.test_embedded_lossless import COSTS
from tests.simulate.replays import STEPS, recorded, scenario_file

SHIPPED = Path(__file__).parent.parent.parent / "configs" / "scenarios" / "replay.yaml"


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
