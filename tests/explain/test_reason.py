"""Reasons of served plans: their figures are those of the planner's own curve and costs."""

import re
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.explain.reason import NO_REASON, PlanReason, reason_of
from lightspec_lightllm.planner import BatchView, CostModel, Plan, PlannerCounters, RoundFeedback, make_planner

SIZES = (1, 4, 8, 12, 16, 24, 32, 48, 64, 128)
COSTS = CostModel.from_tables({size: 10.0 + 0.3 * size for size in SIZES}, {size: 1.0 + 0.01 * size for size in SIZES})
TIER = re.compile(
    r"(Next|last) tier(?:, (\d+) rows)?: \+([\d.]+) tokens for \+([\d.]+) ms, (more|less) than the running"
)


def records(strategy: str, *, rounds: int, requests: int = 8, **options: Any) -> list[tuple[RoundRecord, PlanReason]]:
    """Rounds, each with the reason told right after it."""
    profile = AcceptanceProfile((0.8, 0.6), spread=0.6, noise=0.9, confidence=True)
    host = SimulatedHost(COSTS, requests, profile, max_draft_steps=6, lifetime=100)
    rounds_of = Round(host, make_planner(strategy, COSTS, max_draft_steps=6, **options))
    found = []
    for _ in range(rounds):
        record = rounds_of.step()
        assert record is not None
        found.append((record, reason_of(rounds_of.planner.planner, record)))
    return found


def test_the_figures_of_a_tier_are_the_survivals_it_adds_and_the_tables_time() -> None:
    checked = 0
    for record, reason in records("lightspec", rounds=150):
        if (match := TIER.search(reason.budget)) is None:
            continue
        survival = record.plan.survival
        assert survival is not None
        waiting = np.arange(survival.shape[1]) < record.drafted[:, None]
        best = np.sort(survival[waiting])[::-1]
        which, tokens, milliseconds = match[1], float(match[3]), float(match[4])
        n, now = record.num_requests, record.plan.verify_rows
        if which == "Next":
            low, high = now, int(match[2])
            assert high > low
        else:
            sizes = [size for size in (n, *SIZES) if n <= size < now]
            low, high = max(sizes), now
        assert tokens == pytest.approx(best[low - n : high - n].sum(), abs=0.006)
        target = COSTS.target_ms(high, n, 0.0) - COSTS.target_ms(low, n, 0.0)
        draft = COSTS.lines(128, 0.0)[1]
        fills = 1.0 if record.plan.draft_steps else 0.0
        assert milliseconds == pytest.approx(target + fills * (draft[high] - draft[low]), abs=0.006)
        checked += 1
    assert checked > 75


def test_most_budgets_are_where_the_reason_says_they_pay() -> None:
    found = [TIER.search(reason.budget) for _, reason in records("lightspec", rounds=300)]
    judged = [(match[1], match[5]) for match in found if match is not None]
    right = sum((which, worth) in {("Next", "less"), ("last", "more")} for which, worth in judged)
    assert right > 0.9 * len(judged)


def test_draft_steps_are_compared_with_their_neighbours() -> None:
    reasons = [reason.steps for _, reason in records("lightspec", rounds=100)]
    assert sum(reason.startswith("Better by ") for reason in reasons) > 50


def test_a_batch_that_drafts_nothing_says_that_it_does_not_pay() -> None:
    costly = records("lightspec", rounds=60, requests=128)[-1][1]
    assert costly.budget == "No draft was waiting: one row per request."
    assert costly.steps.startswith("Drafting does not pay.")


@pytest.mark.parametrize(
    ("strategy", "budget", "steps"),
    [
        ("fixed:3", "Every waiting draft has a row, as configured.", "Always 3, as configured."),
        ("off", "One row per request, as configured.", "Always 0, as configured."),
    ],
)
def test_a_configured_plan_says_so(strategy: str, budget: str, steps: str) -> None:
    assert records(strategy, rounds=3)[-1][1] == PlanReason(budget, steps)


def test_a_probe_is_called_one() -> None:
    probes = [reason for record, reason in records("lightspec", rounds=400, requests=128) if record.plan.probe]
    assert probes
    assert all(reason.budget.startswith("A probe") for reason in probes)


def test_a_hybrid_gives_the_reason_of_the_planner_that_planned() -> None:
    choices = ({"strategy": "fixed", "options": {"steps": 2}}, "lightspec")
    found = records("hybrid", rounds=3, by="load", planners=choices, thresholds=(100,))
    assert found[-1][1].steps == "Always 2, as configured."


@pytest.mark.parametrize("strategy", ["mean-ema", "dspark"])
def test_other_strategies_are_explained_by_the_rate_they_expect(strategy: str) -> None:
    reason = records(strategy, rounds=40)[-1][1]
    assert reason.budget
    assert reason.steps == NO_REASON


def test_a_planner_of_ones_own_needs_to_tell_nothing() -> None:
    class Own:
        max_draft_steps = 2
        counters = PlannerCounters()

        def plan(self, view: BatchView) -> Plan:
            return Plan(view.num_requests, 1, view.num_requests)

        def observe(self, feedback: RoundFeedback) -> None: ...

    host = SimulatedHost(COSTS, 4, AcceptanceProfile(), max_draft_steps=2)
    record = Round(host, Own()).step()
    assert record is not None
    assert reason_of(Own(), record) == PlanReason(NO_REASON, NO_REASON)
