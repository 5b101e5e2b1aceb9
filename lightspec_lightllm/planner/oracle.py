"""Exhaustive searches, for tests and to explain a plan: slow, obvious, and independent of the fast ones."""

from __future__ import annotations

import numpy as np

from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.types import DrafterKind, FloatArray, IntArray


def best_budget(
    survival: FloatArray,
    proposed: IntArray,
    *,
    costs: CostModel,
    context: float,
    price: float,
    kind: DrafterKind = "free",
    steps: int = 0,
    block: int = 1,
    backlog: int = 0,
) -> tuple[int, float]:
    """Try every budget, taking the likeliest drafts first.

    Args:
        survival: float[N, K].
        proposed: int[N].

    Returns:
        The smallest best budget and its value ``tokens - price * time`` (the time that no budget changes left out).
    """
    num_requests = len(proposed)
    waiting = sorted((float(s) for line, p in zip(survival, proposed, strict=True) for s in line[:p]), reverse=True)
    best = (num_requests, -np.inf)
    for extra in range(len(waiting) + 1):
        rows = num_requests + extra
        if extra and costs.max_rows is not None and rows > costs.max_rows:
            break
        time = costs.for_requests(num_requests).lines(rows, context)[0][rows] + costs.draft_ms(
            kind, num_requests, rows, steps, block=block, context=context, backlog=backlog
        )
        value = num_requests + sum(waiting[:extra]) - price * float(time)
        if value > best[1] + 1e-9:
            best = (rows, value)
    return best


def best_steps(
    survival: FloatArray,
    *,
    legal: tuple[int, ...],
    kind: DrafterKind,
    block: int,
    costs: CostModel,
    context: float,
    price: float,
    backlog: int = 0,
) -> tuple[int, float]:
    """Try every legal d with every budget.

    Returns:
        The smallest best d and the value of a round with it.
    """
    best = (legal[0], -np.inf)
    for steps in legal:
        proposed = np.full(len(survival), steps)
        _, value = best_budget(
            survival,
            proposed,
            costs=costs,
            context=context,
            price=price,
            kind=kind,
            steps=steps,
            block=block,
            backlog=backlog,
        )
        if value > best[1] + 1e-9:
            best = (steps, value)
    return best
