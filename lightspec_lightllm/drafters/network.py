"""The draft head's arithmetic, after EAGLE-3 (https://arxiv.org/abs/2503.01840): one decoder layer, no state.

A row of the head stands for position p: it reads a hidden vector of position p and the embedding of token p + 1, and
its output predicts token p + 2. The hidden vector is the fusion of the target's captured streams where the target has
been (`HeadNetwork.fuse`), and the head's own previous output where it has not yet.
"""

import torch
from torch.nn import functional

from lightspec_lightllm.drafters.checkpoint import HeadWeights
from lightspec_lightllm.drafters.linear import PackedLinear, WeightKind
from lightspec_lightllm.errors import ModelError


class HeadNetwork:
    """R rows, N requests, D hidden size, H / G query and key/value heads of size E, V' draft vocabulary."""

    def __init__(self, weights: HeadWeights, embedding: torch.Tensor, kind: WeightKind = "float16") -> None:
        """``embedding`` is the target's, float32 ``[V, D]``; it is read, never copied as a whole."""
        geometry = weights.geometry
        if embedding.shape[1] != weights.hidden_size or int(weights.draft_vocab.max()) >= embedding.shape[0]:
            msg = (
                f"expected a target like {geometry.target} (hidden size {weights.hidden_size}, token ids up to "
                f"{int(weights.draft_vocab.max())}), got an embedding of shape {tuple(embedding.shape)}; "
                "use the n-gram drafter, or train a head for this target"
            )
            raise ModelError(msg)
        self.geometry = geometry
        self.hidden_size = weights.hidden_size
        self.head_dim = weights.head_dim
        self.draft_vocab = torch.from_numpy(weights.draft_vocab).long()
        self._embedding = embedding
        self._embed_norm = torch.from_numpy(weights.embed_norm).float()
        self._hidden_norm = torch.from_numpy(weights.hidden_norm).float()
        self._ffn_norm = torch.from_numpy(weights.ffn_norm).float()
        self._output_norm = torch.from_numpy(weights.output_norm).float()
        self._fuse = PackedLinear(torch.from_numpy(weights.fuse), kind)
        self._qkv = PackedLinear(torch.from_numpy(weights.qkv), kind)
        self._out = PackedLinear(torch.from_numpy(weights.out), kind)
        self._gate_up = PackedLinear(torch.from_numpy(weights.gate_up), kind)
        self._down = PackedLinear(torch.from_numpy(weights.down), kind)
        self._logits = PackedLinear(embedding[self.draft_vocab], kind)
        half = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        self._frequencies = 1.0 / geometry.rope_theta**half

    def fuse(self, streams: torch.Tensor) -> torch.Tensor:
        """Captured streams ``[R, C * D]`` -> hidden input ``[R, D]``; each stream is brought to unit scale first.

        The scales of residual streams differ by orders of magnitude between layers and positions.
        """
        rows = streams.view(streams.shape[0], -1, self.hidden_size)
        unit = functional.rms_norm(rows, (self.hidden_size,), None, self.geometry.norm_eps)
        return self._fuse(unit.flatten(1))

    def project(
        self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries ``[R, H, E]``, keys and values ``[R, G, E]`` of rows.

        ``tokens`` int64 [R]: the token after each position; ``hidden`` [R, D]; ``positions`` int64 [R].
        """
        queries, shared = self.geometry.num_heads, self.geometry.num_kv_heads
        pair = torch.cat(
            [self._norm(self._embedding[tokens], self._embed_norm), self._norm(hidden, self._hidden_norm)], dim=-1
        )
        heads = self._qkv(pair).view(-1, queries + 2 * shared, self.head_dim)
        turned = self._rotate(heads[:, : queries + shared], positions)
        return turned[:, :queries], turned[:, queries:], heads[:, queries + shared :]

    def layer(
        self,
        hidden: torch.Tensor,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """One row per request through the layer: ``hidden [N, D]`` -> ``[N, D]``.

        ``queries`` [N, H, E]; ``keys``, ``values`` [N, G, T, E] contiguous in their last two axes; ``bias`` [N, 1, T],
        0 where a request may look and -inf elsewhere.
        """
        count, shared, length, dim = keys.shape
        folded = queries.reshape(count * shared, -1, dim)
        scores = torch.bmm(folded, keys.view(count * shared, length, dim).transpose(1, 2)) * dim**-0.5
        weights = (scores.view(count, -1, length) + bias).softmax(dim=-1)
        mixed = torch.bmm(weights.view(count * shared, -1, length), values.view(count * shared, length, dim))
        middle = hidden + self._out(mixed.reshape(count, -1))
        gate, up = self._gate_up(self._norm(middle, self._ffn_norm)).chunk(2, dim=-1)
        return middle + self._down(functional.silu(gate) * up)

    def draft(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest token of each row, int64 [N] target ids, and its probability within the draft vocabulary."""
        logits = self._logits(self._norm(hidden, self._output_norm))
        best, index = logits.max(dim=-1)
        temperature = self.geometry.confidence_temperature
        confidence = (best / temperature - torch.logsumexp(logits / temperature, dim=-1)).exp()
        return self.draft_vocab[index], confidence

    def _norm(self, rows: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (self.hidden_size,), gain, self.geometry.norm_eps)

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary positions, half-split layout: ``heads [R, any, E]``."""
        angles = positions[:, None].float() * self._frequencies
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        first, second = heads.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
