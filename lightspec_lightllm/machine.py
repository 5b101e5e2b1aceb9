"""Where a measurement was made: without it a number means nothing."""

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import lightspec_lightllm

REPOSITORY = Path(lightspec_lightllm.__file__).parent.parent


@dataclass(frozen=True)
class Machine:
    """Hardware and versions. ``commit`` ends in ``-dirty`` when files differ from it and is None outside a checkout."""

    cpu: str
    cores: int
    python: str
    lightspec: str
    torch: str | None
    numpy: str | None
    commit: str | None


def this_machine() -> Machine:
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        python=platform.python_version(),
        lightspec=lightspec_lightllm.__version__,
        torch=version_of("torch"),
        numpy=version_of("numpy"),
        commit=commit(),
    )


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        return None
    done = subprocess.run(  # noqa: S603 - a fixed command on this package's own folder
        [git, "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def peak_memory_mb() -> float:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
