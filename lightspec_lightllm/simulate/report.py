"""The files of a simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from lightspec_lightllm.machine import Machine
from lightspec_lightllm.simulate.comparison import best_static, summaries
from lightspec_lightllm.simulate.experiment import Cell
from lightspec_lightllm.simulate.options import SimulateOptions
from lightspec_lightllm.simulate.trace import Trace

FORMAT = "lightspec-simulate/1"

_PER_ROUND = ("segment", "num_requests", "rows", "steps", "tokens", "expected", "ms", "plan_us")


def to_json(
    cells: Sequence[Cell], options: SimulateOptions, *, scenario_file: str, date: datetime, machine: Machine
) -> dict[str, Any]:
    """Settings, and for each cell what its arms came to, by segment and seed."""
    return {
        "format": FORMAT,
        "date": date.strftime("%Y%m%d-%H%M%S"),
        "machine": dataclasses.asdict(machine),
        "scenario_file": scenario_file,
        "options": dataclasses.asdict(options),
        "cells": [_cell(cell) for cell in cells],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    references = cell.references
    return {
        "label": cell.label,
        "scenario": dataclasses.asdict(cell.scenario),
        "best_static": best_static(cell),
        "static": [dataclasses.asdict(setting) for setting in references.static],
        "static_ranked": [dataclasses.asdict(setting) for setting in references.ranked],
        "prices_tokens_per_ms": [
            {"arm": arm, "seed": seed, "by_segment": prices} for (arm, seed), prices in references.prices.items()
        ],
        "summary": [dataclasses.asdict(line) | {"regret": line.regret} for line in summaries(cell)],
        "runs": [
            {"arm": arm, "seed": seed} | _run(trace, len(cell.scenario.segments))
            for (arm, seed), trace in cell.traces.items()
        ],
    }


def _run(trace: Trace, num_segments: int) -> dict[str, Any]:
    parts = [trace.of(segment) for segment in range(num_segments)]
    return {
        "segments": [
            {
                "rounds": len(part.ms),
                "tokens": int(part.tokens.sum()),
                "expected_tokens": float(part.expected.sum()),
                "simulated_ms": float(part.ms.sum()),
                "charged_plan_ms": float(part.charged_ms.sum()),
                "tokens_per_second": part.rate(),
                "drawn_tokens_per_second": part.rate(drawn=True),
            }
            for part in parts
        ]
    }


def traces(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every round of every run, by column."""
    return [
        {"cell": cell.label, "arm": arm, "seed": seed}
        | {name: [round(value, 4) for value in getattr(trace, name).tolist()] for name in _PER_ROUND}
        for cell in cells
        for (arm, seed), trace in cell.traces.items()
    ]
