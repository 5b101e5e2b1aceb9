"""Cost tables of a LightLLM server as they are kept: read again, and refused where foreign."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightspec_lightllm.adapters.lightllm import costs
from lightspec_lightllm.errors import CostTableError
from tests.adapters.lightllm.costs.servers import (
    CONFIG,
    Clock,
    Model,
    backend_of,
    per_request,
    per_row,
    stored,
    with_path,
)


def test_a_table_of_another_format_is_measured_again_unless_it_is_named(
    clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_of(folder, Model(clock, per_row), Model(clock, per_row))
    with monkeypatch.context() as before:
        before.setattr(costs, "FORMAT", "lightspec-costs/1")
        costs.load_or_measure(backend, CONFIG, "serial")
    old = stored(folder)
    target = Model(clock, per_row)
    costs.load_or_measure(backend_of(folder, target, Model(clock, per_row)), CONFIG, "serial")
    assert target.inputs
    with pytest.raises(CostTableError, match="expected format 'lightspec-costs/3', got 'lightspec-costs/1'; delete it"):
        costs.load_or_measure(backend, with_path(old), "serial")


def test_a_table_is_measured_once_and_read_again(clock: Clock, folder: Path) -> None:
    first = costs.load_or_measure(backend_of(folder, Model(clock, per_row), Model(clock, per_row)), CONFIG, "serial")
    target = Model(clock, per_request)
    again = costs.load_or_measure(backend_of(folder, target, Model(clock, per_row)), CONFIG, "serial")
    assert target.inputs == []
    assert (again.target.ms == first.target.ms).all()
    assert costs.read(stored(folder)).model().max_rows == 16


@pytest.mark.parametrize(
    "changed",
    [{"mtp_mode": "vanilla_no_att"}, {"data_type": "bfloat16"}, {"quant_type": "fp8"}, {"llm_kv_type": "fp8"}],
)
def test_another_setup_has_a_table_of_its_own(clock: Clock, folder: Path, changed: dict[str, str]) -> None:
    costs.load_or_measure(backend_of(folder, Model(clock, per_row), Model(clock, per_row)), CONFIG, "serial")
    target = Model(clock, per_row)
    backend = backend_of(folder, target, Model(clock, per_row))
    vars(backend.args).update(changed)
    costs.load_or_measure(backend, CONFIG, "serial")
    assert target.inputs


def test_a_table_that_is_named_is_taken_if_it_fits_and_refused_by_what_differs(clock: Clock, folder: Path) -> None:
    costs.load_or_measure(backend_of(folder, Model(clock, per_row), Model(clock, per_row)), CONFIG, "serial")
    named = folder / "table.json"
    stored(folder).rename(named)
    target = Model(clock, per_row)
    backend = backend_of(folder, target, Model(clock, per_row))
    costs.load_or_measure(backend, with_path(named), "serial")
    assert target.inputs == []
    backend.args.data_type = "bfloat16"
    with pytest.raises(CostTableError, match=r"dtype 'float16, .*' where 'bfloat16, .*' is served; delete it, or"):
        costs.load_or_measure(backend, with_path(named), "serial")
    with pytest.raises(CostTableError, match=r"none.json cannot be read"):
        costs.load_or_measure(backend, with_path(folder / "none.json"), "serial")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format": "lightspec-costs/3"', '"format": "lightspec-costs/1"', "expected format"),
        ('"costs"', '"cost"', "is damaged: .*cost"),
        ("{", "", "is damaged"),
        ('"overhead_ms": 0.0', '"overhead_ms": -1.0', "is damaged: .*overhead_ms"),
        ('"tp": 1', '"tp": 2', "tp 2 where 1 is served"),
    ],
)
def test_a_damaged_or_foreign_table_is_refused(clock: Clock, folder: Path, old: str, new: str, message: str) -> None:
    backend = backend_of(folder, Model(clock, per_row), Model(clock, per_row))
    costs.load_or_measure(backend, CONFIG, "serial")
    path = stored(folder)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(CostTableError, match=message):
        costs.load_or_measure(backend, CONFIG, "serial")


def test_a_cache_that_cannot_be_written_costs_a_warning(
    clock: Clock, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "cache").write_text("no folder")
    found = costs.load_or_measure(backend_of(folder, Model(clock, per_row), Model(clock, per_row)), CONFIG, "serial")
    assert found.target_ms(1, 1, 10) > 0
    assert "it will be measured again" in caplog.text
