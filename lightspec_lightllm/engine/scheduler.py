"""Which requests hold slots, which compute a stretch of prompt, and who gives way when slots run short."""

from collections.abc import Callable

from lightspec_lightllm.engine.options import EngineOptions
from lightspec_lightllm.engine.sequence import Sequence, Status
from lightspec_lightllm.engine.slots import SlotPool
from lightspec_lightllm.errors import SlotError

_HEADROOM = 32  # slots per active request kept free when another is admitted, so that it is not paused at once


class Scheduler:
    """Keeps the live sequences. A sequence is active (prefilling or running) exactly while it has a slot table row."""

    def __init__(self, slots: SlotPool, options: EngineOptions) -> None:
        self.slots = slots
        self.options = options
        self.live: dict[int, Sequence] = {}  # by request id, in arrival order
        self.release_listener: Callable[[int], None] | None = None
        self._cancelled: set[int] = set()
        self._finished: list[Sequence] = []

    def with_status(self, *statuses: Status) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.status in statuses]

    def add(self, sequence: Sequence) -> None:
        self.live[sequence.request_id] = sequence

    def cancel(self, request_id: int) -> None:
        if request_id in self.live:
            self._cancelled.add(request_id)

    def take_finished(self) -> list[Sequence]:
        finished, self._finished = self._finished, []
        return finished

    def apply_cancels(self) -> None:
        for request_id in sorted(self._cancelled):
            sequence = self.live[request_id]
            sequence.finish("cancelled")
            self._retire(sequence)

    def admit(self, rows: int) -> None:
        """Give slots to paused and waiting sequences, oldest first, as long as there is room for their next steps."""
        active = self.with_status("prefilling", "running")
        spare = self.slots.num_free - sum(self._growth(sequence, rows) for sequence in active)
        for sequence in self.with_status("paused", "waiting"):
            needed = len(sequence.tokens) + rows + (_HEADROOM * (len(active) + 1) if active else 0)
            if len(active) >= self.options.max_requests or (active and needed > spare):
                return  # younger ones do not overtake
            most = sequence.prompt_length + sequence.params.max_tokens + self.options.max_rows
            sequence.slot_row = self.slots.open(most)
            sequence.num_computed = 0
            sequence.status = "prefilling"
            active.append(sequence)
            spare -= needed

    def next_chunks(self) -> list[tuple[Sequence, int]]:
        """Stretches of prompt for one forward, oldest first, with slots for all of them."""
        chunks: list[tuple[Sequence, int]] = []
        budget = self.options.prefill_chunk
        for sequence in self.with_status("prefilling"):
            if sequence.status != "prefilling":  # paused for an older one
                continue
            length = min(budget, sequence.prefill_target - sequence.num_computed)
            if self._reserve(sequence, length) and length:
                chunks.append((sequence, length))
                budget -= length
        return self.still_prefilling(chunks)

    @staticmethod
    def still_prefilling(chunks: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Those whose sequence was not paused since."""
        return [(sequence, length) for sequence, length in chunks if sequence.status == "prefilling"]

    def reserve(self, rows: int) -> list[Sequence]:
        """Slots for `rows` rows of every running sequence; the running sequences that have them."""
        for sequence in self.with_status("running"):
            if sequence.status == "running":  # not paused for an older one
                self._reserve(sequence, rows)
        return self.with_status("running")

    def settle(self, sequence: Sequence) -> None:
        """After a sequence was computed or took tokens: trim its slots, or retire it when it has finished."""
        sequence.num_reserved = sequence.num_forwarded = 0
        if sequence.status == "finished":
            self._retire(sequence)
            return
        if sequence.status == "running":
            sequence.num_computed = len(sequence.tokens) - 1
        elif sequence.num_computed == sequence.prefill_target:
            sequence.status = "running"
        self.slots.trim(sequence.slot_row, sequence.num_computed)

    def check(self) -> None:
        """Raise SlotError unless each sequence holds exactly its computed and reserved positions."""
        rows = [sequence.slot_row for sequence in self.with_status("prefilling", "running")]
        if len(set(rows)) != len(rows) or sorted(rows) != self.slots.open_rows():
            raise SlotError(f"slot table rows {self.slots.open_rows()} are open, active sequences have {sorted(rows)}")
        for sequence in self.live.values():
            held = self.slots.length(sequence.slot_row) if sequence.slot_row >= 0 else 0
            if held != sequence.num_computed + sequence.num_reserved:
                raise SlotError(
                    f"request {sequence.request_id} ({sequence.status}) holds {held} slots for "
                    f"{sequence.num_computed} computed and {sequence.num_reserved} reserved positions"
                )

    def _growth(self, sequence: Sequence, rows: int) -> int:
        """Slots an active sequence still wants for its prefill and its next round."""
        return max(0, len(sequence.tokens) + rows - self.slots.length(sequence.slot_row))

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Slots for `count` positions past the computed ones, no more; False: it paused itself."""
        target = sequence.num_computed + count
        if self.slots.length(sequence.slot_row) > target:  # reserved earlier, never computed
            self.slots.trim(sequence.slot_row, target)
        if not self._extend(sequence, target):
            return False
        sequence.num_reserved = count
        sequence.num_forwarded = 0
        return True

    def _extend(self, sequence: Sequence, length: int) -> bool:
        """Slots for positions 0..length-1, pausing the youngest until there are enough; False: it paused itself."""
        while self.slots.num_free < length - self.slots.length(sequence.slot_row):
            youngest = self.with_status("prefilling", "running")[-1]
            self._pause(youngest)
            if youngest is sequence:
                return False
        self.slots.extend(sequence.slot_row, length)
        return True

    def _pause(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.status = "paused"

    def _retire(self, sequence: Sequence) -> None:
        self._release(sequence)
        del self.live[sequence.request_id]
        self._cancelled.discard(sequence.request_id)
        self._finished.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        sequence.num_computed = sequence.num_reserved = sequence.num_forwarded = 0
        if sequence.slot_row >= 0:
            row, sequence.slot_row = sequence.slot_row, -1
            self.slots.close(row)
            if self.release_listener is not None:
                self.release_listener(sequence.request_id)
