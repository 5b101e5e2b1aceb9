"""What a benchmark hands back: the table, the files and the pictures."""

import io
import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.console import Console

from lightspec_lightllm.bench.command import write_files
from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.bench.experiment import Experiment, run_experiment
from lightspec_lightllm.bench.results import Subject, to_json
from lightspec_lightllm.bench.table import footer, result_table
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.machine import this_machine
from lightspec_lightllm.output import OutputFolder
from tests.bench.fakes import FakeHost
from tests.bench.test_experiment import CHAT, Heard, options

DATE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
MATHS = Dataset("gsm8k", "maths.jsonl", tuple(Prompt(f"m{i}", f"sum {i}") for i in range(10)), left_out=3)

# fmt: off
SERVE_FIELDS = {
    "date", "backend", "model_id", "tokenizer_id", "num_prompts", "request_rate", "max_concurrency", "duration",
    "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
    "total_token_throughput", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "median_itl_ms", "std_itl_ms", "p99_itl_ms",
}
# fmt: on
"""The names of ``vllm bench serve --save-result``."""


def experiment(host: FakeHost | None = None, **changes: object) -> Experiment:
    both = options(datasets=("sharegpt", "gsm8k"), **changes)
    return run_experiment(host or FakeHost(), [CHAT, MATHS], both, Heard())


def subject() -> Subject:
    return Subject(
        backend="lightspec-embedded",
        model_id="fake",
        tokenizer_id="fake",
        model_sha256="0" * 64,
        weights="float16",
        threads=1,
        drafter="ngram",
        max_draft_steps=15,
        machine=this_machine(),
        date=DATE,
        ready_seconds=1.5,
    )


def rendered(done: Experiment, width: int = 150) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(result_table(done, subject(), width))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_table_says_which_set_ran_and_how_each_arm_did() -> None:
    text = rendered(experiment())
    assert "sharegpt: chat.json" in text
    assert "gsm8k: maths.jsonl" in text
    assert "3 prompts left out: no user opens the conversation" in " ".join(text.split())
    assert "Texts: 72 of 72 are token for token those of the arm off" in text
    assert "lightspec against the best static arm of each cell" in text
    assert "over 4 cell(s)" in text
    assert text.count("lightspec ") >= 4


def test_a_narrow_window_gets_the_same_columns_in_two_halves() -> None:
    wide, narrow = (rendered(experiment(repetitions=1), width=width) for width in (150, 80))
    for heading in ("tok/s", "best", "req/s", "TTFT", "TPOT", "length", "verified", "drafted", "rows/", "steps/"):
        assert heading in wide
        assert heading in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_the_table_shows_where_a_text_differs_and_how_near_the_tie_was() -> None:
    text = rendered(experiment(FakeHost(wrong="lightspec"), concurrency=(1,), repetitions=1))
    assert "Texts: 4 of 8 are token for token those of the arm off" in text
    assert "first differs at token 2; gap of the target's two best logits there: 2.0e-05" in " ".join(text.split())


def test_the_table_of_an_installed_package_names_no_commit() -> None:
    installed = replace(subject(), machine=replace(this_machine(), commit=None))
    assert footer(experiment(repetitions=1), installed)[-1].endswith(f"lightspec {this_machine().lightspec}")


def test_the_table_of_an_interrupted_run_says_so() -> None:
    text = rendered(experiment(FakeHost(interrupt_after=29)))
    assert "Interrupted: only the runs that had finished are shown" in text


def test_the_table_tells_when_a_planner_gave_up() -> None:
    text = rendered(experiment(FakeHost(fallback="ZeroDivisionError"), repetitions=1))
    assert text.count("planning was given up for fixed steps: ZeroDivisionError") == 4


@pytest.mark.parametrize(("output_tokens", "even"), [(30, 16), (33, 48), (70, 80)])
def test_the_table_tells_when_arms_read_unlike_prompts_for_the_same_tokens(output_tokens: int, even: int) -> None:
    done = experiment(concurrency=(4,), output_tokens=output_tokens)
    assert not any("tokens of prompts" in line for line in footer(done, subject()))
    cell = done.cells[0]
    for index, run in enumerate(cell.runs):
        read = {"off": 100, "fixed:3": 106, "lightspec": 111}[run.arm]
        cell.runs[index] = replace(run, metrics=replace(run.metrics, total_input_tokens=read))
    (line,) = [line for line in footer(done, subject()) if "tokens of prompts" in line]
    assert line == (
        "sharegpt, 4 in flight: lightspec read 111 tokens of prompts, off only 100; runs that end amid a wave of "
        f"answers, as with --output-tokens {even}, compare arms more evenly"
    )


def test_runs_of_whole_answers_read_the_same_prompts() -> None:
    done = experiment(concurrency=(4,))
    run = done.cells[0].runs[0]
    done.cells[0].runs[0] = replace(run, metrics=replace(run.metrics, total_input_tokens=10_000))
    assert not any("tokens of prompts" in line for line in footer(done, subject()))


def test_the_json_has_the_field_names_of_vllm_bench_serve() -> None:
    content = json.loads(json.dumps(to_json(experiment(), subject(), peak_memory_mb=100.0)))
    assert len(content["results"]) == 2 * 2 * 3 * 3
    for record in content["results"]:
        assert set(record) >= SERVE_FIELDS
    assert content["date"] == "20260102-030405"
    assert content["texts"] == {"compared": 72, "identical": 72, "differences": []}
    assert {entry["arm"] for entry in content["summary"]} == {"off", "fixed:3", "lightspec"}
    assert content["machine"]["cores"] >= 1


def test_every_run_writes_new_files_and_leaves_the_old_ones(tmp_path: Path) -> None:
    done = experiment(repetitions=1)
    first = write_files(OutputFolder.open(tmp_path / "out", DATE), done, subject())
    before = {path: path.read_bytes() for path in first}
    second = write_files(OutputFolder.open(tmp_path / "out", DATE), done, subject())
    assert not set(first) & set(second)
    assert {path: path.read_bytes() for path in first} == before
    names = [path.name for path in first]
    assert names[:2] == ["bench-20260102-030405.json", "bench-20260102-030405.rounds.json"]
    assert all(path.stat().st_size > 0 for path in first + second)


def test_the_trace_holds_every_round_of_every_run(tmp_path: Path) -> None:
    done = experiment(repetitions=1)
    paths = write_files(OutputFolder.open(tmp_path, DATE), done, subject())
    runs = json.loads(paths[1].read_text(encoding="utf-8"))
    assert len(runs) == 12
    assert sum(runs[0]["rounds"]["committed"]) == 16


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = write_files(OutputFolder.open(tmp_path, DATE), experiment(), subject())
    for path in paths[2:]:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert [path.name.split(".", 1)[1] for path in paths[2:]] == ["throughput.png", "plans.png"]


def test_without_a_planning_arm_there_is_no_picture_of_plans(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = write_files(OutputFolder.open(tmp_path, DATE), experiment(arms=("off", "fixed:3")), subject())
    assert [path.suffix for path in paths] == [".json", ".json", ".png"]


def test_a_folder_that_cannot_be_written_is_named_before_measuring(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--out: cannot write into .*file"):
        OutputFolder.open(blocked, DATE)
