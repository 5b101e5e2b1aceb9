"""Times forwards of LightLLM's models once their CUDA graphs are captured, before the first request is read.

Every captured size is replayed at several contexts, with random token ids: equal ones would send all rows to the same
experts. Each row is a request of its own, and requests have different token slots (as far as the pool reaches), so
that no row finds another's KV in the GPU's cache. What rows of one request share is measured apart, see `fit_shared`.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.batch import NO_IMAGES
from lightspec_lightllm.adapters.lightllm.graphs import graph_sizes
from lightspec_lightllm.adapters.lightllm.options import CostOptions
from lightspec_lightllm.errors import CostTableError
from lightspec_lightllm.planner.types import FloatArray

WARM_UPS = 3
"""Runs of each shape before those that are timed, at most as many as those."""

SHARED_SHAPES = 3
"""Sizes at which rows of one request are measured."""

FILLED = "filled"
"""Method of a drafter's only model: takes the input of verified rows, and runs what a round runs over all of them."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Shapes that are measured.

    Attributes:
        rows: batch sizes of the target, ascending.
        draft_rows: the same of the drafter.
        contexts: tokens of context of every row, ascending.
        shared_rows: sizes in which a request has 1 + K rows, at the last context.
        fill_rows: sizes of what the drafter runs over all verified rows, where that is no forward like any other.
        block_rows: rows per request of a block drafter's forward; 0 for other drafters.
    """

    rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    shared_rows: tuple[int, ...]
    fill_rows: tuple[int, ...] = ()
    block_rows: int = 0

    @classmethod
    def of(cls, model: Any, drafts: Sequence[Any], options: CostOptions, max_draft_steps: int) -> Grid:
        """All captured sizes, and of the configured contexts those that there is room for.

        Raises:
            CostTableError: there is room for none.
        """
        rows = _sizes(model, options)
        longest = model.req_manager.req_to_token_indexs.shape[1]
        if model.graph is not None:
            longest = min(longest, model.graph.graph_max_len_in_batch)
        most = min(longest - max_draft_steps, model.mem_manager.size)
        if most < 1:
            raise CostTableError(
                f"costs: expected room for a context and {max_draft_steps} drafts, got {longest} tokens per request "
                f"and {model.mem_manager.size} slots; raise --max_req_total_len or --max_total_token_num"
            )
        eligible = [size for size in rows if size >= 2 * (1 + max_draft_steps)]
        picked = {eligible[-1 - place * len(eligible) // SHARED_SHAPES] for place in range(SHARED_SHAPES) if eligible}
        return cls(
            rows=rows,
            draft_rows=_sizes(drafts[0], options) if drafts else (),
            contexts=tuple(sorted({min(context, most) for context in options.contexts})),
            shared_rows=tuple(sorted(picked)),
            fill_rows=rows if drafts and hasattr(drafts[0], FILLED) else (),
            block_rows=getattr(drafts[0], "block_rows", 0) if drafts else 0,
        )


def _sizes(model: Any, options: CostOptions) -> tuple[int, ...]:
    if model.graph is None:
        return tuple(graph_sizes(model.graph_max_batch_size, options.graph_sizes))
    return tuple(model.graph.cuda_graph_batch_sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Milliseconds of one forward.

    Attributes:
        target: float[C, R], sampling included, each row a request.
        draft: float[C, D], reading the drafts included; the mean over the models of a drafter that has several.
        shared: float[S], as ``target`` at the last context, with 1 + K rows per request.
        fill: float[C, F], of what the drafter runs over all verified rows.
    """

    target: FloatArray
    draft: FloatArray
    shared: FloatArray
    fill: FloatArray

    def flat(self) -> FloatArray:
        """All numbers in one array."""
        return np.concatenate([part.ravel() for part in (self.target, self.draft, self.fill, self.shared)])

    @classmethod
    def unflat(cls, grid: Grid, numbers: FloatArray) -> Times:
        """The inverse of `flat`."""
        contexts = len(grid.contexts)
        sizes = [len(rows) for rows in (grid.rows, grid.draft_rows, grid.fill_rows)]
        *by_context, shared = np.split(numbers, contexts * np.cumsum(sizes))
        target, draft, fill = (part.reshape(contexts, -1) for part in by_context)
        return cls(target, draft, shared, fill)


