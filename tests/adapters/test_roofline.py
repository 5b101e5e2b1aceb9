"""The modelled GPU: its lines are what its constants say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.roofline import CapturedSizes, Roofline, load_roofline
from lightspec_lightllm.errors import ConfigError

FILE = Path(__file__).parents[2] / "configs" / "costs" / "h200-qwen3-14b.yaml"
H200 = load_roofline(FILE)
COSTS = H200.costs()


def test_few_rows_cost_what_reading_the_weights_does() -> None:
    assert H200.floor_ms == pytest.approx(7.2, rel=0.005)
    assert COSTS.lines(1, 2.0)[0][1] == pytest.approx(H200.floor_ms, rel=1e-6)
    assert COSTS.lines(32, 2.0)[0][32] == pytest.approx(7.2, rel=0.01)


def test_each_of_many_rows_costs_its_arithmetic() -> None:
    assert H200.row_ms() == pytest.approx(0.048, rel=0.005)
    line = COSTS.lines(4096, 2.0)[0]
    assert (line[4096] - line[2048]) / 2048 == pytest.approx(0.048, rel=0.01)


def test_the_knee_is_near_150_rows() -> None:
    assert H200.knee_rows == pytest.approx(150, rel=0.01)
    assert H200.target_ms(H200.knee_rows) == pytest.approx(2**0.25 * H200.floor_ms)


def test_the_kv_cache_takes_164_kb_per_token_and_the_time_to_read_them() -> None:
    assert H200.target.kv_bytes_per_token == 40 * 8 * 128 * 2 * 2 == 163_840
    longer = COSTS.target_ms(64, 64, 512.0) - COSTS.target_ms(64, 64, 2.0)
    read_ms = 64 * 510 * 163_840 / (4.8e12 * 0.81) * 1e3
    more_arithmetic = H200.target_ms(64, 512.0) - H200.target_ms(64, 2.0)
    assert longer == pytest.approx(read_ms + more_arithmetic)
    assert more_arithmetic < 0.01 * read_ms


def test_the_kv_cache_is_read_once_per_request_whatever_its_rows() -> None:
    one = COSTS.base_ms(8, 1000.0)
    assert one == pytest.approx(0.3 + 8 * 1000 * H200.kv_ms_per_token)
    both = [COSTS.target_ms(rows, 8, 1000.0) - COSTS.lines(rows, 1000.0)[0][rows] for rows in (8, 128)]
    assert both == pytest.approx([one, one])


def test_a_longer_context_adds_arithmetic_to_every_row() -> None:
    # 4 FLOP per weight of attention: 40 layers x 40 heads x 128, for every token of the context.
    more = 4 * 40 * 40 * 128 * 2048 / (989e12 * 0.59) * 1e3
    assert H200.row_ms(2048) - H200.row_ms(0) == pytest.approx(more)
    assert COSTS.lines(4096, 2048.0)[0][4096] > COSTS.lines(4096, 512.0)[0][4096] > COSTS.lines(4096, 2.0)[0][4096]


def test_a_draft_step_takes_350_us_and_1_point_2_us_per_further_request() -> None:
    steps = [COSTS.draft_ms("serial_no_kv", requests, 0, 1, block=1) for requests in (1, 2, 32)]
    assert steps == pytest.approx([0.35, 0.3512, 0.35 + 31 * 0.0012])


@given(rows=st.integers(1, 4096), context=st.sampled_from([2.0, 512.0, 2048.0, 8192.0]))
def test_a_batch_is_padded_up_to_the_next_captured_size(rows: int, context: float) -> None:
    sizes = H200.captured.sizes()
    padded = next(size for size in sizes if size >= rows)
    assert padded - rows < (1 if rows <= 32 else 16 if rows <= 512 else 64)
    assert COSTS.lines(rows, context)[0][rows] == pytest.approx(H200.target_ms(padded, context))


@given(sharpness=st.floats(1.0, 50.0), rows=st.floats(0.0, 5000.0))
def test_a_forward_is_never_faster_than_reading_or_multiplying_alone(sharpness: float, rows: float) -> None:
    bent = dataclasses.replace(H200, knee_sharpness=sharpness)
    alone = max(bent.floor_ms, rows * bent.row_ms())
    assert alone <= bent.target_ms(rows) <= 2 ** (1 / sharpness) * alone * (1 + 1e-12)


def test_captured_sizes_end_where_they_should() -> None:
    sizes = CapturedSizes(each_to=4, step=8, step_to=30, wide_step=100, largest=300).sizes()
    assert sizes == (1, 2, 3, 4, 12, 20, 28, 30, 130, 230, 300)


def test_the_largest_batch_is_passed_on() -> None:
    assert H200.costs(max_rows=512).max_rows == 512
    assert np.isclose(H200.costs().overhead_ms, 0.3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tflops: 989.0", "tflops: -1.0", "gpu.tflops: expected a finite number above 0, got -1.0"),
        ("compute_share: 0.59", "compute_share: 1.5", "gpu.compute_share: expected a share of at most 1, got 1.5"),
        ("layers: 40", "layers: 0", "target.layers: expected a finite number above 0, got 0"),
        ("layers: 40", "layer: 40", "target.layer is not a known key; did you mean target.layers?"),
        ("  layers: 40\n", "", "target.layers: expected a value, the key is missing"),
        ("row_us: 1.2", "row_us: fast", "drafter.row_us: it should be a valid number, got 'fast' (str)"),
        ("step_to: 512", "step_to: 16", "captured: expected each_to <= step_to <= largest, got 32, 16, 4096"),
        ("[2, 512,", "[2, 2,", "contexts: expected ascending token counts from 0 on, got [2, 2, 2048, 8192]"),
        ("knee_sharpness: 4.0", "knee_sharpness: 0.5", "knee_sharpness: expected at least 1, got 0.5"),
        ("overhead_ms: 0.3", "overhead_ms: -0.3", "overhead_ms: expected a time of at least 0, got -0.3"),
    ],
)
def test_a_fault_names_the_file_the_key_and_what_was_expected(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "gpu.yaml"
    text = FILE.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_roofline(path)
    assert message in str(caught.value)
    assert "gpu.yaml" in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_roofline(tmp_path / "nowhere.yaml")


def test_every_constant_moves_some_cost() -> None:
    def table(model: Roofline) -> tuple[object, ...]:
        return model.target_table(), model.draft_table(), model.kv_ms_per_token, model.overhead_ms

    for section in ("gpu", "target", "drafter", "captured"):
        part = getattr(H200, section)
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            other = dataclasses.replace(part, **{field.name: value + 16 if section == "captured" else value * 0.5})
            assert table(dataclasses.replace(H200, **{section: other})) != table(H200), field.name
