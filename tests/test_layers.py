"""The layering of the package is law: what may import what, and what must never load torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_import_points_down() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module", ["errors", "planner", "decode", "adapters.simulated", "simulate.command", "config", "engine.options"]
)
def test_the_torch_free_modules_load_neither_torch_nor_matplotlib(module: str) -> None:
    # The import linter sees import statements; this sees what a package's __init__ really pulls in.
    code = f"import sys, lightspec_lightllm.{module}; print({{'torch', 'matplotlib'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


def test_help_and_bad_arguments_answer_without_loading_torch() -> None:
    code = (
        "import sys\n"
        "from lightspec_lightllm.cli import main\n"
        "assert main(['bench', '--concurrency', '0']) == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
