"""Cost tables of the embedded engine: the fit, the key, and what is refused."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.adapters import calibration
from lightspec_lightllm.adapters.calibration import CostKey, fit, load, load_or_measure
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.errors import CostTableError
from tests.engine.tiny_llama import tiny_engine

KEY = CostKey(
    format=1, model="a" * 64, weights="float16", threads=2, drafter="ngram", device="a cpu, 2 cores", torch="2.13.0"
)
TABLE: dict[str, Any] = {
    "target_ms": {"1": 20.0, "8": 30.0, "64": 90.0},
    "draft_ms": {},
    "request_ms": 0.5,
    "request_token_ms": 0.001,
}


def stored(folder: Path, **changes: Any) -> Path:
    path = folder / "table.json"
    key = {field.name: getattr(KEY, field.name) for field in fields(KEY)}
    path.write_text(json.dumps({"key": key, **TABLE, **changes}))
    return path


def test_the_fit_recovers_what_rows_requests_and_context_cost() -> None:
    shapes = [(n, rows, 256) for n, rows, _ in [*((n, r, 0) for n in (1, 2, 4, 8) for r in (1, 2, 4, 8))]]
    shapes += [(4, 2, 64), (8, 1, 768), (2, 4, 768)]
    times = [20.0 + 0.8 * n * rows + n * (0.5 + 0.002 * context) for n, rows, context in shapes]
    table, request_ms, request_token_ms = fit(shapes, times)
    assert request_token_ms == pytest.approx(0.002, rel=1e-3)
    for n, rows, context in shapes:
        expected = 20.0 + 0.8 * n * rows + n * (0.5 + 0.002 * context)
        assert table[n * rows] + n * (request_ms + request_token_ms * context) == pytest.approx(expected, rel=1e-3)


def test_the_fit_never_pays_for_requests_or_context() -> None:
    table, request_ms, request_token_ms = fit([(1, 4, 64), (4, 1, 64), (4, 1, 768)], [30.0, 20.0, 10.0])
    assert request_ms >= 0
    assert request_token_ms >= 0
    assert list(table.values()) == sorted(table.values())


def test_a_stored_table_gives_its_costs(tmp_path: Path) -> None:
    costs = load(stored(tmp_path), KEY)
    assert costs.target_ms(8, 2, 100.0) == pytest.approx(30.0 + 2 * (0.5 + 0.1))
    assert costs.target_ms(36, 1, 0.0) == pytest.approx(60.5)  # between two measured sizes


@pytest.mark.parametrize("field", [field.name for field in fields(CostKey)])
def test_a_table_of_another_setting_is_refused_by_name(tmp_path: Path, field: str) -> None:
    other: dict[str, Any] = {field: 7 if isinstance(getattr(KEY, field), int) else "other"}
    changed = replace(KEY, **other)
    assert changed.path != KEY.path
    with pytest.raises(CostTableError, match=rf"measured for {field} .*delete it to measure again"):
        load(stored(tmp_path), changed)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"key": {}}', '{"key": {}, "target_ms": {"x": 1}}'],
)
def test_a_damaged_table_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(CostTableError, match="is damaged"):
        load(path, KEY)


def test_a_table_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "SHAPES", ((1, 1), (1, 4), (4, 1), (4, 4)))
    monkeypatch.setattr(calibration, "CONTEXTS", ((4, 1, 64),))
    engine, drafter = tiny_engine(num_slots=2048, max_context=400), NgramDrafter(max_draft_steps=3)
    seen: list[tuple[int, int]] = []
    costs = load_or_measure(engine, drafter, lambda _, done, total: seen.append((done, total)))
    assert costs.target.rows.tolist() == [1, 4, 16]
    assert costs.draft is None
    assert seen
    assert seen[-1][0] == seen[-1][1]
    monkeypatch.setattr(calibration, "measure", None)
    again = load_or_measure(engine, drafter)
    assert again.target.ms.tolist() == costs.target.ms.tolist()
    engine.check()
