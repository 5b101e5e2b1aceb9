"""The plan trace of a model rank: `plan_trace` headed by what is being served."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from lightspec_lightllm import __version__
from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.lightllm.costs import config_sha256, versions
from lightspec_lightllm.adapters.lightllm.plan_trace import FORMAT, PlanTrace, ServedSource, TraceHead
from lightspec_lightllm.adapters.recording import RecordedDrafter
from lightspec_lightllm.planner import CostModel


def open_trace(path: Path, backend: Any, costs: CostModel, log: Callable[[str], None]) -> PlanTrace:
    """A trace of what this LightLLM backend serves, with the costs that its planner was told."""
    args, folder = backend.args, Path(backend.args.model_dir)
    source = ServedSource(
        model=folder.name,
        model_sha256=config_sha256(folder),
        dtype=str(args.data_type),
        device=torch.cuda.get_device_name(),
        tp=int(backend.world_size),
        versions={"lightspec": __version__, **versions()},
    )
    head = TraceHead(
        format=FORMAT,
        date=datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
        source=source,
        drafter=RecordedDrafter(
            backend.config.drafter or args.mtp_mode, backend.drafter.kind, backend.config.planner.max_draft_steps
        ),
        costs=CostTables.of(costs),
    )
    return PlanTrace(path, head, log)
