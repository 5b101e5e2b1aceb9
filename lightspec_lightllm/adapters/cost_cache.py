"""Cost tables of the embedded engine as they are kept: measured once for an engine, a drafter and a machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightspec_lightllm.adapters.calibration import measure, measured_sizes, timed_steps
from lightspec_lightllm.drafters import Drafter
from lightspec_lightllm.engine import Engine
from lightspec_lightllm.engine.fetch import ProgressListener, cache_dir
from lightspec_lightllm.errors import CostTableError
from lightspec_lightllm.machine import cpu_name
from lightspec_lightllm.planner import CostModel

FORMAT = 7


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a table was measured for; a table of any other key is foreign."""

    format: int
    model: str
    weights: str
    threads: int
    drafter: str
    draft_steps: int
    sizes: str
    device: str
    torch: str

    @classmethod
    def of(cls, engine: Engine, drafter: Drafter) -> CostKey:
        """The key of this engine, drafter and machine."""
        return cls(
            threads=engine.num_threads,
            drafter=drafter.name,
            draft_steps=0 if drafter.kind == "free" else timed_steps(drafter)[-1],
            sizes=measured_sizes(engine),
            **served_here(engine.model.config.sha256, engine.options.weights),
        )

    @property
    def path(self) -> Path:
        """Where its table is kept."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
        return cache_dir() / "costs" / f"{digest}.json"


def served_here(model_sha256: str, weights: str) -> dict[str, Any]:
    """The part of a key that a model has on this machine, whoever drafts and whatever the engine's size."""
    return {
        "format": FORMAT,
        "model": model_sha256,
        "weights": weights,
        "device": f"{cpu_name()}, {os.cpu_count()} cores",
        "torch": str(torch.__version__),
    }


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


def usual_threads(model_sha256: str, weights: str) -> int | None:
    """Threads of the table that was measured last for this model on this machine, for any drafter; None without one."""
    same = served_here(model_sha256, weights)
    found: list[tuple[float, int]] = []
    for path in (cache_dir() / "costs").glob("*.json"):
        with suppress(*_UNREADABLE):  # `load` refuses a damaged table that is asked for
            key = dict(json.loads(path.read_text(encoding="utf-8"))["key"])
            if same.items() <= key.items():
                found.append((path.stat().st_mtime, int(key["threads"])))
    return max(found)[1] if found else None


def load_or_measure(engine: Engine, drafter: Drafter, progress: ProgressListener | None = None) -> CostModel:
    """The cost model of an idle engine: read from the cache, or measured and written there.

    Raises:
        CostTableError: the stored table is damaged or was measured for something else.
    """
    key = CostKey.of(engine, drafter)
    if key.path.exists():
        return load(key.path, key)
    table = measure(engine, drafter, progress)
    key.path.parent.mkdir(parents=True, exist_ok=True)
    scratch = key.path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps({"key": asdict(key), **table}, indent=1), encoding="utf-8")
    scratch.replace(key.path)
    return load(key.path, key)


def load(path: Path, key: CostKey) -> CostModel:
    """Read a stored table.

    Raises:
        CostTableError: it is damaged, or its key is another than ``key``.
    """
    damaged = f"cost table {path} is damaged ({{}}); delete it to measure again"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        found, costs = dict(stored["key"]), cost_model(stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CostTableError) as error:
        raise CostTableError(damaged.format(error)) from None
    if found != asdict(key):
        wrong = [f"{name} {found.get(name)!r}" for name, value in asdict(key).items() if found.get(name) != value]
        raise CostTableError(f"cost table {path} was measured for {', '.join(wrong)}; delete it to measure again")
    return costs


def cost_model(stored: Mapping[str, Any]) -> CostModel:
    """The costs of a table as `measure` makes it, or as it is read from a file.

    Raises:
        CostTableError: its times are impossible.
        ValueError, KeyError, TypeError, AttributeError: it is something else.
    """
    measured = {
        int(count): {int(rows): float(ms) for rows, ms in table.items()} for count, table in stored["target_ms"].items()
    }
    target = refined(measured)
    return CostModel.from_tables(
        target[min(target)] if target else {},
        {int(requests): float(ms) for requests, ms in stored["draft_ms"].items()},
        draft_start={int(requests): float(ms) for requests, ms in stored["draft_start_ms"].items()},
        interpolate=True,
        request_token_ms=float(stored["request_token_ms"]),
        by_requests=target,
    )


def refined(tables: Mapping[int, Mapping[int, float]]) -> dict[int, dict[int, float]]:
    """``{requests: {rows: ms}}`` at the sizes of the finest table too, as far as both reach.

    Matrix products take rows in tiles, so a forward costs a step more at some sums of rows, whatever requests they
    are of; what requests add changes slowly. So between its own sizes a table has the steps of the finest one, plus
    what it differs from that, which is interpolated; but never less or more than at the sizes beside it, since what
    was measured stands.
    """
    if not tables or not all(tables.values()):
        return {count: dict(table) for count, table in tables.items()}
    finest = max(tables.values(), key=len)
    sizes = np.array(sorted(finest))
    steps = np.array([finest[rows] for rows in sizes.tolist()])
    found: dict[int, dict[int, float]] = {}
    for count, table in tables.items():
        own = np.array(sorted(table))
        measured = np.array([table[rows] for rows in own.tolist()])
        beyond = measured - np.interp(own, sizes, steps)
        shared = own[(own >= sizes[0]) & (own <= sizes[-1])]
        between = sizes[(sizes > shared[0]) & (sizes < shared[-1])] if len(shared) else shared
        rows = np.union1d(own, between)
        times = np.interp(rows, sizes, steps) + np.interp(rows, own, beyond)
        below, above = (np.searchsorted(own, rows, side) for side in ("right", "left"))
        times = np.clip(times, measured[below - 1], measured[above])
        found[count] = dict(zip(rows.tolist(), np.maximum.accumulate(times).tolist(), strict=True))
    return found
