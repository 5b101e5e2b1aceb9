"""Without a terminal, steps that take long are mentioned once and short ones not at all."""

import io

import pytest
from rich.console import Console

from lightspec_lightllm.bench.progress import SetupProgress


def test_a_long_step_gets_one_line_and_a_short_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 0.6, 2.0, 3.0])
    monkeypatch.setattr("lightspec_lightllm.bench.progress.time.monotonic", lambda: next(clock))
    console = Console(file=io.StringIO())
    setup = SetupProgress(console)
    for step, done in (("converting", 0), ("converting", 1), ("measuring", 0), ("measuring", 1), ("measuring", 2)):
        setup.report(step, done, 2)
    assert console.file.getvalue() == "measuring\n"  # type: ignore[attr-defined]
