"""Rounds as JSON lines: written while serving, replayed by the simulator."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.lightllm.metrics import RoundReport
from lightspec_lightllm.adapters.lightllm.plan_trace import FORMAT, PlanTrace, ServedSource, TraceHead
from lightspec_lightllm.adapters.recording import RecordedDrafter, Recording, load_recording
from lightspec_lightllm.cli import main
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.simulate.scenario import Drafter, RequestClass, Requests, Scenario, Segment
from tests.adapters.lightllm.reports import made, served

STEPS = 4
COSTS = CostTables(target={1: 10.0, 64: 12.0}, draft={1: 0.5, 64: 0.6})
HEAD = TraceHead(
    format=FORMAT,
    date="20260102-030405",
    source=ServedSource("tiny", "0" * 64, "float32", "none", 1, {"torch": None}),
    drafter=RecordedDrafter("eagle_with_att", "serial", STEPS),
    costs=COSTS,
)


def write(path: Path, reports: list[RoundReport]) -> Path:
    lines: list[str] = []
    trace = PlanTrace(path, HEAD, lines.append)
    for report in reports:
        trace.write(report)
    trace.close()
    assert lines == []
    return trace.path


def scenario(acceptance: float = 0.7, requests: int = 4) -> Scenario:
    return Scenario(
        name="served",
        segments=(Segment(rounds=400, mix={"text": 1.0}),),
        classes={"text": RequestClass(acceptance=(acceptance,))},
        drafter=Drafter(kind="serial", max_draft_steps=STEPS),
        requests=Requests(count=requests, prompt_tokens=(100, 100), answer_tokens=(30, 60)),
        costs=COSTS,
    )


def test_what_is_known_of_a_request_is_kept(tmp_path: Path) -> None:
    # 1 draft right and 1 wrong; all 4 wrong at once; then 2 of 2 verified right and nothing after it.
    reports = [made([4], [2], [2], ids=[7]), made([4], [4], [1], ids=[7]), made([4], [2], [3], ids=[7])]
    recording = load_recording(write(tmp_path / "rounds.jsonl", reports))
    (request,) = recording.requests
    assert (request.key, request.prompt_tokens, request.answer_tokens) == ("7", 100, 7)
    assert request.drafts == (STEPS,) * 6
    assert request.right == (1, 0, 0, 2, 1, 0)
    assert (recording.costs, recording.drafter) == (COSTS, HEAD.drafter)


def test_a_run_that_was_cut_short_goes_on_as_the_next_round_did_where_drafts_are_always_right(tmp_path: Path) -> None:
    reports = [made([4], [2], [3]), made([4], [1], [2]), made([4], [4], [5]), made([4], [4], [5])]
    (request,) = load_recording(write(tmp_path / "rounds.jsonl", reports)).requests
    assert request.right == tuple(min(STEPS, 15 - at) for at in range(15))


def test_a_run_that_was_cut_short_ends_there_where_the_next_draft_is_always_wrong(tmp_path: Path) -> None:
    reports = [made([4], [1], [2]), made([4], [3], [2]), made([4], [2], [2])]
    (request,) = load_recording(write(tmp_path / "rounds.jsonl", reports)).requests
    assert request.right == (1, 0, 1, 0, 1, 0)


def test_the_drafters_confidence_comes_with_its_drafts(tmp_path: Path) -> None:
    first = made([2], [2], [2], ids=[1])
    told = np.array([[0.9, 0.4, 0.123456, 0.0]])
    first = RoundReport(**{name: getattr(first, name) for name in RoundReport.__slots__} | {"confidence": told})
    path = write(tmp_path / "rounds.jsonl", [first, made([4], [4], [1], ids=[1])])
    (request,) = load_recording(path).requests
    # Of 2 first drafts one was right, of 1 second one none; none deeper was tried.
    assert request.confidence == ((0.9, 0.4, 0.0, 0.0), (0.4, 0.0, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("strategy", ["fixed:4", "fixed:2", "lightspec"])
def test_a_trace_brings_back_the_acceptance_that_it_was_served_with(tmp_path: Path, strategy: str) -> None:
    path = write(tmp_path / "rounds.jsonl", served(scenario(), strategy, 400))
    recording = load_recording(path)
    right = np.concatenate([request.right[:-STEPS] for request in recording.requests])
    for depth in range(STEPS):
        assert np.mean(right[right >= depth] > depth) == pytest.approx(0.7, abs=0.05)


def test_from_rounds_to_lines_to_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = served(scenario(), "fixed:4", 400)
    write(tmp_path / "rounds.jsonl", reports)
    file = tmp_path / "replay.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "replay",
                "trace_file": "rounds.jsonl",
                "requests": {"count": 4},
                "segments": [{"rounds": 400}],
            }
        )
    )
    arms = ["--arms", "fixed:4", "off"]
    assert main(["simulate", str(file), *arms, "--out", str(tmp_path), "--seeds", "1"]) == 0, capsys.readouterr().err
    assert "fixed:4" in capsys.readouterr().out
    (file,) = tmp_path.glob("simulate-*.rounds.json")
    (replayed,) = [run for run in json.loads(file.read_text()) if run["arm"] == "fixed:4"]
    per_round = np.mean([report.accepted.sum() for report in reports])
    assert np.mean(replayed["tokens"]) == pytest.approx(per_round, rel=0.05)
    assert np.mean(replayed["ms"]) == pytest.approx(np.mean([report.measured_ms for report in reports]), rel=0.01)


def test_the_same_file_is_the_same_recording(tmp_path: Path) -> None:
    path = write(tmp_path / "rounds.jsonl", served(scenario(), "lightspec", 50))
    assert load_recording(path) == load_recording(path)


def test_a_killed_process_leaves_a_readable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rounds.jsonl", served(scenario(), "fixed:2", 30))
    whole = load_recording(path)
    path.write_text(path.read_text() + '{"seconds": 1.2, "ids": [1, 2')
    assert load_recording(path) == whole


def test_a_file_that_exists_is_never_written_over(tmp_path: Path) -> None:
    reports = [made([4], [2], [2])]
    paths = [write(tmp_path / "rounds.jsonl", reports) for _ in range(3)]
    assert [path.name for path in paths] == ["rounds.jsonl", "rounds-2.jsonl", "rounds-3.jsonl"]
    assert all(isinstance(load_recording(path), Recording) for path in paths)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_one_line_and_ends_the_trace(tmp_path: Path) -> None:
    lines: list[str] = []

    class Full(PlanTrace):
        def _open(self, path: Path):  # type: ignore[no-untyped-def]
            self.path = path
            return Path("/dev/full").open("w", encoding="utf-8")

    trace = Full(tmp_path / "rounds.jsonl", HEAD, lines.append)
    for _ in range(3):
        trace.write(made([4], [2], [2]))
        trace.flush()
    trace.close()
    assert len(lines) == 1
    assert "no longer traced" in lines[0]
    assert "No space left" in lines[0]


def test_a_disk_that_fills_up_later_is_noticed_when_lines_are_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    trace = PlanTrace(tmp_path / "rounds.jsonl", HEAD, lines.append)
    trace.write(made([4], [2], [2]))

    class Full:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        close = flush

    assert trace._file is not None
    trace._file.close()
    monkeypatch.setattr(trace, "_file", Full())
    for _ in range(2):
        trace.write(made([4], [2], [2]))
        trace.flush()
    trace.close()
    assert len(lines) == 1


def test_a_folder_that_is_not_there_ends_the_trace_before_it_begins(tmp_path: Path) -> None:
    lines: list[str] = []
    trace = PlanTrace(tmp_path / "none" / "rounds.jsonl", HEAD, lines.append)
    trace.write(made([4], [2], [2]))
    trace.close()
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]\n", "line 2: expected an object, got list"),
        ("{}\n", "line 2: expected a round as written by observe.trace_file"),
        ("nonsense\n", "line 2 is not JSON"),
        (
            '{"ids": [1], "drafted": [2], "verified": [3], "accepted": [1], "context": 1}\n',
            "line 2: expected verified <= drafted <= 4",
        ),
        (
            '{"ids": [1, 2], "drafted": [2], "verified": [2], "accepted": [1], "context": 1}\n',
            "line 2: expected a round",
        ),
        ("", "expected a request with at least 2 tokens"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "rounds.jsonl", [])
    path.write_text(path.read_text() + line)
    with pytest.raises(ConfigError, match=f"trace {path}: {message}"):
        load_recording(path)


def test_another_format_of_rounds_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rounds.jsonl", [])
    path.write_text(path.read_text().replace(FORMAT, "lightspec-rounds/9"))
    with pytest.raises(ConfigError, match="expected 'lightspec-rounds/1', got 'lightspec-rounds/9'"):
        load_recording(path)
