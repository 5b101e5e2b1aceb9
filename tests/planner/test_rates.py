"""Planning must pay: never far below the best fixed plan, off where drafts are hopeless, back where they are not."""

from __future__ import annotations

import pytest

from lightspec_lightllm.adapters.simulated import AcceptanceProfile
from lightspec_lightllm.planner import CostModel, DrafterKind, make_planner
from tests.planner.simulation import FairHost, best_fixed_rate, best_rate, fixed_rate, lightspec, serve
from tests.planner.worlds import CPU, GPU, KINDS

WORLDS = {"gpu": GPU, "cpu": CPU}
ROUNDS = {1: (500, 150), 4: (400, 100), 16: (200, 50), 64: (100, 40)}
"""Rounds rated and rounds to warm up, by requests."""

QUICK = {("gpu", "serial"), ("cpu", "serial"), ("cpu", "free"), ("gpu", "block")}
EVERY_CELL = [
    pytest.param(world, kind, marks=() if (world, kind) in QUICK else pytest.mark.slow)
    for world in WORLDS
    for kind in KINDS
]


def ratio(costs: CostModel, kind: DrafterKind, num_requests: int, acceptance: float) -> float:
    """Rate over that of the best fixed plan."""
    rounds, warm_up = ROUNDS[num_requests]
    profile = AcceptanceProfile((acceptance,))
    served = lightspec(costs, num_requests, profile, kind=kind, rounds=rounds, warm_up=warm_up, context_tokens=0)
    assert served.tokens_per_ms <= 1.001 * best_rate(costs, kind, num_requests, acceptance)
    return served.tokens_per_ms / best_fixed_rate(costs, kind, num_requests, acceptance)


@pytest.mark.parametrize(("world", "kind"), EVERY_CELL)
def test_the_rate_is_never_far_below_the_best_of_off_and_all_fixed_steps(world: str, kind: DrafterKind) -> None:
    ratios = {
        (num_requests, acceptance): ratio(WORLDS[world], kind, num_requests, acceptance)
        for num_requests in ROUNDS
        for acceptance in (0.3, 0.55, 0.8)
    }
    low = {cell: found for cell, found in ratios.items() if found < 0.97}
    assert not low


@pytest.mark.parametrize("kind", KINDS)
def test_drafting_stops_where_it_is_hopeless(kind: DrafterKind) -> None:
    served = lightspec(CPU, 16, AcceptanceProfile((0.05,)), kind=kind, rounds=400, warm_up=100, context_tokens=0)
    off = fixed_rate(CPU, kind, 16, 0.05, steps=0, k=7)
    assert served.drafted_share <= 0.03
    assert served.tokens_per_ms >= 0.97 * off


@pytest.mark.parametrize("kind", ["serial", "free"])
def test_drafting_is_resumed_when_it_pays_again(kind: DrafterKind) -> None:
    def profile(rounds: int) -> AcceptanceProfile:
        return AcceptanceProfile((0.1 if rounds < 250 else 0.85,))

    host = FairHost(CPU, 16, profile, max_draft_steps=7, drafter=kind, context_tokens=0)
    planner = make_planner("lightspec", CPU, max_draft_steps=7, drafter=kind)
    hopeless = serve(host, planner, rounds=100, warm_up=150)
    assert hopeless.drafted_share <= 0.05
    resumed = serve(host, planner, rounds=60, warm_up=450)
    assert resumed.drafted_share >= 0.95
    assert resumed.tokens_per_ms >= 0.95 * best_rate(CPU, kind, 16, 0.85)


def test_what_was_drafted_to_learn_from_is_verified_although_it_does_not_pay_yet() -> None:
    host = FairHost(CPU, 16, AcceptanceProfile((0.05,)), max_draft_steps=7, drafter="serial", context_tokens=0)
    served = serve(host, make_planner("lightspec", CPU, max_draft_steps=7, drafter="serial"), rounds=500, warm_up=50)
    drafted = [index for index, record in enumerate(served.records[:-1]) if record.plan.draft_steps]
    waiting = [served.records[index + 1] for index in drafted if not served.records[index].drafted.sum()]
    assert waiting
    assert all(record.plan.verify_rows >= 16 + 8 for record in waiting)


def test_a_cap_on_the_rows_is_kept_and_made_the_most_of() -> None:
    capped = CostModel(GPU.target, GPU.draft, overhead_ms=GPU.overhead_ms, max_rows=24)
    served = lightspec(capped, 16, AcceptanceProfile((0.8,)), rounds=100, context_tokens=0)
    assert all(record.plan.verify_rows == 24 for record in served.records)


def test_the_predicted_time_follows_rounds_that_cost_more_than_their_tables() -> None:
    dearer = CostModel.from_tables({8: 20.0, 64: 30.0, 256: 90.0}, {8: 1.0, 256: 2.0}, overhead_ms=6.0)
    told = CostModel.from_tables({8: 10.0, 64: 15.0, 256: 45.0}, {8: 0.5, 256: 1.0})
    host = FairHost(dearer, 8, AcceptanceProfile((0.6,)), max_draft_steps=5, context_tokens=0, cost_noise=0.02)
    served = serve(host, make_planner("lightspec", told, max_draft_steps=5), rounds=100, warm_up=100)
    errors = [record.plan.predicted_ms / record.round_ms - 1 for record in served.records]
    assert abs(sum(errors) / len(errors)) < 0.05
