"""The draft head as a trainable module: the same arithmetic as the drafter's, over whole sequences at once.

Training-time test: from each anchor position the head is unrolled K steps on its own outputs, with the true tokens as
inputs, exactly as it chains while serving a prefix that gets accepted.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lightspec_lightllm.drafters.checkpoint import HeadGeometry, HeadWeights

PARTS = ("fuse", "embed_norm", "hidden_norm", "qkv", "out", "ffn_norm", "gate_up", "down", "output_norm")
"""Submodules, by the names of their weights in a checkpoint."""


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head; all but the captured streams are the target's."""

    hidden_size: int
    ffn_size: int
    head_dim: int


class DraftHead(nn.Module):
    """N sequences, T known positions, R anchors per sequence, K steps, D hidden size, C captured streams."""

    def __init__(self, geometry: HeadGeometry, shape: HeadShape) -> None:
        super().__init__()
        size, heads, shared, dim = shape.hidden_size, geometry.num_heads, geometry.num_kv_heads, shape.head_dim
        eps = geometry.norm_eps
        self.geometry = geometry
        self.shape = shape
        self.fuse = nn.Linear(len(geometry.capture_layers) * size, size, bias=False)
        self.embed_norm = nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.qkv = nn.Linear(2 * size, (heads + 2 * shared) * dim, bias=False)
        self.out = nn.Linear(heads * dim, size, bias=False)
        self.ffn_norm = nn.RMSNorm(size, eps)
        self.gate_up = nn.Linear(size, 2 * shape.ffn_size, bias=False)
        self.down = nn.Linear(shape.ffn_size, size, bias=False)
        self.output_norm = nn.RMSNorm(size, eps)
        for linear in (self.fuse, self.qkv, self.out, self.gate_up, self.down):
            nn.init.normal_(linear.weight, std=0.02)

    def fused(self, streams: torch.Tensor) -> torch.Tensor:
        """Captured streams ``[N, T, C * D]`` -> hidden inputs ``[N, T, D]``."""
        rows = streams.view(*streams.shape[:-1], -1, self.shape.hidden_size)
        unit = functional.rms_norm(rows, rows.shape[-1:], None, self.geometry.norm_eps)
        hidden: torch.Tensor = self.fuse(unit.flatten(-2))
        return hidden

    def unroll(
        self, embedded: torch.Tensor, streams: torch.Tensor, first: torch.Tensor, anchors: int, steps: int
    ) -> list[torch.Tensor]:
        """Outputs ``[N, R, D]`` of steps 0..K-1; step j of anchor p predicts token ``p + 2 + j``.

        ``embedded`` [N, >= T + K, D]: token embeddings from position 0 on; ``streams`` [N, T, C * D]; ``first`` int64
        [N]: each sequence's first anchor position; anchors past ``T - 1`` repeat the last one (mask them outside).
        """
        heads, shared, dim = self.geometry.num_heads, self.geometry.num_kv_heads, self.shape.head_dim
        count, length = streams.shape[:2]
        batch = torch.arange(count)[:, None]
        anchor = (first[:, None] + torch.arange(anchors)).clamp(max=length - 1)  # [N, R]
        fused = self.fused(streams)
        tokens = self.embed_norm(embedded)
        known = torch.arange(length).expand(count, length)
        queries, keys, values = self._project(tokens[:, 1 : 1 + length], fused, known)
        keys_t = keys.permute(0, 2, 3, 1).reshape(count * shared, dim, length)
        values_t = values.permute(0, 2, 1, 3).reshape(count * shared, length, dim)
        future = torch.arange(length) > anchor[:, None, None, :, None]
        bias = torch.zeros(future.shape).masked_fill_(future, -torch.inf)
        hidden, query = fused[batch, anchor], queries[batch, anchor]
        own_keys: list[torch.Tensor] = []
        own_values: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []
        for step in range(steps):
            if step:
                query, key, value = self._project(tokens[batch, anchor + 1 + step], hidden, anchor + step)
                own_keys.append(key)
                own_values.append(value)
            grouped = query.view(count, anchors, shared, heads // shared, dim)
            folded = grouped.permute(0, 2, 3, 1, 4).reshape(count * shared, -1, dim)
            scores = torch.bmm(folded, keys_t).view(count, shared, -1, anchors, length) * dim**-0.5 + bias
            if own_keys:
                own = torch.matmul(grouped, torch.stack(own_keys, -1)).permute(0, 2, 3, 1, 4) * dim**-0.5
                scores = torch.cat([scores, own], dim=-1)
            weights = scores.softmax(dim=-1)
            mixed = torch.bmm(weights[..., :length].reshape(count * shared, -1, length), values_t)
            mixed = mixed.view(count, shared, -1, anchors, dim).permute(0, 3, 1, 2, 4)
            if own_keys:
                mixed = mixed + torch.matmul(
                    weights[..., length:].permute(0, 3, 1, 2, 4), torch.stack(own_values, dim=-2)
                )
            hidden = hidden + self.out(mixed.reshape(count, anchors, heads * dim))
            gate, up = self.gate_up(self.ffn_norm(hidden)).chunk(2, dim=-1)
            hidden = hidden + self.down(functional.silu(gate) * up)
            outputs.append(hidden)
        return outputs

    @classmethod
    def load(cls, weights: HeadWeights) -> "DraftHead":
        """The module of a checkpoint."""
        head = cls(weights.geometry, HeadShape(weights.hidden_size, weights.down.shape[1], weights.head_dim))
        with torch.no_grad():
            for name in PARTS:
                getattr(head, name).weight.copy_(torch.from_numpy(getattr(weights, name)))
        return head

    def export(self, draft_vocab: torch.Tensor) -> HeadWeights:
        """The weights as they ship: float16, with ``draft_vocab`` int64 [V'] ascending."""
        return HeadWeights(
            geometry=self.geometry,
            draft_vocab=draft_vocab.numpy().astype(np.int32),
            **{name: half(getattr(self, name).weight) for name in PARTS},
        )

    def _project(
        self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries ``[N, R, H, E]``, keys and values ``[N, R, G, E]``; ``tokens`` are normed embeddings [N, R, D]."""
        queries, shared = self.geometry.num_heads, self.geometry.num_kv_heads
        heads = self.qkv(torch.cat([tokens, self.hidden_norm(hidden)], dim=-1))
        heads = heads.view(*heads.shape[:-1], queries + 2 * shared, self.shape.head_dim)
        turned = rotate(heads[:, :, : queries + shared], positions, self.geometry.rope_theta)
        return turned[:, :, :queries], turned[:, :, queries:], heads[:, :, queries + shared :]


def rotate(heads: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary positions, half-split layout: ``heads [N, R, any, E]``, ``positions`` int64 [N, R]."""
    dim = heads.shape[-1]
    frequencies = torch.exp(torch.arange(0, dim, 2) * (-math.log(theta) / dim))
    angles = positions[..., None].float() * frequencies
    cosine, sine = angles.cos()[:, :, None], angles.sin()[:, :, None]
    low, high = heads.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


def half(parameter: torch.Tensor) -> np.ndarray:
    """A parameter as float16 numpy."""
    array: np.ndarray = parameter.detach().half().numpy()
    return array
