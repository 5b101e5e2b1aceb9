"""The command itself: what is killed, fails or fills up leaves a log line, and no client in silence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.cli import main
from tests.engine.tiny_llama import write_tiny_gguf
from tests.server.serving import Client
from tests.server.test_load import until

LONG = {"prompt": "the an", "max_tokens": 400, "ignore_eos": True}

STRATEGY = """
class Failing:
    def __init__(self, inner):
        self._inner, self.max_draft_steps, self.counters = inner, inner.max_draft_steps, inner.counters
        self.costs, self.drafter = inner.costs, inner.drafter

    def plan(self, view):
        if self.counters.plans == 5:
            raise RuntimeError("the test's planner has had enough")
        return self._inner.plan(view)

    def observe(self, feedback):
        self._inner.observe(feedback)


def make(costs, *, max_draft_steps, drafter):
    from lightspec_lightllm.planner import make_planner

    return Failing(make_planner("fixed:3", costs, max_draft_steps=max_draft_steps, drafter=drafter))
"""


@dataclass
class Command:
    """A running ``lightspec serve``."""

    process: subprocess.Popen[str]
    client: Client
    log: list[str] = field(default_factory=list)

    def logged(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.log)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def command(model: Path, *arguments: str, **environment: str) -> Iterator[Command]:
    words = [sys.executable, "-m", "lightspec_lightllm.cli", "serve", "--model", str(model), "--threads", "1"]
    with subprocess.Popen(
        [*words, "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | environment,
    ) as process:
        running = Command(process, Client(""))

        def read() -> None:
            assert process.stderr is not None
            running.log.extend(iter(process.stderr.readline, ""))

        def ready() -> bool:
            assert process.poll() is None, "".join(running.log)
            found = [match for line in running.log if (match := re.search(r"served at (http://\S+)", line))]
            running.client.url = found[0][1] if found else ""
            return bool(found)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            until(ready, 60)
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            reader.join(30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def failing_strategy(folder: Path) -> str:
    """A folder with an installed package whose strategy raises; for PYTHONPATH."""
    (folder / "failing_strategy.py").write_text(STRATEGY, encoding="utf-8")
    info = folder / "failing_strategy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing-strategy\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[lightspec.strategies]\nfailing = failing_strategy:make\n", encoding="utf-8"
    )
    return str(folder)


def test_an_engine_that_is_killed_is_started_again_and_nobody_waits_in_silence(model: Path) -> None:
    with command(model, "--trace", "/dev/full") as running:
        client = running.client
        expected = client.post("/v1/completions", {"prompt": "the an", "max_tokens": 20}).json["choices"]
        until(lambda: running.logged(r"the trace ends here: cannot write /dev/full \(No space left on device\)"))
        stream = client.events("/v1/completions", LONG | {"stream": True})
        assert "choices" in next(stream)
        replies: list[Any] = []
        waiting = threading.Thread(target=lambda: replies.append(client.post("/v1/completions", LONG | {"n": 8})))
        waiting.start()
        until(lambda: client.status()["in_flight"] == 9)
        pid = client.status()["engine"]["pid"]
        os.kill(pid, signal.SIGKILL)
        *_, last = stream
        assert last["error"]["code"] == "engine_unavailable"
        waiting.join(30)
        assert (replies[0].status, replies[0].error["code"]) == (503, "engine_unavailable")
        until(lambda: running.logged(r"ERROR .* the engine was ended by SIGKILL; 9 sequences in flight were answered"))
        until(lambda: client.get("/health").status == 200, 60)
        assert client.post("/v1/completions", {"prompt": "the an", "max_tokens": 20}).json["choices"] == expected
        status = client.status()
        assert status["engine_restarts"] == 1
        assert status["engine"]["pid"] != pid
        assert status["trace"] == {"file": "/dev/full", "active": False}
        assert client.metrics()["lightspec_engine_restarts_total"] == 1
        assert running.end() == 0
    assert running.logged("the server has ended")


@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed (extra fast)")
@pytest.mark.parametrize(
    ("customized", "line"),
    [
        ("", "INFO .* the planner's loops: compiled$"),
        (
            "import numba\nnumba.config.USING_SVML = True\n",
            "WARNING .* the planner's loops: numpy: ImportError: numba takes exponentials from Intel's SVML",
        ),
    ],
    ids=["compiled", "numpy"],
)
def test_the_log_says_once_which_loops_plan(model: Path, tmp_path: Path, customized: str, line: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(customized)
    with command(model, PYTHONPATH=str(tmp_path)) as running:
        assert running.end() == 0
    assert len([logged for logged in running.log if "the planner's loops" in logged]) == 1
    assert running.logged(line)


@pytest.mark.slow
def test_a_planner_that_raises_costs_speed_and_one_log_line(model: Path, tmp_path: Path) -> None:
    with command(model, "--strategy", "failing", PYTHONPATH=failing_strategy(tmp_path)) as running:
        client = running.client
        body = {"prompt": "the an", "max_tokens": 40, "ignore_eos": True}
        failed = client.post("/v1/completions", body)
        again = client.post("/v1/completions", body)
        assert failed.json["choices"] == again.json["choices"]
        assert [line for line in running.log if "the test's planner has had enough" in line and "ERROR" in line]
        assert "had enough" in client.status()["fallback"]
        metrics = client.metrics()
        assert metrics["lightspec_fallbacks_total"] == 1
        assert metrics["lightspec_fallback_rounds_total"] > 1
        assert client.status()["engine_restarts"] == 0


@pytest.mark.slow
def test_the_engine_ends_with_a_front_that_is_killed(model: Path) -> None:
    with command(model) as running:
        pid = running.client.status()["engine"]["pid"]
        running.process.kill()
        running.process.wait(30)
        until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


@pytest.mark.slow
def test_an_engine_that_always_dies_ends_the_server_with_1(model: Path) -> None:
    with command(model) as running:
        client, killed = running.client, set()
        while running.process.poll() is None:
            try:
                engine = client.status()["engine"]
            except OSError:
                break
            if engine is not None and engine["pid"] not in killed:
                killed.add(engine["pid"])
                os.kill(engine["pid"], signal.SIGKILL)
            time.sleep(0.05)
        assert running.process.wait(30) == 1
        assert len(killed) == 4
    assert running.logged("the engine ended 4 times without finishing an answer; the server ends")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "70000"), "--port: expected 0 to 65535, got 70000"),
        (("--host", "203.0.113.1"), "--host/--port: cannot listen at 203.0.113.1"),
        (("--trace", "/nowhere/file"), "--trace: cannot write /nowhere/file"),
        (("--max-waiting", "-1"), "--max-waiting: expected at least 0, got -1"),
        (("--strategy", "best"), "--strategy: expected lightspec"),
        (("--model_dir", "x"), "unrecognized arguments: --model_dir"),
        (("--", "--model_dir", "x"), "they need --engine lightllm"),
    ],
)
def test_a_bad_start_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["serve", "--model", "nowhere.gguf", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_ends_the_start_with_its_name(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightspec_lightllm.cli", "serve", "--port", "0", "--model", "nowhere.gguf"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "nowhere.gguf" in line


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_can_be_given_up(model: Path, number: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightspec_lightllm.cli", "serve", "--port", "0", "--model", str(model)]
    environment = os.environ | {"LIGHTSPEC_CACHE": str(tmp_path)}  # no cost table: it is to be measured
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.exists() and children.read_text().split(), 60)
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "the server has ended" in log
    assert "Traceback" not in log
