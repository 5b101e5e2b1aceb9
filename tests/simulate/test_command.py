"""``lightspec simulate`` end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightspec_lightllm.cli import main
from tests.simulate.workloads import content


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content()), encoding="utf-8")
    return path


def simulate(path: Path, out: Path, *flags: str) -> int:
    return main(["simulate", str(path), "--out", str(out), "--seeds", "2", "--search-rounds", "12", *flags])


def files(folder: Path, ending: str) -> list[Path]:
    return sorted(folder.glob(f"simulate-*{ending}"))


def test_a_run_prints_a_table_and_writes_numbers_rounds_and_pictures(
    scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert simulate(scenario_file, out, "--plan-time", "none") == 0
    printed = capsys.readouterr().out
    for word in ("small: N 6, 3..8, serial K 4", "lightspec", "mean-ema", "clairvoyant", "regret", "to adapt"):
        assert word in printed
    (numbers,) = [path for path in files(out, ".json") if not path.name.endswith(".rounds.json")]
    found = json.loads(numbers.read_text(encoding="utf-8"))
    assert found["machine"]["cpu"]
    assert set(found["machine"]) >= {"commit", "numpy", "python"}
    assert found["options"]["seeds"] == [0, 1]
    (cell,) = found["cells"]
    assert cell["scenario"]["drafter"]["max_draft_steps"] == 4
    assert len(cell["static"]) == len(cell["static_ranked"]) == len(cell["best_static"]) == 2
    arms = [line["arm"] for line in cell["summary"]]
    assert arms[:6] == ["off", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "static"]
    assert len(cell["runs"]) == 2 * len(arms)
    assert all(len(run["segments"]) == 2 for run in cell["runs"])
    assert all(part["tokens"] > 0 and part["charged_plan_ms"] == 0 for run in cell["runs"] for part in run["segments"])
    (rounds,) = files(out, ".rounds.json")
    traces = json.loads(rounds.read_text(encoding="utf-8"))
    assert len(traces) == len(cell["runs"])
    assert all(len(trace["rows"]) == 30 for trace in traces)
    for ending in (".throughput.png", ".plans.png"):
        (picture,) = files(out, ending)
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_second_run_gives_the_same_numbers_and_leaves_the_first_alone(scenario_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ("--plan-time", "none", "--arms", "off", "lightspec", "optimum")
    contents: list[dict[str, Any]] = []
    for number in (1, 2):
        assert simulate(scenario_file, out, *flags) == 0
        numbers = [path for path in files(out, ".json") if not path.name.endswith(".rounds.json")]
        assert len(numbers) == number
    for path in numbers:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for line in cells[0]["summary"]:
            del line["plan_us_p50"], line["plan_us_p99"]
        contents.append(cells)
    assert contents[0] == contents[1]


def test_several_numbers_make_a_variant_each(
    scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--requests", "2", "5", "--max-draft-steps", "1", "3", "--rounds", "8", "--arms", "off", "fixed")
    assert simulate(scenario_file, tmp_path / "out", *flags, "--drafter-kind", "free", "--confidence", "none") == 0
    printed = capsys.readouterr().out
    for count in (2, 5):
        for steps in (1, 3):
            assert f"N {count}, free K {steps}" in printed


def test_an_arm_that_cannot_run_is_left_out_with_its_reason(
    scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--confidence", "none", "--rounds", "6", "--arms", "off", "static+ranking")
    assert simulate(scenario_file, tmp_path / "out", *flags) == 0
    assert "static+ranking left out: the drafter tells no confidence to take rows by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--arms", "magic"), "--arms: strategy: expected one of"),
        (("--arms", "fixed:9"), "--arms: strategy 'fixed': steps: expected 0..4"),
        (("--plan-time", "long"), "--plan-time: expected measured, none or microseconds"),
        (("--requests", "0"), "--requests: expected 1 to 4096"),
        (("--max-draft-steps", "16"), "--max-draft-steps: expected 1 to 15, got 16"),
        (("--drafter-kind", "psychic"), "kind: expected one of serial"),
        (("--confidence", "soon"), "confidence: expected one of live, late, none"),
        (("--rounds", "0"), "rounds: expected 1 to 1000000"),
        (("--seeds", "0"), "--seeds: expected 1 to 1000"),
        (("--search-rounds", "9"), "--search-rounds: expected 10 to 1000000"),
    ],
)
def test_a_bad_flag_is_one_clear_line_and_exit_code_2(
    flags: tuple[str, ...], message: str, scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(scenario_file, tmp_path / "out", *flags) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err


def test_nothing_runs_when_the_files_could_not_be_written(
    scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(scenario_file, scenario_file / "out") == 2
    assert "--out: cannot write into" in capsys.readouterr().err
