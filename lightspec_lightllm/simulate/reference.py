"""``lightspec simulate --reference``."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from pathlib import Path

from rich.console import Console

from lightspec_lightllm.adapters.roofline import load_roofline
from lightspec_lightllm.machine import this_machine
from lightspec_lightllm.output import OutputFolder
from lightspec_lightllm.simulate.options import SimulateOptions
from lightspec_lightllm.simulate.published import LOADS, rounds_of, run_load
from lightspec_lightllm.simulate.published_table import published_table

TABLE_WIDTH = 150


def run_reference(costs: Path, options: SimulateOptions, out: Path, *, date: datetime) -> None:
    """Serve the published comparison on modelled costs, print it and write it as JSON.

    Args:
        costs: a roofline model, such as configs/costs/h200-qwen3-14b.yaml.
        options: of which seeds, plan time and rounds count.

    Raises:
        ConfigError: the costs are wrong, or nothing can be written to ``out``.
    """
    model = load_roofline(costs)
    folder = OutputFolder.open(out, date, prefix="reference")
    log, output = Console(stderr=True), Console()
    if not output.is_terminal:
        output = Console(width=TABLE_WIDTH)
    with log.status("") as status:
        results = [run_load(load, model, options, status.update) for load in LOADS]
    output.print(
        published_table(results, model, num_seeds=len(options.seeds), rounds=rounds_of(options)), highlight=False
    )
    content = {
        "date": date.isoformat(),
        "machine": dataclasses.asdict(this_machine()),
        "costs": dataclasses.asdict(model),
        "options": dataclasses.asdict(options),
        "loads": [dataclasses.asdict(result) for result in results],
    }
    output.print(
        f"wrote {folder.write('.json', json.dumps(content, indent=1) + chr(10))}", highlight=False, soft_wrap=True
    )
