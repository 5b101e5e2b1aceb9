"""Keys and values of the draft head's one layer: a lane of consecutive slots per request."""

from collections.abc import Sequence

import numpy as np
import torch

from lightspec_lightllm.cpu.row_attention import IntArray, RowSchedule, attend_rows

FIRST_CAPACITY = 256


class LaneCache:
    """float32 ``[key heads then value heads, lanes * capacity, E]``; position p of a lane is p slots past its first."""

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        self._lanes: dict[int, int] = {}
        self._free: list[int] = []
        self._capacity = FIRST_CAPACITY
        self._num_lanes = 0
        self._slots = torch.zeros(2 * num_kv_heads, 0, head_dim)

    def __len__(self) -> int:
        return len(self._lanes)

    def open(self, request_id: int, positions: int) -> None:
        """Give a request a lane, if it has none, and every lane room for positions ``0..positions-1``."""
        if request_id not in self._lanes:
            if not self._free:
                self._grow(max(4, 2 * self._num_lanes), self._capacity)
            self._lanes[request_id] = self._free.pop()
        if positions > self._capacity:
            self._grow(self._num_lanes, max(positions, 2 * self._capacity))

    def free(self, request_id: int) -> None:
        """Give a lane up; unknown requests are ignored."""
        lane = self._lanes.pop(request_id, None)
        if lane is not None:
            self._free.append(lane)

    def first_slots(self, request_ids: Sequence[int]) -> IntArray:
        """int64[N], slots of the requests' position 0; valid until a lane is opened."""
        return np.array([self._lanes[request_id] for request_id in request_ids], dtype=np.int64) * self._capacity

    def write(self, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store rows: ``slots`` int64 [R]; ``keys_values`` [R, key heads then value heads, E]."""
        self._slots.index_copy_(1, slots, keys_values.transpose(0, 1))

    def schedule(self, first_slots: IntArray, context: IntArray) -> RowSchedule:
        """One row for each request over its first ``context`` int64[N] positions."""
        count = len(context)
        return RowSchedule(
            np.arange(count),
            np.ones(count, dtype=np.int64),
            context,
            first_slots,
            num_key_heads=self._slots.shape[0] // 2,
            num_threads=torch.get_num_threads(),
        )

    def attend(self, queries: torch.Tensor, schedule: RowSchedule) -> torch.Tensor:
        """``queries [N, H, E]`` -> ``[N, H * E]``."""
        mixed = torch.empty(queries.shape)
        attend_rows(queries, self._slots, mixed, schedule)
        return mixed.flatten(1)

    def _grow(self, lanes: int, capacity: int) -> None:
        heads, _, dim = self._slots.shape
        larger = torch.zeros(heads, lanes, capacity, dim)
        larger[:, : self._num_lanes, : self._capacity] = self._slots.view(heads, self._num_lanes, self._capacity, dim)
        self._slots = larger.view(heads, lanes * capacity, dim)
        self._free.extend(reversed(range(self._num_lanes, lanes)))
        self._num_lanes, self._capacity = lanes, capacity
