"""Jobs with drafters that this package loads."""

from __future__ import annotations

from typing import Any

from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from lightspec_lightllm.config import PlannerConfig
from tests.adapters.lightllm.dynamic import FEW_COSTS
from tests.adapters.lightllm.harness.job import Job
from tests.adapters.lightllm.harness.models import Models
from tests.adapters.lightllm.harness.workload import requests


def drafter_job(
    models: Models,
    mode: str,
    steps: int,
    drafter: str,
    *,
    family: str = "qwen3",
    kind: str = "mixed",
    planner: str | None = None,
    **options: Any,
) -> Job:
    """``mode``: "eagle3", ...; ``drafter``: see `Models`; ``planner``: a function of `adversaries`, None: lightspec."""
    config = LightLLMConfig(planner=PlannerConfig(max_draft_steps=steps), costs=FEW_COSTS, drafter=mode)
    named = {} if planner is None else {"planner": f"tests.adapters.lightllm.adversaries:{planner}"}
    return Job(
        models.target(family, kind),
        **{"requests": requests(), "timeout": 400.0, **options},
        mtp_mode="eagle_with_att",
        mtp_step=steps,
        drafts=(models.drafter(mode, drafter),),
        lightspec=config.to_json(),
        **named,
    )
