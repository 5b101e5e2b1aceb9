"""The planner: pure functions of what was seen, on numpy alone; faster with numba (see `loops`), with the same results.

No clock, no random numbers, no input or output; numba keeps what it compiled on disk.
"""

from lightspec_lightllm.planner.chain import ChainRule
from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS, PlannerOptions
from lightspec_lightllm.planner.strategies import StrategyChoice, StrategyFactory, make_planner
from lightspec_lightllm.planner.types import BatchView, DrafterKind, Plan, Planner, PlannerCounters, RoundFeedback

__all__ = [
    "MAX_DRAFT_STEPS",
    "BatchView",
    "ChainRule",
    "CostModel",
    "DrafterKind",
    "Plan",
    "Planner",
    "PlannerCounters",
    "PlannerOptions",
    "RoundFeedback",
    "StrategyChoice",
    "StrategyFactory",
    "make_planner",
]
