"""Rounds of a model rank as the planner sees them: feedback a round late, times where they are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from lightspec_lightllm.adapters.lightllm.batch import DecodeBatch
from lightspec_lightllm.adapters.lightllm.planning import (
    PlannedRound,
    RoundPlanner,
    check_digests,
    fixed_planner,
    plan_digest,
)
from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.planner import BatchView, Plan, RoundFeedback
from lightspec_lightllm.planner.types import PlannerCounters


@dataclass
class Recorder:
    """A planner that verifies everything and remembers what it is told."""

    max_draft_steps: int = 3
    counters: PlannerCounters = field(default_factory=PlannerCounters)
    told: list[RoundFeedback] = field(default_factory=list)

    def plan(self, view: BatchView) -> Plan:
        return Plan(view.num_requests + int(view.proposed.sum()), 2, view.num_requests)

    def observe(self, feedback: RoundFeedback) -> None:
        self.told.append(feedback)


class Clock:
    """CUDA events on a clock that moves 10 ms at each record."""

    now = 0.0

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.timed = enable_timing

    def record(self) -> None:
        Clock.now += 10.0
        self.at = Clock.now

    def elapsed_time(self, later: Clock) -> float:
        assert self.timed
        assert later.timed
        return later.at - self.at


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Clock)


def batch(drafts: list[int], ids: list[int] | None = None) -> DecodeBatch:
    count = len(drafts)
    return DecodeBatch(
        reqs=[object()] * count,
        request_ids=np.array(ids or range(count), dtype=np.int64),
        req_idx=np.arange(count, dtype=np.int32),
        seq_len=np.full(count, 20, dtype=np.int32),
        drafts=np.array(drafts, dtype=np.int32),
        position_delta=np.zeros(count, dtype=np.int32),
    )


def run(planner: RoundPlanner, drafts: list[int]) -> PlannedRound:
    planned = planner.plan(batch(drafts))
    planner.begin(planned)
    planned.verified = np.array(drafts, dtype=np.int64)
    planned.accepted = np.ones(len(drafts), dtype=np.int64)
    planner.finish(planned)
    return planned


def test_a_round_is_told_with_its_time_once_the_next_one_has_begun() -> None:
    recorder = Recorder()
    planner = RoundPlanner(recorder, None, timed=True)
    first = run(planner, [0, 2])
    assert recorder.told == []
    run(planner, [3, 3])
    assert [feedback.plan for feedback in recorder.told] == [first.plan]
    assert recorder.told[0].measured_ms == pytest.approx(10.0)
    assert recorder.told[0].request_ids is not None


def test_a_round_that_a_prefill_follows_is_told_without_a_time() -> None:
    recorder = Recorder()
    planner = RoundPlanner(recorder, None, timed=True)
    run(planner, [1])
    planner.interrupt()
    run(planner, [1])
    run(planner, [1])
    assert [feedback.measured_ms for feedback in recorder.told] == [None, pytest.approx(10.0)]


def test_ranks_that_would_measure_differently_are_told_no_times() -> None:
    recorder = Recorder()
    planner = RoundPlanner(recorder, None, timed=False)
    for _ in range(3):
        run(planner, [1])
    assert [feedback.measured_ms for feedback in recorder.told] == [None, None]


def test_a_planner_that_fails_leaves_fixed_steps_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def plan(self, view: BatchView) -> Plan:
            raise ZeroDivisionError("a bug")

    planner = RoundPlanner(Broken(), None, timed=True)
    plans = [run(planner, [3, 3]).plan for _ in range(3)]
    assert [(plan.verify_rows, plan.draft_steps) for plan in plans] == [(8, 3)] * 3
    assert planner.counters.fallback == "ZeroDivisionError: a bug"
    assert len([record for record in caplog.records if "a bug" in record.getMessage()]) == 1


def test_a_server_without_a_cost_table_runs_fixed_steps_that_the_drafter_can_make() -> None:
    assert fixed_planner(7, "serial", 64).plan(batch([3]).view).draft_steps == 3
    assert fixed_planner(7, "chained", 64).plan(batch([7]).view).draft_steps == 7
    assert fixed_planner(7, "serial", 5).plan(batch([3, 3, 3]).view).verify_rows == 5
    planner = RoundPlanner(fixed_planner(7, "serial", 64), None, timed=True, why_fixed="no table")
    assert planner.counters.fallback == "no table"
    assert run(planner, [3]).plan.draft_steps == 3


def test_plans_that_differ_in_anything_that_a_rank_acts_on_have_different_digests() -> None:
    survival = np.linspace(1.0, 0.1, 6).reshape(2, 3)
    plans = [
        Plan(8, 3, 2),
        Plan(9, 3, 2),
        Plan(8, 2, 2),
        Plan(8, 3, 3),
        Plan(8, 3, 2, survival=survival),
        Plan(8, 3, 2, survival=np.nextafter(survival, 0.0)),
    ]
    digests = [plan_digest(plan) for plan in plans]
    assert len(set(digests)) == len(plans)
    assert plan_digest(Plan(8, 3, 2, predicted_ms=5.0)) == digests[0]
    check_digests(digests[0], digests[0])
    with pytest.raises(PlanError, match="ranks planned different rounds"):
        check_digests(min(digests), max(digests))
