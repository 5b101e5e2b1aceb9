"""``lightspec simulate``: scenario, variants, runs, tables and files, in this order."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.status import Status

from lightspec_lightllm.machine import this_machine, version_of
from lightspec_lightllm.output import OutputFolder
from lightspec_lightllm.simulate.arms import expand, skipped
from lightspec_lightllm.simulate.experiment import Cell, run_cell, variants
from lightspec_lightllm.simulate.options import SimulateOptions
from lightspec_lightllm.simulate.report import to_json, traces
from lightspec_lightllm.simulate.scenario import load_scenario
from lightspec_lightllm.simulate.table import cell_table

TABLE_WIDTH = 190


def run_simulate(scenario_file: Path, options: SimulateOptions, out: Path, *, date: datetime) -> list[Cell]:
    """Run a scenario, print a table per variant and write the files.

    Raises:
        ConfigError: the scenario or an option is wrong, or nothing can be written to ``out``.
    """
    scenarios = variants(load_scenario(scenario_file), options)
    for scenario in scenarios:
        expand(options.arms, scenario)
    folder = OutputFolder.open(out, date, prefix="simulate")
    log, output = Console(stderr=True), Console()
    if not output.is_terminal:
        output = Console(width=TABLE_WIDTH)
    cells = []
    for number, scenario in enumerate(scenarios):
        with log.status("") as status:
            head = f"variant {number + 1} of {len(scenarios)}: "

            def report(line: str, status: Status = status, head: str = head) -> None:
                status.update(head + line)

            cell = run_cell(scenario, options, report)
        cells.append(cell)
        output.print(cell_table(cell))
        for arm in options.arms:
            if reason := skipped(arm, scenario):
                output.print(f"{arm} left out: {reason}", markup=False)
    for path in write_files(folder, cells, options, scenario_file=scenario_file, date=date):
        output.print(f"wrote {path}", highlight=False, soft_wrap=True)
    if version_of("matplotlib") is None:
        output.print("no plots: matplotlib is not installed (the extra named plot)", markup=False)
    return cells


def write_files(
    folder: OutputFolder, cells: list[Cell], options: SimulateOptions, *, scenario_file: Path, date: datetime
) -> list[Path]:
    """The JSON files and, where matplotlib is installed, the plots."""
    content = to_json(cells, options, scenario_file=str(scenario_file), date=date, machine=this_machine())
    written = [
        folder.write(".json", json.dumps(content, indent=1) + "\n"),
        folder.write(".rounds.json", json.dumps(traces(cells)) + "\n"),
    ]
    if version_of("matplotlib") is None:
        return written
    from lightspec_lightllm.simulate.plots import plot_plans, plot_throughput

    throughput, plans = folder.path(".throughput.png"), folder.path(".plans.png")
    plot_throughput(cells, throughput)
    written.append(throughput)
    if plot_plans(cells, plans):
        written.append(plans)
    return written
