"""The whole command against a server on a socket: loads, files, failures, interruption, exit statuses."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.cli import main
from lightspec_lightllm.client.options import ClientOptions, Load, SamplingOptions
from lightspec_lightllm.errors import ConfigError
from tests.client.dummy_server import DummyServer, Fault, running

ROOT = Path(__file__).parent.parent.parent
PROBLEMS = [{"question": f"How many are {number} and 1?", "answer": f"#### {number + 1}"} for number in range(6)]
VLLM_FIELDS = (
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
)

PER_REQUEST = ("input_lens", "output_lens", "ttfts", "itls", "errors", "prompts")


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(json.dumps(problem) for problem in PROBLEMS), encoding="utf-8")
    return path


def bench(dummy: DummyServer, problems: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status and the records in the files, in the order of their names."""
    out = problems.parent / "out"
    words = ["--dataset", "gsm8k", "--dataset-path", str(problems), "--url", dummy.url, "--out", str(out)]
    status = main(["bench", *words, *more])
    return status, [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]


@pytest.mark.parametrize("api", ["openai-chat", "openai", "lightllm"])
def test_a_run_writes_a_file_with_the_fields_of_vllm(problems: Path, api: str) -> None:
    with running(DummyServer(text="It is 3.")) as dummy:
        status, (record,) = bench(dummy, problems, "--concurrency", "3", "--num-prompts", "5", "--api", api)
    assert status == 0
    assert set(VLLM_FIELDS) <= record.keys()
    assert {len(record[name]) for name in PER_REQUEST} == {5}
    assert (record["max_concurrency"], record["completed"], record["model_id"]) == (3, 5, "dummy")
    assert record["max_concurrent_requests"] <= 3
    assert record["answers"]["checked"] == 5
    assert record["answers"]["correct"] == sum(key == "How many are 2 and 1?" for key in record["prompts"])
    assert record["output_tokens_counted_by"] == {"usage": 5}


