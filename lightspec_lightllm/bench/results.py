"""The files of a benchmark: numbers with the field names of ``vllm bench serve``, and the trace of every round."""

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lightspec_lightllm.bench.cells import BASELINE, Cell
from lightspec_lightllm.bench.experiment import Experiment
from lightspec_lightllm.bench.runner import RoundTrace
from lightspec_lightllm.machine import Machine

FORMAT = "lightspec-bench/1"


@dataclass(frozen=True)
class Subject:
    """What was measured, and on what."""

    backend: str
    model_id: str
    tokenizer_id: str
    model_sha256: str
    weights: str
    threads: int
    drafter: str
    max_draft_steps: int
    machine: Machine
    date: datetime
    ready_seconds: float
    """From the start of the command to an engine that can serve."""


def to_json(experiment: Experiment, subject: Subject, peak_memory_mb: float) -> dict[str, Any]:
    """One record per run under ``results`` (field names of ``vllm bench serve``), medians under ``summary``."""
    options = experiment.options
    common = {
        "date": subject.date.strftime("%Y%m%d-%H%M%S"),
        "backend": subject.backend,
        "model_id": subject.model_id,
        "tokenizer_id": subject.tokenizer_id,
    }
    results = [
        common
        | {
            "label": run.arm,
            "dataset": cell.dataset.name,
            "num_prompts": len(cell.prompts),
            "num_requests": len(run.result.requests),
            "request_rate": "inf",
            "max_concurrency": cell.concurrency,
            "arm": run.arm,
            "drafter": subject.drafter,
            "repetition": run.repetition,
            "seed": options.seed,
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "fallback": run.result.fallback,
        }
        | dataclasses.asdict(run.metrics)
        for cell in experiment.cells
        for run in cell.runs
    ]
    return common | {
        "format": FORMAT,
        "model_sha256": subject.model_sha256,
        "weights": subject.weights,
        "threads": subject.threads,
        "drafter": subject.drafter,
        "max_draft_steps": subject.max_draft_steps,
        "machine": dataclasses.asdict(subject.machine),
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(options).items()},
        "ready_seconds": subject.ready_seconds,
        "experiment_seconds": experiment.duration,
        "interrupted": experiment.interrupted,
        "peak_memory_mb": peak_memory_mb,
        "summary": [summary(cell, arm) for cell in experiment.cells for arm in cell.arms()],
        "texts": texts(experiment),
        "results": results,
    }


def summary(cell: Cell, arm: str) -> dict[str, Any]:
    best = cell.best_static()
    to_off, to_best = cell.ratio(arm, BASELINE), cell.ratio(arm, best) if best else None
    return {
        "dataset": cell.dataset.name,
        "source": cell.dataset.source,
        "max_concurrency": cell.concurrency,
        "arm": arm,
        "repetitions": len(cell.of(arm)),
        "output_throughput": dataclasses.asdict(cell.throughput(arm)),
        "ratio_to_off": dataclasses.asdict(to_off) if to_off else None,
        "best_static": best,
        "ratio_to_best_static": dataclasses.asdict(to_best) if to_best else None,
    }


def texts(experiment: Experiment) -> dict[str, Any]:
    differences = [
        {"dataset": cell.dataset.name, "max_concurrency": cell.concurrency} | dataclasses.asdict(difference)
        for cell in experiment.cells
        for difference in cell.differences()
    ]
    compared = sum(cell.compared_texts() for cell in experiment.cells)
    return {"compared": compared, "identical": compared - len(differences), "differences": differences}


def traces(experiment: Experiment) -> list[dict[str, Any]]:
    """Every round of every run, by column: a quarter of the size of a list of records."""
    return [
        {
            "dataset": cell.dataset.name,
            "max_concurrency": cell.concurrency,
            "arm": run.arm,
            "repetition": run.repetition,
            "rounds": {
                field.name: [round(getattr(trace, field.name), 4) for trace in run.result.rounds]
                for field in dataclasses.fields(RoundTrace)
            },
        }
        for cell in experiment.cells
        for run in cell.runs
    ]
