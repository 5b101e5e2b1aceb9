"""The linters run as tests, so that one command checks everything; and CI runs the command the README shows."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    ["ruff check", "ruff format --check", "mypy"],
)
def test_the_tree_passes(command: str) -> None:
    name, *arguments = command.split()
    tool = Path(sys.executable).with_name(name)
    done = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_readmes_test_command_word_for_word() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = script.strip().splitlines()[-1]
    assert "pytest" in command
    assert f"\n{command}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
