"""What a rank writes down: forwards, rounds, pauses, and at the end where the KV slots are."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.adapters.lightllm.harness.job import IDS_PER_REQUEST, Forward, RankReport, Round, Slots
from tests.adapters.lightllm.harness.virtual_cuda import interpreter

if TYPE_CHECKING:
    from tests.adapters.lightllm.harness.rank import Rank

VERIFY_KERNEL = "lightllm.common.basemodel.triton_kernel.mtp_utils:_fwd_kernel_mtp_verify"

SETTLE_SECONDS = 2.0


class Recorder:
    """Watches this process's models and its verification kernel, from `begin` on."""

    def __init__(self) -> None:
        self.forwards: list[Forward] = []
        self.rounds: list[Round] = []
        self.pauses = 0
        self._models: dict[int, str] = {}

    def begin(self, backend: Any) -> None:
        from lightllm.common.basemodel.basemodel import TpPartBaseModel
        from lightllm.server.router.model_infer.infer_batch import InferenceContext

        self._models[id(backend.model)] = "target"
        for index, model in enumerate(getattr(backend, "draft_models", ())):
            self._models[id(model)] = f"draft{index}"
        forward, pause = TpPartBaseModel.forward, InferenceContext.pause_reqs

        def timed_forward(model: Any, model_input: Any) -> Any:
            rows = len(model_input.mem_indexes_cpu if model_input.mem_indexes is None else model_input.mem_indexes)
            start = time.perf_counter()
            output = forward(model, model_input)
            milliseconds = (time.perf_counter() - start) * 1e3
            name = self._models.get(id(model), type(model).__name__)
            self.forwards.append(Forward(name, model_input.is_prefill, model_input.batch_size, rows, milliseconds))
            return output

        def counted_pause(context: Any, pause_reqs: list[Any], is_master_in_dp: bool) -> Any:
            self.pauses += len(pause_reqs)
            return pause(context, pause_reqs, is_master_in_dp)

        TpPartBaseModel.forward = timed_forward
        InferenceContext.pause_reqs = counted_pause
        interpreter.watchers.setdefault(VERIFY_KERNEL, []).append(self._verified)

    def _verified(self, arguments: dict[str, Any]) -> None:
        from lightllm.server.router.model_infer.infer_batch import g_infer_context

        holders = {req.req_idx: req.req_id // IDS_PER_REQUEST - 1 for req in g_infer_context.requests_mapping.values()}
        starts = arguments["b_req_mtp_start_loc"].tolist()
        rows = np.diff([*starts, arguments["req_mtp_all_num"]]).tolist()
        requests = [holders.get(index, -1) for index in arguments["b_req_idx"][starts].tolist()]
        self.rounds.append(Round(tuple(requests), tuple(rows), tuple(arguments["mtp_accept_len"].tolist())))

    def report(self, rank: Rank, kv_path: str | None) -> RankReport:
        slots = settled_slots(rank.backend)
        if kv_path is not None:
            save_kv(rank.backend, len(rank.job.requests), kv_path)
        return RankReport(
            backend=type(rank.backend).__name__,
            forwards=tuple(self.forwards),
            rounds=tuple(self.rounds),
            slots=slots,
            pauses=self.pauses,
            compared_kernels=dict(interpreter.compared),
            notes=rank.notes,
        )


def settled_slots(backend: Any) -> Slots:
    """Slots once the last round has given its own back: a request is released one phase earlier than that."""
    end = time.monotonic() + SETTLE_SECONDS
    while not (slots := count_slots(backend)).intact and time.monotonic() < end:
        time.sleep(0.02)
    return slots


def count_slots(backend: Any) -> Slots:
    allocator = backend.model.mem_manager.allocator
    free = allocator.mem_state[allocator.mark_start : allocator.mark_end].tolist()
    tree = tree_slots(backend.radix_cache.root_node) if backend.radix_cache is not None else []
    places = Counter(free) + Counter(tree)
    return Slots(
        total=allocator.size,
        free=allocator.can_use_mem_size,
        in_tree=len(tree),
        lost=allocator.size - len(places),
        doubled=sum(count - 1 for count in places.values()),
    )


def tree_slots(node: Any) -> list[int]:
    own = [] if node.parent is None else node.token_mem_index_value.tolist()
    return own + [slot for child in node.children.values() for slot in tree_slots(child)]


def save_kv(backend: Any, num_requests: int, path: str) -> None:
    """Write an .npz with, for each request, ``tokens<i>`` and their KV ``kv<i>``: float32[layers, tokens, ...].

    Layers are the target's and then those of drafters with attention. Only tokens that the prefix tree still holds.
    """
    arrays: dict[str, Any] = {}
    requests = {request.request_id // IDS_PER_REQUEST - 1: request for request in backend.shm_req_manager.reqs}
    for index in range(num_requests):
        request = requests[index]
        request.link_prompt_ids_shm_array()
        tokens = torch.tensor(request.shm_prompt_ids.arr[: request.input_len + request.shm_cur_output_len])
        _, cached, slots = backend.radix_cache.match_prefix(tokens, update_refs=False)
        arrays[f"tokens{index}"] = tokens[:cached].numpy()
        if cached:
            arrays[f"kv{index}"] = backend.model.mem_manager.kv_buffer[:, slots.long()].float().numpy()
    np.savez(path, **arrays)
