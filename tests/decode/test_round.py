"""The round on the simulated host: its records, its counters, and a planner that fails."""

import logging
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round
from lightspec_lightllm.decode.guard import FALLBACK_STEPS
from lightspec_lightllm.errors import FeedbackError
from lightspec_lightllm.planner import BatchView, CostModel, Plan, PlannerCounters, RoundFeedback, make_planner

COSTS = CostModel.from_tables({1: 7.0, 8: 7.2, 16: 7.6, 32: 8.4, 64: 10.0}, {1: 0.4, 16: 0.5})


def host(num_requests: int = 4, max_draft_steps: int = 5, **options: Any) -> SimulatedHost:
    return SimulatedHost(
        COSTS, num_requests, AcceptanceProfile((0.7,)), max_draft_steps=max_draft_steps, seed=1, **options
    )


class BrokenPlanner:
    """Works for a few rounds, then does what it is told to."""

    def __init__(
        self, outcome: Plan | Exception | None, *, on_observe: Exception | None = None, after: int = 3
    ) -> None:
        self.max_draft_steps = 5
        self.counters = PlannerCounters()
        self.calls = 0
        self._outcome = outcome
        self._on_observe = on_observe
        self._after = after

    def plan(self, view: BatchView) -> Plan:
        self.calls += 1
        if self._outcome is None or self.calls <= self._after:
            return Plan(view.num_requests, 2, view.num_requests)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def observe(self, feedback: RoundFeedback) -> None:
        self.counters.observed += 1
        if self._on_observe is not None and self.counters.observed > self._after:
            raise self._on_observe


@pytest.mark.parametrize("strategy", ["off", "fixed:3", "lightspec"])
def test_records_and_counters_agree(strategy: str) -> None:
    rounds = Round(host(), make_planner(strategy, COSTS, max_draft_steps=5))
    records = [rounds.step() for _ in range(60)]
    drafted = verified = accepted = committed = 0
    for record in records:
        assert record is not None
        assert (record.verified <= record.drafted).all()
        assert (record.accepted >= 1).all()
        assert (record.accepted <= record.verified + 1).all()
        assert (record.committed <= record.accepted).all()
        assert record.plan.verify_rows == record.num_requests + record.verified.sum()
        assert set(record.seconds) == {"schedule", "plan", "target", "commit", "draft"}
        drafted += int(record.drafted.sum())
        verified += int(record.verified.sum())
        accepted += int((record.accepted - 1).sum())
        committed += int(record.committed.sum())
    counters = rounds.counters
    assert counters.num_rounds == 60
    assert counters.num_request_rounds == 240
    assert (counters.num_draft_tokens, counters.num_verified_tokens) == (drafted, verified)
    assert (counters.num_accepted_tokens, counters.num_committed_tokens) == (accepted, committed)
    assert counters.accepted_per_position.sum() == accepted
    assert counters.fallback is None


def test_the_measured_round_is_the_cost_of_its_rows_and_steps() -> None:
    rounds = Round(host(), make_planner("fixed:3", COSTS, max_draft_steps=5, drafter="serial"))
    rounds.step()
    record = rounds.step()
    assert record is not None
    assert record.round_ms == pytest.approx(record.plan.table_ms)
    assert record.round_ms == pytest.approx(7.6 + 0.5 + 2 * 0.5)  # 16 rows, a fill over them, two steps of 4 requests


def test_a_batch_without_requests_runs_no_round() -> None:
    rounds = Round(host(num_requests=0), make_planner("lightspec", COSTS, max_draft_steps=5))
    assert rounds.step() is None
    assert rounds.counters.num_rounds == 0


@pytest.mark.parametrize(
    "outcome",
    [
        RuntimeError("no idea"),
        Plan(3, 2, 4),
        Plan(99, 2, 4),
        Plan(4, 6, 4),
        Plan(4, -1, 4),
        Plan(4, 2, 4, survival=np.ones((4, 4))),
    ],
    ids=["exception", "too few rows", "too many rows", "too many steps", "negative steps", "wrong survival"],
)
def test_a_planner_that_fails_leaves_fixed_steps_for_good(
    outcome: Plan | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    planner = BrokenPlanner(outcome)
    rounds = Round(host(), planner)
    with caplog.at_level(logging.ERROR):
        records = [rounds.step() for _ in range(20)]
    assert rounds.counters.fallback is not None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"{FALLBACK_STEPS} fixed draft steps" in caplog.text
    assert planner.calls == 4
    for record in records[5:]:
        assert record is not None
        assert record.plan.draft_steps == FALLBACK_STEPS
        assert (record.verified == FALLBACK_STEPS).all()


def test_an_exception_while_observing_gives_planning_up_too(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Round(host(), BrokenPlanner(None, on_observe=ZeroDivisionError("division by zero")))
    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            rounds.step()
    assert rounds.counters.fallback == "ZeroDivisionError: division by zero"
    assert len(caplog.records) == 1


def test_refused_feedback_is_counted_and_planning_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    planner = BrokenPlanner(None, on_observe=FeedbackError("expected something else"))
    rounds = Round(host(), planner)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            rounds.step()
    assert rounds.counters.fallback is None
    assert rounds.counters.num_refused_feedback == 7
    assert planner.calls == 10
    assert len(caplog.records) == 1
