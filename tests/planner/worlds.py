"""Cost tables, batches and rounds for planner tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind, Plan, Planner, RoundFeedback
from lightspec_lightllm.planner.types import FloatArray, IntArray

KINDS: tuple[DrafterKind, ...] = get_args(DrafterKind)

_CAPTURED = [1, 2, 4, 8, *range(16, 257, 8), *range(288, 1153, 32)]
_MEASURED = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]

GPU = CostModel.from_tables(
    {rows: (7.2**4 + (0.048 * rows) ** 4) ** 0.25 for rows in _CAPTURED},
    {rows: 0.35 + 0.0012 * rows for rows in _CAPTURED},
    overhead_ms=0.3,
)
"""A staircase that is flat up to some 100 rows: speculation is cheap for small batches and costs for large ones."""

CPU = CostModel.from_tables(
    {rows: 30.3 + 3.26 * rows for rows in _MEASURED},
    {rows: 2.0 + 0.21 * rows for rows in _MEASURED},
    interpolate=True,
    request_ms=2.7,
)
"""Every row costs: only likely drafts pay."""


@st.composite
def cost_models(draw: st.DrawFn, *, own_draft_sizes: bool = False, max_rows: bool = True) -> CostModel:
    """Random tables: staircases or lines, one to three contexts, with or without a cap on the rows.

    ``own_draft_sizes``: the drafter may have been measured at other sizes than the target.
    """
    sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True).map(sorted)
    times = st.floats(0.0, 20.0)

    def table(rows: list[int]) -> dict[int, float]:
        return {row: draw(times) for row in rows}

    rows = draw(sizes)
    contexts = draw(st.lists(st.integers(0, 4096), min_size=1, max_size=3, unique=True))
    target: Any = {context: table(rows) for context in contexts} if len(contexts) > 1 else table(rows)
    draft = draw(st.sampled_from([None, table(draw(sizes) if own_draft_sizes else rows)]))
    counts = st.dictionaries(st.integers(1, 8), st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=3)
    starts = st.none() | st.dictionaries(st.integers(1, 8), times, min_size=1, max_size=3)
    by_requests = {count: table([count + extra for extra in extras]) for count, extras in draw(counts).items()}
    return CostModel.from_tables(
        target,
        draft,
        fill=draw(st.sampled_from([None, table(draw(sizes) if own_draft_sizes else rows)])),
        draft_start=draw(starts),
        interpolate=draw(st.booleans()),
        overhead_ms=draw(st.floats(0.0, 3.0)),
        request_ms=draw(st.floats(0.0, 1.0)),
        request_token_ms=draw(st.floats(0.0, 1e-3)),
        max_rows=draw(st.none() | st.integers(1, 40)) if max_rows else None,
        by_requests=by_requests,
    )


def survival_of(acceptance: FloatArray) -> FloatArray:
    """Survivals of float[N, K] conditional acceptances."""
    return np.asarray(np.cumprod(acceptance, axis=1), dtype=np.float64)


@st.composite
def survivals(draw: st.DrawFn, max_requests: int = 5, max_draft_steps: int = 5) -> tuple[FloatArray, IntArray]:
    """float[N, K] survivals that never grow with depth and never vanish, and int[N] drafts waiting."""
    num_requests = draw(st.integers(1, max_requests))
    depths = draw(st.integers(1, max_draft_steps))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    acceptance = rng.uniform(0.05, 1.0, (num_requests, depths))
    if draw(st.booleans()):
        acceptance = np.round(acceptance * 4 + 0.5) / 5  # many survivals are equal
    return survival_of(acceptance), rng.integers(0, depths + 1, num_requests)


def legal_steps(kind: DrafterKind, max_draft_steps: int) -> set[int]:
    """What a drafter of this kind can be asked for, written down a second time."""
    if kind == "free":
        return {max_draft_steps}
    return {0, max_draft_steps} if kind in ("chained", "block") else set(range(max_draft_steps + 1))


@dataclass(frozen=True)
class WildRound:
    """One round as it might come: a view, and how far each waiting draft would be accepted."""

    view: BatchView
    agreement: IntArray
    measured_ms: float | None

    def permuted(self, order: IntArray) -> WildRound:
        """The same round with its requests in another order."""
        view = self.view
        return WildRound(
            replace(
                view,
                proposed=view.proposed[order],
                context_tokens=view.context_tokens[order],
                confidence=None if view.confidence is None else view.confidence[order],
                request_ids=None if view.request_ids is None else view.request_ids[order],
            ),
            self.agreement[order],
            self.measured_ms,
        )

    def feedback(self, plan: Plan, verified: IntArray, *, told: bool) -> RoundFeedback:
        """What came of it; ``told`` with the confidences of the drafts."""
        return RoundFeedback(
            plan,
            verified,
            1 + np.minimum(self.agreement, verified),
            confidence=self.view.confidence if told else None,
            measured_ms=self.measured_ms,
            request_ids=self.view.request_ids,
        )


def wild_rounds(
    seed: int, num_rounds: int, max_requests: int, max_draft_steps: int, *, with_ids: bool, with_confidence: bool
) -> Iterator[WildRound]:
    """Rounds without rhyme or reason: batches of any size, drafts of any number, acceptance that jumps."""
    rng = np.random.default_rng(seed)
    for _ in range(num_rounds):
        num_requests = int(rng.integers(1, max_requests + 1))
        shape = (num_requests, max_draft_steps)
        ease = rng.choice([0.1, 0.5, 0.9, 1.0])
        right = np.logical_and.accumulate(rng.random(shape) < ease, axis=1).sum(axis=1)
        yield WildRound(
            BatchView(
                num_requests,
                rng.integers(0, max_draft_steps + 1, num_requests),
                rng.integers(1, 5000, num_requests),
                confidence=rng.choice([0.0, 1.0, *rng.random(6)], shape) if with_confidence else None,
                request_ids=rng.permutation(3 * max_requests)[:num_requests] if with_ids else None,
                draft_backlog=None if rng.random() < 0.5 else int(rng.integers(0, 50)),
            ),
            right,
            None if rng.random() < 0.3 else float(rng.choice([0.01, 3.0, 30.0, 1e5])),
        )


Choose = Callable[[WildRound, Plan], IntArray]


def by_plan(round_: WildRound, plan: Plan) -> IntArray:
    """The drafts that the plan's budget and survivals buy."""
    return select_rows(round_.view.proposed, plan.verify_rows, plan.survival)


def play(planner: Planner, rounds: Iterator[WildRound], *, late: bool, choose: Choose = by_plan) -> Iterator[Plan]:
    """Run a planner over rounds, yielding its plans; ``late``: it hears of each round after the next was planned."""
    pending: list[RoundFeedback] = []
    for round_ in rounds:
        plan = planner.plan(round_.view)
        yield plan
        pending.append(round_.feedback(plan, choose(round_, plan), told=round_.view.confidence is not None))
        while len(pending) > int(late):
            planner.observe(pending.pop(0))
