"""The two stages of the search, against trying everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.planner import CostModel, DrafterKind, oracle
from lightspec_lightllm.planner.budget import choose_budget
from lightspec_lightllm.planner.gain import SurvivalMass
from lightspec_lightllm.planner.steps import legal_steps, steps_values
from lightspec_lightllm.planner.types import FloatArray, IntArray
from tests.planner import worlds
from tests.planner.worlds import KINDS, cost_models, survivals

prices = st.floats(1e-3, 3.0)
contexts = st.floats(0.0, 4096.0)


def draft_passes(kind: DrafterKind, steps: int) -> float:
    """Passes of the drafter over all rows of the target's batch."""
    return {"serial": 1.0, "block": 1.0, "chained": float(steps)}.get(kind, 0.0) if steps else 0.0


def value_of(
    rows: int,
    survival: FloatArray,
    proposed: IntArray,
    *,
    costs: CostModel,
    context: float,
    price: float,
    fills: float,
    backlog: int,
) -> float:
    """Tokens less the price of the time that depends on the budget."""
    waiting = sorted((s for line, p in zip(survival.tolist(), proposed, strict=True) for s in line[:p]), reverse=True)
    num_requests = len(proposed)
    target = costs.for_requests(num_requests).lines(rows + backlog, context)[0]
    fill = costs.fill_line(rows + backlog, context)
    time = target[rows] + fills * fill[rows + backlog]
    return float(num_requests + sum(waiting[: rows - num_requests]) - price * time)


@settings(max_examples=150, deadline=None)
@given(
    batch=survivals(),
    costs=cost_models(own_draft_sizes=True),
    context=contexts,
    price=prices,
    kind=st.sampled_from(KINDS),
    steps=st.integers(0, 4),
    backlog=st.integers(0, 30),
)
def test_the_budget_is_the_smallest_best_of_all(
    *,
    batch: tuple[FloatArray, IntArray],
    costs: CostModel,
    context: float,
    price: float,
    kind: DrafterKind,
    steps: int,
    backlog: int,
) -> None:
    survival, proposed = batch
    num_requests, available = len(proposed), int(proposed.sum())
    fills = draft_passes(kind, steps)
    found = choose_budget(
        SurvivalMass.of_drafts(survival, proposed).curve(),
        num_requests,
        available,
        costs=costs,
        context=context,
        price=price,
        fills=fills,
        backlog=backlog,
    )
    best, _ = oracle.best_budget(
        survival, proposed, costs=costs, context=context, price=price, kind=kind, steps=steps, backlog=backlog
    )
    values = {
        rows: value_of(
            rows, survival, proposed, costs=costs, context=context, price=price, fills=fills, backlog=backlog
        )
        for rows in (num_requests, best, found)
    }
    assert num_requests <= found <= max(num_requests, min(num_requests + available, costs.max_rows or 10**9))
    assert values[found] == pytest.approx(values[best], abs=1e-9)
    assert found <= best or values[found] >= values[best]
    assert values[found] >= values[num_requests]


@settings(max_examples=150, deadline=None)
@given(
    batch=survivals(),
    alike=st.booleans(),
    costs=cost_models(own_draft_sizes=True),
    context=contexts,
    price=prices,
    kind=st.sampled_from(KINDS),
)
def test_the_steps_are_the_smallest_best_of_all(
    *,
    batch: tuple[FloatArray, IntArray],
    alike: bool,
    costs: CostModel,
    context: float,
    price: float,
    kind: DrafterKind,
) -> None:
    survival, _ = batch
    if alike:
        survival = np.broadcast_to(survival[0], survival.shape)
    num_requests, most = survival.shape
    legal = legal_steps(kind, most)
    everything = np.full(num_requests, most)
    mass = (
        SurvivalMass(survival[0], np.arange(1, most + 1), np.full(most, float(num_requests)), ladder=True)
        if alike
        else SurvivalMass.of_drafts(survival, everything)
    )
    values = steps_values(mass, num_requests, legal, kind=kind, block=most, costs=costs, context=context, price=price)
    best, value = oracle.best_steps(
        survival, legal=legal, kind=kind, block=most, costs=costs, context=context, price=price
    )
    assert values.max() == pytest.approx(value, abs=1e-9)
    assert values[legal.index(best)] == pytest.approx(value, abs=1e-9)
    assert legal[int(values.argmax())] <= best or values.max() > values[legal.index(best)]
    for steps, found in zip(legal, values, strict=True):
        _, alone = oracle.best_budget(
            survival,
            np.full(num_requests, steps),
            costs=costs,
            context=context,
            price=price,
            kind=kind,
            steps=steps,
            block=most,
        )
        assert found == pytest.approx(alone, abs=1e-9)


