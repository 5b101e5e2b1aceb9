"""KV of a drafter whose layers have a shape of their own, on the token slots of the target's KV.

A slot means the same token in both, so the drafter's KV is allocated, freed, shared between requests and found again
with the target's, without any book-keeping.
"""

from __future__ import annotations

from typing import Any

import torch
from lightllm.common.kv_cache_mem_manager.operator.normal import NormalMemOperator


class DraftKv:
    """What LightLLM's models use of a ``MemoryManager``, with the slots of another one.

    Attributes:
        kv_buffer: float[layers, slots + 1, 2 * heads, head_dim], keys before values; the last slot pads batches.
    """

    def __init__(self, shared: Any, *, num_layers: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.size: int = shared.size
        self.allocator = shared.allocator
        self.HOLD_TOKEN_MEMINDEX: int = shared.HOLD_TOKEN_MEMINDEX
        self.head_num = num_heads
        self.head_dim = head_dim
        self.layer_num = num_layers
        self.dtype = dtype
        # Requests that share a prefix may read slots that a resting drafter has left out: any bits but those of a NaN.
        self.kv_buffer = torch.zeros((num_layers, self.size + 1, 2 * num_heads, head_dim), dtype=dtype, device="cuda")
        self.operator = NormalMemOperator(self)

    def get_att_input_params(self, layer_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, float[slots + 1, heads, head_dim] each."""
        keys, values = self.kv_buffer[layer_index].chunk(2, dim=1)
        return keys, values

    def alloc(self, need_size: int) -> torch.Tensor:
        """Slots of the shared pool: int32[need_size], on the CPU."""
        slots: torch.Tensor = self.allocator.alloc(need_size)
        return slots

    def free(self, free_index: torch.Tensor | list[int]) -> None:
        """Give slots back to the shared pool."""
        self.allocator.free(free_index)

    def free_all(self) -> None:
        """All of them."""
        self.allocator.free_all()
