"""LightLLM servers that are stand-ins: times of their forwards are known, on a clock of its own."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from lightspec_lightllm.adapters.lightllm.options import CostOptions, LightLLMConfig
from lightspec_lightllm.config import PlannerConfig

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


def with_path(path: Path) -> LightLLMConfig:
    return dataclasses.replace(CONFIG, costs=dataclasses.replace(CONFIG.costs, path=str(path)))
