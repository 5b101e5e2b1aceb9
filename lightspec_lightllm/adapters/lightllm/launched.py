"""A round between its launch and its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightllm.server.router.model_infer.pin_mem_manager import g_pin_mem_manager

from lightspec_lightllm.adapters.lightllm.batch import DecodeBatch
from lightspec_lightllm.adapters.lightllm.planning import PlannedRound


@dataclass(slots=True, eq=False)
class LaunchedRound:
    """What a launched round still owes the CPU; tensors are pinned copies that are on their way.

    Attributes:
        planned: the round's plan and batch.
        slots: int32[B] on the CPU, token slots of the target's rows.
        chain_slots: int32[C], token slots of drafted tokens, all of which go back.
        num_rows: int32[N], rows of each request.
        accept_len: int32[N].
        accepted: int32[B], 1 where a row's token is committed.
        tokens: ids, log-probabilities and ranks of the sampled tokens, each of B.
        confidence: float32[N, K] or None.
        verified: event after which ``num_rows``, ``accept_len`` and ``accepted`` are there.
        done: event after which everything is.
    """

    planned: PlannedRound
    slots: torch.Tensor
    chain_slots: torch.Tensor | None
    num_rows: torch.Tensor
    accept_len: torch.Tensor
    accepted: torch.Tensor
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    confidence: torch.Tensor | None
    verified: Any
    done: Any


def upload(batch: DecodeBatch) -> torch.Tensor:
    """int32[4 N], pinned: what the device must know of the batch, in one copy."""
    num_requests = len(batch.reqs)
    pinned: torch.Tensor = g_pin_mem_manager.alloc_pin_tensor("lightspec_batch", 4 * num_requests, torch.int32)
    table = pinned.numpy().reshape(4, num_requests)
    table[0], table[1], table[2], table[3] = batch.req_idx, batch.seq_len, batch.drafts, batch.position_delta
    return pinned


def probabilities(confidence: npt.NDArray[np.float32], batch: DecodeBatch) -> npt.NDArray[np.float64]:
    """float64[N, K]; zero where no draft waited."""
    waiting = np.arange(confidence.shape[1]) < batch.drafts[:, None]
    return np.where(waiting, confidence, 0.0).astype(np.float64)
