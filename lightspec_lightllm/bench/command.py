"""``lightspec bench``: datasets, engine, experiment, table and files, in this order."""

import gc
import json
import time
from datetime import datetime
from pathlib import Path

from rich.console import Console

from lightspec_lightllm.adapters.recording import to_bytes
from lightspec_lightllm.bench.datasets import load_dataset
from lightspec_lightllm.bench.experiment import Experiment, num_requests, run_experiment
from lightspec_lightllm.bench.first_look import fitted
from lightspec_lightllm.bench.host import check_installed, open_host
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.bench.progress import BenchProgress, SetupProgress
from lightspec_lightllm.bench.record import record
from lightspec_lightllm.bench.results import Subject, to_json, traces
from lightspec_lightllm.bench.table import result_table
from lightspec_lightllm.config import Config
from lightspec_lightllm.machine import peak_memory_mb, this_machine, version_of
from lightspec_lightllm.output import OutputFolder

TABLE_WIDTH = 150


def run_bench(
    config: Config, options: BenchOptions, out: Path, *, date: datetime, started: float, shorten: bool = False
) -> Experiment:
    """Measures, prints the table and writes the files; after Ctrl-C with the runs that are complete.

    ``started`` is the ``time.perf_counter`` at which the command began; with ``shorten`` answers are as long as a first
    look has time for here (see `first_look`).
    """
    check_installed()
    log = Console(stderr=True)
    with SetupProgress(log) as setup:
        datasets = [load_dataset(name, options.dataset_path, setup.report) for name in options.datasets]
        folder = OutputFolder.open(out, date)
        host = open_host(config, setup.report)
    subject = Subject(
        backend="lightspec-embedded",
        model_id=host.model_id,
        tokenizer_id=host.model_id,
        model_sha256=host.model_sha256,
        weights=config.engine.weights,
        threads=host.threads,
        drafter=config.drafter.name,
        max_draft_steps=config.planner.max_draft_steps,
        machine=this_machine(),
        date=date,
        ready_seconds=time.perf_counter() - started,
    )
    if shorten:
        asked, options = options, fitted(options, host, host.costs, datasets)
        if options != asked:
            log.print(
                f"answers of {options.max_tokens} tokens at most, so that this does not take too long on this machine; "
                f"--max-tokens {asked.max_tokens} has them as long as usual",
                highlight=False,
                soft_wrap=True,
            )
    progress = BenchProgress(log, num_requests(options))
    gc.collect()
    gc.freeze()  # what exists by now is not looked through again while rounds are timed
    try:
        with progress.bar:
            experiment = run_experiment(host, datasets, options, progress)
    finally:
        gc.unfreeze()

    output = Console()
    if not output.is_terminal:
        output = Console(width=TABLE_WIDTH)
    if not experiment.cells:
        output.print("Interrupted before the first run was complete: nothing to show")
        return experiment
    output.print(result_table(experiment, subject, output.width))
    output.print(
        f"ready after {subject.ready_seconds:.1f} s, measured for {experiment.duration:.0f} s, "
        f"peak memory {peak_memory_mb():.0f} MB",
        highlight=False,
    )
    written = write_files(folder, experiment, subject)
    if options.record:
        with SetupProgress(log) as setup:
            recording, left_out = record(host, experiment, subject, setup.report)
        written.append(folder.write_bytes(*to_bytes(recording)))
        if left_out:
            output.print(f"trace: {left_out} answers left out: of one token, which comes with the prompt", markup=False)
    for path in written:
        output.print(f"wrote {path}", highlight=False, soft_wrap=True)
    if version_of("matplotlib") is None:
        output.print("no plots: matplotlib is not installed (the extra named plot)", markup=False)
    return experiment


def write_files(folder: OutputFolder, experiment: Experiment, subject: Subject) -> list[Path]:
    """The JSON files and, where matplotlib is installed, the plots."""
    content = to_json(experiment, subject, peak_memory_mb())
    written = [
        folder.write(".json", json.dumps(content, indent=1) + "\n"),
        folder.write(".rounds.json", json.dumps(traces(experiment)) + "\n"),
    ]
    if version_of("matplotlib") is None:
        return written
    from lightspec_lightllm.bench.plots import plot_plans, plot_throughput

    throughput, plans = folder.path(".throughput.png"), folder.path(".plans.png")
    plot_throughput(experiment, throughput)
    written.append(throughput)
    if plot_plans(experiment, plans):
        written.append(plans)
    return written
