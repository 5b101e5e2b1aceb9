"""What must be importable where torch is not."""

import subprocess
import sys

import pytest

BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "tokenizers", "gguf", "jinja2"}:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Blocker())
import %s
"""


@pytest.mark.parametrize(
    "module",
    [
        "lightspec_lightllm.planner",
        "lightspec_lightllm.decode",
        "lightspec_lightllm.adapters.simulated",
        "lightspec_lightllm.config",
        "lightspec_lightllm.errors",
        "lightspec_lightllm.drafters",
        "lightspec_lightllm.cli",
    ],
)
def test_it_imports_without_torch(module: str) -> None:
    result = subprocess.run([sys.executable, "-c", BLOCKER % module], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
