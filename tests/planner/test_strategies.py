"""Making planners by name, and the two that do not learn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.errors import ConfigError, LightspecError
from lightspec_lightllm.planner import (
    MAX_DRAFT_STEPS,
    BatchView,
    CostModel,
    PlannerOptions,
    RoundFeedback,
    make_planner,
)
from lightspec_lightllm.planner.options import LEAST_PRIOR
from tests.planner.worlds import CPU, GPU, KINDS


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("fast", {}, "strategy"),
        ("", {}, "strategy"),
        ("fixed:", {"steps": 9}, "steps"),
        ("fixed:x", {}, "number of steps"),
        ("fixed:-1", {}, "number of steps"),
        ("fixed:8", {}, "steps"),
        ("off:3", {}, "strategy"),
        ("lightspec:3", {}, "strategy"),
        ("fixed", {"steps": -1}, "steps"),
        ("fixed", {"steps": "3"}, "steps"),
        ("fixed", {"steps": 2.5}, "steps"),
        ("fixed", {"steps": True}, "steps"),
        ("fixed", {"steps": None}, "steps"),
        ("lightspec", {"memory_trials": "long"}, "lightspec"),
        ("fixed", {"stepz": 1}, "steps"),
        ("off", {"steps": 1}, "no options"),
        ("lightspec", {"memory": 3}, "memory"),
        ("lightspec", {"drafter": "magic"}, "drafter"),
    ],
)
def test_a_strategy_or_option_that_does_not_exist_is_refused(
    strategy: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_planner(strategy, GPU, max_draft_steps=7, **options)


@pytest.mark.parametrize("steps", [0, -1, MAX_DRAFT_STEPS + 1, 3.5, "3", None, True])
@pytest.mark.parametrize("strategy", ["lightspec", "fixed", "off"])
def test_the_largest_number_of_steps_is_1_to_15(strategy: str, steps: Any) -> None:
    with pytest.raises(ConfigError, match=r"1\.\.15"):
        make_planner(strategy, GPU, max_draft_steps=steps)


OUT_OF_RANGE: dict[str, list[float]] = {
    "prior_acceptance": [0.0, 1.0, -0.1, 1e-310, 1e-12, 1 - 1e-12, float("nan")],
    "memory_trials": [0.5, -1.0, float("nan")],
    "request_memory_trials": [0.5, float("nan")],
    "request_prior_trials": [0.0, -1.0, float("nan")],
    "pace_rounds": [0.5, float("nan")],
    "probe_rounds": [0, -5],
    "probe_cost": [0.0, 1.0, float("nan")],
    "steps_margin": [-0.1, 1.0, float("nan")],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_an_option_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=name):
        make_planner("lightspec", GPU, max_draft_steps=3, **options)


@pytest.mark.parametrize("prior", [LEAST_PRIOR, 1 - LEAST_PRIOR])
def test_the_least_and_the_largest_prior_plan(prior: float) -> None:
    assert decisions("lightspec", rounds=3, prior_acceptance=prior)


def test_every_numeric_option_has_its_range_tested() -> None:
    numeric = {field.name for field in dataclasses.fields(PlannerOptions) if field.type != "bool"}
    assert numeric == set(OUT_OF_RANGE)


def test_all_refusals_are_errors_of_this_package() -> None:
    with pytest.raises(LightspecError):
        make_planner("nothing", GPU, max_draft_steps=3)


def decisions(
    strategy: str, *, rounds: int = 150, acceptance: float = 0.6, costs: CostModel = GPU, **options: Any
) -> list[tuple[int, int]]:
    """Plans of rounds of 4 requests, two easier than the others; a round takes longer than its table says."""
    planner = make_planner(strategy, costs, max_draft_steps=5, **options)
    rng = np.random.default_rng(3)
    truth = np.array([acceptance, acceptance, acceptance / 2, acceptance / 2])[:, None]
    proposed, out = np.zeros(4, dtype=np.int64), []
    for _ in range(rounds):
        plan = planner.plan(BatchView(4, proposed, 300, request_ids=np.arange(4)))
        out.append((plan.verify_rows, plan.draft_steps))
        verified = select_rows(proposed, plan.verify_rows, plan.survival)
        right = np.logical_and.accumulate(rng.random((4, 5)) < truth, axis=1).sum(axis=1)
        accepted = 1 + np.minimum(right, verified)
        time = 0.5 * plan.table_ms + 60.0
        planner.observe(RoundFeedback(plan, verified, accepted, measured_ms=time, request_ids=np.arange(4)))
        proposed = np.full(4, plan.draft_steps)
    return out


@pytest.mark.parametrize(
    ("options", "acceptance"),
    [
        ({"prior_acceptance": 0.1}, 0.6),
        ({"memory_trials": 4.0}, 0.6),
        ({"request_memory_trials": 2.0}, 0.6),
        ({"request_prior_trials": 0.1}, 0.6),
        ({"pace_rounds": 2.0}, 0.6),
        ({"probe_rounds": 3}, 0.02),
        ({"probe_cost": 0.2}, 0.02),
        ({"steps_margin": 0.4}, 0.6),
        ({"drift": False}, 0.6),
    ],
    ids=str,
)
def test_every_option_moves_some_plan(options: dict[str, Any], acceptance: float) -> None:
    plain = decisions("lightspec", acceptance=acceptance, rounds=300, costs=CPU)
    assert decisions("lightspec", acceptance=acceptance, rounds=300, costs=CPU, **options) != plain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("strategy", "steps"), [("off", 0), ("fixed:2", 2), ("fixed", 5)])
def test_fixed_steps_are_drafted_and_verified_every_round(kind: str, strategy: str, steps: int) -> None:
    assert set(decisions(strategy, rounds=10, drafter=kind)[1:]) == {(4 + 4 * steps, steps)}


def test_fixed_steps_verify_no_more_than_they_say_although_more_is_waiting() -> None:
    planner = make_planner("fixed:2", GPU, max_draft_steps=5)
    assert planner.plan(BatchView(3, np.array([5, 1, 0]))).verify_rows == 3 + 2 + 1


def test_fixed_steps_keep_to_the_largest_batch() -> None:
    costs = CostModel.from_tables({8: 1.0}, max_rows=6)
    planner = make_planner("fixed:5", costs, max_draft_steps=5)
    assert planner.plan(BatchView(2, np.array([5, 5]))).verify_rows == 6
    assert planner.plan(BatchView(8, np.full(8, 5))).verify_rows == 8


def test_fixed_steps_count_their_rounds() -> None:
    planner = make_planner("fixed:1", GPU, max_draft_steps=2)
    plan = planner.plan(BatchView(1, np.array([1])))
    planner.observe(RoundFeedback(plan, np.array([1]), np.array([2])))
    assert (planner.counters.plans, planner.counters.observed) == (1, 1)
    assert planner.plan(BatchView(0, np.zeros(0, dtype=np.int64))).verify_rows == 0