def fit_shared(grid: Grid, times: Times, max_draft_steps: int) -> float:
    """Milliseconds that a token of context adds per request, whatever the request's rows; at least 0.

    A row costs ``p + w`` per token of context where it is alone, and ``p`` is paid once for all rows of a request:
    attention that reads a request's KV once has ``w = 0``, one that reads it per row ``p = 0`` (but for what the
    second row finds in the GPU's cache). With N requests of B rows in all, B (p + w) L and (N p + B w) L are measured;
    their difference is (B - N) p L. The median over the sizes counts, at most what a row costs at all.
    """
    if len(grid.contexts) < 2 or not grid.shared_rows:
        return 0.0
    span = grid.contexts[-1] - grid.contexts[0]
    found = []
    for size, shared in zip(grid.shared_rows, times.shared.tolist(), strict=True):
        alone, short = (times.target[at, grid.rows.index(size)] for at in (-1, 0))
        requests = -(-size // (1 + max_draft_steps))
        per_row = max(alone - short, 0.0) / (size * span)
        found.append(min(max(alone - shared, 0.0) / ((size - requests) * grid.contexts[-1]), per_row))
    return float(statistics.median(found))


class Measurement:
    """Measures one backend; its models must be idle.

    Args:
        model: the target, a ``TpPartBaseModel``.
        drafts: the drafter's models.
        sample: takes logits float[B, V] and the input, as a round would sample.
    """

    def __init__(
        self,
        model: Any,
        drafts: Sequence[Any],
        *,
        sample: Callable[[torch.Tensor, Any], object],
        grid: Grid,
        options: CostOptions,
        max_draft_steps: int,
    ) -> None:
        self._model = model
        self._drafts = drafts
        self._sample = sample
        self._grid = grid
        self._repeats = options.repeats
        self._per_request = 1 + max_draft_steps
        self._generator = torch.Generator().manual_seed(0)  # of its own: the device's is in step over all ranks

    @torch.no_grad()
    def run(self, progress: Callable[[int, int], None]) -> Times:
        """All times. ``progress`` hears how many shapes of all are done."""
        grid, manager = self._grid, self._model.mem_manager
        held = manager.alloc(min(max((*grid.rows, *grid.draft_rows)), manager.allocator.can_use_mem_size)).clone()
        per_context = len(grid.rows) + len(grid.draft_rows) * len(self._drafts) + len(grid.fill_rows)
        shapes = len(grid.contexts) * per_context
        total, done = shapes + len(grid.shared_rows), 0

        def timed(run: Callable[[], object]) -> float:
            nonlocal done
            milliseconds = self._time(run)
            done += 1
            progress(done, total)
            return milliseconds

        try:
            target, draft, fill = [], [], []
            for context in grid.contexts:
                self._lay_out(context)
                target.append([timed(self._target(size, context, held)) for size in grid.rows])
                per_model = [
                    [timed(self._draft(model, size, context, held)) for size in grid.draft_rows]
                    for model in self._drafts
                ]
                draft.append(np.mean(per_model, axis=0) if per_model else np.zeros(0))
                fill.append([timed(self._fill(size, context, held)) for size in grid.fill_rows])
            shared = [timed(self._target(size, grid.contexts[-1], held, shared=True)) for size in grid.shared_rows]
        finally:
            manager.free(held)
        return Times(np.array(target), np.array(draft), np.array(shared), np.array(fill))

    def _lay_out(self, context: int) -> None:
        """Give every request token slots of its own, as far as the pool reaches. Slots past a request's length are
        scratch to LightLLM: it writes them before it reads them."""
        table = self._model.req_manager.req_to_token_indexs
        length = context + self._per_request - 1
        place = torch.arange(length, dtype=torch.int64, device=table.device)
        most = max((*self._grid.rows, *self._grid.draft_rows))
        for request in range(min(self._model.req_manager.max_request_num, most)):
            table[request, :length] = ((place + request * length) % self._model.mem_manager.size).to(table.dtype)

    def _target(self, rows: int, context: int, held: torch.Tensor, *, shared: bool = False) -> Callable[[], object]:
        model_input = self._input(self._model, rows, context, held, self._per_request if shared else 1)
        return lambda: self._sample(self._model.forward(model_input).logits, model_input)

    def _draft(self, model: Any, rows: int, context: int, held: torch.Tensor) -> Callable[[], object]:
        model_input = self._input(model, rows, context, held, 1)
        score = getattr(model, "scored", _drafts)
        return lambda: score(model.forward(model_input))

    def _fill(self, rows: int, context: int, held: torch.Tensor) -> Callable[[], object]:
        model_input = self._input(self._drafts[0], rows, context, held, 1)
        filled = getattr(self._drafts[0], FILLED)
        return lambda: filled(model_input)

    def _input(self, model: Any, rows: int, context: int, held: torch.Tensor, per_request: int) -> Any:
        from lightllm.common.basemodel.batch_objs import ModelInput

        row = torch.arange(rows)
        mtp_index = (row % per_request).to(torch.int32)
        longest = context + self._per_request - 1  # whatever the rows: those of a block see all of it
        request = (row // per_request) % self._model.req_manager.max_request_num
        ids = torch.randint(self._model.vocab_size, (rows,), generator=self._generator, dtype=torch.int64)
        return ModelInput(
            batch_size=rows,
            total_token_num=rows * longest,
            max_q_seq_len=1,
            max_kv_seq_len=longest,
            input_ids=ids.cuda(),
            b_req_idx=request.to(torch.int32).cuda(),
            b_mtp_index=mtp_index.cuda(),
            b_seq_len=(context + mtp_index).cuda(),
            b_position_delta=torch.zeros(rows, dtype=torch.int32).cuda(),
            mem_indexes=held[row % len(held)].cuda(),
            is_prefill=False,
            multimodal_params=[NO_IMAGES] * rows,
            **model._gen_special_model_input(rows),  # noqa: SLF001 - what the model's own warm-up feeds a drafter
        )

    def _time(self, run: Callable[[], object]) -> float:
        """Median milliseconds. On a GPU the runs are launched one after the other without waiting, as rounds are."""
        for _ in range(min(WARM_UPS, self._repeats)):
            run()
        if not _on_gpu(self._model):
            return statistics.median(_clock(run) for _ in range(self._repeats))
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(self._repeats + 1)]  # type: ignore[no-untyped-call]
        for mark in marks[:-1]:
            mark.record()
            run()
        marks[-1].record()
        torch.cuda.synchronize()
        return float(statistics.median(begun.elapsed_time(ended) for begun, ended in itertools.pairwise(marks)))


def _drafts(output: Any) -> object:
    """What a round does with a drafter's output, unless its model says otherwise."""
    return ops.draft_scores(output.logits)


def _clock(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begun)


def _on_gpu(model: Any) -> bool:
    """Whether the model's tensors truly are on a GPU."""
    device: torch.device = model.req_manager.req_to_token_indexs.device
    return device.type == "cuda"
