"""Result files against each other: whose they are, what is compared with what, and what differs."""

import io
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lightspec_lightllm.client.command import run_comparison
from lightspec_lightllm.client.comparison import differences, pair, read_subjects
from lightspec_lightllm.client.comparison_table import comparison_table
from lightspec_lightllm.errors import ConfigError

DATE = datetime(2026, 1, 2, tzinfo=timezone.utc)


def record(throughput: float, concurrency: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "dataset": "gsm8k",
        "max_concurrency": concurrency,
        "request_rate": "inf",
        "output_throughput": throughput,
        "mean_ttft_ms": 10.0,
        "p99_ttft_ms": 30.0,
        "seed": 0,
    } | more


def write(path: Path, *contents: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(json.dumps(content) for content in contents), encoding="utf-8")
    return path


def shown(*paths: Path) -> str:
    subjects = read_subjects(paths)
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(comparison_table([subject.name for subject in subjects], pair(subjects)))
    return console.export_text()


def test_two_files_are_put_side_by_side_with_ratios(tmp_path: Path) -> None:
    text = shown(
        write(tmp_path / "a.json", record(100.0, mean_accept_length=2.0, answers={"accuracy": 0.5})),
        write(tmp_path / "b.json", record(150.0, mean_accept_length=3.0, answers={"accuracy": 0.5}, seed=1)),
    )
    assert "150 (1.50x)" in text
    assert "3 (1.50x)" in text
    assert "right answers" in text
    assert "not the same: seed 0 | 1" in text
    assert "TPOT" not in text  # neither file has it


def test_files_of_vllm_bench_serve_are_read_as_they_are(tmp_path: Path) -> None:
    vllm = {"backend": "openai-chat", "label": None, "max_concurrency": None, "request_rate": 4.0}
    vllm |= {"output_throughput": 80.0, "spec_decode_acceptance_length": 2.5}
    lines = write(tmp_path / "vllm.json", vllm | {"output_throughput": 70.0}, vllm, vllm | {"output_throughput": 90.0})
    text = shown(write(tmp_path / "ours.json", record(100.0, mean_accept_length=2.0)), lines)
    assert "80 (0.80x)" in text
    assert "2.500 (1.25x)" in text
    assert "the repetition with the median throughput is shown, of 1 | 3" in text


def test_folders_of_a_sweep_are_paired_by_load_and_labels_are_their_names(tmp_path: Path) -> None:
    for name, factor in (("old", 1), ("new", 2)):
        for concurrency in (1, 8):
            content = record(factor * 10.0 * concurrency, concurrency, label=name)
            write(tmp_path / name / f"{concurrency}.json", content)
    write(tmp_path / "new" / "32.json", record(5.0, 32, label="new"))
    write(tmp_path / "new" / "rounds.json", [{"round": 1}])  # of another command in the same folder
    subjects = read_subjects([tmp_path / "old", tmp_path / "new"])
    assert [subject.name for subject in subjects] == ["old", "new"]
    rows = pair(subjects)
    assert [title for title, _ in rows] == ["gsm8k, 1 in flight", "gsm8k, 8 in flight"]
    assert [[r and r["output_throughput"] for r in records] for _, records in rows] == [[10, 20], [80, 160]]


def test_arms_of_lightspec_bench_are_subjects_of_their_own(tmp_path: Path) -> None:
    arms = [record(10.0, label="off"), record(12.0, label="lightspec")]
    subjects = read_subjects([write(tmp_path / "bench.json", {"summary": [], "results": arms})])
    assert [subject.name for subject in subjects] == ["off", "lightspec"]


def test_a_label_that_two_files_share_is_told_apart_by_their_names(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.json", record(1.0, label="x")) for name in ("one", "two")]
    assert [subject.name for subject in read_subjects(files)] == ["x (one)", "x (two)"]


def test_texts_are_compared_where_the_prompts_are_the_same() -> None:
    one = record(1.0, prompts=["p", "q"], generated_texts=["a", "b"], repetitions=1)
    two = one | {"generated_texts": ["a", "c"]}
    assert differences([one, two]) == ["texts: 1 of 2 are identical to the first's"]
    assert differences([one, two | {"prompts": ["p", "r"]}]) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "does not exist"),
        ("{oops", "is not JSON"),
        ('{"a": 1}', "holds no result"),
        ("[]", "holds no result"),
        ('{"output_throughput": "fast"}', "holds no result"),
    ],
)
def test_a_file_without_results_is_named(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        read_subjects([path, path])


def test_one_result_or_none_in_common_cannot_be_compared(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", record(1.0))
    with pytest.raises(ConfigError, match="at least two results"):
        read_subjects([one])
    for name, concurrency in (("b", 1), ("c", 8)):
        for dataset in ("gsm8k", "sharegpt"):
            write(tmp_path / name / f"{dataset}.json", record(1.0, concurrency, dataset=dataset))
    with pytest.raises(ConfigError, match="no two of the results"):
        pair(read_subjects([tmp_path / "b", tmp_path / "c"]))


def test_a_comparison_is_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / f"{name}.json", record(rate)) for name, rate in (("a", 10.0), ("b", 20.0))]
    run_comparison(files, tmp_path / "out", date=DATE)
    assert "20 (2.00x)" in capsys.readouterr().out
    assert (tmp_path / "out" / "compare-20260102-000000.png").read_bytes()[:4] == b"\x89PNG"
