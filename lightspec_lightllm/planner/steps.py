"""Stage 2: how many drafts each request proposes for the next round."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lightspec_lightllm.planner.costs import CostModel, draft_terms
from lightspec_lightllm.planner.gain import SurvivalMass
from lightspec_lightllm.planner.loops import INNER
from lightspec_lightllm.planner.types import DrafterKind, FloatArray, IntArray

REWARM_ROUNDS = 128
"""Rounds over which catching up with the drafter's backlog is written off when drafting is resumed."""


def steps_values(
    mass: SurvivalMass,
    num_requests: int,
    legal: tuple[int, ...],
    *,
    kind: DrafterKind,
    block: int,
    costs: CostModel,
    context: float,
    price: float,
    backlog: int = 0,
    more: float = 0.0,
) -> FloatArray:
    """For each legal d, the value of a round that drafts d and verifies the best budget that d allows.

    ``V(d) = max_B [N + gain_d(B - N) - price * (T(B) + fills(d) Tf(B))] - price * (chained(d) Td(N) + start(N))``

    where start(N) is there for every d but none (see `costs.draft_terms`), and ``gain_d`` counts the drafts of depth
    1..d in ``mass``: a whole batch proposing K drafts each, and thus independent of how many are waiting now. The
    budgets compared are those of `CostModel.budgets` and all N (1 + d).

    Args:
        mass: survivals of a batch whose requests propose K drafts each.
        legal: draft steps to compare, ascending from 0.
        price: lambda, tokens per millisecond.
        backlog: rows that the drafter must catch up on before its first step.
        more: tokens that every d but none is worth besides.

    Returns:
        float[D], tokens, less the price of the round's time.
    """
    chained, fills, steps = _terms(kind, legal)
    ends = budget_ends(num_requests, legal, costs.max_rows)
    chain_rows = num_requests * block if kind == "block" else num_requests
    line = costs.lines(max(ends[-1] + backlog, chain_rows), context)[1]
    budgets = costs.for_requests(num_requests).budgets(ends, context, backlog)
    # The passes over all rows are the same for every d but none, since chained layers take all d or none.
    passes = float(fills[-1])
    candidates = budgets.extra, budgets.ms(passes)
    if mass.ladder:  # drafting more or fewer only moves the end of one and the same gain curve
        value = INNER.loops.ladder_values(mass.value, mass.count, *candidates, budgets.ends, price)
    else:
        value = INNER.loops.best_values(mass.value, mass.depth, mass.count, steps, *candidates, price)
    return INNER.loops.net_values(
        value,
        num_requests,
        chained,
        price * float(line[chain_rows]),
        price * budgets.ms_of(num_requests, 0.0),
        price * costs.draft_start_ms(kind, num_requests, legal[-1]),
        more,
    )


@lru_cache(maxsize=64)
def _terms(kind: DrafterKind, legal: tuple[int, ...]) -> tuple[FloatArray, FloatArray, IntArray]:
    terms = np.array([draft_terms(kind, d) for d in legal])
    return terms[:, 0], terms[:, 1], np.array(legal)


@lru_cache(maxsize=1024)
def budget_ends(num_requests: int, legal: tuple[int, ...], max_rows: int | None) -> tuple[int, ...]:
    """The largest budget of each legal d."""
    cap = num_requests * (1 + legal[-1]) if max_rows is None else max_rows
    return tuple(max(num_requests, min(num_requests * (1 + d), cap)) for d in legal)


def catching_up_ms(kind: DrafterKind, num_requests: int, backlog: int, *, costs: CostModel, context: float) -> float:
    """What drafting again costs, in milliseconds per round beside what `steps_values` counts: the drafter's KV cache
    catches up once on the rows that it missed, which is written off over `REWARM_ROUNDS`."""
    if not backlog or kind in ("serial_no_kv", "free"):
        return 0.0
    fill = costs.fill_line(backlog + num_requests, context)
    return float(fill[backlog + num_requests] - fill[num_requests]) / REWARM_ROUNDS


def legal_steps(kind: DrafterKind, max_draft_steps: int) -> tuple[int, ...]:
    """Draft steps that a kind of drafter can take: every length, or all or nothing where layers must keep pace."""
    return (0, max_draft_steps) if kind in ("chained", "block") else tuple(range(max_draft_steps + 1))


@lru_cache(maxsize=1024)
def compared_steps(legal: tuple[int, ...], current: int) -> tuple[int, ...]:
    """The legal draft steps to compare: none, the neighbours of the current ones, and some between far and near.

    The value of a round is flat around the best steps, and the neighbours lead there.
    """
    around = {current - 1, current, current + 1, legal[-1], *_SPREAD}
    return tuple(steps for steps in legal if steps in around)


_SPREAD = (0, 1, 2, 3, 5, 7, 10)
