"""Jobs with dynamic rounds."""

from __future__ import annotations

from typing import Any

from lightspec_lightllm.adapters.lightllm.options import CheckOptions, CostOptions, LightLLMConfig
from lightspec_lightllm.config import PlannerConfig
from tests.adapters.lightllm.harness.job import Job
from tests.adapters.lightllm.harness.models import Models
from tests.adapters.lightllm.harness.workload import mtp_job

MODES = ("eagle_no_att", "vanilla_no_att", "eagle_with_att", "vanilla_with_att")

FEW_COSTS = CostOptions(contexts=(16,), repeats=1, graph_sizes=3, max_verify_rows=64)
"""A table in a second: what it says does not matter to the text."""

LONG_SECONDS = 400.0
"""Until a job counts as hung: fifteen layers in the interpreter, on a busy machine."""


def dynamic_job(
    models: Models,
    mode: str,
    steps: int,
    drafter: str = "half",
    *,
    strategy: str = "lightspec",
    planner: str | None = None,
    planner_options: dict[str, Any] | None = None,
    check_every: int = 0,
    **options: Any,
) -> Job:
    """``planner``: a function of `adversaries` in place of the strategy; ``check_every``: rounds between checks."""
    planning = PlannerConfig(strategy=strategy, max_draft_steps=steps)
    config = LightLLMConfig(planner=planning, costs=FEW_COSTS, check=CheckOptions(plan_hash_every=check_every))
    named = {} if planner is None else {"planner": f"tests.adapters.lightllm.adversaries:{planner}"}
    given = dict(planner_options or {})
    if planner == "random_plans" and mode == "vanilla_with_att":
        given["all_or_none"] = True
    return mtp_job(models, mode, steps, drafter, lightspec=config.to_json(), planner_options=given, **named, **options)
