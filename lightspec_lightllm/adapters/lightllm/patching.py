"""The patch that lets LightLLM itself load plugins, put into its tree and taken out again.

It is an ordinary unified diff that only adds lines at the end of one file, so ``git apply`` takes it too. Here it is
held to more: the file must be, to the byte, what the patch was made for.
"""

from __future__ import annotations

import itertools
import os
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


@dataclass(frozen=True, slots=True)
class Addition:
    """A file, relative to the folder that holds LightLLM, and its whole text without and with the added lines."""

    file: str
    before: str
    after: str


def read_patch(path: Path = PATCH) -> Addition:
    """The patch. Raises HostError if it is missing or does more than add lines to the end of one whole file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise HostError(f"patch {path} cannot be read: {error}; install this package again") from None
    files = [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]
    hunks = [number for number, line in enumerate(lines) if line.startswith("@@ ")]
    body = lines[hunks[0] + 1 :] if hunks else []
    if len(files) != 1 or len(hunks) != 1 or not lines[hunks[0]].startswith("@@ -1,") or not body[-1].startswith("+"):
        raise HostError(f"patch {path}: expected lines added to the end of one file")
    if any(not line.startswith((" ", "+")) for line in body):
        raise HostError(f"patch {path}: expected added lines only")
    before = "".join(f"{line[1:]}\n" for line in body if line.startswith(" "))
    return Addition(files[0], before, "".join(f"{line[1:]}\n" for line in body))


def state(folder: Path, addition: Addition) -> State:
    """Whether a tree has the patch.

    Args:
        folder: what holds the package ``lightllm``: a checkout, or ``site-packages``.

    Raises:
        HostError: the tree is not one that the patch fits; the message names the file and the first other line.
    """
    path = folder / addition.file
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(
            f"{folder} is no LightLLM tree: expected the file {addition.file} in it ({error}); give the folder that "
            "holds the package lightllm, such as a checkout's top"
        ) from None
    if text in (addition.before, addition.after):
        return "absent" if text == addition.before else "applied"
    wanted = (addition.after if text.startswith(addition.before) else addition.before).split("\n")
    pairs = itertools.zip_longest(wanted, text.split("\n"), fillvalue="the end of the file")
    number, (expected, found) = next((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    raise HostError(
        f"{path} does not fit the patch: expected line {number} to be {expected!r}, found {found!r}; nothing was "
        "changed. Use LightLLM at the commit that the patch names, or start the server with "
        "python -m lightspec_lightllm.api_server, which needs no patch"
    )


def apply(folder: Path, addition: Addition) -> State:
    """Put the patch into a tree; returns the state before: nothing is done if that is ``applied``."""
    return _write(folder, addition, "applied", addition.after)


def revert(folder: Path, addition: Addition) -> State:
    """Take the patch out of a tree; returns the state before: nothing is done if that is ``absent``."""
    return _write(folder, addition, "absent", addition.before)


def _write(folder: Path, addition: Addition, wanted: State, text: str) -> State:
    before = state(folder, addition)
    if before == wanted:
        return before
    path = folder / addition.file
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        scratch.chmod(path.stat().st_mode)
        scratch.replace(path)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error}; nothing was changed") from None
    finally:
        scratch.unlink(missing_ok=True)
    return before
