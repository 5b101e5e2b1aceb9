"""The inside of `sandbox`: reads one job as JSON, fences this process in, runs the checker, writes JSON.

Runs as a file in an interpreter without this package: it imports the standard library alone.
"""

import ctypes
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
from pathlib import Path
from typing import Any

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MAX_FILE_BYTES = 16 << 20


def main() -> None:
    job = json.load(sys.stdin)
    answer = sys.stdout
    alone = shut_off()
    if job.get("probe"):
        json.dump({"alone": alone}, answer)
        return
    limit(job["memory"], job["timeout"])
    multiprocessing.set_start_method("fork")  # the checker is a file, which a fresh interpreter could not import
    checker = load(Path(job["checker"]))
    found = checker.check_correctness(job["problem"], job["completion"], job["timeout"])
    json.dump({"result": found["result"]}, answer)


def shut_off() -> bool:
    """Whether this process now has a network of its own with nothing in it, and its children see each other alone."""
    user, group = os.getuid(), os.getgid()
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(CLONE_NEWNET | CLONE_NEWPID) == 0:
        return True
    if unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID) != 0:
        return False
    # Without these, files that are created in the new namespace would have no owner.
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    return True


def limit(memory: int, seconds: float) -> None:
    """Of this process and all that it starts: bytes of memory, seconds of processor time, bytes of a file."""
    whole_seconds = int(seconds) + 2
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, whole_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("execution", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
