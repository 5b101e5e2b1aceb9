"""Cost tables of the embedded engine: the fit, the key, and what is refused."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters import calibration
from lightspec_lightllm.adapters.calibration import CostKey, load, load_or_measure, refined, tabulate, uneven_rows
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.drafters.base import DrafterKind, Proposals, SequenceView
from lightspec_lightllm.drafters.head import HeadDrafter
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.engine import Engine, EngineOptions
from lightspec_lightllm.errors import CostTableError
from tests.adapters.test_embedded_lossless import tiny_head_drafter
from tests.engine.tiny_llama import tiny_engine, tiny_model

KEY = CostKey(
    format=5,
    model="a" * 64,
    weights="float16",
    threads=2,
    drafter="ngram",
    draft_steps=0,
    sizes="up to 4 requests, 64 rows, 768 tokens of context",
    device="a cpu, 2 cores",
    torch="2.13.0",
)
TABLE: dict[str, Any] = {
    "target_ms": {"1": {"1": 20.0, "8": 30.0}, "4": {"4": 30.0, "64": 90.0}},
    "draft_ms": {},
    "draft_start_ms": {},
    "request_token_ms": 0.001,
}


def stored(folder: Path, **changes: Any) -> Path:
    path = folder / "table.json"
    key = {field.name: getattr(KEY, field.name) for field in fields(KEY)}
    path.write_text(json.dumps({"key": key, **TABLE, **changes}))
    return path


SIZES = [(count, rows, calibration.CONTEXT) for count, all_rows in calibration.SHAPES.items() for rows in all_rows]


def test_tables_and_context_add_up_to_what_was_measured() -> None:
    shapes = [*SIZES, *calibration.CONTEXTS]
    times = [20.0 + 0.8 * rows + n * (0.5 + 0.01 * rows + 0.002 * context) for n, rows, context in shapes]
    tables, per_token = tabulate(shapes, times)
    assert per_token == pytest.approx(0.002)
    for (n, rows, context), ms in zip(shapes, times, strict=True):
        assert tables[n][rows] + n * context * per_token == pytest.approx(ms)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_steps_seen_in_the_finest_table_are_in_all_of_them(seed: int) -> None:
    """Whatever the steps at sums of rows, and what a request adds, linear in rows."""
    rng = np.random.default_rng(seed)
    steps = 20.0 + np.cumsum(rng.exponential(0.5, 200) + 8.0 * (rng.random(200) < 0.1))

    def truth(count: int, rows: int) -> float:
        return float(steps[rows] + count * (2.0 + 0.03 * rows))

    measured = {count: {rows: truth(count, rows) for rows in sizes} for count, sizes in calibration.SHAPES.items()}
    tables = refined(measured)
    fine = calibration.SHAPES[4]
    for count, sizes in calibration.SHAPES.items():
        assert set(tables[count]) == {*sizes, *(rows for rows in fine if sizes[0] < rows < sizes[-1])}
        assert set(range(14, 17)) <= set(tables[count]) or sizes[0] > 14
        for rows, ms in tables[count].items():
            if rows >= fine[0]:
                assert ms == pytest.approx(truth(count, rows))


def test_a_table_keeps_what_was_measured_and_never_falls() -> None:
    tables = refined({1: {1: 10.0, 4: 12.0, 8: 50.0}, 2: {2: 20.0, 3: 20.0, 4: 30.0, 6: 31.0, 8: 32.0}})
    assert tables[1] == {1: 10.0, 4: 12.0, 6: pytest.approx(31.0), 8: 50.0}
    assert tables[2] == {2: 20.0, 3: 20.0, 4: 30.0, 6: 31.0, 8: 32.0}
    assert refined({}) == {}


def test_what_was_measured_stands_whatever_the_steps_of_the_finest_table() -> None:
    tables = refined({1: {1: 10.0, 4: 12.0, 8: 13.0}, 2: {2: 20.0, 3: 20.0, 4: 30.0, 6: 60.0, 8: 61.0}})
    assert tables[1] == {1: 10.0, 4: 12.0, 6: 13.0, 8: 13.0}
    assert tables[2] == {2: 20.0, 3: 20.0, 4: 30.0, 6: 60.0, 8: 61.0}


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_measured_time_is_changed(seed: int) -> None:
    """Whatever the times, as long as none falls."""
    rng = np.random.default_rng(seed)
    measured = {}
    for count, sizes in calibration.SHAPES.items():
        times = 20.0 + np.cumsum(rng.exponential(2.0, len(sizes)) * (rng.random(len(sizes)) < 0.6))
        measured[count] = dict(zip(sizes, times.tolist(), strict=True))
    for count, table in refined(measured).items():
        assert {rows: table[rows] for rows in measured[count]} == measured[count]
        assert (np.diff([table[rows] for rows in sorted(table)]) >= 0.0).all()


@pytest.mark.parametrize("num_requests", [3, 5, 6, 7, 12, 24])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_steps_are_at_sums_of_rows_for_numbers_of_requests_not_measured_too(num_requests: int, seed: int) -> None:
    """Whatever the steps, and what a request adds, with its context read and by its rows."""
    rng = np.random.default_rng(seed)
    steps = 40.0 + np.cumsum(rng.exponential(0.5, 200) + 12.0 * (rng.random(200) < 0.1))
    each, per_row = rng.uniform(0.0, 2.0), rng.uniform(0.0, 0.5)

    def truth(count: int, rows: int) -> float:
        return float(steps[rows] + count * (each + per_row * rows / count))

    measured = {count: {rows: truth(count, rows) for rows in sizes} for count, sizes in calibration.SHAPES.items()}
    costs = calibration.cost_model(
        {"target_ms": measured, "draft_ms": {}, "draft_start_ms": {}, "request_token_ms": 0.0}
    )
    for rows in range(num_requests, 65):
        found = costs.target_ms(rows, num_requests, 0.0)
        if rows == 3 or rows in calibration.SHAPES[4]:
            assert found == pytest.approx(truth(num_requests, rows), rel=0.03)
        else:  # a step lies somewhere between two sizes
            assert truth(num_requests, rows - 3) * 0.97 <= found <= truth(num_requests, rows + 3) * 1.03


def test_a_step_seen_at_four_requests_is_at_the_same_rows_at_six() -> None:
    def truth(count: int, rows: int) -> float:
        return 50.0 + rows + 0.5 * count + (20.0 if rows >= 15 else 0.0)

    measured = {count: {rows: truth(count, rows) for rows in sizes} for count, sizes in calibration.SHAPES.items()}
    costs = calibration.cost_model(
        {"target_ms": measured, "draft_ms": {}, "draft_start_ms": {}, "request_token_ms": 0.0}
    )
    for num_requests in (3, 5, 6, 7, 9, 12):
        growth = np.diff([costs.target_ms(rows, num_requests, 0.0) for rows in range(num_requests, 65)])
        assert growth == pytest.approx([21.0 if rows == 15 else 1.0 for rows in range(num_requests + 1, 65)])


def test_tables_never_pay_for_rows_or_context() -> None:
    tables, per_token = tabulate([(4, 4, 64), (4, 8, 64), (4, 8, 768)], [30.0, 20.0, 10.0])
    assert per_token == 0.0
    assert tables == {4: {4: 30.0, 8: 30.0}}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_undisturbed_shapes_take_is_found_on_a_machine_that_changes_its_speed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.uniform(40.0, 200.0, 45)
    speed = np.exp(rng.normal(0.0, 0.3, (calibration.REPEATS, 1)))
    disturbed = np.where(rng.random((calibration.REPEATS, 45)) < 0.05, rng.uniform(1.2, 3.0), 1.0)
    found = calibration.steady(truth * speed * disturbed * rng.normal(1.0, 0.01, disturbed.shape))
    np.testing.assert_allclose(found / truth, np.median(found / truth), rtol=0.05)


def test_a_stored_table_gives_its_costs(tmp_path: Path) -> None:
    costs = load(stored(tmp_path), KEY)
    assert costs.target_ms(8, 1, 100.0) == pytest.approx(30.0 + 0.1)
    assert costs.target_ms(34, 4, 0.0) == pytest.approx(60.0)  # between two measured sizes
    assert costs.target_ms(4, 4, 50.0) == pytest.approx(30.0 + 0.2)
    assert costs.draft_ms("serial_no_kv", 4, 4, 3, block=1) == 0.0


def test_a_stored_draft_is_its_start_and_its_steps(tmp_path: Path) -> None:
    path = stored(tmp_path, draft_ms={"1": 2.0, "8": 6.0}, draft_start_ms={"1": 1.0, "8": 3.0})
    costs = load(path, KEY)
    assert costs.draft_ms("serial_no_kv", 8, 8, 3, block=1) == pytest.approx(3 * 6.0 + 3.0)
    assert costs.draft_ms("serial_no_kv", 5, 9, 1, block=1) == pytest.approx(2.0 + 4 * 4 / 7 + 1.0 + 4 * 2 / 7)


@pytest.mark.parametrize("field", [field.name for field in fields(CostKey)])
def test_a_table_of_another_setting_is_refused_by_name(tmp_path: Path, field: str) -> None:
    other: dict[str, Any] = {field: 7 if isinstance(getattr(KEY, field), int) else "other"}
    changed = replace(KEY, **other)
    assert changed.path != KEY.path
    with pytest.raises(CostTableError, match=rf"measured for {field} .*delete it to measure again"):
        load(stored(tmp_path), changed)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"key": {}}',
        '{"key": {}, "target_ms": {"x": 1}}',
        '{"key": 7, "target_ms": {}, "draft_ms": {}, "request_token_ms": 0}',
        '{"key": ["a"], "target_ms": {}, "draft_ms": {}, "request_token_ms": 0}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CostTableError, match="is damaged"):
        load(path, KEY)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_ms": {}},
        {"target_ms": {"0": {"1": 1.0}}},
        {"target_ms": {"2": {"1": 1.0}}},
        {"target_ms": {"1": {}}},
        {"target_ms": {"1": 1.0}},
        {"target_ms": {"1": {"1": -1.0}}},
        {"target_ms": {"1": {"1": float("nan")}}},
        {"target_ms": {"1": {"1": "fast"}}},
        {"target_ms": [1.0, 2.0]},
        {"draft_ms": {"1": float("inf")}},
        {"draft_start_ms": {"1": -1.0}},
        {"draft_start_ms": {"1": {"1": 1.0}}},
        {"draft_start_ms": None},
        {"request_token_ms": -1.0},
        {"request_token_ms": None},
    ],
    ids=str,
)
def test_a_table_of_the_right_key_with_impossible_times_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(CostTableError, match=r"is damaged .*delete it to measure again"):
        load(stored(tmp_path, **changes), KEY)


def small_engine(**options: Any) -> Engine:
    model, tokenizer = tiny_model(vocab_size=256)
    defaults = {"num_slots": 10_000, "max_requests": 32, "max_context": 400, "max_rows": 16}
    return Engine(model, tokenizer, EngineOptions(weights="float32", threads=1, **(defaults | options)))


@pytest.mark.parametrize(
    "options",
    [{"num_slots": 40, "max_context": 24}, {"max_requests": 1}, {"max_rows": 2}, {"max_context": 20}],
    ids=str,
)
def test_an_engine_too_small_for_the_grid_is_measured_where_it_can(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "REPEATS", 1)
    engine = small_engine(**options)
    costs = load_or_measure(engine, NgramDrafter(max_draft_steps=1))
    assert costs.target.rows[0] == 1
    assert costs.target_ms(2, 1, 10.0) > 0
    engine.check()


class Clocked:
    """A drafter whose time passes on a clock of its own: a start and steps of so many milliseconds each."""

    name = "clocked"
    capture_layers = (1,)

    def __init__(
        self,
        start: Callable[[int], float],
        step: Callable[[int], float],
        *,
        observe: Callable[[int], float] = lambda _: 0.0,
        max_draft_steps: int = 8,
        kind: DrafterKind = "serial",
    ) -> None:
        self.kind: DrafterKind = kind
        self.max_draft_steps = max_draft_steps
        self.held: dict[int, int] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.ms = 0.0
        self._start, self._step, self._observe = start, step, observe

    def perf_counter(self) -> float:
        return self.ms / 1e3

    def prefill(self, seq: SequenceView, start: int, hidden: Any) -> None:
        assert start == 0
        self.held[seq.request_id] = len(hidden)

    def observe(self, seqs: Sequence[SequenceView], hidden: Any, rows: Any, accepted: Any) -> None:
        assert len(hidden) == rows.sum()
        self.calls.append(("observe", len(seqs), *set(accepted.tolist())))
        self.ms += self._observe(len(seqs))
        for seq, kept in zip(seqs, accepted.tolist(), strict=True):
            self.held[seq.request_id] += kept

    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: object = None) -> Proposals:
        assert rule is None
        assert 1 <= steps <= self.max_draft_steps
        assert all(self.held[seq.request_id] == len(seq.tokens) - 1 for seq in seqs)
        self.calls.append(("propose", len(seqs), steps))
        self.ms += self._start(len(seqs)) + steps * self._step(len(seqs))
        return Proposals.empty(len(seqs), steps)

    def backlog(self, seqs: Sequence[SequenceView]) -> int:
        return 2 * len(seqs)

    def release(self, request_id: int) -> None:
        del self.held[request_id]


def clocked_measurement(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, drafter: Clocked, progress: Any = None
) -> dict[str, Any]:
    """`measure` on the drafter's clock, on which a forward of the target takes 50 ms."""
    monkeypatch.setattr(calibration, "time", drafter)
    probe = engine.probe_forward

    def forward(rows: list[int], context: int) -> None:
        drafter.calls.append(("forward", len(rows), context, engine.model.capture_layers))
        drafter.ms += 50.0
        probe(rows, context)

    monkeypatch.setattr(engine, "probe_forward", forward)
    monkeypatch.setattr(calibration, "SHAPES", {1: (1, 4)})
    monkeypatch.setattr(calibration, "CONTEXTS", ())
    monkeypatch.setattr(calibration, "REPEATS", 2)
    table = calibration.measure(engine, drafter, progress)
    assert not drafter.held
    engine.check()
    return table


