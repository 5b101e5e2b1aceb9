"""The list of captured sizes, and the hooks that LightLLM asks for it."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.lightllm import graphs, options
from lightspec_lightllm.adapters.lightllm.options import CostOptions, LightLLMConfig
from lightspec_lightllm.errors import ConfigError


def switch(monkeypatch: pytest.MonkeyPatch, config: LightLLMConfig | None) -> None:
    monkeypatch.setattr(options, "current", lambda: config)


@given(units=st.integers(1, 3000), count=st.integers(1, 200), multiple_of=st.sampled_from((1, 2, 4, 8)))
def test_sizes_keep_lightllms_contract(units: int, count: int, multiple_of: int) -> None:
    sizes = graphs.graph_sizes(units * multiple_of, count, multiple_of)
    assert sizes == sorted(set(sizes))
    assert 1 <= len(sizes) <= count
    assert sizes[-1] == units * multiple_of
    assert all(size % multiple_of == 0 and size > 0 for size in sizes)


@given(max_rows=st.integers(1, 4096), count=st.integers(24, 128))
def test_no_batch_is_padded_by_more_than_half(max_rows: int, count: int) -> None:
    sizes = graphs.graph_sizes(max_rows, count)
    assert sizes[0] == 1
    assert all(high - low <= max(1, low // 2) for low, high in itertools.pairwise(sizes))


def test_the_default_is_dense_below_16_and_has_four_sizes_per_octave_above() -> None:
    sizes = graphs.graph_sizes(1024, 40)
    assert len(sizes) == 40
    assert sizes[:16] == list(range(1, 17))
    assert sizes[16:] == [step << octave for octave in range(2, 8) for step in (5, 6, 7, 8)]


def test_few_sizes_still_span_the_range() -> None:
    assert graphs.graph_sizes(4096, 4) == [1, 16, 256, 4096]
    assert graphs.graph_sizes(8, 100) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("arguments", [(0, 40, 1), (16, 0, 1), (10, 40, 4)])
def test_impossible_lists_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="graph sizes: expected"):
        graphs.graph_sizes(*arguments)


def test_lightllms_own_list_is_left_alone_while_dynamic_mode_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def original(max_batch_size: int = 8, tp_world_size: int = 1) -> list[int]:
        return [tp_world_size, max_batch_size]

    wrapped = graphs.wrap_batch_sizes(original)
    switch(monkeypatch, None)
    assert wrapped(max_batch_size=64, tp_world_size=2) == [2, 64]
    switch(monkeypatch, dataclasses.replace(LightLLMConfig(), costs=CostOptions(graph_sizes=5)))
    assert wrapped(max_batch_size=64, tp_world_size=2) == graphs.graph_sizes(64, 5)


def test_the_cap_of_rows_is_a_cap_and_only_in_dynamic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    wrapped = graphs.wrap_verify_must(checked.append)
    for config, before, after in (
        (None, 2048, 2048),
        (dataclasses.replace(LightLLMConfig(), costs=CostOptions(max_verify_rows=512)), 2048, 512),
        (dataclasses.replace(LightLLMConfig(), costs=CostOptions(max_verify_rows=512)), 64, 64),
    ):
        model = SimpleNamespace(graph_max_batch_size=before)
        switch(monkeypatch, config)
        wrapped(model)
        assert model.graph_max_batch_size == after
        assert checked[-1] is model


@pytest.mark.parametrize(
    ("steps", "block_rows", "requests", "max_rows", "rows"),
    [
        (7, 8, 256, 1024, 256 * 8),
        (7, 7, 256, 1024, 256 * 7),  # the anchor drafts, too: LightLLM multiplies by 8 all the same
        (15, 16, 64, 1024, 64 * 16),
        (15, 16, 256, 1024, 128 * 16),
        (6, 7, 256, 512, 146 * 7),
        (15, 16, 256, 16, 2 * 16),
    ],
)
def test_a_block_drafter_is_captured_for_whole_blocks_of_as_many_requests_as_twice_the_rows_hold(
    steps: int, block_rows: int, requests: int, *, max_rows: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = CostOptions(max_verify_rows=max_rows)
    switch(monkeypatch, dataclasses.replace(LightLLMConfig(), costs=costs).with_draft_steps(steps))
    model = SimpleNamespace(graph_max_batch_size=requests * (1 + steps), block_rows=block_rows)
    graphs.wrap_verify_must(lambda _: None)(model)
    assert model.graph_max_batch_size == rows


def test_fa3_is_tuned_for_fixed_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[object] = []
    wrapped = graphs.wrap_decode_autotune(tuned.append)
    switch(monkeypatch, LightLLMConfig())
    wrapped("model")
    assert tuned == []
    switch(monkeypatch, None)
    wrapped("model")
    assert tuned == ["model"]
