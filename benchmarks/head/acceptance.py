"""How well a head drafts recorded responses: what a greedy target would accept, and how honest its confidence is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from benchmarks.head.network import DraftHead
from benchmarks.head.objective import collate
from benchmarks.head.recording import Recording

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Acceptance:
    """Drafts of K steps from every anchor of some responses, teacher-forced.

    hits       bool    [anchors, K]  draft j is the recorded token
    valid      bool    [anchors, K]  the response has a token there
    confidence float64 [anchors, K]
    """

    hits: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    confidence: FloatArray

    @property
    def conditional(self) -> FloatArray:
        """P(draft j right | drafts before j right), over anchors with K tokens after them."""
        alive = self._alive()[self.valid.all(axis=1)]
        reached = np.concatenate([np.ones((len(alive), 1), dtype=bool), alive[:, :-1]], axis=1)
        chances: FloatArray = alive.sum(axis=0) / np.maximum(reached.sum(axis=0), 1)
        return chances

    @property
    def mean_accepted(self) -> float:
        """Drafts accepted per round of K steps, the target's own token not counted."""
        return float(self._alive()[self.valid.all(axis=1)].sum(axis=1).mean())

    def calibration(self, step: int, bins: int = 10) -> list[tuple[int, float, float]]:
        """(drafts, mean confidence, hit rate) by deciles of confidence, where step ``step`` is reached."""
        alive = self._alive()
        reached = self.valid[:, step] & (alive[:, step - 1] if step else True)
        confidence, hits = self.confidence[reached, step], self.hits[reached, step]
        parts = np.array_split(np.argsort(confidence, kind="stable"), bins)
        return [(len(p), float(confidence[p].mean()), float(hits[p].mean())) for p in parts if len(p)]

    def _alive(self) -> npt.NDArray[np.bool_]:
        return np.logical_and.accumulate(self.hits & self.valid, axis=1)


@torch.no_grad()
def measure(
    head: DraftHead,
    recordings: Sequence[Recording],
    vocabulary: torch.Tensor,
    embedding: torch.Tensor,
    *,
    steps: int = 8,
    temperature: float = 1.0,
    batch_size: int = 8,
) -> Acceptance:
    """Unroll the head over recordings; ``vocabulary`` int64 [V'], ``embedding`` the target's [V, D]."""
    rows = embedding[vocabulary]
    hits: list[torch.Tensor] = []
    valid: list[torch.Tensor] = []
    sure: list[torch.Tensor] = []
    usable = sorted((each for each in recordings if each.response_length >= 3), key=lambda each: len(each.tokens))
    for begin in range(0, len(usable), batch_size):
        batch = collate(usable[begin : begin + batch_size], steps)
        embedded = functional.embedding(batch.tokens, embedding)
        outputs = head.unroll(embedded, batch.streams, batch.first, batch.anchors, steps)
        anchor = batch.first[:, None] + torch.arange(batch.anchors)
        inside = anchor + 2 < batch.lengths[:, None]
        columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for step, hidden in enumerate(outputs):
            chances = functional.linear(head.output_norm(hidden[inside]), rows).div_(temperature).softmax(-1)
            best, index = chances.max(dim=-1)
            where = (anchor + 2 + step).clamp(max=batch.tokens.shape[1] - 1)
            exists = (anchor + 2 + step < batch.lengths[:, None])[inside]
            columns.append((vocabulary[index] == batch.tokens.gather(1, where)[inside], exists, best))
        for store, column in zip((hits, valid, sure), zip(*columns, strict=True), strict=True):
            store.append(torch.stack(column, dim=1))
    return Acceptance(
        torch.cat(hits).numpy() & torch.cat(valid).numpy(), torch.cat(valid).numpy(), torch.cat(sure).double().numpy()
    )