def test_a_draft_is_told_apart_into_its_start_and_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a forward of the target and what the drafter is handed of it, which are not timed."""
    drafter = Clocked(lambda n: 1.0 + 0.5 * n, lambda n: 2.0 + 0.25 * n, observe=lambda n: 0.1 * n)
    engine = small_engine(max_requests=16)
    seen: list[tuple[int, int]] = []
    table = clocked_measurement(monkeypatch, engine, drafter, lambda _, done, total: seen.append((done, total)))
    counts = (1, 2, 4, 8, 16)
    assert table["draft_ms"] == pytest.approx({n: 2.0 + 0.25 * n for n in counts})
    assert table["draft_start_ms"] == pytest.approx({n: 1.0 + 0.5 * n for n in counts})
    assert table["target_ms"][1] == pytest.approx({1: 50.0, 4: 50.0})
    shapes = [(n, steps) for n in counts for steps in (1, 4)]
    one_pass: list[tuple[Any, ...]] = [("forward", 1, 256, (1,))] * 2
    for n, steps in shapes[:1] + shapes:  # the first counts the second time
        one_pass += [("forward", n, 256, (1,)), ("observe", n, 2), ("propose", n, steps)]
    assert drafter.calls == [("propose", 16, 1)] + one_pass * 3
    total = 3 * (3 + len(shapes))
    assert seen == [(done, total) for done in range(1, total + 1)]
    costs = calibration.cost_model(table)
    assert costs.draft_ms("serial_no_kv", 16, 16, 3, block=1) == pytest.approx(1.0 + 0.5 * 16 + 3 * 6.0)


def test_a_drafter_of_a_single_step_is_all_step(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Clocked(lambda n: 3.0 * n, lambda _: 2.0, max_draft_steps=1)
    table = clocked_measurement(monkeypatch, small_engine(max_requests=2), drafter)
    assert table["draft_ms"] == pytest.approx({1: 5.0, 2: 8.0})
    assert table["draft_start_ms"] == {1: 0.0, 2: 0.0}


@pytest.mark.parametrize("most", [2, 3, 15])
def test_fewer_steps_than_are_timed_tell_the_start_and_the_step_as_well(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    drafter = Clocked(lambda _: 3.0, lambda _: 2.0, max_draft_steps=most)
    table = clocked_measurement(monkeypatch, small_engine(max_requests=1), drafter)
    assert table["draft_ms"] == pytest.approx({1: 2.0})
    assert table["draft_start_ms"] == pytest.approx({1: 3.0})
    assert {call[2] for call in drafter.calls if call[0] == "propose"} == {1, min(most, 4)}


def test_a_free_drafter_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Clocked(lambda _: 3.0, lambda _: 2.0, kind="free")
    table = clocked_measurement(monkeypatch, small_engine(), drafter)
    assert table["draft_ms"] == table["draft_start_ms"] == {}
    assert {call[0] for call in drafter.calls} == {"forward"}
    costs = calibration.cost_model(table)
    assert costs.draft is costs.draft_start is None


@pytest.mark.parametrize(
    "options",
    [
        {"num_slots": 40, "max_context": 24},
        {"max_requests": 3},
        {"max_rows": 1},
        {"max_context": 20},
        {"num_slots": 20, "max_context": 8, "max_rows": 2},
    ],
    ids=str,
)
def test_drafts_are_measured_for_as_many_requests_as_an_engine_has_room_for(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    engine = small_engine(**options)
    drafter = Clocked(lambda _: 3.0, lambda _: 2.0)
    table = clocked_measurement(monkeypatch, engine, drafter)
    room = min(engine.options.max_requests, engine.options.num_slots // 2)
    assert table["draft_ms"] == pytest.approx({n: 2.0 for n in (1, 2, 4, 8, 16, 32) if n <= room})
    assert table["draft_start_ms"] == pytest.approx(dict.fromkeys(table["draft_ms"], 3.0))


def test_what_is_made_is_released_if_measuring_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> float:
        if drafter.calls.count(("propose", 2, 1)) > 1:
            raise RuntimeError("out of memory")
        return 1.0

    drafter = Clocked(fail, lambda _: 2.0)
    engine = small_engine(max_requests=2)
    engine.model.capture_layers = (0,)
    with pytest.raises(RuntimeError, match="out of memory"):
        clocked_measurement(monkeypatch, engine, drafter)
    assert not drafter.held
    assert engine.model.capture_layers == (0,)


@settings(max_examples=100)
@given(times=st.dictionaries(st.integers(1, 40), st.tuples(st.floats(0.0, 90.0), st.floats(0.0, 90.0)), max_size=6))
def test_no_time_of_a_draft_is_negative_or_falls_with_the_requests(times: dict[int, tuple[float, float]]) -> None:
    measured = {(n, d): ms for n, pair in times.items() for d, ms in zip((1, 4), pair, strict=True)}
    start, step = calibration.draft_tables(measured)
    assert list(start) == list(step) == sorted(times)
    for table, least in ((start, 0.0), (step, calibration.LEAST_MS)):
        line = list(table.values())
        assert all(ms >= least for ms in line)
        assert line == sorted(line)


@settings(max_examples=60)
@given(
    starts=st.lists(st.floats(0.0, 20.0), min_size=6, max_size=6).map(sorted),
    each=st.lists(st.floats(0.1, 20.0), min_size=6, max_size=6).map(sorted),
    most=st.integers(2, 4),
)
def test_start_and_step_are_those_that_made_the_times(starts: list[float], each: list[float], most: int) -> None:
    lines = list(zip(calibration.DRAFT_REQUESTS, starts, each, strict=True))
    start, step = calibration.draft_tables({(n, d): s + d * t for n, s, t in lines for d in (1, most)})
    assert start == pytest.approx({n: s for n, s, _ in lines}, abs=1e-9)
    assert step == pytest.approx({n: t for n, _, t in lines}, abs=1e-9)


def test_a_drafter_that_looks_up_first_is_measured_where_it_must_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that was looked up takes microseconds, and a table of those would promise free drafts."""
    monkeypatch.setattr(calibration, "DRAFT_REQUESTS", (1, 4))
    monkeypatch.setattr(calibration, "SHAPES", {1: (1,)})
    monkeypatch.setattr(calibration, "CONTEXTS", ())
    engine = small_engine()
    hybrid = HybridDrafter(NgramDrafter(max_draft_steps=4), tiny_head_drafter(engine, 4))
    rest: list[tuple[int, int]] = []
    propose = HeadDrafter.propose

    def count(self: HeadDrafter, seqs: Any, steps: int, rule: Any = None) -> Any:
        rest.append((len(seqs), steps))
        return propose(self, seqs, steps, rule)

    monkeypatch.setattr(HeadDrafter, "propose", count)
    table = calibration.measure(engine, hybrid)
    assert set(table["draft_ms"]) == set(table["draft_start_ms"]) == {1, 4}
    assert rest == [(4, 1), *[(1, 1), (1, 1), (1, 4), (4, 1), (4, 4)] * (1 + calibration.REPEATS)]
    assert not hybrid._head._backlogs