def test_the_edge_of_a_tier_of_the_drafter_is_considered_too() -> None:
    # The target takes 16 rows at once; the drafter, which has 2 rows to catch up on, gets dear past 8 of them.
    costs = CostModel.from_tables({16: 10.0}, {8: 1.0, 32: 9.0})
    curve = SurvivalMass.of_drafts(np.full((2, 7), 0.3), np.array([7, 7])).curve()
    assert choose_budget(curve, 2, 14, costs=costs, context=0, price=0.4, fills=1.0, backlog=2) == 6
    assert choose_budget(curve, 2, 14, costs=costs, context=0, price=0.4, fills=0.0, backlog=2) == 16


def test_past_the_last_measured_size_every_row_is_considered() -> None:
    costs = CostModel.from_tables({2: 2.0, 4: 4.0})
    survival = np.array([[0.9, 0.8, 0.7, 0.6, 0.4, 0.3]])
    curve = SurvivalMass.of_drafts(survival, np.array([6])).curve()
    assert choose_budget(curve, 1, 6, costs=costs, context=0, price=0.5) == 5


def test_of_equal_budgets_the_smallest_is_taken() -> None:
    costs = CostModel.from_tables({rows: float(rows) for rows in range(1, 9)})
    survival = np.array([[0.5, 0.5, 0.25]])
    curve = SurvivalMass.of_drafts(survival, np.array([3])).curve()
    assert choose_budget(curve, 1, 3, costs=costs, context=0, price=0.5) == 1
    assert choose_budget(curve, 1, 3, costs=costs, context=0, price=0.499) == 3
    assert choose_budget(curve, 1, 3, costs=costs, context=0, price=0.249) == 4


def test_rows_that_a_tier_gives_for_free_are_all_taken() -> None:
    costs = CostModel.from_tables({4: 1.0, 8: 1.5, 16: 100.0})
    survival = np.full((2, 6), 0.05)
    curve = SurvivalMass.of_drafts(survival, np.array([6, 6])).curve()
    assert choose_budget(curve, 2, 12, costs=costs, context=0, price=10.0) == 4
    assert choose_budget(curve, 2, 1, costs=costs, context=0, price=10.0) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_drafter_can_skip_and_take_all(kind: DrafterKind) -> None:
    legal = legal_steps(kind, 5)
    assert legal[0] == 0
    assert legal[-1] == 5
    assert set(legal) == worlds.legal_steps(kind, 5) | set(legal if kind == "free" else ())


@settings(max_examples=100, deadline=None)
@given(batch=survivals(), costs=cost_models(), price=prices, kind=st.sampled_from(KINDS))
def test_the_best_steps_are_worth_no_less_than_none(
    batch: tuple[FloatArray, IntArray], costs: CostModel, price: float, kind: DrafterKind
) -> None:
    survival, _ = batch
    num_requests, most = survival.shape
    mass = SurvivalMass.of_drafts(survival, np.full(num_requests, most))
    values = steps_values(
        mass, num_requests, legal_steps(kind, most), kind=kind, block=most, costs=costs, context=0.0, price=price
    )
    off = num_requests - price * float(costs.for_requests(num_requests).lines(num_requests, 0.0)[0][num_requests])
    assert values[0] == pytest.approx(off, abs=1e-9)
    assert values.max() >= values[0]


def test_the_start_of_a_draft_is_taken_off_every_number_of_steps_but_none() -> None:
    mass = SurvivalMass.of_drafts(np.full((4, 3), 0.7), np.full(4, 3))
    plain, started = (
        steps_values(
            mass,
            4,
            (0, 1, 2, 3),
            kind="serial_no_kv",
            block=3,
            costs=CostModel.from_tables({4: 5.0, 16: 6.0}, {4: 0.5}, draft_start=table),
            context=0.0,
            price=0.5,
        )
        for table in (None, {4: 3.0})
    )
    assert (plain - started).tolist() == pytest.approx([0.0, 1.5, 1.5, 1.5])
