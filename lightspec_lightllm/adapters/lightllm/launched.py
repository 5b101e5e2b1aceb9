"""A round between its launch and its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightllm.common.basemodel.batch_objs import ModelInput
from lightllm.server.router.model_infer.pin_mem_manager import g_pin_mem_manager

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.batch import DecodeBatch
from lightspec_lightllm.adapters.lightllm.planning import PlannedRound
from lightspec_lightllm.adapters.lightllm.sampling import SampledRows


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatch:
    """A `DecodeBatch` on the device: int32[N] each."""

    req_idx: torch.Tensor
    seq_len: torch.Tensor
    drafts: torch.Tensor
    position_delta: torch.Tensor

    @classmethod
    def upload(cls, batch: DecodeBatch) -> DeviceBatch:
        """In one copy, on the current stream."""
        num_requests = len(batch.reqs)
        # Kernels are compiled for aligned and for other addresses: all columns begin at a multiple of 16 bytes.
        stride = -(-num_requests // 4) * 4
        pinned = g_pin_mem_manager.alloc_pin_tensor("lightspec_batch", 4 * stride, torch.int32)
        table = pinned.numpy().reshape(4, stride)[:, :num_requests]
        table[0], table[1], table[2], table[3] = batch.req_idx, batch.seq_len, batch.drafts, batch.position_delta
        return cls(*pinned.cuda(non_blocking=True).view(4, stride)[:, :num_requests].unbind(0))


@dataclass(frozen=True, slots=True, eq=False)
class ReservedSlots:
    """Token slots of a round, int32 on the CPU.

    Attributes:
        rows: B, of the target's rows; those of rejected rows go back.
        chain: of drafted tokens; all of them go back.
        runs_drafter: whether the drafter runs in this round.
    """

    rows: torch.Tensor
    chain: torch.Tensor
    runs_drafter: bool


@dataclass(frozen=True, slots=True, eq=False)
class TargetRound:
    """What the target made of the rows; on the device, not waited for.

    Attributes:
        model_input: of B rows.
        hidden: float[B, H], last hidden states.
        sampled: the token of each row.
        ranks: int32[B], of these tokens among all, where LightLLM wants them.
        accept_len: int32[N], at least 1.
        accepted: int32[B], 1 where the row's token is committed.
    """

    model_input: ModelInput
    hidden: torch.Tensor
    sampled: SampledRows
    ranks: torch.Tensor
    accept_len: torch.Tensor
    accepted: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedRound:
    """What a launched round still owes the CPU; tensors are pinned copies that are on their way.

    Attributes:
        planned: the round's plan and batch.
        slots: its token slots.
        num_rows: int32[N], rows of each request.
        accept_len: int32[N].
        accepted: int32[B].
        tokens: ids, log-probabilities and ranks of the sampled tokens, each of B.
        confidence: float32[N, K] or None.
        verified: event after which ``num_rows``, ``accept_len``, ``accepted`` and ``confidence`` are there.
        done: event after which everything is.
    """

    planned: PlannedRound
    slots: ReservedSlots
    num_rows: torch.Tensor
    accept_len: torch.Tensor
    accepted: torch.Tensor
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    confidence: torch.Tensor | None
    verified: Any
    done: Any


def compile_operations(scores: torch.Tensor, vocab_size: int) -> None:
    """Run the operations of a round once at every size that they are compiled for, so that no request waits for it.

    Args:
        scores: float32[R, 16], as rows are selected by; R - 1 requests at most.
    """
    most = scores.shape[0] - 1
    for num_requests in sorted({min(1 << power, most) for power in range(most.bit_length() + 1)}):
        one = torch.ones(num_requests, dtype=torch.int32, device="cuda")
        rows = ops.select_rows(torch.zeros_like(one), one, one, scores, 2 * num_requests)
        ops.accepted_last_row(rows.start_loc, one)
    noise = torch.ones((1, vocab_size), dtype=torch.float32, device="cuda")
    ops.exponential_noise(torch.zeros(1, dtype=torch.int64, device="cuda"), one[:1].long(), vocab_size, noise)
    ops.mask_invalid_tokens(noise, torch.zeros_like(one[:1]), torch.full((1, 1), -1, dtype=torch.int32, device="cuda"))


def probabilities(confidence: npt.NDArray[np.float32], batch: DecodeBatch) -> npt.NDArray[np.float64]:
    """float64[N, K]; zero where no draft waited."""
    waiting = np.arange(confidence.shape[1]) < batch.drafts[:, None]
    return np.where(waiting, confidence, 0.0).astype(np.float64)