def test_measuring_leaves_the_engine_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "REPEATS", 1)
    monkeypatch.setattr(calibration, "DRAFT_REQUESTS", (1,))
    engine = small_engine()
    engine.model.capture_layers = (1,)
    drafter = tiny_head_drafter(engine, 2)
    calibration.measure(engine, drafter)
    assert engine.model.capture_layers == (1,)
    assert engine.slots.num_free == engine.options.num_slots
    assert not engine.has_work
    assert not drafter._backlogs
    engine.check()


def test_the_key_of_an_engine_names_what_its_times_depend_on() -> None:
    engine = small_engine()
    key = CostKey.of(engine, NgramDrafter(max_draft_steps=1))
    assert (key.model, key.weights, key.threads, key.drafter) == ("0" * 64, "float32", 1, "ngram")
    assert CostKey.of(engine, tiny_head_drafter(engine, 1)).path != key.path
    # Of a head of one step the start is not told apart, of four and of seven it is; an n-gram drafter is not measured.
    assert [CostKey.of(engine, tiny_head_drafter(engine, most)).draft_steps for most in (1, 4, 7)] == [1, 4, 4]
    assert CostKey.of(engine, NgramDrafter(max_draft_steps=7)) == key
    smaller = CostKey.of(small_engine(max_requests=16), NgramDrafter(max_draft_steps=1))
    assert smaller.path != key.path, "a table of few requests says nothing of many"
    assert smaller.sizes.startswith("up to 16 requests, ")


