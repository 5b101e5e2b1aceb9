"""Arms against each other: in every cell (dataset, concurrency) each repetition runs every arm, in rotated order.

Alternating lets machine noise fall on all arms alike; ratios are taken inside a repetition, then their median. With
``interleave`` they take turns of half a second inside a repetition too (see `interleaved`).
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from lightspec_lightllm.bench.cells import BASELINE, Cell, Run
from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.bench.interleaved import run_interleaved
from lightspec_lightllm.bench.metrics import measure
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.bench.runner import ClosedLoop, RequestResult, RunResult, Server, Stepper
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.errors import DatasetError

MAX_GAPS_PER_CELL = 8
"""Each costs a prefill; differing texts are rare (near-ties of float16), and many of them are a bug to see anyway."""


class Host(Server, Protocol):
    """What an experiment needs of an engine."""

    @property
    def max_context(self) -> int:
        """Tokens a request may hold, prompt and answer together."""
        ...

    def chat(self, text: str) -> list[int]:
        """The token ids of a user message in the model's chat template, ready for the answer."""
        ...

    def rounds(self, arm: str, /) -> Stepper:
        """Rounds of a fresh planner over the same engine; those of several planners may take turns while it is idle."""
        ...

    def beside(self) -> "Host":
        """Another engine over the same weights, with requests, cache and drafter of its own."""
        ...

    def top_two_gap(self, tokens: list[int], /) -> float | None:
        """How far apart the two best logits for the token after ``tokens`` are; None when the host cannot tell."""
        ...


class Progress(Protocol):
    """Hears how far the experiment is."""

    def run_started(self, cell: Cell, arm: str, repetition: int) -> None: ...
    def request_finished(self, result: RequestResult, /) -> None: ...
    def run_finished(self, cell: Cell, run: Run) -> None: ...


@dataclass
class Experiment:
    """All cells run so far. ``interrupted``: the user stopped it; the runs that are here are whole."""

    options: BenchOptions
    cells: list[Cell] = field(default_factory=list)
    too_long: dict[str, int] = field(default_factory=dict)
    """Prompts left out per dataset because they and their answer do not fit the context."""
    duration: float = 0.0
    interrupted: bool = False


def num_requests(options: BenchOptions) -> int | None:
    """How many requests the whole experiment answers; None where runs end by their tokens."""
    if options.output_tokens is not None:
        return None
    prompts = sum(options.prompts_in(concurrency) for concurrency in options.concurrency)
    return prompts * len(options.datasets) * len(options.arms) * options.repetitions


def run_experiment(host: Host, datasets: list[Dataset], options: BenchOptions, progress: Progress) -> Experiment:
    """Runs every cell. Ctrl-C ends it early and keeps the runs that are complete."""
    experiment = Experiment(options)
    began = time.perf_counter()
    try:
        for dataset in datasets:
            count = max(map(options.prompts_in, options.concurrency))
            fitting, experiment.too_long[dataset.name] = fitting_prompts(host, dataset, count, options)
            warm_up(host, fitting[0][1])
            for concurrency in options.concurrency:
                chosen = [fitting[i % len(fitting)] for i in range(options.prompts_in(concurrency))]
                cell = Cell(dataset, concurrency, tuple(prompt for prompt, _ in chosen))
                experiment.cells.append(cell)
                run_cell(host, cell, [tokens for _, tokens in chosen], options, progress)
    except KeyboardInterrupt:
        experiment.interrupted = True
    experiment.cells = [cell for cell in experiment.cells if cell.runs]
    experiment.duration = time.perf_counter() - began
    return experiment


def warm_up(host: Host, prompt: list[int]) -> None:
    """One short answer that is not measured: the first forward of a shape prepares kernels and takes several times as
    long as the next."""
    params = SamplingParams(max_tokens=max(1, min(4, host.max_context - len(prompt))))
    ClosedLoop([(prompt, params)], concurrency=1).run(host, host.rounds(BASELINE))


def run_cell(host: Host, cell: Cell, prompts: list[list[int]], options: BenchOptions, progress: Progress) -> None:
    """Every arm, every repetition, on the same prompts and seeds; then compares the texts.

    A planner lives as long as its cell, as one lives as long as its server: the first repetition starts with one that
    has seen nothing, the others go on with what it learned.
    """
    requests = [
        (
            tokens,
            SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed + index),
        )
        for index, tokens in enumerate(prompts)
    ]
    loop = ClosedLoop(requests, cell.concurrency, options.output_tokens, progress.request_finished)
    if options.interleave:
        gc.collect()  # engines and hosts refer to each other: those of the last cell hold their caches until now
    hosts = {arm: host.beside() if options.interleave else host for arm in options.arms}
    rounds = {arm: hosts[arm].rounds(arm) for arm in options.arms}

    def finished(arm: str, repetition: int, result: RunResult) -> None:
        run = Run(arm, repetition, result, measure(result))
        cell.runs.append(run)
        progress.run_finished(cell, run)

    if options.interleave:
        for repetition, arms in turns(options.arms, options.repetitions):
            progress.run_started(cell, " ".join(arms), repetition)
            lanes = [(hosts[arm], rounds[arm]) for arm in arms]
            results = run_interleaved(lanes, loop)
            for arm, result in zip(arms, results, strict=True):
                finished(arm, repetition, result)
    else:
        for repetition, arm in schedule(options.arms, options.repetitions):
            progress.run_started(cell, arm, repetition)
            finished(arm, repetition, loop.run(host, rounds[arm]))
    if options.temperature == 0.0:
        measure_gaps(host, cell, prompts)


def measure_gaps(host: Host, cell: Cell, prompts: list[list[int]]) -> None:
    """Where greedy texts differ, asks the target how close its two best tokens were."""
    baseline = cell.baseline()
    places = dict.fromkeys((difference.prompt_index, difference.position) for difference in cell.differences())
    for index, position in list(places)[:MAX_GAPS_PER_CELL]:
        cell.gaps[index, position] = host.top_two_gap(
            prompts[index % len(prompts)] + list(baseline[index].tokens[:position])
        )


def schedule(arms: tuple[str, ...], repetitions: int) -> Iterator[tuple[int, str]]:
    """(repetition, arm) in the order of running: every repetition starts with another arm."""
    for repetition, order in turns(arms, repetitions):
        for arm in order:
            yield repetition, arm


def turns(arms: tuple[str, ...], repetitions: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The order of the arms in every repetition."""
    for repetition in range(repetitions):
        first = repetition % len(arms)
        yield repetition, arms[first:] + arms[:first]


def fitting_prompts(
    host: Host, dataset: Dataset, count: int, options: BenchOptions
) -> tuple[list[tuple[Prompt, list[int]]], int]:
    """Up to ``count`` prompts with their token ids, in the seed's order, and how many were left out as too long.

    Raises DatasetError when no prompt and its answer fit the context.
    """
    fitting: list[tuple[Prompt, list[int]]] = []
    shortest, too_long = 0, 0
    for prompt in dataset.shuffled(options.seed):
        tokens = host.chat(prompt.text)
        if len(tokens) + options.max_tokens <= host.max_context:
            fitting.append((prompt, tokens))
        else:
            shortest, too_long = min(shortest or len(tokens), len(tokens)), too_long + 1
        if len(fitting) == count:
            break
    if not fitting:
        raise DatasetError(
            f"{dataset.source}: no prompt fits the context of {host.max_context} tokens; the shortest has {shortest} "
            f"and asks for {options.max_tokens} more. Give shorter prompts or a smaller --max-tokens"
        )
    return fitting, too_long
