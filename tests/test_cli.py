"""The command line: every mistake is one clear line and exit code 2, and no mistake loads the model."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from lightspec_lightllm import __version__
from lightspec_lightllm.bench.command import run_bench
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.cli import main
from lightspec_lightllm.config import Config
from lightspec_lightllm.engine.fetch import default_model_path

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder, as a user's may."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def rough_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rounds cost is measured in one pass: nothing here depends on how well."""
    monkeypatch.setattr("lightspec_lightllm.adapters.calibration.REPEATS", 1)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs a command that must fail as every mistake must; returns its one line."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    *steps, line = err.splitlines()  # a step before it that takes long, such as measuring costs, says so
    assert not any(step.startswith("error: ") or "Traceback" in step for step in steps)
    assert line.startswith("error: ")
    assert out == ""
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench --concurrency 0", "--concurrency: expected at least 1, got 0"),
        ("bench --concurrency 1 two", "argument --concurrency: invalid int value: 'two'"),
        ("bench --arms fixed:0", "--arms: the steps of 'fixed:0' must be 1 to 15"),
        ("bench --arms fixed:16", "--arms: the steps of 'fixed:16' must be 1 to 15"),
        (
            "bench --arms off dynamic",
            "--arms: expected lightspec, mean-ema, dspark, off or fixed:K (such as fixed:3), got 'dynamic'",
        ),
        ("bench --max-draft-steps 0", "planner.max_draft_steps: expected 1 to 15, got 0"),
        ("bench --max-draft-steps 16", "planner.max_draft_steps: expected 1 to 15, got 16"),
        ("bench --max-draft-steps 7", "--arms: the steps of 'fixed:11' must be 1 to 7"),
        ("bench --dataset mbpp", "--dataset: 'mbpp' is unknown; expected one of humaneval, gsm8k, sharegpt"),
        ("bench --dataset-path x.jsonl", "--dataset-path: say which kind of file it is with exactly one --dataset"),
        ("bench --dataset gsm8k --dataset-path nowhere.jsonl", "dataset file nowhere.jsonl does not exist"),
        ("bench --drafter eagle", "argument --drafter: invalid choice: 'eagle'"),
        ("bench --weights int8", "argument --weights: invalid choice: 'int8'"),
        ("bench --repetitions 0", "--repetitions: expected at least 1, got 0"),
        ("bench --temperature -1", "temperature must be a finite number >= 0, got -1.0"),
        ("bench --config nowhere.yaml", "config nowhere.yaml cannot be read"),
        ("generate", "the following arguments are required: PROMPT"),
        ("generate hello --strategy fixed:0", "--strategy: the steps of 'fixed:0' must be 1 to 15"),
        ("generate hello --max-tokens 0", "max_tokens must be at least 1, got 0"),
        ("generate hello --top-p 2", "top_p must be in (0, 1], got 2.0"),
        ("serve extra", "extra: expected no further arguments"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_a_bad_command_line_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert message in fails(capsys, *arguments.split())


def test_an_unknown_key_and_a_wrong_type_in_yaml_name_the_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("planner:\n  max_draft_step: 3\n", encoding="utf-8")
    assert "planner.max_draft_step is not a known key" in fails(capsys, "bench", "--config", str(path))
    path.write_text("engine:\n  threads: many\n", encoding="utf-8")
    assert "engine.threads: it should be a valid integer" in fails(capsys, "generate", "hi", "--config", str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "has no prompts"), ("{}", "record 0 is not a gsm8k record"), ("{", "is not JSON")],
)
def test_an_empty_or_broken_dataset_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(content, encoding="utf-8")
    out = str(tmp_path / "out")
    assert message in fails(capsys, "bench", "--dataset", "gsm8k", "--dataset-path", str(path), "--out", out)


def small_dataset(folder: Path, question: str = "How many are 2 and 2?") -> str:
    path = folder / "test.jsonl"
    path.write_text(f'{{"question": "{question}", "answer": "4"}}\n' * 3, encoding="utf-8")
    return str(path)


def test_an_out_folder_that_is_a_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    line = fails(capsys, "bench", "--dataset", "gsm8k", "--dataset-path", dataset, "--out", dataset)
    assert "--out: cannot write into" in line


