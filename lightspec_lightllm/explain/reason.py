"""Why a served round was planned as it was, in two sentences; for the last plans of a dashboard.

Made from what the planner holds anyway: the survivals that rows were taken by, the cost lines and the price of time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.decode import RoundRecord
from lightspec_lightllm.planner import CostModel, DrafterKind, Planner
from lightspec_lightllm.planner.costs import draft_terms
from lightspec_lightllm.planner.fixed import FixedPlanner
from lightspec_lightllm.planner.gain import GainCurve
from lightspec_lightllm.planner.hybrid import HybridPlanner
from lightspec_lightllm.planner.lightspec import LightspecPlanner

NO_REASON = "The strategy tells no reason."


@dataclass(frozen=True, slots=True)
class PlanReason:
    """Why.

    Attributes:
        budget: why these verify rows.
        steps: why these draft steps.
    """

    budget: str
    steps: str


def reason_of(planner: Planner | None, record: RoundRecord) -> PlanReason:
    """The reason of the newest plan of a planner; changes nothing that plans depend on.

    Figures are as of now, after the round: they may differ a little from those that the plan was made by.
    """
    plan = record.plan
    if isinstance(planner, HybridPlanner):
        return reason_of(planner.planner_of(plan), record)
    if isinstance(planner, FixedPlanner):
        budget = "Every waiting draft has a row" if planner.steps else "One row per request"
        return PlanReason(f"{budget}, as configured.", f"Always {planner.steps}, as configured.")
    if plan.probe:
        return PlanReason("A probe: tries whether drafts have become worth their time.", "As the probe needs it.")
    if isinstance(planner, LightspecPlanner):
        price = planner.price(record.num_requests, record.context_tokens / record.num_requests)
        return PlanReason(_budget(planner.costs, planner.drafter, record, price), _steps(planner, record))
    costs = getattr(planner, "costs", None)
    if isinstance(costs, CostModel) and plan.table_ms > 0 and plan.predicted_tokens > 0:
        drafter: DrafterKind = getattr(planner, "drafter", "free")
        return PlanReason(_budget(costs, drafter, record, plan.predicted_tokens / plan.table_ms), NO_REASON)
    return PlanReason(NO_REASON, NO_REASON)


def _budget(costs: CostModel, drafter: DrafterKind, record: RoundRecord, price: float) -> str:
    """The next tier against the price, or the last one where there is no next."""
    plan, num_requests = record.plan, record.num_requests
    available = int(record.drafted.sum())
    if not available:
        return "No draft was waiting: one row per request."
    if plan.survival is None:
        return f"The best budget for {available} drafts; which of them have a row is decided where they are made."
    waiting = np.arange(plan.survival.shape[1]) < record.drafted[:, None]
    curve = GainCurve.of_survivals(plan.survival[waiting])
    limit = num_requests + available
    if costs.max_rows is not None:
        limit = max(num_requests, min(limit, costs.max_rows))
    budgets = costs.for_requests(num_requests).budgets((num_requests, limit), record.context_tokens / num_requests, 0)
    larger, smaller = budgets.rows[budgets.rows > plan.verify_rows], budgets.rows[budgets.rows < plan.verify_rows]
    if len(larger):
        low, high = plan.verify_rows, int(larger[0])
        start = "No draft is worth a row. " if low == num_requests else ""
        start += f"Next tier, {high} rows"
    elif len(smaller):
        low, high = int(smaller[-1]), plan.verify_rows
        start = "All drafts have a row" if limit == num_requests + available else "As many rows as fit"
        start += ". The last tier"
    else:
        return "No row for a draft fits."
    fills = draft_terms(drafter, plan.draft_steps)[1]
    tokens = curve.gain_of(high - num_requests) - curve.gain_of(low - num_requests)
    milliseconds = budgets.ms_of(high, fills) - budgets.ms_of(low, fills)
    return (
        f"{start}: +{tokens:.2f} tokens for +{milliseconds:.2f} ms, "
        f"{'more' if tokens > price * milliseconds else 'less'} than the running {price:.3g} tokens/ms."
    )


def _steps(planner: LightspecPlanner, record: RoundRecord) -> str:
    """The chosen draft steps against their neighbours, or against what looks better by now."""
    chosen = record.plan.draft_steps
    if planner.drafter == "free":
        return "Drafts are free: always the most."
    legal, worth = planner.steps_worth(record.num_requests)
    at, best = legal.index(chosen), int(worth.argmax())
    ahead = float(worth[best] - worth[at])
    if ahead > planner.options.steps_margin * record.num_requests:
        return f"{legal[best]} looks {ahead:.2f} tokens a round better, and is not taken up yet."
    if best != at:
        return f"{legal[best]} would bring {ahead:.2f} tokens a round more, too little to change for."
    start = "" if chosen else "Drafting does not pay. "
    behind = [f"{worth[at] - worth[n]:.2f} than {legal[n]}" for n in (at - 1, at + 1) if 0 <= n < len(legal)]
    return f"{start}Better by {', by '.join(behind)}, in tokens a round."
