"""The serial drafter: an EAGLE-3-style head that reads the target's hidden states and drafts one token per step.

Per request the head keeps keys and values of every position the target has verified. Hidden states that arrive while
nobody asks for drafts wait as a backlog; the next `propose` catches up on all of them in one pass and then chains.
Chain steps read the head's own output in place of hidden states that do not exist yet; what they write is overwritten
by the next catch-up, so a state never depends on how often, or how far, the head has drafted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from lightspec_lightllm.cpu.linear import FloatArray as FloatRows
from lightspec_lightllm.cpu.linear import LinearWeights, has_bfloat16_tiles
from lightspec_lightllm.drafters.base import (
    DrafterKind,
    FloatArray,
    Hidden,
    IntArray,
    Proposals,
    SequenceView,
    StepRule,
)
from lightspec_lightllm.drafters.checkpoint import SHIPPED, HeadWeights, load_weights
from lightspec_lightllm.drafters.lanes import LaneCache
from lightspec_lightllm.drafters.network import HeadNetwork
from lightspec_lightllm.errors import FeedbackError

MAX_BACKLOG = 256
"""Rows a request may leave waiting before the head takes them in unasked: hidden states are four layers wide."""


@dataclass
class Backlog:
    """What one request still has to feed the head: hidden states of positions ``start..start+rows-1``.

    Once it was fed, the last row stays: another `propose` without a round in between starts from it again.
    """

    start: int = 0
    rows: int = 0
    fed: bool = False
    pending: list[FloatRows] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Positions that the next `propose` feeds."""
        return self.rows - (self.fed and len(self.pending) > 1)

    def add(self, states: FloatRows) -> None:
        """Hidden states ``[rows, C * D]`` of the next positions."""
        self.pending.append(states)
        self.rows += len(states)

    def to_feed(self) -> tuple[int, list[FloatRows]]:
        """Position of the first row to be fed and chunks ``[rows, C * D]`` from there on."""
        return (self.start + 1, self.pending[1:]) if self.fed and len(self.pending) > 1 else (self.start, self.pending)

    def was_fed(self) -> None:
        """All of it is in the head's cache; the last row stays."""
        self.start += self.rows - 1
        self.rows = 1
        self.pending = [self.pending[-1][-1:].copy()]
        self.fed = True


