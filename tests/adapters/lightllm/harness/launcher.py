"""Runs jobs from a test process: each in a fork of a process that has imported LightLLM, with or without the plugin."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.adapters.lightllm.harness import checkout
from tests.adapters.lightllm.harness.job import Job, JobResult, read_result, write

ROOT = Path(__file__).parents[4]
"""The repository, from which tests are imported."""

GRACE_SECONDS = 30.0
"""How much longer than its own time-out a job may take until it is killed from outside."""

IMPORT_SECONDS = 120.0

FILES = {"job": "job.json", "result": "result.json", "log": "log.txt"}
LOG_TAIL = 40


class JobError(AssertionError):
    """A job ended without a result; the message ends with the tail of its log."""


def environment() -> dict[str, str]:
    """For processes of the harness: one thread each, LightLLM importable, no network.

    Byte code is kept whatever this process does: each process of a server would else compile LightLLM for itself.
    """
    paths = [str(ROOT), str(checkout.path()), os.environ.get("PYTHONPATH", "")]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **threads, **offline, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Launcher:
    """A process that forks jobs, started at the first of them."""

    def __init__(self, *, plugin: bool) -> None:
        self._plugin = plugin
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: Job, folder: Path) -> JobResult:
        """Run a job; its files (job.json, result.json, log.txt) stay in ``folder``.

        Raises:
            JobError: it failed or hung.
        """
        paths = {name: str(folder / file) for name, file in FILES.items()}
        write(Path(paths["job"]), job)
        process = self._started()
        assert process.stdin is not None, "a pipe was asked for"
        process.stdin.write(json.dumps(paths) + "\n")
        process.stdin.flush()
        code = json.loads(self._answer(process, job.timeout + GRACE_SECONDS))["exit_code"]
        if code != 0:
            tail = Path(paths["log"]).read_text(errors="replace").splitlines()[-LOG_TAIL:]
            raise JobError(f"the job in {folder} ended with exit code {code}; its log ends:\n" + "\n".join(tail))
        return read_result(Path(paths["result"]))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.adapters.lightllm.harness", "serve", *(["--plugin"] * self._plugin)],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._answer(self._process, IMPORT_SECONDS)
        return self._process

    def _answer(self, process: subprocess.Popen[str], seconds: float) -> str:
        """The next line; a process that gives none within ``seconds`` is killed with its session."""
        assert process.stdout is not None, "a pipe was asked for"
        clock = threading.Timer(seconds, self.kill)
        clock.start()
        line = process.stdout.readline()
        clock.cancel()
        if not line:
            errors = process.stderr.read() if process.stderr is not None else ""
            raise JobError(f"the process that forks jobs ended:\n{errors[-4000:]}")
        return line

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.communicate()  # closes the pipes, too
