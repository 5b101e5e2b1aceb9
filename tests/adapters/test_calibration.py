"""Measuring what rounds of the embedded engine cost: what is run, what is timed, and the fit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters import calibration
from lightspec_lightllm.adapters.calibration import tabulate, uneven_rows
from lightspec_lightllm.adapters.cost_cache import cost_model, load_or_measure
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.drafters.base import DrafterKind, Proposals, SequenceView
from lightspec_lightllm.drafters.head import HeadDrafter
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.engine import Engine, EngineOptions
from tests.adapters.test_embedded_lossless import tiny_head_drafter
from tests.engine.tiny_llama import tiny_model

SIZES = [(count, rows, calibration.CONTEXT) for count, all_rows in calibration.SHAPES.items() for rows in all_rows]


def test_tables_and_context_add_up_to_what_was_measured() -> None:
    shapes = [*SIZES, *calibration.CONTEXTS]
    times = [20.0 + 0.8 * rows + n * (0.5 + 0.01 * rows + 0.002 * context) for n, rows, context in shapes]
    tables, per_token = tabulate(shapes, times)
    assert per_token == pytest.approx(0.002)
    for (n, rows, context), ms in zip(shapes, times, strict=True):
        assert tables[n][rows] + n * context * per_token == pytest.approx(ms)


def test_tables_never_pay_for_rows_or_context() -> None:
    tables, per_token = tabulate([(4, 4, 64), (4, 8, 64), (4, 8, 768)], [30.0, 20.0, 10.0])
    assert per_token == 0.0
    assert tables == {4: {4: 30.0, 8: 30.0}}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_undisturbed_shapes_take_is_found_on_a_machine_that_changes_its_speed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.uniform(40.0, 200.0, 45)
    passes = calibration.REPEATS * calibration.OFTEN
    speed = np.exp(rng.normal(0.0, 0.3, (passes, 1)))
    disturbed = np.where(rng.random((passes, 45)) < 0.05, rng.uniform(1.2, 3.0), 1.0)
    times = truth * speed * disturbed * rng.normal(1.0, 0.01, disturbed.shape)
    times[1::2, rng.random(45) < 0.3] = np.nan  # not of every pass
    seldom = np.nanmean(np.where(np.isnan(times), np.nan, disturbed > 1.0), axis=0) <= 0.5  # a few are disturbed often
    found = (calibration.steady(times) / truth)[seldom]
    np.testing.assert_allclose(found, np.median(found), rtol=0.03)


@pytest.mark.parametrize(("seconds", "repeats"), [(1.0, 6), (3.0, 6), (6.0, 3), (4.0, 4), (600.0, 3)])
def test_a_slow_machine_measures_sizes_less_often_and_never_too_seldom(
    monkeypatch: pytest.MonkeyPatch, seconds: float, repeats: int
) -> None:
    """Two sizes of so many seconds each, of which one is measured twice as often."""
    clock = [0.0]
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    calls, heard = [0, 0], []

    def run(which: int) -> float:
        calls[which] += 1
        clock[0] += seconds
        return 1e3 * seconds

    runs = [lambda: run(0), lambda: run(1)]
    times = calibration._times(runs, [True, False], lambda _, done, total: heard.append((done, total)))
    assert calls == [1 + 2 * repeats, 1 + repeats]
    assert times.shape == (2 * repeats, 2)
    assert np.isnan(times[:, 1]).tolist() == [False, True] * repeats
    assert heard[-1] == (sum(calls), sum(calls))
    assert [done for done, _ in heard] == list(range(1, sum(calls) + 1))


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
    assert drafter.calls == [("propose", 16, 1)] + one_pass * 5  # to warm up, and twice two, since none is large
    total = 5 * (3 + len(shapes))
    assert seen == [(done, total) for done in range(1, total + 1)]
    costs = cost_model(table)
    assert costs.draft_ms("serial_no_kv", 16, 16, 3, block=1) == pytest.approx(1.0 + 0.5 * 16 + 3 * 6.0)


def test_large_sizes_are_measured_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "USUAL", (2, 3))
    drafter = Clocked(lambda _: 1.0, lambda _: 2.0)
    seen: list[tuple[int, int]] = []
    engine = small_engine(max_requests=4)
    table = clocked_measurement(monkeypatch, engine, drafter, lambda _, done, total: seen.append((done, total)))
    assert table["draft_ms"] == pytest.approx({1: 2.0, 2: 2.0, 4: 2.0})
    drafts = [call[1] for call in drafter.calls if call[0] == "propose"][1:]
    assert drafts == [1, 1, 1, 2, 2, 4, 4] + [1, 1, 1, 2, 2, 4, 4, 1, 1, 1, 2, 2] * 2
    forwards = 3 * 2 + 2 * 1  # of two sizes three times, of the one row twice more
    assert len(seen) == seen[-1][1] == forwards + len(drafts)
    assert len([call for call in drafter.calls if call[0] == "forward"]) == forwards + len(drafts)


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
    costs = cost_model(table)
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
    assert rest == [(4, 1), *[(1, 1), (1, 1), (1, 4), (4, 1), (4, 4)] * (1 + calibration.REPEATS * calibration.OFTEN)]
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
