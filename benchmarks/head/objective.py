"""What the head is trained on: the target's own next-token distribution, at every anchor and every step.

The target of a row is half the target's distribution, cut to its likeliest tokens, and half its argmax: served text is
mostly greedy, and a confidence should say how often the argmax is hit. The softmax runs over a candidate set per batch
(tokens that matter in the batch, frequent ones, and random others), because over the whole draft vocabulary it would
cost more than the layer itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.head.network import DraftHead
from benchmarks.head.recording import Recording

TOP = 16
"""Tokens kept of the target's distribution."""


@dataclass(frozen=True)
class Teacher:
    """For each response token but the first, what the target expected there; indices are in the draft vocabulary.

    index  int16   [n - prompt - 1, TOP]  likeliest first
    chance float16 [n - prompt - 1, TOP]
    """

    index: torch.Tensor
    chance: torch.Tensor


@dataclass(frozen=True)
class Example:
    """A recording and its teacher."""

    recording: Recording
    teacher: Teacher


@dataclass(frozen=True)
class Vocabulary:
    """The draft vocabulary: V' target ids ascending, its rows of the target's embedding, and what is frequent in it."""

    ids: torch.Tensor  # int64 [V']
    rows: torch.Tensor  # float32 [V', D]
    position: torch.Tensor  # int64 [V]: index in the draft vocabulary, -1 for tokens outside
    by_frequency: torch.Tensor  # int64 [V']: indices, the most frequent first


def choose_vocabulary(recordings: Sequence[Recording], embedding: torch.Tensor, size: int) -> Vocabulary:
    """The most frequent tokens of the responses; prompts count a fiftieth, ties go to lower ids."""
    counts = torch.zeros(embedding.shape[0], dtype=torch.float64)
    for each in recordings:
        tokens = torch.from_numpy(each.tokens).long()
        counts += torch.bincount(tokens[each.prompt_length :], minlength=len(counts))
        counts += 0.02 * torch.bincount(tokens, minlength=len(counts))
    ids = counts.argsort(descending=True, stable=True)[:size].sort().values
    position = torch.full((embedding.shape[0],), -1)
    position[ids] = torch.arange(size)
    return Vocabulary(ids, embedding[ids], position, counts[ids].argsort(descending=True))


@torch.no_grad()
def teach(recording: Recording, vocabulary: Vocabulary, output_norm: torch.Tensor, eps: float) -> Teacher:
    """The target's distribution within the draft vocabulary, from the stream that leaves its last layer."""
    size = len(output_norm)
    final = torch.from_numpy(recording.hidden[recording.prompt_length :, -size:]).float()
    logits = functional.rms_norm(final, (size,), output_norm, eps) @ vocabulary.rows.T
    best, index = logits.topk(TOP, dim=-1)
    chance = (best - logits.logsumexp(-1, keepdim=True)).exp()
    return Teacher(index.to(torch.int16), chance.half())


@dataclass(frozen=True)
class Batch:
    """N padded sequences; the anchors of sequence i are positions ``first[i]..first[i] + anchors - 1``."""

    tokens: torch.Tensor  # int64 [N, T + K + 2]
    streams: torch.Tensor  # float32 [N, T, C * D]
    lengths: torch.Tensor  # int64 [N]
    first: torch.Tensor  # int64 [N]: the last prompt position, whose row predicts the second response token
    anchors: int


def collate(recordings: Sequence[Recording], steps: int) -> Batch:
    """Pad recordings with zeros to one length, with room for ``steps`` unrolled tokens."""
    length = max(len(each.tokens) for each in recordings) - 1
    tokens = torch.zeros(len(recordings), length + steps + 3, dtype=torch.int64)
    streams = torch.zeros(len(recordings), length, recordings[0].hidden.shape[1])
    for row, each in enumerate(recordings):
        tokens[row, : len(each.tokens)] = torch.from_numpy(each.tokens)
        streams[row, : len(each.tokens) - 1] = torch.from_numpy(each.hidden)
    return Batch(
        tokens,
        streams,
        lengths=torch.tensor([len(each.tokens) for each in recordings]),
        first=torch.tensor([each.prompt_length - 1 for each in recordings]),
        anchors=max(1, max(each.response_length for each in recordings) - 1),
    )


