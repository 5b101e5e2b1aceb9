"""``lightspec bench --url``: server, datasets, runs, table and files; and ``--compare``: files, table and picture."""

import argparse
import asyncio
import json
import signal
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from lightspec_lightllm.bench.datasets import Dataset, load_dataset
from lightspec_lightllm.bench.progress import SetupProgress
from lightspec_lightllm.client.arguments import read_arguments
from lightspec_lightllm.client.comparison import Record, pair, read_subjects
from lightspec_lightllm.client.comparison_table import comparison_table
from lightspec_lightllm.client.measurement import Measurement
from lightspec_lightllm.client.options import ClientOptions, Load
from lightspec_lightllm.client.progress import ClientProgress
from lightspec_lightllm.client.results import to_json
from lightspec_lightllm.client.run import Run
from lightspec_lightllm.client.sandbox import Sandbox
from lightspec_lightllm.client.server import Server, check_installed
from lightspec_lightllm.client.table import result_table
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.machine import version_of
from lightspec_lightllm.output import OutputFolder

TABLE_WIDTH = 150
EXIT_ALL_FAILED, EXIT_INTERRUPTED = 1, 130


def run_command(given: argparse.Namespace) -> int:
    """The exit status of what `arguments.add_arguments` has read."""
    date = datetime.now().astimezone()
    if given.compare is not None:
        if given.url is not None:
            raise ConfigError("--compare takes files and --url a server: give one of them")
        run_comparison(given.compare, given.out, date=date)
        return 0
    runs, interrupted = run_client(read_arguments(given), given.out, date=date)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_ALL_FAILED if any(run.all_failed for run in runs) else 0


def run_client(options: ClientOptions, out: Path, *, date: datetime) -> tuple[list[Run], bool]:
    """Measures, writes a file per run and prints the table; after Ctrl-C what was measured by then.

    Returns the runs, and whether they were interrupted. Raises EndpointError when the server cannot be measured.
    """
    check_installed()
    log = Console(stderr=True)
    with SetupProgress(log) as setup:
        datasets = [load_dataset(name, options.dataset_path, setup.report) for name in options.datasets]
        sandbox = Sandbox.open(setup.report) if options.run_code else None
    folder = OutputFolder.open(out, date, prefix="client")
    runs: list[Run] = []
    records: list[Record] = []
    written: list[Path] = []

    async def measure_all() -> tuple[str, bool]:
        stop = asyncio.Event()
        _stop_on_interrupt(stop, log)
        async with Server(options) as server:
            sender = await server.sender()
            measurement = Measurement(options, server, sender, stop, ClientProgress(log), sandbox)
            with measurement.progress.bar:
                for dataset, load in _cells(datasets, options):
                    run = await measurement.take(dataset, load)
                    if run is not None:
                        runs.append(run)
                        records.append(to_json(run, options, sender.model, date))
                        name = f".{dataset.name}{load.stem}.json"
                        written.append(folder.write(name, json.dumps(records[-1]) + "\n"))
                    if stop.is_set():
                        break
            return sender.model, stop.is_set()

    model, interrupted = asyncio.run(measure_all())
    output = _console()
    if not runs:
        output.print("Interrupted before the first request: nothing to show")
        return runs, interrupted
    output.print(result_table(runs, options, model, output.width))
    if len(runs) > 1 and version_of("matplotlib") is not None:
        from lightspec_lightllm.client.plots import plot_results

        picture = folder.path(".png")
        rows: list[tuple[str, list[Record | None]]] = [
            (f"{run.dataset.name}, {run.load}", [record]) for run, record in zip(runs, records, strict=True)
        ]
        plot_results([options.label or model], rows, picture)
        written.append(picture)
    for path in written:
        output.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return runs, interrupted


def run_comparison(paths: Sequence[Path], out: Path, *, date: datetime) -> None:
    """Prints results side by side and draws them."""
    subjects = read_subjects(paths)
    rows = pair(subjects)
    names = [subject.name for subject in subjects]
    output = _console()
    output.print(comparison_table(names, rows))
    if version_of("matplotlib") is None:
        output.print("no picture: matplotlib is not installed (the extra named plot)", markup=False)
        return
    from lightspec_lightllm.client.plots import plot_results

    picture = OutputFolder.open(out, date, prefix="compare").path(".png")
    plot_results(names, rows, picture)
    output.print(f"wrote {picture}", highlight=False, soft_wrap=True)


def _cells(datasets: Sequence[Dataset], options: ClientOptions) -> list[tuple[Dataset, Load]]:
    return [(dataset, load) for dataset in datasets for load in options.loads()]


def _console() -> Console:
    output = Console()
    return output if output.is_terminal else Console(width=TABLE_WIDTH)


def _stop_on_interrupt(stop: asyncio.Event, log: Console) -> None:
    """The first Ctrl-C ends the measurement, the second the program."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        log.print("stopping; once more to quit at once", highlight=False)
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGINT, interrupted)
