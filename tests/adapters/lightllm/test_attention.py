"""Attention with different numbers of rows per request: LightLLM's states on the virtual device, plain torch beside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.adapters.lightllm.attention_checks import CHECKS
from tests.adapters.lightllm.harness.launcher import ROOT, environment

pytestmark = pytest.mark.lightllm


@pytest.fixture(scope="module")
def found() -> dict[str, str | None]:
    """What each check found, from one process: importing LightLLM takes longer than all of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.adapters.lightllm.attention_checks"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_attention_where(name: str, found: dict[str, str | None]) -> None:
    assert found[name] is None, found[name]
