"""Why a served round was planned as it was, in two sentences; for the last plans of a dashboard.

Made from what the planner holds anyway: the survivals that rows were taken by, the cost lines and the price of time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.decode import RoundRecord
from lightspec_lightllm.planner import CostModel, Planner
from lightspec_lightllm.planner.costs import draft_terms
from lightspec_lightllm.planner.fixed import FixedPlanner
from lightspec_lightllm.planner.gain import GainCurve
from lightspec_lightllm.planner.hybrid import HybridPlanner
from lightspec_lightllm.planner.lightspec import LightspecPlanner
from lightspec_lightllm.planner.types import FloatArray


@dataclass(frozen=True, slots=True)
class PlanReason:
    """Why.

    Attributes:
        budget: why these verify rows.
        steps: why these draft steps.
    """

    budget: str
    steps: str


def reason_of(planner: Planner, record: RoundRecord) -> PlanReason:
    """The reason of the plan that the planner made last; changes nothing that plans depend on."""
    if isinstance(planner, HybridPlanner) and (part := planner.planner_of(record.plan)) is not None:
        return reason_of(part, record)
    if isinstance(planner, FixedPlanner):
        steps = "Never drafts." if planner.steps == 0 else f"Always {planner.steps}, by configuration."
        return PlanReason("Fixed: every waiting draft has a row." if planner.steps else "One row per request.", steps)
    if record.plan.probe:
        return PlanReason("A probe: looks whether drafts have become worth their time.", "Part of the probe.")
    context = record.context_tokens / max(record.num_requests, 1)
    if isinstance(planner, LightspecPlanner):
        price = planner.price(record.num_requests, context)
        return PlanReason(_budget(planner.costs, planner.drafter, record, price), _steps(planner, record))
    plan, costs = record.plan, getattr(planner, "costs", None)
    if costs is None or not plan.table_ms > 0:
        return PlanReason("The strategy gives no reason.", "The strategy gives no reason.")
    price = plan.predicted_tokens / plan.table_ms
    return PlanReason(_budget(costs, getattr(planner, "drafter", "free"), record, price), "By the strategy's own rule.")


def _budget(costs: CostModel, drafter: str, record: RoundRecord, price: float) -> str:
    plan, num_requests = record.plan, record.num_requests
    available = int(record.drafted.sum())
    if not available:
        return "No draft was waiting: one row per request."
    if plan.survival is None:
        return f"The best of all budgets for {available} waiting drafts that all requests share alike."
    waiting = np.arange(plan.survival.shape[1]) < record.drafted[:, None]
    curve = GainCurve.of_survivals(plan.survival[waiting])
    limit = num_requests + available
    if costs.max_rows is not None:
        limit = max(num_requests, min(limit, costs.max_rows))
    budgets = costs.budgets((num_requests, limit), record.context_tokens / num_requests, 0)
    milliseconds = budgets.ms(draft_terms(drafter, plan.draft_steps)[1])  # type: ignore[arg-type]  # a DrafterKind
    at = int(budgets.rows.searchsorted(plan.verify_rows))
    if at + 1 < len(budgets.rows):
        start = "No draft is worth a row. " if plan.verify_rows == num_requests else ""
        other, name = at + 1, "Next"
    elif at > 0:
        start, other, name = "Every draft that may have a row has one. ", at - 1, "Last"
    else:
        return "No more rows fit."
    low, high = min(at, other), max(at, other)
    tokens = float(np.diff(curve.at(budgets.extra[[low, high]]))[0])
    time = float(milliseconds[high] - milliseconds[low])
    worth = "more" if tokens > price * time else "less"
    return (
        f"{start}{name} tier, {budgets.rows[high]} rows: +{tokens:.2f} tokens for +{time:.2f} ms, "
        f"worth {worth} than the running {price:.3g} tokens/ms."
    )


def _steps(planner: LightspecPlanner, record: RoundRecord) -> str:
    chosen = record.plan.draft_steps
    if planner.drafter == "free":
        return "Drafts are free: always the most."
    legal, worth = planner.steps_worth(record.num_requests)
    at = legal.index(chosen)
    best = int(worth.argmax())
    if at != best and worth[best] - worth[at] <= planner.options.steps_margin * record.num_requests:
        return f"{legal[best]} would bring {worth[best] - worth[at]:+.2f} tokens a round, too little to change for."
    if at != best:
        return f"{legal[best]} may bring {worth[best] - worth[at]:+.2f} tokens a round; being looked at."
    return _beside(legal, worth, at)


def _beside(legal: tuple[int, ...], worth: FloatArray, at: int) -> str:
    others = [other for other in (at - 1, at + 1) if 0 <= other < len(legal)]
    lines = [f"{worth[at] - worth[other]:.2f} tokens a round better than {legal[other]}" for other in others]
    return ", ".join(lines).capitalize() + "." if lines else "There is no other."
