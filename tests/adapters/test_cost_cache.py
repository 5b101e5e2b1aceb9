"""Kept cost tables: their costs between what was measured, the key, and what is refused."""

import json
import math
import os
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.adapters import calibration, cost_cache
from lightspec_lightllm.adapters.cost_cache import CostKey, cost_model, load, load_or_measure, refined, usual_threads
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.errors import CostTableError
from tests.adapters.test_calibration import small_engine
from tests.adapters.test_embedded_lossless import tiny_head_drafter
from tests.engine.tiny_llama import tiny_engine

KEY = CostKey(
    format=7,
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
    costs = cost_model({"target_ms": measured, "draft_ms": {}, "draft_start_ms": {}, "request_token_ms": 0.0})
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
    costs = cost_model({"target_ms": measured, "draft_ms": {}, "draft_start_ms": {}, "request_token_ms": 0.0})
    for num_requests in (3, 5, 6, 7, 9, 12):
        growth = np.diff([costs.target_ms(rows, num_requests, 0.0) for rows in range(num_requests, 65)])
        assert growth == pytest.approx([21.0 if rows == 15 else 1.0 for rows in range(num_requests + 1, 65)])


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
    other: dict[str, Any] = {field: 99 if isinstance(getattr(KEY, field), int) else "other"}
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
    monkeypatch.setattr(cost_cache, "measure", None)
    again = load_or_measure(engine, drafter)
    assert again.by_requests[4].ms.tolist() == costs.by_requests[4].ms.tolist()
    engine.check()


def test_the_usual_threads_are_those_of_the_table_that_was_measured_last_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path))
    folder = tmp_path / "costs"
    assert usual_threads(KEY.model, KEY.weights) is None
    folder.mkdir()
    here = cost_cache.served_here(KEY.model, KEY.weights)
    others: list[dict[str, Any]] = [{"model": "b" * 64}, {"weights": "float32"}, {"device": "another"}, {"format": 4}]
    keys: list[dict[str, Any]] = [{"threads": 4}, {"threads": 2, "drafter": "head"}]
    keys += [{"threads": 1, **other} for other in others]
    for age, changes in enumerate(keys):
        path = folder / f"{age}.json"
        path.write_text(json.dumps({"key": {**asdict(KEY), **here, **changes}, **TABLE}))
        os.utime(path, (1e9 + age, 1e9 + age))
    (folder / "damaged.json").write_text("{")
    (folder / "foreign.json").write_text("[]")
    (folder / "endless.json").write_text(json.dumps({"key": {**asdict(KEY), **here, "threads": math.inf}}))
    assert usual_threads(KEY.model, KEY.weights) == 2
    os.utime(folder / "0.json")
    assert usual_threads(KEY.model, KEY.weights) == 4
