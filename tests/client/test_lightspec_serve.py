"""The client against this package's own server: a tiny engine in a thread, and (slow) the served model in a process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.cli import main

pytest.importorskip("fastapi")

from tests.server.serving import serving

ROOT = Path(__file__).parent.parent.parent


def bench(url: str, out: Path, *words: str) -> list[dict[str, Any]]:
    """The records in the files, by number of requests in flight."""
    assert main(["bench", "--url", url, "--out", str(out), *words]) == 0
    records = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("client-*.json")]
    return sorted(records, key=lambda record: int(record["max_concurrency"]))


@pytest.mark.parametrize("api", ["openai-chat", "openai", "lightllm"])
def test_texts_are_the_same_whatever_is_in_flight_and_counters_are_those_of_the_run(tmp_path: Path, api: str) -> None:
    problems = tmp_path / "problems.jsonl"
    lines = [json.dumps({"question": f"{n} + {n}?", "answer": f"#### {2 * n}"}) for n in range(40)]
    problems.write_text("\n".join(lines), encoding="utf-8")
    words = ("--dataset", "gsm8k", "--dataset-path", str(problems), "--concurrency", "1", "32")
    with serving() as server:
        more = ("--api", api, "--num-prompts", "32", "--max-tokens", "5", "--num-warmups", "1")
        records = bench(server.client.url, tmp_path / "out", *words, *more)
    assert [record["max_concurrency"] for record in records] == [1, 32]
    for record in records:
        assert (record["completed"], record["failed"]) == (32, 0)
        assert record["generated_texts"] == records[0]["generated_texts"]
        assert record["output_lens"] == records[0]["output_lens"]
        assert record["output_tokens_counted_by"] == {"usage": 32}
        assert record["spec_decode_source"] == "lightspec"
        assert record["mean_accept_length"] >= 1
        assert record["spec_decode_accepted_tokens"] <= record["spec_decode_verified_tokens"]
        assert record["spec_decode_verified_tokens"] <= record["spec_decode_draft_tokens"]
        # Every token but the first, which comes with the prompt, is of a round; the warm-up's are not in it.
        assert record["spec_decode_accepted_tokens"] <= record["total_output_tokens"] - record["completed"]


@pytest.mark.slow
@pytest.mark.real_model
def test_the_served_model_is_measured_at_1_8_and_32_in_flight(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightspec_lightllm.cli", "serve", "--port", "0", "--drafter", "ngram"]
    process = subprocess.Popen([*command, "--threads", "1"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
        words = ("--dataset", "gsm8k", "--max-tokens", "4", "--num-warmups", "1")
        for in_flight, count in (("1", "3"), ("8", "8"), ("32", "32")):
            records = bench(url, tmp_path, *words, "--concurrency", in_flight, "--num-prompts", count)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert [(record["completed"], record["failed"]) for record in records] == [(3, 0), (8, 0), (32, 0)]
    assert [record["answers"]["checked"] for record in records] == [3, 8, 32]
    assert all(record["mean_accept_length"] >= 1 for record in records)
