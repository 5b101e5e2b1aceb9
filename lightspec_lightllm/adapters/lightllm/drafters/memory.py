"""The memory of drafters that this package loads, counted when LightLLM sizes its pool: before any of it exists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lightspec_lightllm.adapters.lightllm import options
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint


def pool_size(without: int, cell_bytes: int, checkpoint: DraftCheckpoint, *, tp: int, element_bytes: int) -> int:
    """Slots that memory has room for beside a drafter.

    Args:
        without: slots that it would have room for without.
        cell_bytes: the target's KV of one slot.
        tp, element_bytes: ranks of the drafter, and bytes of each of its numbers.
    """
    left = without * cell_bytes - checkpoint.weight_elements(tp) * element_bytes
    return max(left, 0) // (cell_bytes + checkpoint.kv_elements(tp) * element_bytes)


def wrap_profile_size(original: Callable[[Any, float], None]) -> Callable[[Any, float], None]:
    """For `MemoryManager.profile_size`, which gives all memory that is left to the target's KV."""

    @functools.wraps(original)
    def profile_size(manager: Any, mem_fraction: float) -> None:
        config, is_given = options.current(), manager.size is not None
        original(manager, mem_fraction)
        if config is None or config.drafter is None or is_given:
            return
        from lightllm.utils.dist_utils import get_dp_world_size
        from lightllm.utils.envs_utils import get_env_start_args

        from lightspec_lightllm.adapters.lightllm.drafters.loading import served_checkpoint

        checkpoint, _ = served_checkpoint(get_env_start_args(), config)
        manager.size = pool_size(
            manager.size,
            manager.get_cell_size(),
            checkpoint,
            tp=get_dp_world_size(),
            element_bytes=manager.dtype.itemsize,
        )

    return profile_size


def wrap_added_layers(original: Callable[[], int]) -> Callable[[], int]:
    """For `get_added_mtp_kv_layer_num`: drafters with KV of their own need none of the target's layers."""

    @functools.wraps(original)
    def get_added_mtp_kv_layer_num() -> int:
        config = options.current()
        return original() if config is None or config.drafter is None else 0

    return get_added_mtp_kv_layer_num