def loss_of(
    head: DraftHead,
    examples: Sequence[Example],
    vocabulary: Vocabulary,
    embedding: torch.Tensor,
    *,
    steps: int,
    decay: float = 0.85,
    hard: float = 0.5,
) -> tuple[torch.Tensor, int]:
    """Loss per anchor, summed over steps with weights ``decay ** step``, and the number of anchors.

    Rows whose token is outside the draft vocabulary are left out: the head cannot draft it.
    """
    batch = collate([each.recording for each in examples], steps)
    outputs = head.unroll(
        functional.embedding(batch.tokens, embedding), batch.streams, batch.first, batch.anchors, steps
    )
    span = batch.anchors + steps - 1
    index = torch.zeros(len(examples), span, TOP, dtype=torch.int64)
    chance = torch.zeros(len(examples), span, TOP)
    known = torch.zeros(len(examples), span, dtype=torch.bool)
    for row, each in enumerate(examples):
        count = min(span, each.teacher.index.shape[0])
        index[row, :count] = each.teacher.index[:count].long()
        chance[row, :count] = each.teacher.chance[:count].float()
        known[row, :count] = True
    predicted = (batch.first[:, None] + 2 + torch.arange(span)).clamp(max=batch.tokens.shape[1] - 1)
    known &= vocabulary.position[batch.tokens.gather(1, predicted)] >= 0
    chance = (1 - hard) * chance / chance.sum(-1, keepdim=True).clamp_min(1e-6)
    chance[..., 0] += hard
    candidates, rows = candidate_rows(index[known], vocabulary)
    index = candidates[index]
    chance = torch.where(index >= 0, chance, 0.0)
    chance = chance / chance.sum(-1, keepdim=True).clamp_min(1e-6)
    index = index.clamp(min=0)
    anchors = int(known[:, : batch.anchors].sum())
    loss = torch.zeros(())
    for step, hidden in enumerate(outputs):
        window = slice(step, step + batch.anchors)
        here = known[:, window].reshape(-1).nonzero()[:, 0]
        normed = head.output_norm(hidden.reshape(-1, hidden.shape[-1])[here])
        targets = chance[:, window].reshape(-1, TOP)[here]
        wanted = index[:, window].reshape(-1, TOP)[here]
        summed: torch.Tensor = SparseCrossEntropy.apply(  # type: ignore[no-untyped-call] # untyped in torch's stubs
            normed, rows, targets, wanted
        )
        loss = loss + decay**step * summed
    return loss / max(anchors, 1), anchors


def candidate_rows(
    index: torch.Tensor, vocabulary: Vocabulary, *, frequent: int = 2048, others: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates of a batch: their place by draft index (-1 outside), int64 [V'], and their rows ``[c, D]``."""
    chosen = torch.zeros(len(vocabulary.ids), dtype=torch.bool)
    chosen[vocabulary.by_frequency[:frequent]] = True
    chosen[index[:, : TOP // 2].reshape(-1)] = True
    chosen[torch.randint(0, len(chosen), (others,))] = True
    members = chosen.nonzero()[:, 0]
    place = torch.full((len(chosen),), -1)
    place[members] = torch.arange(len(members))
    return place, vocabulary.rows[members]


class SparseCrossEntropy(torch.autograd.Function):
    """Sum over rows of the cross entropy between sparse targets and ``softmax(hidden @ rows.T)``; rows are frozen.

    Written out, because autograd would keep several copies of the largest tensor of the training step.
    """

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        hidden: torch.Tensor,  # [M, D]
        rows: torch.Tensor,  # [c, D]
        chance: torch.Tensor,  # [M, TOP]
        index: torch.Tensor,  # int64 [M, TOP]
    ) -> torch.Tensor:
        gradient = functional.linear(hidden, rows).softmax(dim=-1)
        loss = -(gradient.gather(1, index).clamp_min(1e-9).log() * chance).sum()
        gradient.scatter_add_(1, index, -chance)
        context.save_for_backward(gradient @ rows)
        return loss

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, *upstream: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = context.saved_tensors  # type: ignore[attr-defined] # torch's stubs do not declare it
        return gradient * upstream[0], None, None, None
