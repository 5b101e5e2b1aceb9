"""Reports of rounds without a LightLLM: the round itself serves a scenario, and tells what it did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightspec_lightllm.adapters.lightllm.metrics import RoundReport
from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.planner import Plan, make_planner
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.scenario import Scenario


def report_of(record: RoundRecord, *, padded_rows: int = 0) -> RoundReport:
    """What a LightLLM rank would say of this round."""
    return RoundReport(
        plan=record.plan,
        num_requests=record.num_requests,
        context_tokens=record.context_tokens,
        request_ids=record.request_ids,
        drafted=record.drafted,
        verified=record.verified,
        accepted=record.committed,
        draft_steps=record.draft_steps,
        padded_rows=padded_rows,
        plan_seconds=record.seconds["plan"],
        measured_ms=record.round_ms,
        confidence=record.confidence,
    )


def served(scenario: Scenario, strategy: str, rounds: int, *, seed: int = 0) -> list[RoundReport]:
    """Reports of rounds of one strategy."""
    host = ScenarioHost(scenario, seed)
    planner = make_planner(
        strategy, host.true_costs, max_draft_steps=host.max_draft_steps, drafter=scenario.drafter.kind
    )
    run = Round(host, planner)
    records = (run.step() for _ in range(rounds))
    return [report_of(record) for record in records if record is not None]


def made(
    drafted: Sequence[int],
    verified: Sequence[int],
    accepted: Sequence[int],
    *,
    ids: Sequence[int] | None = None,
    steps: int = 3,
    fallback: bool = False,
    probe: bool = False,
    predicted_ms: float = 10.0,
    measured_ms: float | None = 12.0,
) -> RoundReport:
    """A report with these numbers, int[N] each."""
    num_requests = len(drafted)
    plan = Plan(
        num_requests + sum(verified), steps, num_requests, predicted_ms=predicted_ms, predicted_tokens=3.0, probe=probe
    )
    return RoundReport(
        plan=plan,
        num_requests=num_requests,
        context_tokens=100 * num_requests,
        request_ids=np.array(ids if ids is not None else range(num_requests), dtype=np.int64),
        drafted=np.array(drafted, dtype=np.int64),
        verified=np.array(verified, dtype=np.int64),
        accepted=np.array(accepted, dtype=np.int64),
        draft_steps=steps,
        padded_rows=1,
        plan_seconds=0.002,
        measured_ms=measured_ms,
        fallback=fallback,
    )
