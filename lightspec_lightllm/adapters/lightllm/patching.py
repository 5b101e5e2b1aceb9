"""The patch that lets LightLLM itself load plugins, put into its tree and taken out again.

The patch is an ordinary unified diff that only adds lines, so ``git apply`` takes it too. Here it is held to more: the
lines around an addition must be in the file exactly as the patch has them, at the place that it names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightspec_lightllm.errors import HostError
from lightspec_lightllm.machine import REPOSITORY

_NAME = Path("patches") / "lightllm-plugins.patch"
_INSTALLED = Path(__file__).parents[2] / _NAME
PATCH = _INSTALLED if _INSTALLED.exists() else REPOSITORY / _NAME
"""A wheel carries the file; a checkout has it at its top."""

State = Literal["absent", "applied"]

_HUNK = re.compile(r"@@ -(?P<start>\d+)(?:,(?P<count>\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True, slots=True)
class Addition:
    """One hunk: the lines of a file before and after, from a line number on (0-based)."""

    file: str
    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]


def read_patch(path: Path = PATCH) -> tuple[Addition, ...]:
    """The hunks of a patch that only adds lines.

    Raises:
        HostError: it is missing, or takes lines away.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise HostError(f"patch {path} cannot be read: {error}; install this package again") from None
    additions: list[Addition] = []
    file, place = "", 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif (hunk := _HUNK.match(line)) is not None:
            body = []
            while place < len(lines) and lines[place][:1] in (" ", "+", "-"):
                body.append(lines[place])
                place += 1
            if any(text.startswith("-") for text in body):
                raise HostError(f"patch {path}: expected added lines only, it takes lines out of {file}")
            before = tuple(text[1:] for text in body if text.startswith(" "))
            additions.append(Addition(file, int(hunk["start"]) - 1, before, tuple(text[1:] for text in body)))
    return tuple(additions)


def state(folder: Path, additions: tuple[Addition, ...]) -> State:
    """Whether a tree has the patch.

    Args:
        folder: what holds the package ``lightllm``: a checkout, or ``site-packages``.

    Raises:
        HostError: the tree is not one that the patch fits; the message names the file and the first other line.
    """
    found = {_state_of(folder, addition) for addition in additions}
    if len(found) != 1:
        raise HostError(
            f"{folder} has a part of the patch only; restore its files {_files(additions)} and apply it anew"
        )
    return found.pop()


def apply(folder: Path, additions: tuple[Addition, ...]) -> State:
    """Put the patch into a tree; returns the state before, in which nothing was done if it was ``applied``."""
    return _write(folder, additions, wanted="applied")


def revert(folder: Path, additions: tuple[Addition, ...]) -> State:
    """Take the patch out of a tree; returns the state before, in which nothing was done if it was ``absent``."""
    return _write(folder, additions, wanted="absent")


def _write(folder: Path, additions: tuple[Addition, ...], *, wanted: State) -> State:
    before = state(folder, additions)
    if before == wanted:
        return before
    for addition in reversed(additions):  # from the end, so that line numbers stay true
        lines = _read(folder, addition.file)
        old, new = addition.before, addition.after
        if wanted == "absent":
            old, new = new, old
        lines[addition.start : addition.start + len(old)] = new
        _replace(folder / addition.file, "\n".join(lines))
    return before


def _state_of(folder: Path, addition: Addition) -> State:
    lines = _read(folder, addition.file)
    if _has(lines, addition.start, addition.after):
        return "applied"
    if _has(lines, addition.start, addition.before):
        return "absent"
    here = lines[addition.start :]
    place = next(
        (i for i, line in enumerate(addition.before) if i >= len(here) or here[i] != line), len(addition.before)
    )
    raise HostError(
        f"{folder / addition.file} does not fit the patch: expected line {addition.start + place + 1} to be "
        f"{addition.before[place]!r}, found {here[place] if place < len(here) else 'the end of the file'!r}; "
        "nothing was changed. Use LightLLM at the commit that the patch names, or start the server with "
        "python -m lightspec_lightllm.api_server, which needs no patch"
    )


def _has(lines: list[str], start: int, wanted: tuple[str, ...]) -> bool:
    return tuple(lines[start : start + len(wanted)]) == wanted


def _read(folder: Path, file: str) -> list[str]:
    try:
        with (folder / file).open(encoding="utf-8", newline="") as stream:
            return stream.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(
            f"{folder} is no LightLLM tree: expected the file {file} in it ({error}); give the folder that holds "
            "the package lightllm, which is a checkout's top"
        ) from None


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        scratch.chmod(path.stat().st_mode)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise HostError(f"{path} cannot be written: {error}") from None


def _files(additions: tuple[Addition, ...]) -> str:
    return ", ".join(dict.fromkeys(addition.file for addition in additions))
