"""Keys and values of the draft head's one layer: a contiguous lane per request.

Lanes are kept dense: a freed lane is refilled with the last one. So a batch of all live requests reads the cache
through a plain view, without gathering rows, and only a part of the requests pays for a copy.
"""

from collections.abc import Sequence

import torch

FIRST_CAPACITY = 256


class LaneCache:
    """float32 keys and values ``[lanes, G, capacity, E]``; position p of a request is at index p of its lane."""

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        self._lanes: dict[int, int] = {}
        self._owners: list[int] = []
        self._keys = torch.zeros(0, num_kv_heads, FIRST_CAPACITY, head_dim)
        self._values = torch.zeros_like(self._keys)

    def __len__(self) -> int:
        return len(self._owners)

    def lane(self, request_id: int) -> int:
        """The request's lane; one is opened at its first mention. Valid until the next `free`."""
        lane = self._lanes.get(request_id)
        if lane is None:
            lane = self._lanes[request_id] = len(self._owners)
            self._owners.append(request_id)
            if lane >= self._keys.shape[0]:
                self._grow(lanes=max(4, 2 * lane), capacity=self._keys.shape[2])
        return lane

    def free(self, request_id: int) -> None:
        """Give a lane up and move the last one into its place; unknown requests are ignored."""
        lane = self._lanes.pop(request_id, None)
        if lane is None:
            return
        last = self._owners.pop()
        if last != request_id:
            source = len(self._owners)
            self._owners[lane] = last
            self._lanes[last] = lane
            self._keys[lane] = self._keys[source]
            self._values[lane] = self._values[source]

    def reserve(self, positions: int) -> None:
        """Make room for positions ``0..positions-1`` in every lane."""
        capacity = self._keys.shape[2]
        if positions > capacity:
            self._grow(lanes=self._keys.shape[0], capacity=max(positions, 2 * capacity))

    def write(self, lanes: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows: ``lanes``, ``positions`` int64 [R]; ``keys``, ``values`` [R, G, E]."""
        write_rows(self._keys, lanes, positions, keys)
        write_rows(self._values, lanes, positions, values)

    def block(self, lanes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[N, G, capacity, E]`` of some lanes: a view if they are ``0, 1, .. N-1``, else a copy."""
        if list(lanes) == list(range(len(lanes))):
            return self._keys[: len(lanes)], self._values[: len(lanes)]
        index = torch.tensor(lanes, dtype=torch.int64)
        return self._keys.index_select(0, index), self._values.index_select(0, index)

    def _grow(self, lanes: int, capacity: int) -> None:
        old_lanes, heads, old_capacity, dim = self._keys.shape
        for name in ("_keys", "_values"):
            larger = torch.zeros(lanes, heads, capacity, dim)
            larger[:old_lanes, :, :old_capacity] = getattr(self, name)
            setattr(self, name, larger)


def write_rows(store: torch.Tensor, lanes: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> None:
    """Put ``rows [R, G, E]`` at (lane, position) of a contiguous ``store [lanes, G, capacity, E]``."""
    _, heads, capacity, dim = store.shape
    index = (lanes[:, None] * heads + torch.arange(heads)) * capacity + positions[:, None]
    store.view(-1, dim).index_copy_(0, index.reshape(-1), rows.reshape(-1, dim))
