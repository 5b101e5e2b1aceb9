"""Planners on the simulated host, judged by the tokens they could expect rather than by those they drew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round, RoundRecord, Verdict
from lightspec_lightllm.decode.host import StepRule
from lightspec_lightllm.planner import CostModel, DrafterKind, Planner, make_planner
from lightspec_lightllm.planner.steps import legal_steps
from lightspec_lightllm.planner.types import FloatArray, IntArray

Tell = Callable[[FloatArray, np.random.Generator], FloatArray]
"""From what a drafter knows (each draft's acceptance) to the confidence that it tells."""


class FairHost(SimulatedHost):
    """Also says what a round could expect, which has less noise than what it got; and may lie about confidence."""

    def __init__(self, *args: Any, tell: Tell | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.expected_tokens = 0.0
        self._tell = tell
        self._liar = np.random.default_rng(99)

    def draft(self, steps: int, chain: StepRule | None = None) -> int:
        made = super().draft(steps, chain)
        if self._tell is not None:
            self._told = self._tell(self._told, self._liar)
        return made

    def verify(self, verified: IntArray) -> Verdict:
        survival = np.cumprod(self._truth, axis=1)
        kept = np.arange(self.max_draft_steps) < verified[:, None]
        self.expected_tokens += len(verified) + float(survival[kept].sum())
        return super().verify(verified)


@dataclass(frozen=True)
class Served:
    """What a stretch of rounds came to."""

    tokens_per_ms: float
    records: list[RoundRecord]
    planner: Planner

    @property
    def mean_steps(self) -> float:
        return float(np.mean([record.plan.draft_steps for record in self.records]))

    @property
    def drafted_share(self) -> float:
        """Rounds that verified anything."""
        return float(np.mean([record.plan.verify_rows > record.num_requests for record in self.records]))


def serve(host: FairHost, planner: Planner, *, rounds: int, warm_up: int = 0) -> Served:
    """Run rounds and rate those after the warm-up."""
    loop = Round(host, planner)
    for _ in range(warm_up):
        loop.step()
    start, tokens = host.now(), host.expected_tokens
    records = [record for _ in range(rounds) if (record := loop.step()) is not None]
    assert loop.counters.fallback is None, loop.counters.fallback
    assert loop.counters.num_refused_feedback == 0
    return Served((host.expected_tokens - tokens) / ((host.now() - start) * 1e3), records, planner)


def lightspec(
    costs: CostModel,
    num_requests: int,
    profile: AcceptanceProfile | Callable[[int], AcceptanceProfile],
    *,
    kind: DrafterKind = "serial",
    max_draft_steps: int = 7,
    rounds: int,
    warm_up: int = 50,
    seed: int = 0,
    tell: Tell | None = None,
    **options: Any,
) -> Served:
    """The rate of a fresh ``lightspec`` planner."""
    host = FairHost(
        costs, num_requests, profile, max_draft_steps=max_draft_steps, drafter=kind, seed=seed, tell=tell, **options
    )
    planner = make_planner("lightspec", costs, max_draft_steps=max_draft_steps, drafter=kind)
    return serve(host, planner, rounds=rounds, warm_up=warm_up)


def fixed_rate(
    costs: CostModel, kind: DrafterKind, num_requests: int, acceptance: float, *, steps: int, k: int
) -> float:
    """Tokens per millisecond of fixed steps, worked out: every draft of every request is verified every round."""
    rows = num_requests * (1 + steps)
    tokens = num_requests * sum(acceptance**depth for depth in range(steps + 1))
    draft = costs.draft_ms(kind, num_requests, rows, steps, block=k)
    return tokens / (costs.target_ms(rows, num_requests, 0.0) + draft)


def best_fixed_rate(costs: CostModel, kind: DrafterKind, num_requests: int, acceptance: float, k: int = 7) -> float:
    """The best of no speculation and all fixed steps that the drafter can take."""
    return max(fixed_rate(costs, kind, num_requests, acceptance, steps=steps, k=k) for steps in legal_steps(kind, k))


def best_rate(costs: CostModel, kind: DrafterKind, num_requests: int, acceptance: float, k: int = 7) -> float:
    """The best steady plan of all: any steps, any budget, spread evenly."""
    best = 0.0
    for steps in legal_steps(kind, k):
        survival = np.repeat(acceptance ** np.arange(1.0, steps + 1), num_requests)
        gain = np.concatenate(([0.0], np.cumsum(survival)))
        for extra in range(len(gain)):
            rows = num_requests + extra
            time = costs.target_ms(rows, num_requests, 0.0)
            time += costs.draft_ms(kind, num_requests, rows, steps, block=k)
            best = max(best, (num_requests + float(gain[extra])) / time)
    return best
