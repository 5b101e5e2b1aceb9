"""Cost tables: how they are read, filled in between, extended, and refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.errors import CostTableError
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind, RoundFeedback, make_planner
from lightspec_lightllm.planner.costs import MAX_CONTEXTS
from lightspec_lightllm.planner.gain import SurvivalMass
from lightspec_lightllm.planner.steps import REWARM_ROUNDS, catching_up_ms, legal_steps, steps_values
from tests.planner.worlds import KINDS, cost_models


@settings(max_examples=100, deadline=None)
@given(costs=cost_models(own_draft_sizes=True), context=st.floats(0.0, 5000.0), rows=st.integers(1, 300))
def test_more_rows_never_cost_less(costs: CostModel, context: float, rows: int) -> None:
    for line in (*costs.lines(rows, context), costs.fill_line(rows, context)):
        assert np.isfinite(line).all()
        assert (np.diff(line) >= -1e-9).all()
        assert line[0] == 0.0
    assert costs.target_ms(rows + 1, 3, context) >= costs.target_ms(rows, 3, context) - 1e-9


@settings(max_examples=60, deadline=None)
@given(
    costs=cost_models(),
    kind=st.sampled_from(KINDS),
    num_requests=st.integers(1, 5),
    extra=st.integers(0, 20),
    steps=st.integers(1, 6),
)
def test_more_steps_more_rows_and_more_backlog_never_cost_a_drafter_less(
    costs: CostModel, kind: DrafterKind, num_requests: int, extra: int, steps: int
) -> None:
    def time(extra: int, steps: int, backlog: int) -> float:
        return costs.draft_ms(kind, num_requests, num_requests + extra, steps, block=7, backlog=backlog)

    here = time(extra, steps, 3)
    assert math.isfinite(here)
    assert here >= time(extra, 0, 3) == 0.0
    assert time(extra, steps + 1, 3) >= here - 1e-9
    assert time(extra + 1, steps, 3) >= here - 1e-9
    assert time(extra, steps, 4) >= here - 1e-9


STAIRS = {4: 2.0, 8: 3.0, 16: 5.0}


@pytest.mark.parametrize(
    ("rows", "ms"), [(1, 2.0), (4, 2.0), (5, 3.0), (8, 3.0), (9, 5.0), (16, 5.0), (17, 5.3125), (32, 10.0)]
)
def test_on_a_staircase_the_next_measured_size_is_paid_and_past_the_last_it_grows_in_proportion(
    rows: int, ms: float
) -> None:
    assert CostModel.from_tables(STAIRS).target_ms(rows, 1, 0) == pytest.approx(ms)


@pytest.mark.parametrize(("rows", "ms"), [(1, 2.0), (4, 2.0), (6, 2.5), (8, 3.0), (12, 4.0), (16, 5.0), (32, 9.0)])
def test_interpolated_times_lie_on_lines_between_measured_sizes(rows: int, ms: float) -> None:
    assert CostModel.from_tables(STAIRS, interpolate=True).target_ms(rows, 1, 0) == pytest.approx(ms)


@pytest.mark.parametrize(("context", "ms"), [(0, 1.0), (100, 1.0), (200, 2.0), (300, 3.0), (650, 4.0), (9000, 5.0)])
def test_times_are_linear_between_contexts_and_constant_outside_them(context: float, ms: float) -> None:
    costs = CostModel.from_tables({100: {8: 1.0}, 300: {8: 3.0}, 1000: {8: 5.0}})
    assert costs.target_ms(3, 1, context) == pytest.approx(ms)


def test_a_bump_in_the_measurements_is_levelled_upwards() -> None:
    costs = CostModel.from_tables({1: 3.0, 2: 2.0, 4: 4.0})
    assert [costs.target_ms(rows, 1, 0) for rows in (1, 2, 3)] == [3.0, 3.0, 4.0]


def test_a_round_also_costs_its_overhead_its_requests_and_their_context() -> None:
    costs = CostModel.from_tables({8: 10.0}, overhead_ms=1.0, request_ms=0.5, request_token_ms=0.01)
    assert costs.target_ms(6, 3, 100.0) == pytest.approx(10.0 + 1.0 + 3 * (0.5 + 1.0))


@pytest.mark.parametrize(
    ("kind", "ms"),
    [
        ("free", 0.0),
        ("serial", 14.0 + 3 * 3.0),
        ("serial_no_kv", 4 * 3.0),
        ("chained", 4 * 14.0),
        ("block", 14.0 + 3.0 * 5),
    ],
)
def test_each_kind_of_drafter_pays_for_its_own_passes(kind: DrafterKind, ms: float) -> None:
    # Td(rows) = rows; 3 requests, 12 rows and 2 rows of backlog, 4 steps, blocks of 5.
    costs = CostModel.from_tables({64: 9.0}, {rows: float(rows) for rows in range(1, 65)})
    assert costs.draft_ms(kind, 3, 12, 4, block=5, backlog=2) == pytest.approx(ms)


@pytest.mark.parametrize(
    ("kind", "ms"),
    [
        ("free", 0.0),
        ("serial", 1.4 + 3 * 3.0),
        ("serial_no_kv", 4 * 3.0),
        ("chained", 4 * 1.4),
        ("block", 1.4 + 3.0 * 5),
    ],
)
def test_what_runs_over_all_verified_rows_may_have_a_table_of_its_own(kind: DrafterKind, ms: float) -> None:
    # As above, with Tf(rows) = rows / 10.
    draft = {rows: float(rows) for rows in range(1, 65)}
    costs = CostModel.from_tables({64: 9.0}, draft, fill={rows: rows / 10 for rows in draft})
    assert costs.draft_ms(kind, 3, 12, 4, block=5, backlog=2) == pytest.approx(ms)


STARTS = {2: 4.0, 6: 8.0}


@pytest.mark.parametrize(("num_requests", "ms"), [(1, 4.0), (2, 4.0), (3, 5.0), (6, 8.0), (9, 11.0), (200, 202.0)])
@pytest.mark.parametrize("interpolate", [False, True])
def test_what_a_draft_takes_beside_its_steps_is_linear_between_numbers_of_requests(
    num_requests: int, ms: float, *, interpolate: bool
) -> None:
    costs = CostModel.from_tables({8: 1.0}, draft_start=STARTS, interpolate=interpolate)
    assert costs.draft_start_ms("serial", num_requests, 1) == pytest.approx(ms)
    assert costs.draft_ms("serial_no_kv", num_requests, num_requests, 3, block=1) == pytest.approx(ms)


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_of_a_draft_is_paid_once_whatever_its_steps_and_not_by_a_free_drafter(kind: DrafterKind) -> None:
    draft = {rows: float(rows) for rows in range(1, 65)}
    plain, started = (CostModel.from_tables({64: 9.0}, draft, draft_start=table) for table in (None, STARTS))
    for steps in range(5):
        paid = 0.0 if kind == "free" or steps == 0 else 5.0
        one, other = (each.draft_ms(kind, 3, 12, steps, block=5, backlog=2) for each in (plain, started))
        assert other == pytest.approx(one + paid)


def test_the_costs_of_a_number_of_requests_have_the_start_of_a_draft() -> None:
    costs = CostModel.from_tables({1: 1.0}, {8: 1.0}, draft_start=STARTS, by_requests={4: {4: 1.0}, 8: {8: 2.0}})
    assert costs.for_requests(6).draft_ms("serial_no_kv", 6, 6, 2, block=1) == pytest.approx(2 * 1.0 + 8.0)


@settings(max_examples=60, deadline=None)
@given(
    costs=cost_models(own_draft_sizes=True),
    kind=st.sampled_from(KINDS),
    num_requests=st.integers(1, 6),
    price=st.floats(1e-3, 3.0),
)
def test_a_start_of_no_time_changes_nothing_to_the_bit(
    costs: CostModel, kind: DrafterKind, num_requests: int, price: float
) -> None:
    tables = replace(CostTables.of(costs), draft_start={})
    plain, zero = tables.model(), replace(tables, draft_start={1: 0.0, 4: 0.0}).model()
    mass = SurvivalMass.of_drafts(np.full((num_requests, 3), 0.4), np.full(num_requests, 3))
    values = [
        steps_values(
            mass,
            num_requests,
            legal_steps(kind, 3),
            kind=kind,
            block=3,
            costs=each,
            context=9.0,
            price=price,
        ).tolist()
        for each in (plain, zero)
    ]
    assert values[0] == values[1]
    assert plain.draft_ms(kind, 2, 9, 4, block=7) == zero.draft_ms(kind, 2, 9, 4, block=7)


@settings(max_examples=60, deadline=None)
@given(costs=cost_models(own_draft_sizes=True), rows=st.integers(1, 60), backlog=st.integers(0, 9))
def test_a_fill_table_that_is_the_draft_table_changes_nothing(costs: CostModel, rows: int, backlog: int) -> None:
    plain, same = (CostModel(costs.target, costs.draft, fill=fill) for fill in (None, costs.draft))
    for kind in KINDS:
        one, other = (each.draft_ms(kind, 2, rows, 4, block=7, backlog=backlog) for each in (plain, same))
        assert one == other
    usual, found = (each.budgets((1, rows), 0.0, backlog) for each in (plain, same))
    assert usual.rows.tolist() == found.rows.tolist()
    assert usual.ms(1.0).tolist() == found.ms(1.0).tolist()


@pytest.mark.parametrize(("kind", "ms"), [("serial", 3.0), ("block", 3.0), ("serial_no_kv", 0.0)])
def test_a_drafter_catches_up_at_the_price_of_its_fill(kind: DrafterKind, ms: float) -> None:
    costs = CostModel.from_tables({64: 9.0}, {64: 50.0}, fill={rows: rows / 10 for rows in range(1, 65)})
    assert catching_up_ms(kind, 2, 30, costs=costs, context=0.0) == pytest.approx(ms / REWARM_ROUNDS)


def test_the_edges_compared_are_those_of_the_fill_and_not_of_the_draft() -> None:
    costs = CostModel.from_tables({40: 2.0}, {7: 1.0, 40: 2.0}, fill={20: 1.0, 40: 2.0})
    assert costs.budgets((4, 40), 0.0, 0).rows.tolist() == [4, 20, 40]
    assert costs.budgets((4, 40), 0.0, 3).rows.tolist() == [4, 17, 37, 38, 39, 40]


@pytest.mark.parametrize("draft", [None, {}])
def test_a_drafter_without_a_table_is_free(draft: Any) -> None:
    assert CostModel.from_tables({8: 1.0}, draft).draft_ms("serial", 2, 6, 3, block=4) == 0.0


MALFORMED: list[Any] = [
    {0: {}},
    {0: 1.0},
    {-1: 1.0, 4: 2.0},
    {1: math.nan},
    {1: math.inf},
    {1: -0.5},
    {100: {1: 1.0, 2: 2.0}, 200: {1: 1.0, 4: 2.0}},
    {100: {1: 1.0}, 200: {}},
    {100: {1: 1.0}, 200: 3.0},
    {1: 1.0, 100: {1: 1.0}},
    {1: "fast"},
    {1: None},
    {"one": 1.0},
    {1.5: 1.0},
    {math.nan: {1: 1.0}},
]


ROLES = ("target", "draft", "fill", "draft_start")


@pytest.mark.parametrize(
    ("role", "table"),
    [("target", {}), ("draft_start", {100: {1: 1.0}}), *((role, bad) for role in ROLES for bad in MALFORMED)],
)
def test_a_malformed_table_is_refused(role: str, table: Any) -> None:
    tables = {"target": {8: 1.0}, "draft": {8: 0.1}, "fill": {8: 0.1}, "draft_start": {8: 0.1}} | {role: table}
    with pytest.raises(CostTableError, match=f"{role} table"):
        CostModel.from_tables(**tables)


@pytest.mark.parametrize("name", ["overhead_ms", "request_ms", "request_token_ms"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_an_impossible_term_is_refused(name: str, value: float) -> None:
    with pytest.raises(CostTableError, match=name):
        CostModel.from_tables({8: 1.0}, **{name: value})  # type: ignore[arg-type]  # one of three floats


@settings(max_examples=60, deadline=None)
@given(costs=cost_models(), low=st.integers(1, 8), spans=st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_the_budgets_compared_hold_every_end_and_every_edge_between(
    costs: CostModel, low: int, spans: list[int]
) -> None:
    ends = tuple(np.cumsum([low, *spans]).tolist())
    for context in (0.0, 700.0, 0.0):
        budgets = costs.budgets(ends, context, 0)
        target, fill = costs.lines(ends[-1], context)[0], costs.fill_line(ends[-1], context)
        assert (np.diff(budgets.rows) > 0).all()
        assert budgets.rows[budgets.ends].tolist() == list(ends)
        assert {int(r) for r in costs.target.rows if ends[0] <= r <= ends[-1]} <= set(budgets.rows.tolist())
        assert budgets.ms(0.0).tolist() == target[budgets.rows].tolist()
        assert budgets.ms(2.0).tolist() == (target + 2.0 * fill)[budgets.rows].tolist()
        assert budgets.ms_of(ends[-1], 2.0) == pytest.approx(budgets.ms(2.0)[-1])


def test_a_table_of_absurdly_many_rows_is_refused() -> None:
    with pytest.raises(CostTableError, match="at most 1000000 rows"):
        CostModel.from_tables({10**30: 1.0})


BY_REQUESTS = {1: {1: 10.0, 4: 16.0}, 4: {4: 22.0, 16: 46.0}, 8: {8: 40.0, 16: 60.0}}


def test_rows_of_more_requests_may_cost_more() -> None:
    costs = CostModel.from_tables({1: 1.0}, interpolate=True, overhead_ms=0.5, by_requests=BY_REQUESTS)
    assert costs.target_ms(4, 1, 0.0) == pytest.approx(16.5)
    assert costs.target_ms(4, 4, 0.0) == pytest.approx(22.5)
    assert costs.target_ms(16, 4, 0.0) == pytest.approx(46.5)
    assert costs.target_ms(16, 8, 0.0) == pytest.approx(60.5)
    # Between 4 and 8 requests: half-way at the same rows; of 6 rows, which 8 requests do not have, as at 8.
    assert costs.target_ms(12, 6, 0.0) == pytest.approx(0.5 * (38.0 + 50.0) + 0.5)
    assert costs.target_ms(6, 6, 0.0) == pytest.approx(26.0 + 0.5 * (40.0 - 30.0) + 0.5)
    assert costs.target_ms(16, 16, 0.0) == pytest.approx(46.0 + 3 * 14.0 + 0.5)  # beyond 8, on the line through 4 and 8


def test_a_table_that_ends_first_goes_on_beside_the_other() -> None:
    tables = {2: {2: 10.0, 8: 16.0, 9: 26.0, 20: 37.0}, 4: {4: 20.0, 8: 24.0}}
    costs = CostModel.from_tables({1: 1.0}, interpolate=True, by_requests=tables)
    assert [costs.target_ms(rows, 3, 0.0) for rows in (3, 4, 8, 9, 20, 24)] == pytest.approx(
        [15.0, 16.0, 20.0, 30.0, 41.0, 45.0]
    )


@pytest.mark.parametrize(("rows", "ms"), [(6, 25.0), (8, 25.0), (9, 45.0), (16, 45.0), (17, 55.0), (20, 55.0)])
def test_staircases_of_other_requests_keep_their_tiers(rows: int, ms: float) -> None:
    tables = {4: {8: 20.0, 16: 40.0, 20: 50.0}, 8: {8: 30.0, 16: 50.0}}
    assert CostModel.from_tables({1: 1.0}, by_requests=tables).target_ms(rows, 6, 0.0) == pytest.approx(ms)


def test_more_requests_than_measured_never_make_the_same_rows_cheaper() -> None:
    tables = {16: {16: 90.0, 64: 180.0}, 32: {32: 110.0, 64: 180.0}}  # 32 rows: 120 ms and, measured badly, 110
    costs = CostModel.from_tables({1: 1.0}, interpolate=True, by_requests=tables)
    assert costs.target_ms(40, 40, 0.0) == pytest.approx(costs.target_ms(40, 32, 0.0)) == pytest.approx(127.5)
    assert costs.target_ms(400, 400, 0.0) >= costs.target_ms(400, 32, 0.0)


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[int, int, CostModel]:
    few, many = sorted(draw(st.sets(st.integers(1, 12), min_size=2, max_size=2)))
    tables = {}
    for count in (few, many):
        sizes = draw(st.sets(st.integers(count, 40), min_size=1, max_size=6))
        tables[count] = {rows: draw(st.floats(0.1, 90.0)) for rows in sizes}
    return few, many, CostModel.from_tables({1: 1.0}, interpolate=draw(st.booleans()), by_requests=tables)


@settings(max_examples=200, deadline=None)
@given(measured=two_tables(), share=st.floats(0.0, 1.0))
def test_where_both_tables_reach_the_time_lies_between_theirs_at_the_same_rows(
    measured: tuple[int, int, CostModel], share: float
) -> None:
    few, many, costs = measured
    between = round(few + share * (many - few))
    ends = [(int(table.rows[0]), int(table.rows[-1])) for table in costs.by_requests.values()]
    for rows in range(max(between, *(first for first, _ in ends)), min(last for _, last in ends) + 1):
        times = [costs.target_ms(rows, count, 0.0) for count in (few, many)]
        assert min(times) - 1e-9 <= costs.target_ms(rows, between, 0.0) <= max(times) + 1e-9


@settings(max_examples=200, deadline=None)
@given(measured=two_tables(), num_requests=st.integers(1, 30))
def test_a_table_of_other_requests_never_falls_and_a_measured_one_stays(
    measured: tuple[int, int, CostModel], num_requests: int
) -> None:
    few, many, costs = measured
    line = costs.for_requests(num_requests).lines(120, 0.0)[0][num_requests:121]
    assert np.isfinite(line).all()
    assert (line >= 0.0).all()
    assert (np.diff(line) >= -1e-9).all()
    for count in (few, many):
        assert costs.for_requests(count).target is costs.by_requests[count]


@given(st.integers(1, 40), st.integers(0, 120))
def test_more_rows_never_cost_less_whatever_the_requests(num_requests: int, extra: int) -> None:
    costs = CostModel.from_tables({1: 1.0}, interpolate=True, by_requests=BY_REQUESTS)
    rows = num_requests + extra
    assert 0.0 < costs.target_ms(rows, num_requests, 0.0) <= costs.target_ms(rows + 1, num_requests, 0.0)


def test_plans_follow_what_rows_cost_with_their_number_of_requests() -> None:
    """At 2 requests a second row each is nearly free, at 8 it costs as much as the first."""
    tables = {2: {2: 10.0, 4: 10.1, 30: 20.0}, 8: {8: 10.0, 16: 20.0, 120: 140.0}}
    costs = CostModel.from_tables({1: 1.0}, interpolate=True, by_requests=tables)
    rows = {}
    for count in (2, 8):
        planner = make_planner("lightspec", costs, max_draft_steps=3, drafter="free")
        for _ in range(120):
            plan = planner.plan(BatchView(count, np.full(count, 3), 10))
            verified = select_rows(np.full(count, 3), plan.verify_rows, plan.survival)
            planner.observe(RoundFeedback(plan, verified, 1 + np.minimum(verified, 1)))
        rows[count] = planner.plan(BatchView(count, np.full(count, 3), 10)).verify_rows
    assert rows[2] >= 4
    assert rows[8] == 8


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({0: {1: 1.0}}, "0 requests"),
        ({"4": {4: 1.0}}, "4 requests"),
        ({4: {1: 1.0}}, "row per request"),
        ({4: {}}, "empty"),
        ({1: {1: {2: 1.0}}}, "measure it again"),
    ],
)
def test_impossible_tables_by_requests_are_refused(tables: Any, message: str) -> None:
    with pytest.raises(CostTableError, match=message):
        CostModel.from_tables({1: 1.0}, by_requests=tables)


def test_the_times_of_a_context_that_is_asked_for_again_and_again_are_kept_while_others_come_and_go() -> None:
    costs = CostModel.from_tables({0: {1: 1.0, 8: 2.0}, 9000: {1: 3.0, 8: 5.0}})
    kept = costs.lines(8, 512.0)[0]
    for context in range(3 * MAX_CONTEXTS):
        assert costs.lines(8, 10.0 * context)[0] is not kept
        assert costs.lines(8, 512.0)[0] is kept
    assert costs.lines(8, 0.0)[0][8] == pytest.approx(2.0)
