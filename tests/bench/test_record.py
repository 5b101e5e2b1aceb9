"""``lightspec bench --record``: which texts are recorded, and that the file replays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from lightspec_lightllm.adapters.recorder import Found
from lightspec_lightllm.adapters.recording import load_recording
from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.bench.experiment import run_experiment
from lightspec_lightllm.bench.record import record
from lightspec_lightllm.cli import main
from lightspec_lightllm.engine.fetch import ProgressListener
from lightspec_lightllm.errors import DatasetError
from lightspec_lightllm.planner import CostModel, DrafterKind
from tests.bench.fakes import FakeHost
from tests.bench.test_experiment import CHAT, Heard, options
from tests.bench.test_report import subject
from tests.engine.tiny_llama import write_tiny_gguf

MATHS = Dataset("gsm8k", "maths.jsonl", tuple(Prompt(f"m{i}", f"sum {i}") for i in range(3)))


class RecordingHost(FakeHost):
    """Finds one draft, and a right one, at every position that has a token after it."""

    costs = CostModel.from_tables({8: 5.0})
    drafter_kind: DrafterKind = "free"

    def find_drafts(
        self, texts: Sequence[tuple[list[int], tuple[int, ...]]], max_tokens: int, progress: ProgressListener, /
    ) -> list[Found]:
        out = []
        for prompt, answer in texts:
            assert answer == tuple(sum(prompt) + at for at in range(len(answer)))
            positions = len(answer) - 1
            ones = (1,) * positions
            out.append(Found(ones, ones, ((0.5,),) * positions))
        progress("recording drafts", len(out), len(texts))
        return out


def test_the_fullest_cell_of_each_set_is_recorded_and_a_repeated_prompt_once() -> None:
    host = RecordingHost()
    both = options(datasets=("sharegpt", "gsm8k"), concurrency=(1, 4), repetitions=2, record=True)
    done = run_experiment(host, [CHAT, MATHS], both, Heard())
    heard: list[tuple[str, int, int]] = []
    recording, left_out = record(host, done, subject(), lambda *step: heard.append(step))
    # Runs of 2 and of 4 prompts; the smaller set has but 3 and begins again.
    assert [request.dataset for request in recording.requests] == ["sharegpt"] * 4 + ["gsm8k"] * 3
    assert [request.key for request in recording.requests[:4]] == [prompt.key for prompt in done.cells[1].prompts]
    assert {request.answer_tokens for request in recording.requests} == {8}
    assert recording.requests[0].prompt_tokens == len("prompt 0")
    assert heard == [("recording drafts", 7, 7)]
    assert left_out == 0
    assert recording.drafter.max_draft_steps == 15
    assert recording.source.concurrency == (1, 4)
    assert recording.source.machine["python"]


def test_answers_of_one_token_are_left_out_and_counted_and_nothing_else_is_an_error() -> None:
    host = RecordingHost()
    done = run_experiment(host, [CHAT], options(max_tokens=1, concurrency=(4,)), Heard())
    with pytest.raises(DatasetError, match="expected answers of at least 2 tokens, all 4 have one"):
        record(host, done, subject(), lambda *_: None)


@pytest.mark.parametrize("drafter", ["ngram"])
def test_a_benchmark_writes_a_trace_that_simulate_replays(
    drafter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    data = tmp_path / "test.jsonl"
    questions = ["the an the an the an the", "a then a than a then a", "0 1 2 0 1 2 0 1"]
    lines = [json.dumps({"question": question, "answer": "4"}) for question in questions]
    data.write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "out"
    command = f"bench --model {model} --dataset gsm8k --dataset-path {data} --out {out} --drafter {drafter} --record"
    flags = "--threads 1 --max-draft-steps 3 --arms off fixed:2 --concurrency 3 --max-tokens 12"
    assert main([*command.split(), *flags.split()]) == 0
    (trace,) = out.glob("bench-*.trace.json")
    assert f"wrote {trace}" in capsys.readouterr().out
    recording = load_recording(trace)
    assert recording.drafter.name == drafter
    assert len(recording.requests) == 3
    assert sum(sum(request.drafts) for request in recording.requests) > 0

    # Under two fixed steps the replay accepts what the benchmark did.
    (numbers,) = [path for path in out.glob("bench-*.json") if path.name.count(".") == 1]
    results = json.loads(numbers.read_text(encoding="utf-8"))["results"]
    measured = next(line for line in results if line["arm"] == "fixed:2")
    scenario = tmp_path / "again.yaml"
    content = {"name": "again", "trace_file": str(trace), "requests": {"count": 3}, "segments": [{"rounds": 12}]}
    scenario.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert main(["simulate", str(scenario), "--out", str(out), "--seeds", "1", "--arms", "off", "fixed:2"]) == 0
    (rounds,) = out.glob("simulate-*.rounds.json")
    again = next(run for run in json.loads(rounds.read_text(encoding="utf-8")) if run["arm"] == "fixed:2")
    (real,) = out.glob("bench-*.rounds.json")
    bench = next(run["rounds"] for run in json.loads(real.read_text(encoding="utf-8")) if run["arm"] == "fixed:2")
    full = [at for at, requests in enumerate(bench["num_requests"]) if requests == 3]
    assert len(full) >= 3
    assert again["tokens"][: len(full)] == [bench["committed"][at] for at in full]
    assert again["rows"][: len(full)] == [bench["verify_rows"][at] for at in full]
    assert measured["mean_accept_length"] >= 1