class HeadDrafter:
    """Drafts with a trained head, on the CPU. Not thread-safe; states are float32, weights as `LinearWeights` says."""

    name = "head"
    kind: DrafterKind = "serial"

    def __init__(
        self,
        embedding: torch.Tensor,
        weights: HeadWeights | Path = SHIPPED,
        *,
        max_draft_steps: int = 8,
        weight_kind: LinearWeights | None = None,
    ) -> None:
        """``embedding`` is the target's ``[V, D]``; ``weight_kind`` None: what is quickest on this processor.

        ModelError when the weights are missing or of another target.
        """
        loaded = load_weights(weights) if isinstance(weights, Path) else weights
        self.max_draft_steps = max_draft_steps
        self.capture_layers: tuple[int, ...] = loaded.geometry.capture_layers
        kind = weight_kind or ("bfloat16" if has_bfloat16_tiles() else "float16")
        self._network = HeadNetwork(loaded, embedding, kind)
        self._cache = LaneCache(loaded.geometry.num_kv_heads, loaded.head_dim)
        self._backlogs: dict[int, Backlog] = {}
        self._width = len(self.capture_layers) * loaded.hidden_size

    def prefill(self, seq: SequenceView, start: int, hidden: Hidden) -> None:
        """See `Drafter.prefill`. FeedbackError when a chunk is missing before ``start``, or is of another width."""
        states = self._states(hidden)
        if start == 0:
            self._backlogs[seq.request_id] = Backlog()
        backlog = self._backlogs.get(seq.request_id)
        known = 0 if backlog is None else backlog.start + backlog.rows
        if backlog is None or known != start:
            msg = (
                f"request {seq.request_id}: expected hidden states from position {known} on, got a prompt chunk that "
                f"starts at {start}; hand over every chunk in order, from 0 after a release"
            )
            raise FeedbackError(msg)
        backlog.add(states.copy())

    def observe(self, seqs: Sequence[SequenceView], hidden: Hidden, rows: IntArray, accepted: IntArray) -> None:
        """See `Drafter.observe`. Requests whose prompt was never handed over are passed by: they get no drafts."""
        states, counts, kept = self._states(hidden), rows.tolist(), accepted.tolist()
        fits = all(1 <= few <= count for few, count in zip(kept, counts, strict=True))
        if sum(counts) != len(states) or not fits:
            msg = (
                f"expected one hidden state for each of {sum(counts)} rows and accept lengths from 1 to them, got "
                f"{len(states)} states for rows {counts} and accept lengths {kept}"
            )
            raise FeedbackError(msg)
        waiting = [seq for seq in seqs if self.backlog([seq]) > MAX_BACKLOG]
        if waiting:
            self._catch_up(waiting, 0)
        for seq, end, count, few in zip(seqs, accumulate(counts), counts, kept, strict=True):
            backlog = self._backlogs.get(seq.request_id)
            if backlog is not None:
                # A copy: a view would keep the rows of the whole batch alive.
                backlog.add(states[end - count : end - count + few].copy())

    def backlog(self, seqs: Sequence[SequenceView]) -> int:
        """See `Drafter.backlog`."""
        return sum(self._backlogs[seq.request_id].waiting for seq in seqs if seq.request_id in self._backlogs)

    def release(self, request_id: int) -> None:
        """See `Drafter.release`."""
        self._backlogs.pop(request_id, None)
        self._cache.free(request_id)

    @torch.no_grad()
    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: StepRule | None = None) -> Proposals:
        """See `Drafter.propose`; requests whose hidden states are known all get the same number of drafts."""
        proposals = Proposals.empty(len(seqs), steps)
        ready = [row for row, seq in enumerate(seqs) if seq.request_id in self._backlogs]
        if not ready:
            return proposals
        chain = self._catch_up([seqs[row] for row in ready], steps)
        request_ids = np.array([seqs[row].request_id for row in ready], dtype=np.int64)
        tokens, confidence = self._chain(chain, steps, request_ids, rule)
        made = tokens.shape[1]
        proposals.tokens[ready, :made] = tokens
        proposals.confidence[ready, :made] = confidence
        proposals.lengths[ready] = made
        return proposals

    def _catch_up(self, seqs: Sequence[SequenceView], steps: int) -> "Chain":
        """Process every backlog in one pass; return the state of each request's last row, ready for step 0.

        With 0 steps the newest tokens may still be without hidden states.
        """
        totals = [self._check(seq, steps) for seq in seqs]
        chunks: list[FloatRows] = []
        tokens: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        for seq, total in zip(seqs, totals, strict=True):
            start, waiting = self._backlogs[seq.request_id].to_feed()
            chunks += waiting
            tokens += seq.tokens[start + 1 : total + 1]
            starts.append(start)
            counts.append(total - start)
        lanes = self._cache.first_slots([seq.request_id for seq in seqs])
        rows = np.array(counts)
        ends = rows.cumsum()
        # Row r of a request that begins at row b stands at its position start + r - b.
        positions = np.arange(ends[-1]) + np.repeat(np.array(starts) - (ends - rows), rows)
        slots, last = positions + np.repeat(lanes, rows), ends - 1
        streams = np.concatenate(chunks)
        hidden, queries = self._network.take_in(
            streams, np.array(tokens, dtype=np.int64), positions, slots, self._cache.slots, last
        )
        for seq in seqs:
            self._backlogs[seq.request_id].was_fed()
        return Chain(hidden, queries, positions[last], lanes)

    def _states(self, hidden: Hidden) -> FloatRows:
        states: FloatRows = torch.as_tensor(hidden, dtype=torch.float32).detach().numpy()
        if states.ndim != 2 or states.shape[1] != self._width:
            msg = f"expected hidden states [rows, {self._width}], got an array of shape {states.shape}"
            raise FeedbackError(msg)
        return states

    def _check(self, seq: SequenceView, steps: int) -> int:
        """How many hidden states of a request are known; makes room for them and the steps."""
        backlog = self._backlogs[seq.request_id]
        total = backlog.start + backlog.rows
        if total + 1 > len(seq.tokens) or (steps and total + 1 < len(seq.tokens)):
            msg = (
                f"request {seq.request_id}: expected hidden states of all but the newest of its {len(seq.tokens)} "
                f"tokens, have those of {total}; call observe once for every round"
            )
            raise FeedbackError(msg)
        self._cache.open(seq.request_id, total + steps)
        return total

    def _chain(
        self, chain: "Chain", steps: int, request_ids: IntArray, rule: StepRule | None
    ) -> tuple[IntArray, FloatArray]:
        """Draft up to ``steps`` tokens per request: ids int64 [N, made] and confidences float64 [N, made]."""
        network, cache, hidden, queries = self._network, self._cache, chain.hidden, chain.queries
        positions, slots = chain.positions, chain.first_slots + chain.positions
        schedule = cache.schedule(chain.first_slots, chain.positions + 1)
        tokens: list[IntArray] = []
        confidences: list[FloatRows] = []
        for step in range(steps):
            if step:
                queries = network.step(tokens[-1], hidden, positions + step, slots + step, cache.slots)
                schedule.advance()
            token, confidence = network.draft(network.layer(hidden, cache.attend(queries, schedule)))
            tokens.append(token)
            confidences.append(confidence)
            if rule is not None and step + 1 < steps:
                seen = np.stack(confidences, axis=1, dtype=np.float64)
                if not rule.worth_another_step(seen, request_ids):
                    break
        return np.stack(tokens, axis=1), np.stack(confidences, axis=1, dtype=np.float64)


@dataclass(frozen=True)
class Chain:
    """Where drafting starts: each request's last row.

    Attributes:
        hidden: float32 [N, D]; steps overwrite it.
        queries: float32 [N, H, E].
        positions: int64[N].
        first_slots: int64[N], of the requests' lanes.
    """

    hidden: FloatRows
    queries: FloatRows
    positions: IntArray
    first_slots: IntArray
