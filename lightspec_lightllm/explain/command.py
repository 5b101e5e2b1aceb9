"""``lightspec plan --explain``."""

from pathlib import Path

from rich.console import Console

from lightspec_lightllm.explain.explanation import explain
from lightspec_lightllm.explain.state import load_state
from lightspec_lightllm.explain.table import explanation_table

TABLE_WIDTH = 150


def run_explain(path: Path, *, everything: bool) -> bool:
    """Prints the plan of a state and the reasons. Returns whether the exhaustive search agrees."""
    found = explain(*load_state(path))
    output = Console()
    if not output.is_terminal:
        output = Console(width=TABLE_WIDTH)
    output.print(explanation_table(found, everything=everything))
    return not found.disagreements
