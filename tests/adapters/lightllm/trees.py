"""Trees of LightLLM source: the checkout, and copies of the few files that hooks and signatures are compared with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lightspec_lightllm.adapters.lightllm import signatures
from lightspec_lightllm.adapters.lightllm.expected import EXPECTED
from lightspec_lightllm.adapters.lightllm.hooks import HOOKS
from tests.adapters.lightllm.harness import checkout

EXPECTATIONS = (*(hook.expectation for hook in HOOKS), *EXPECTED)


def source() -> Path:
    """What holds the package ``lightllm``; skips where there is no checkout. Nothing of it needs to be installed."""
    folder = checkout.path()
    if not (folder / "lightllm" / "__init__.py").is_file():
        pytest.skip(f"no LightLLM at {folder}: check it out there at commit {checkout.COMMIT}")
    return folder


def copy_to(folder: Path) -> Path:
    """The files that are relied on, copied."""
    package = source() / "lightllm"
    modules = {expected.module for expected in EXPECTATIONS} | {"lightllm", "lightllm.server.api_cli"}
    for path in {signatures.module_path(package, module) for module in modules}:
        target = folder / path.relative_to(package.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return folder


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Rewrite a file; the change must change something."""
    before = path.read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    path.write_text(after, encoding="utf-8")
