"""Jobs with drafters that this package loads."""

from __future__ import annotations

from typing import Any

import pytest

from lightspec_lightllm.adapters.lightllm.options import CostOptions, LightLLMConfig
from lightspec_lightllm.config import PlannerConfig
from tests.adapters.lightllm.dynamic import FEW_COSTS, LONG_SECONDS
from tests.adapters.lightllm.harness.job import Job
from tests.adapters.lightllm.harness.models import Models
from tests.adapters.lightllm.harness.workload import requests

OTHERS = ("llama", "qwen2", "qwen3_moe", "mistral4")
FAMILIES = ("qwen3", *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS))
"""Targets of drafters that read hidden states, one of them in the fast tests."""


def drafter_job(
    models: Models,
    mode: str,
    steps: int,
    drafter: str,
    *,
    family: str = "qwen3",
    kind: str = "mixed",
    strategy: str = "lightspec",
    planner: str | None = None,
    costs: CostOptions = FEW_COSTS,
    **options: Any,
) -> Job:
    """``mode``: "eagle3", ...; ``drafter``: see `Models`; ``planner``: a function of `adversaries` in place of the
    strategy."""
    planned = PlannerConfig(strategy=strategy, max_draft_steps=steps)
    config = LightLLMConfig(planner=planned, costs=costs, drafter=mode)
    named: dict[str, Any] = {} if planner is None else {"planner": f"tests.adapters.lightllm.adversaries:{planner}"}
    return Job(
        models.target(family, kind),
        **{"requests": requests(), "timeout": LONG_SECONDS, **options},
        mtp_mode="eagle_with_att",
        mtp_step=steps,
        drafts=(models.drafter(mode, drafter),),
        lightspec=config.to_json(),
        **named,
    )