def test_a_table_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "SHAPES", {1: (1, 4), 4: (4, 16)})
    monkeypatch.setattr(calibration, "CONTEXTS", ((4, 4, 64),))
    engine, drafter = tiny_engine(num_slots=2048, max_context=400), NgramDrafter(max_draft_steps=3)
    seen: list[tuple[int, int]] = []
    costs = load_or_measure(engine, drafter, lambda _, done, total: seen.append((done, total)))
    assert {count: table.rows.tolist() for count, table in costs.by_requests.items()} == {1: [1, 4], 4: [4, 16]}
    assert costs.draft is None
    assert seen
    assert seen[-1][0] == seen[-1][1]
    monkeypatch.setattr(calibration, "measure", None)
    again = load_or_measure(engine, drafter)
    assert again.by_requests[4].ms.tolist() == costs.by_requests[4].ms.tolist()
    engine.check()


@given(st.integers(1, 32), st.integers(1, 32), st.data())
def test_measured_rows_are_uneven_and_sum_up_to_what_the_shape_says(
    num_requests: int, most: int, data: st.DataObject
) -> None:
    total = data.draw(st.integers(num_requests, num_requests * most))
    rows = uneven_rows(num_requests, total, most)
    assert len(rows) == num_requests
    assert sum(rows) == total
    assert 1 <= min(rows) <= max(rows) <= most
    if num_requests >= 4 and total >= 2 * num_requests and most * num_requests >= 3 * total:
        assert max(rows) > 2 * min(rows)
