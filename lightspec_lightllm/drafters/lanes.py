"""Keys and values of the draft head's one layer: a lane of consecutive slots per request."""

from collections.abc import Sequence

import numpy as np
import torch

from lightspec_lightllm.cpu.row_attention import FloatArray, IntArray, RowSchedule, attend_rows

FIRST_CAPACITY = 256


class LaneCache:
    """Position p of a lane is p slots past its first.

    Attributes:
        slots: float32 ``[key heads then value heads, lanes * capacity, E]``; another array once a lane was opened.
    """

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        self._lanes: dict[int, int] = {}
        self._free: list[int] = []
        self._capacity = FIRST_CAPACITY
        self._num_lanes = 0
        self.slots: FloatArray = np.zeros((2 * num_kv_heads, 0, head_dim), dtype=np.float32)

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

    def schedule(self, first_slots: IntArray, context: IntArray) -> RowSchedule:
        """One row for each request over its first ``context`` int64[N] positions."""
        count = len(context)
        return RowSchedule(
            np.arange(count),
            np.ones(count, dtype=np.int64),
            context,
            first_slots,
            num_key_heads=self.slots.shape[0] // 2,
            num_threads=torch.get_num_threads(),
        )

    def attend(self, queries: FloatArray, schedule: RowSchedule) -> FloatArray:
        """``queries [N, H, E]`` -> ``[N, H * E]``."""
        mixed = np.empty_like(queries)
        attend_rows(queries, self.slots, mixed, schedule)
        return mixed.reshape(len(mixed), -1)

    def _grow(self, lanes: int, capacity: int) -> None:
        heads, _, dim = self.slots.shape
        larger = np.zeros((heads, lanes, capacity, dim), dtype=np.float32)
        larger[:, : self._num_lanes, : self._capacity] = self.slots.reshape(heads, self._num_lanes, self._capacity, dim)
        self.slots = larger.reshape(heads, lanes * capacity, dim)
        self._free.extend(reversed(range(self._num_lanes, lanes)))
        self._num_lanes, self._capacity = lanes, capacity
