"""What is measured of a LightLLM server, on stand-ins whose times are known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightspec_lightllm.adapters.lightllm import costs
from lightspec_lightllm.adapters.lightllm.graphs import graph_sizes
from lightspec_lightllm.errors import CostTableError
from tests.adapters.lightllm.costs.servers import (
    CONFIG,
    STEPS,
    Clock,
    FillingModel,
    Model,
    Shape,
    backend_of,
    per_request,
    per_row,
)


def test_every_size_is_measured_at_every_context_that_fits(clock: Clock, folder: Path) -> None:
    target, draft = Model(clock, per_row), Model(clock, lambda shape: 1.0 + 0.1 * shape.rows)
    found = costs.load_or_measure(backend_of(folder, target, draft), CONFIG, "serial")
    sizes = graph_sizes(16, 6)
    assert found.target.rows.tolist() == sizes
    assert found.target.contexts.tolist() == [10, 50, 120 - STEPS]
    for context in (10, 50, 117):
        for rows in sizes:
            assert found.target_ms(rows, rows, context) == pytest.approx(per_row(Shape(rows, rows, context)))
    assert found.draft is not None
    assert found.draft.ms[0].tolist() == pytest.approx([1.0 + 0.1 * rows for rows in sizes])
    assert found.request_token_ms == pytest.approx(0.0, abs=1e-12)
    assert found.max_rows == 16


def test_attention_that_reads_a_requests_context_once_is_priced_per_request(clock: Clock, folder: Path) -> None:
    found = costs.load_or_measure(
        backend_of(folder, Model(clock, per_request), Model(clock, per_row)), CONFIG, "serial"
    )
    assert found.request_token_ms == pytest.approx(0.01)
    for rows, requests, context in ((16, 4, 50), (16, 8, 117), (8, 8, 10), (4, 1, 50)):
        assert found.target_ms(rows, requests, context) == pytest.approx(per_request(Shape(rows, requests, context)))


def test_ids_are_random_and_rows_are_requests_with_slots_of_their_own(clock: Clock, folder: Path) -> None:
    target = Model(clock, per_row)
    draft = Model(clock, per_row)
    costs.load_or_measure(backend_of(folder, target, draft), CONFIG, "serial")
    largest = max(target.inputs, key=lambda given: given.batch_size)
    assert len(set(largest.input_ids.tolist())) > 4
    assert set(largest.b_req_idx.tolist()) == set(range(8))  # never the one that padded rows use
    table = target.req_manager.req_to_token_indexs
    assert (table[8] == -1).all()
    assert ((table[:8] >= 0) & (table[:8] < 400)).all()
    assert len(set(table[:3].flatten().tolist())) == 3 * 120
    assert all(given.mtp_draft_input_hiddens.shape[0] == given.batch_size for given in draft.inputs)


def test_every_batch_has_room_for_the_blocks_that_a_drafter_may_make_of_its_rows(clock: Clock, folder: Path) -> None:
    target, draft = Model(clock, per_row), FillingModel(clock, per_row, per_row)
    costs.load_or_measure(backend_of(folder, target, draft), CONFIG, "block")
    contexts = {10, 50, 120 - STEPS}
    for model in (target, draft):
        assert {int(batch.b_seq_len.min()) for batch in model.inputs} == contexts
        for batch in model.inputs:
            assert batch.max_kv_seq_len == int(batch.b_seq_len.min()) + STEPS
            assert batch.total_token_num == batch.batch_size * batch.max_kv_seq_len


def test_requests_that_only_the_drafter_has_rows_of_have_slots_too(clock: Clock, folder: Path) -> None:
    graphs = [SimpleNamespace(cuda_graph_batch_sizes=sizes, graph_max_len_in_batch=40) for sizes in ([2, 4], [2, 6])]
    target, draft = (Model(clock, per_row, graph=graph) for graph in graphs)
    costs.load_or_measure(backend_of(folder, target, draft), CONFIG, "block")
    table = target.req_manager.req_to_token_indexs
    assert (table[:6, :40] >= 0).all()
    assert (table[6:] == -1).all()


def test_all_slots_are_free_afterwards_even_if_a_forward_fails(clock: Clock, folder: Path) -> None:
    def broken(shape: Shape) -> float:
        if shape.rows > 3:
            raise RuntimeError("out of memory")
        return 1.0

    target = Model(clock, broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        costs.load_or_measure(backend_of(folder, target, Model(clock, per_row)), CONFIG, "serial")
    assert sorted(target.mem_manager.free_slots) == list(range(400))


def test_a_pool_smaller_than_the_batch_is_shared_by_its_rows(clock: Clock, folder: Path) -> None:
    target = Model(clock, per_row, size=12)
    found = costs.load_or_measure(backend_of(folder, target, Model(clock, per_row)), CONFIG, "serial")
    assert found.target.contexts.tolist() == [10, 12]
    assert max(given.batch_size for given in target.inputs) == 16
    assert len(target.mem_manager.free_slots) == 12


def test_captured_sizes_are_a_staircase_and_eager_ones_are_not(clock: Clock, folder: Path) -> None:
    graph = SimpleNamespace(cuda_graph_batch_sizes=[2, 8, 12], graph_max_len_in_batch=40)
    captured = costs.load_or_measure(
        backend_of(folder, Model(clock, per_row, graph=graph), Model(clock, per_row, graph=graph)), CONFIG, "serial"
    )
    assert captured.target.rows.tolist() == [2, 8, 12]
    assert captured.target.contexts.tolist() == [10, 40 - STEPS]
    assert captured.max_rows == 12
    assert captured.target_ms(3, 3, 10) == captured.target_ms(8, 8, 10)
    eager = costs.load_or_measure(backend_of(folder, Model(clock, per_row), Model(clock, per_row)), CONFIG, "serial")
    assert eager.target_ms(10, 10, 10) < eager.target_ms(11, 11, 10) < eager.target_ms(12, 12, 10)


def test_a_drafter_of_several_models_costs_their_mean(clock: Clock, folder: Path) -> None:
    drafts = [Model(clock, lambda _, ms=ms: ms) for ms in (1.0, 2.0, 6.0)]  # type: ignore[misc]
    found = costs.load_or_measure(backend_of(folder, Model(clock, per_row), *drafts), CONFIG, "chained")
    assert found.draft is not None
    assert found.draft.ms == pytest.approx(3.0)


def test_what_runs_over_all_verified_rows_is_measured_at_the_targets_sizes(clock: Clock, folder: Path) -> None:
    draft = FillingModel(clock, lambda shape: 1.0 + 0.1 * shape.rows, lambda shape: 0.2 + 0.01 * shape.rows)
    found = costs.load_or_measure(backend_of(folder, Model(clock, per_row), draft), CONFIG, "block")
    assert found.fill is not None
    assert found.fill.rows.tolist() == found.target.rows.tolist() == graph_sizes(16, 6)
    assert found.fill.contexts.tolist() == [10, 50, 120 - STEPS]
    block, rows = 2 * STEPS, 4
    assert found.draft_ms("block", 2, rows, STEPS, block=STEPS) == pytest.approx(
        (1.0 + 0.1 * block) + (0.2 + 0.01 * rows)
    )
    again = costs.load_or_measure(backend_of(folder, Model(clock, per_request), draft), CONFIG, "block")
    assert again.fill is not None
    assert (again.fill.ms == found.fill.ms).all()


def test_a_drafter_whose_verified_rows_are_a_forward_like_any_other_has_no_table_of_them(
    clock: Clock, folder: Path
) -> None:
    found = costs.load_or_measure(backend_of(folder, Model(clock, per_row), Model(clock, per_row)), CONFIG, "serial")
    assert found.fill is None


def test_the_slowest_of_a_shapes_first_runs_does_not_count(clock: Clock, folder: Path) -> None:
    calls = {"count": 0}

    def warming(_: Shape) -> float:
        calls["count"] += 1
        return 100.0 if calls["count"] % 6 in {1, 2, 3, 5} else 2.0  # three warm-ups, then one of three is slow

    found = costs.load_or_measure(backend_of(folder, Model(clock, warming), Model(clock, per_row)), CONFIG, "serial")
    assert found.target.ms == pytest.approx(2.0)


def test_a_model_without_room_for_drafts_is_refused(clock: Clock, folder: Path) -> None:
    target = Model(clock, per_row)
    target.req_manager.req_to_token_indexs = torch.zeros(9, STEPS, dtype=torch.int32)
    with pytest.raises(CostTableError, match="raise --max_req_total_len"):
        costs.load_or_measure(backend_of(folder, target, Model(clock, per_row)), CONFIG, "serial")
