"""Who owns which slot of the KV cache.

A slot holds keys and values of one token position in every layer. A request's row of `table` lists the slots of its
positions in order, as LightLLM's req_to_token_indexs does. On admission a request claims a gap long enough for all it
may ever need: as long as it grows inside its claim its slots are one run, and attention reads them without a copy.
Claims are soft: when the pool is short, others take free slots out of them, and the owner goes on with scattered ones.
"""

import numpy as np
import numpy.typing as npt
import torch

from lightspec_lightllm.errors import SlotError

_FREE = -1
# Claims are multiples of this while half of the pool stays unclaimed: claims of one size lie at equal distances, and
# requests at equal distances share an attention call.
_REGION = 512


class SlotPool:
    """Slots 0..num_slots-1 and the tables of up to max_requests requests of up to max_positions positions."""

    def __init__(self, num_slots: int, max_requests: int, max_positions: int) -> None:
        self.num_slots = num_slots
        self.table = torch.zeros(max_requests, max_positions, dtype=torch.int64)
        self._table: npt.NDArray[np.int64] = self.table.numpy()
        self._owner = np.full(num_slots, _FREE, dtype=np.int64)
        self._claimed = np.zeros(num_slots, dtype=bool)
        self._lengths = [0] * max_requests
        self._claims: list[tuple[int, int]] = [(0, 0)] * max_requests
        self._runs = [0] * max_requests  # leading positions that lie in the claim, one after another
        self._free_rows = list(range(max_requests - 1, -1, -1))
        self.num_free = num_slots

    def open(self, max_length: int) -> int:
        """A table row for a new owner that may grow to max_length; claims a gap of that length when there is one."""
        if not self._free_rows:
            raise SlotError(f"all {len(self._lengths)} rows of the slot table are in use; finish a request first")
        row = self._free_rows.pop()
        length = -(-max_length // _REGION) * _REGION
        if int(self._claimed.sum()) + length > self.num_slots // 2:
            length = max_length
        start = self._find_gap(length)
        if start is not None:
            self._claims[row] = (start, start + length)
            self._claimed[start : start + length] = True
        return row

    def extend(self, row: int, length: int) -> None:
        """Let the row own slots for positions 0..length-1. Raises SlotError when the pool has too few."""
        self._require_open(row)
        held = self._lengths[row]
        need = length - held
        if need <= 0:
            return
        if need > self.num_free or length > self._table.shape[1]:
            raise SlotError(f"{need} slots wanted, {self.num_free} free of {self.num_slots}; pause or finish a request")
        first, stop = self._claims[row][0] + held, self._claims[row][0] + length
        if stop <= self._claims[row][1] and (self._owner[first:stop] == _FREE).all():
            slots = np.arange(first, stop)
            if self._runs[row] == held:
                self._runs[row] = length
        else:
            free = self._owner == _FREE
            slots = np.flatnonzero(free & ~self._claimed)[:need]
            if slots.size < need:
                claimed = np.flatnonzero(free & self._claimed)
                slots = np.concatenate([slots, claimed[slots.size - need :]])
        self._owner[slots] = row
        self._table[row, held:length] = slots
        self._lengths[row] = length
        self.num_free -= need

    def trim(self, row: int, length: int) -> None:
        """Give back the slots of positions length and later."""
        self._require_open(row)
        held = self._lengths[row]
        if length > held:
            raise SlotError(f"cannot trim a row of {held} slots to {length}; extend it first")
        slots = self._table[row, length:held]
        if (self._owner[slots] != row).any():
            raise SlotError(f"row {row} gives back slots it does not own; they were freed before")
        self._owner[slots] = _FREE
        self._lengths[row] = length
        self._runs[row] = min(self._runs[row], length)
        self.num_free += held - length

    def close(self, row: int) -> None:
        """Give back everything the row holds. Raises SlotError when it is not open: each owner is freed once."""
        self._require_open(row)
        self.trim(row, 0)
        start, stop = self._claims[row]
        self._claimed[start:stop] = False
        self._claims[row] = (0, 0)
        self._free_rows.append(row)

    def length(self, row: int) -> int:
        """Positions that have a slot."""
        return self._lengths[row]

    def slots(self, row: int) -> npt.NDArray[np.int64]:
        """Slots of the row's positions, in order: a view."""
        return self._table[row, : self._lengths[row]]

    def run_start(self, row: int, length: int) -> int | None:
        """First slot when positions 0..length-1 lie one after another, else None."""
        return self._claims[row][0] if length <= self._runs[row] else None

    def open_rows(self) -> list[int]:
        """Rows that have an owner, ascending."""
        return sorted(set(range(len(self._lengths))) - set(self._free_rows))

    def check(self) -> None:
        """Raise SlotError unless every slot is free or owned by exactly one open row, as tables and counts say."""
        expected = np.full(self.num_slots, _FREE, dtype=np.int64)
        for row, length in enumerate(self._lengths):
            slots = self._table[row, :length]
            if length and row in self._free_rows:
                raise SlotError(f"{length} slots are held by row {row}, which is closed: they are lost")
            if (expected[slots] != _FREE).any() or np.unique(slots).size != length:
                raise SlotError(f"a slot of row {row} is owned twice")
            expected[slots] = row
            start = self._claims[row][0]
            if (slots[: self._runs[row]] != np.arange(start, start + self._runs[row])).any():
                raise SlotError(f"row {row} is not the run of slots it is taken for")
        lost = int((expected != self._owner).sum())
        if lost:
            raise SlotError(f"{lost} slots have an owner whose table does not list them, or the other way round")
        if self.num_free != int((expected == _FREE).sum()):
            raise SlotError(f"{self.num_free} slots counted free, {int((expected == _FREE).sum())} are")

    def _find_gap(self, length: int) -> int | None:
        """First slot of the lowest gap of free, unclaimed slots of this length."""
        idle = np.concatenate([[False], (self._owner == _FREE) & ~self._claimed, [False]])
        edges = np.flatnonzero(idle[1:] != idle[:-1])
        starts, stops = edges[::2], edges[1::2]
        wide = np.flatnonzero(stops - starts >= length)
        return int(starts[wide[0]]) if wide.size else None

    def _require_open(self, row: int) -> None:
        if not 0 <= row < len(self._lengths) or row in self._free_rows:
            raise SlotError(f"row {row} of the slot table is not open; its slots were freed before")
