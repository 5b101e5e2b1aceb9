"""LightLLM's HTTP server on the virtual device, started and stopped as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.adapters.lightllm.harness import checkout, leftovers
from tests.adapters.lightllm.harness.launcher import LOG_TAIL, ROOT, environment, free_port

LIGHTLLM = "lightllm.server.api_server"
PLUGIN = "lightspec_lightllm.api_server"

START_SECONDS = 600.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 120.0

ARGUMENTS = {
    "tp": 1,
    "data_type": "float32",
    "max_total_token_num": 512,
    "batch_max_tokens": 32,
    "chunked_prefill_size": 32,
    "max_req_total_len": 128,
    "running_max_req_size": 4,
    "mem_fraction": 0.5,
    "eos_id": 2,
    "llm_prefill_att_backend": "triton",
    "llm_decode_att_backend": "triton",
}
SWITCHES = ("disable_cudagraph", "disable_vision", "disable_audio")


class ServerError(AssertionError):
    """The server did not start, answer or end as it should; the message ends with the tail of its log."""


@dataclass(frozen=True)
class Answer:
    """What ``/generate`` says of one prompt."""

    tokens: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str


class Server:
    """A server that is starting or running; whoever made it kills it in the end.

    Args:
        module: `LIGHTLLM`, or `PLUGIN` for the plugin's launcher.
        model: folder of the target.
        arguments: further command-line arguments.
        log: file for everything that its processes print.
        source: a LightLLM source tree in place of the checkout, such as a patched copy.
    """

    def __init__(
        self, module: str, model: str, arguments: Sequence[str], *, log: Path, source: Path | None = None
    ) -> None:
        self.port = free_port()
        self._log = log
        paths = [Path(__file__).with_name("site"), source or checkout.path()]
        variables = environment()
        variables |= {
            "PYTHONPATH": os.pathsep.join([*map(str, paths), variables["PYTHONPATH"]]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]]),  # LightLLM calls hypercorn
            "TRITON_INTERPRET": "1",
            "LIGHTLLM_TRITON_AUTOTUNE_LEVEL": "3",
            "DISABLE_CHECK_MAX_LEN_INFER": "1",
            "PYTHONUNBUFFERED": "1",
        }
        options = {"model_dir": model, "host": "127.0.0.1", "port": self.port, **ARGUMENTS}
        command = [sys.executable, "-m", module]
        command += [f"--{name}={value}" for name, value in options.items()]
        command += [f"--{name}" for name in SWITCHES]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Until it answers.

        Raises:
            ServerError: it ended, or took longer than `START_SECONDS`.
        """
        end = time.monotonic() + START_SECONDS
        while True:
            if self.process.poll() is not None:
                raise self._error(f"the server ended with exit code {self.process.returncode} before it was ready")
            if time.monotonic() > end:
                raise self._error(f"the server was not ready after {START_SECONDS:.0f} s")
            try:
                self._get("/readiness", 2.0)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
            else:
                return

    def generate(self, prompt: Sequence[int], max_new_tokens: int, **parameters: Any) -> Answer:
        """Greedy unless ``parameters``, LightLLM's sampling parameters, say otherwise."""
        body = {
            "inputs": " ".join(f"t{token}" for token in prompt),
            "parameters": {"do_sample": False, "ignore_eos": True, "max_new_tokens": max_new_tokens, **parameters},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:  # noqa: S310
            answer = json.load(response)
        tokens = tuple(int(word[1:]) for word in answer["generated_text"][0].split())
        return Answer(tokens, answer["prompt_tokens"], answer["finish_reason"])

    def metrics(self) -> str:
        """The text of ``/metrics``."""
        return self._get("/metrics", ANSWER_SECONDS)

    def _get(self, path: str, seconds: float) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=seconds) as response:
            text: str = response.read().decode()
            return text

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def interrupt(self) -> int:
        """Send the launcher SIGINT; its exit code once it and all of its processes are gone.

        Raises:
            ServerError: something was left after `STOP_SECONDS`.
        """
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._error(f"the launcher still ran {STOP_SECONDS:.0f} s after SIGINT") from None
        end = time.monotonic() + STOP_SECONDS
        while left := session_members(self.process.pid):
            if time.monotonic() > end:
                raise self._error(f"processes {left} were left after SIGINT")
            time.sleep(0.1)
        return code

    def kill(self) -> None:
        """End everything in the server's session, whatever its state, and remove what LightLLM leaves behind."""
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if found := re.search(r"ipc:///tmp/_(\w+?_\d+)_", self.log()):
            leftovers.remove(found[1], leftovers.LOCKS_AND_SOCKETS, leftovers.SHARED_MEMORY)

    def _error(self, what: str) -> ServerError:
        tail = self.log().splitlines()[-LOG_TAIL:]
        return ServerError(f"{what}; its log in {self._log} ends:\n" + "\n".join(tail))


def session_members(leader: int) -> list[int]:
    """Processes of a session that run; ``leader`` may be gone. Read from /proc: LightLLM needs Linux anyway."""
    members = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            members.append(int(entry.parent.name))
    return members