@pytest.mark.parametrize("command", [["generate", "hello"], ["bench", "--dataset", "gsm8k"]])
@pytest.mark.parametrize(
    "content",
    [None, b"", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"not a model"],
    ids=["missing", "empty", "truncated", "another kind of file"],
)
def test_a_model_file_that_cannot_be_used_is_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
    content: bytes | None,
) -> None:
    model = tmp_path / "model.gguf"
    if content is not None:
        model.write_bytes(content)
    if command[0] == "bench":
        command = [*command, "--dataset-path", small_dataset(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*command, "--model", str(model)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "model.gguf" in line


@pytest.mark.real_model
def test_the_real_model_cut_in_half_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = default_model_path().read_bytes()
    half = tmp_path / "half.gguf"
    half.write_bytes(whole[: len(whole) // 2])
    assert "half.gguf" in fails(capsys, "generate", "hello", "--model", str(half))


@pytest.mark.real_model
@pytest.mark.usefixtures("rough_costs")
def test_a_prompt_longer_than_the_context_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "exceeds the context of 2048" in fails(capsys, "generate", "word " * 3000)
    dataset = small_dataset(tmp_path, "word " * 3000)
    line = fails(capsys, "bench", "--dataset", "gsm8k", "--dataset-path", dataset, "--out", str(tmp_path / "out"))
    assert "no prompt fits the context of 2048 tokens" in line


@pytest.mark.real_model
@pytest.mark.usefixtures("rough_costs")
def test_bench_measures_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = "--dataset gsm8k --concurrency 1 2 --arms off fixed:3 lightspec --max-tokens 8"
    paths = ["--dataset-path", small_dataset(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["bench", *arguments.split(), *paths]) == 0
    text = capsys.readouterr().out
    assert "gsm8k: test.jsonl" in text
    assert "Texts: 8 of 8 are token for token those of the arm off" in text
    assert len(list((tmp_path / "out").iterdir())) == text.count("wrote ") == 4


@pytest.mark.real_model
@pytest.mark.usefixtures("rough_costs")
def test_answers_that_were_shortened_are_said_to_be_everywhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lightspec_lightllm.bench.first_look.SECONDS", 0.0)
    options = BenchOptions(("gsm8k",), Path(small_dataset(tmp_path)), concurrency=(1,), arms=("off", "lightspec"))
    began = time.perf_counter()
    run_bench(Config(), options, tmp_path / "out", date=datetime.now().astimezone(), started=began, shorten=True)
    out, err = capsys.readouterr()
    assert "answers of 12 tokens at most" in err
    assert "--max-tokens 24 has them as long as usual" in err
    assert "12 tokens at most per answer" in out
    (result,) = (path for path in (tmp_path / "out").glob("*.json") if not path.name.endswith(".rounds.json"))
    content = json.loads(result.read_text(encoding="utf-8"))
    assert {run["max_tokens"] for run in content["results"]} == {content["options"]["max_tokens"]} == {12}


@pytest.mark.real_model
@pytest.mark.usefixtures("rough_costs")
def test_generate_streams_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Count from one to ten.", "--max-tokens", "24", "--compare"]) == 0
    text = capsys.readouterr().out
    answer, _, rest = text.partition("\n--- the same with speculation off ---\n")
    assert answer.strip()
    assert answer.strip() == rest.split("\n---\n")[0].strip()
    assert "the texts are identical" in text


@pytest.mark.real_model
def test_ctrl_c_ends_with_what_was_measured(tmp_path: Path) -> None:
    arguments = "--dataset gsm8k --arms off lightspec --concurrency 1 --num-prompts 1 --max-tokens 4"
    command = [sys.executable, "-m", "lightspec_lightllm.cli", "bench", *arguments.split(), "--repetitions", "100000"]
    paths = ["--dataset-path", small_dataset(tmp_path), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*command, *paths], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # one line per run: wait for a few runs
            if "repetition 3" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Interrupted: only the runs that had finished are shown" in out
    assert "wrote " in out
    assert "Traceback" not in err


def test_ctrl_c_before_anything_runs_ends_cleanly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("lightspec_lightllm.cli.generate", interrupted)
    assert main(["generate", "hello"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_disk_that_is_full_is_one_line() -> None:
    full_disk = Path("/dev/full")
    if not full_disk.exists():
        pytest.skip("no /dev/full")
    command = [sys.executable, "-m", "lightspec_lightllm.cli", "plan", "--explain"]
    with full_disk.open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*command, str(ROOT / "configs" / "states" / "chat-64.yaml")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: cannot write all of it (No space left on device); make room, or give another place"
    ]


def test_help_and_version_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"], ["bench", "--help"], ["generate", "--help"], ["serve", "--help"]):
        began = time.perf_counter()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert time.perf_counter() - began < 5
    assert __version__ in capsys.readouterr().out