def test_a_sweep_has_a_row_and_a_file_per_load_and_a_picture(
    problems: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(DummyServer()) as dummy:
        status, records = bench(dummy, problems, "--concurrency", "1", "3", "--num-prompts", "4")
    assert status == 0
    assert [(record["max_concurrency"], record["completed"]) for record in records] == [(1, 4), (3, 4)]
    assert records[0]["prompts"] == records[1]["prompts"]
    assert sorted(path.suffix for path in (problems.parent / "out").iterdir()) == [".json", ".json", ".png"]
    assert capsys.readouterr().out.count("0/4") == 2


def test_prompts_are_worded_and_those_of_the_warm_up_are_others(problems: Path) -> None:
    dummy = DummyServer()
    with running(dummy):
        more = ("--num-prompts", "3", "--concurrency", "1", "--num-warmups", "2", "--seed", "5")
        bench(dummy, problems, *more, "--api", "openai", "--prompt-template", "<u>{prompt}</u>")
    prompts = [body["prompt"] for body in dummy.bodies]
    assert len(set(prompts)) == 5
    assert all(text.startswith("<u>Solve") and text.endswith("and 1?</u>") for text in prompts)


def test_open_loop_arrivals_are_not_held_back_and_goodput_is_counted(problems: Path) -> None:
    dummy = DummyServer()
    with running(dummy):
        slos = ("--goodput", "ttft:60000", "e2el:0")
        status, (record,) = bench(dummy, problems, "--request-rate", "500", "--num-prompts", "6", *slos)
    assert status == 0
    assert (record["request_rate"], record["max_concurrency"], record["request_goodput"]) == (500.0, None, 0.0)


def test_failures_are_counted_by_their_reason_and_all_failing_is_an_exit_status(
    problems: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults: dict[int, Fault] = {1: "busy", 2: "dropped", 3: "dropped"}
    dummy = DummyServer(fault=faults.get)
    few = ("--concurrency", "1", "--num-prompts", "5", "--num-warmups", "0")
    with running(dummy):
        status, (record,) = bench(dummy, problems, *few)
    assert status == 0
    assert (record["completed"], record["failed"]) == (2, 3)
    assert sorted(record["error_counts"].values()) == [1, 2]
    assert record["output_lens"].count(0) == 3
    assert "2 failed: broken stream" in capsys.readouterr().out
    with running(DummyServer(fault=lambda _: "refused")) as refusing:
        assert bench(refusing, problems, *few)[0] == 1
        assert main(["bench", "--url", refusing.url, "--dataset", "gsm8k", "--dataset-path", str(problems)]) == 2
    assert "none of the 1 warm-up requests" in capsys.readouterr().err


def test_no_server_is_one_line_that_says_what_to_do(problems: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(DummyServer()) as gone:
        pass
    assert bench(gone, problems)[0] == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no server answers at")
    assert error.count("\n") == 1


def test_a_server_that_does_not_know_stream_options_is_not_asked_for_usage(problems: Path) -> None:
    dummy = DummyServer(knows_usage=False)
    with running(dummy):
        status, (record,) = bench(dummy, problems, "--concurrency", "1", "--num-prompts", "2")
    assert status == 0
    assert (record["failed"], record["output_tokens_counted_by"]) == (0, {"events": 2})


def test_counters_and_caches_of_the_server_are_those_of_the_run_alone(problems: Path) -> None:
    def metrics(dummy: DummyServer) -> str:
        answered = len(dummy.bodies)
        names = ("drafts", "draft_tokens", "accepted_tokens")
        return "\n".join(f"vllm:spec_decode_num_{name}_total {answered * 2}" for name in names)

    dummy = DummyServer(metrics=metrics)
    with running(dummy):
        more = ("--concurrency", "1", "--num-prompts", "3", "--num-warmups", "2", "--flush-path", "/flush_cache")
        _, (record,) = bench(dummy, problems, *more)
    assert (record["spec_decode_num_drafts"], record["spec_decode_acceptance_rate"]) == (6, 100.0)
    assert record["mean_accept_length"] == 2.0
    assert dummy.posted[0] == "/flush_cache"
    with running(DummyServer()) as other:
        assert bench(other, problems, "--flush-path", "/nowhere")[0] == 2


def test_an_interruption_shows_and_writes_what_was_measured(problems: Path) -> None:
    dummy = DummyServer(fault=lambda number: "silent" if number >= 3 else None)
    with running(dummy):
        out = problems.parent / "out"
        words = ["--dataset-path", str(problems), "--url", dummy.url, "--out", str(out), "--num-warmups", "0"]
        process = subprocess.Popen(
            [sys.executable, ROOT / "benchmarks" / "gsm8k.py", *words, "--concurrency", "1", "8"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        ask = threading.Event()
        while len(dummy.bodies) < 4:
            ask.wait(0.02)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate()
    assert process.returncode == 130, error
    assert "1 requests in flight were given up" in output
    (path,) = out.glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["completed"], record["cancelled"], record["interrupted"]) == (3, 1, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--url", "localhost:8000"], "--url: expected http://HOST:PORT"),
        (["--url", "http://x", "--api", "grpc"], "--api: 'grpc' is unknown"),
        (["--url", "http://x", "--concurrency", "0"], "--concurrency: expected at least 1, got 0"),
        (["--url", "http://x", "--concurrency", "2", "2"], "--concurrency: a value is given twice"),
        (["--url", "http://x", "--request-rate", "0"], "--request-rate: expected more than 0"),
        (["--url", "http://x", "--request-rate", "nan"], "--request-rate: expected more than 0"),
        (["--url", "http://x", "--goodput", "itl:5"], "--goodput: 'itl' is unknown"),
        (["--url", "http://x", "--goodput", "ttft"], "--goodput: expected NAME:VALUE"),
        (["--url", "http://x", "--goodput", "ttft:soon"], "--goodput: expected a number"),
        (["--url", "http://x", "--metric-percentiles", "101"], "--metric-percentiles: expected 0 to 100"),
        (["--url", "http://x", "--percentile-metrics", "tbt"], "--percentile-metrics: 'tbt' is unknown"),
        (["--url", "http://x", "--extra-body", "{"], "--extra-body: not JSON"),
        (["--url", "http://x", "--extra-body", "[]"], "--extra-body: expected a JSON object"),
        (["--url", "http://x", "--prompt-template", "hi"], "--prompt-template: expected a text with {prompt}"),
        (["--url", "http://x", "--dataset", "gsm8k", "--run-code"], "--run-code: only the answers to humaneval"),
        (["--url", "http://x", "--dataset", "mbpp"], "--dataset: 'mbpp' is unknown"),
        (["--url", "http://x", "--dataset-path", "f"], "--dataset-path: say which kind"),
        (["--url", "http://x", "--temperature", "-1"], "--temperature: expected 0 to inf"),
        (["--url", "http://x", "--arms", "off"], "unrecognized arguments: --arms"),
        (["--url", "http://x", "--compare", "a"], "give one of them"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_loads_are_every_rate_with_every_limit() -> None:
    options = ClientOptions("http://x", concurrency=(2, 4), request_rates=(1.0, float("inf")))
    assert options.loads() == [Load(1.0, 2), Load(1.0, 4), Load(float("inf"), 2), Load(float("inf"), 4)]
    assert ClientOptions("http://x").loads() == [Load(max_concurrency=n) for n in (1, 8, 32)]
    assert ClientOptions("http://x", request_rates=(3.0,)).loads() == [Load(3.0)]


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_addresses_are_taken_as_people_paste_them(url: str) -> None:
    assert ClientOptions(url).base_url == "http://h:1"


def test_every_field_of_the_options_is_checked_or_sent() -> None:
    with pytest.raises(ConfigError, match="--max-tokens"):
        ClientOptions("http://x", sampling=SamplingOptions(max_tokens=0))


def test_the_client_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, lightspec_lightllm.client.command; print({'torch', 'matplotlib', 'aiohttp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
