"""A process that computes drafts independently of this package, by ``speculators``.

Its modules read one question, JSON, from the standard input and write the answer as the last line. The interpreter
that has ``speculators`` is named by LIGHTSPEC_REFERENCE_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

INTERPRETER = os.environ.get("LIGHTSPEC_REFERENCE_PYTHON", sys.executable)
ROOT = Path(__file__).parents[4]


def is_there() -> bool:
    """Whether that interpreter has ``speculators``."""
    code = "import importlib.util as u; assert u.find_spec('speculators')"
    return subprocess.run([INTERPRETER, "-c", code], check=False, capture_output=True).returncode == 0


def ask(module: str, question: dict[str, Any]) -> Any:
    """The answer of a module of this package."""
    answer = subprocess.run(
        [INTERPRETER, "-m", module],
        cwd=ROOT,
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"},
    )
    if answer.returncode:
        raise RuntimeError(f"the reference process ended with exit code {answer.returncode}: {answer.stderr[-4000:]}")
    return json.loads(answer.stdout.splitlines()[-1])
