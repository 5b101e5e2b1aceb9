"""Cost tables of a LightLLM server: measured on stand-ins whose times are known, kept, and refused where foreign."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm import costs, measuring
from lightspec_lightllm.adapters.lightllm.graphs import graph_sizes
from lightspec_lightllm.adapters.lightllm.options import CostOptions, LightLLMConfig
from lightspec_lightllm.config import PlannerConfig
from lightspec_lightllm.errors import CostTableError

STEPS = 3
VOCAB = 50


class Clock:
    """Time that only forwards spend."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds

    monotonic = time.monotonic


class Shape(NamedTuple):
    """Of a forward: its rows, the requests that attention sees in them, and the shortest context."""

    rows: int
    requests: int
    context: int


class Model:
    """A forward takes ``ms(shape)``."""

    def __init__(self, clock: Clock, ms: Callable[[Shape], float], *, graph: Any = None, size: int = 400) -> None:
        self._clock, self._ms, self.graph = clock, ms, graph
        self.graph_max_batch_size = 16
        self.vocab_size = VOCAB
        self.decode_att_backend = SimpleNamespace()
        self.req_manager = SimpleNamespace(
            req_to_token_indexs=torch.full((9, 120), -1, dtype=torch.int32), max_request_num=8, HOLD_REQUEST_ID=8
        )
        self.mem_manager = Slots(size)
        self.inputs: list[Any] = []

    def _gen_special_model_input(self, rows: int) -> dict[str, Any]:
        return {"mtp_draft_input_hiddens": torch.zeros(rows, 4)}

    def forward(self, model_input: Any) -> Any:
        self.inputs.append(model_input)
        segments = int((model_input.b_mtp_index == 0).sum())
        shape = Shape(model_input.batch_size, segments, int(model_input.b_seq_len.min()))
        self._clock.seconds += 1e-3 * self._ms(shape)
        return SimpleNamespace(logits=torch.zeros(model_input.batch_size, VOCAB))


class FillingModel(Model):
    """A drafter that takes verified rows in without a forward, ``fill_ms(shape)`` long."""

    def __init__(self, clock: Clock, ms: Callable[[Shape], float], fill_ms: Callable[[Shape], float]) -> None:
        super().__init__(clock, ms)
        self._fill_ms = fill_ms

    def filled(self, model_input: Any) -> None:
        self.inputs.append(model_input)
        shape = Shape(model_input.batch_size, model_input.batch_size, int(model_input.b_seq_len.min()))
        self._clock.seconds += 1e-3 * self._fill_ms(shape)


class Slots:
    """LightLLM's token slots, as far as they matter here."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_slots = list(range(size))
        self.allocator = self

    @property
    def can_use_mem_size(self) -> int:
        return len(self.free_slots)

    def alloc(self, count: int) -> torch.Tensor:
        taken, self.free_slots = self.free_slots[:count], self.free_slots[count:]
        return torch.tensor(taken, dtype=torch.int32)

    def free(self, slots: torch.Tensor) -> None:
        self.free_slots += slots.tolist()


@dataclasses.dataclass
class Input:
    """LightLLM's ``ModelInput``."""

    batch_size: int
    total_token_num: int
    max_q_seq_len: int
    max_kv_seq_len: int
    input_ids: Any
    b_req_idx: Any
    b_mtp_index: Any
    b_seq_len: Any
    b_position_delta: Any
    mem_indexes: Any
    is_prefill: bool
    multimodal_params: Any
    mtp_draft_input_hiddens: Any = None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stand-ins for LightLLM, the device and the clock."""
    made, module = Clock(), ModuleType("batch_objs")
    module.ModelInput = Input  # type: ignore[attr-defined]
    for name in ("lightllm", "lightllm.common", "lightllm.common.basemodel"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lightllm.common.basemodel.batch_objs", module)
    monkeypatch.setattr(measuring, "time", made)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(costs, "_sampling", lambda _: lambda *_: None)
    monkeypatch.setattr(ops, "draft_scores", lambda _: None)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, and a model's folder in it."""
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name}))
    return tmp_path


CONFIG = LightLLMConfig(
    planner=PlannerConfig(max_draft_steps=STEPS),
    costs=CostOptions(contexts=(10, 50, 4096), repeats=3, graph_sizes=6, max_verify_rows=16),
)


def per_row(shape: Shape) -> float:
    return 5.0 + shape.rows * (0.1 + 0.01 * shape.context)


def per_request(shape: Shape) -> float:
    return 5.0 + 0.1 * shape.rows + 0.01 * shape.requests * shape.context


def backend_of(folder: Path, model: Model, *drafts: Model) -> Any:
    args = SimpleNamespace(
        model_dir=str(folder / "target"),
        mtp_draft_model_dir=[str(folder / "draft")] * len(drafts),
        mtp_mode="eagle_with_att",
        data_type="float16",
        quant_type="none",
        llm_kv_type="None",
    )
    return SimpleNamespace(
        model=model,
        draft_models=list(drafts),
        args=args,
        world_size=1,
        rank_in_node=0,
        logger=logging.getLogger(__name__),
    )


def stored(folder: Path) -> Path:
    (path,) = (folder / "cache" / "costs" / "lightllm").glob("*.json")
    return path


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


def test_the_slowest_of_a_shapes_first_runs_does_not_count(clock: Clock, folder: Path) -> None:
    calls = {"count": 0}

    def warming(_: Shape) -> float:
        calls["count"] += 1
        return 100.0 if calls["count"] % 6 in {1, 2, 3, 5} else 2.0  # three warm-ups, then one of three is slow

    found = costs.load_or_measure(backend_of(folder, Model(clock, warming), Model(clock, per_row)), CONFIG, "serial")
    assert found.target.ms == pytest.approx(2.0)


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


def with_path(path: Path) -> LightLLMConfig:
    return dataclasses.replace(CONFIG, costs=dataclasses.replace(CONFIG.costs, path=str(path)))


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


def test_a_model_without_room_for_drafts_is_refused(clock: Clock, folder: Path) -> None:
    target = Model(clock, per_row)
    target.req_manager.req_to_token_indexs = torch.zeros(9, STEPS, dtype=torch.int32)
    with pytest.raises(CostTableError, match="raise --max_req_total_len"):
        costs.load_or_measure(backend_of(folder, target, Model(clock, per_row)), CONFIG, "serial")
