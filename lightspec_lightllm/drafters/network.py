"""The draft head's arithmetic, after EAGLE-3 (https://arxiv.org/abs/2503.01840): one decoder layer, no state.

A row of the head stands for position p: it reads a hidden vector of position p and the embedding of token p + 1, and
its output predicts token p + 2. The hidden vector is the fusion of the target's captured streams where the target has
been (`HeadNetwork.fuse`), and the head's own previous output where it has not yet.
"""

import warnings

import torch
from torch.nn import functional

from lightspec_lightllm.cpu.linear import LinearWeights, make_linear
from lightspec_lightllm.cpu.rotary import rotations
from lightspec_lightllm.drafters.checkpoint import HeadWeights
from lightspec_lightllm.errors import ModelError

FIRST_POSITIONS = 2048
"""Rotations that are made at the start."""


class HeadNetwork:
    """R rows, N requests, D hidden size, H / G query and key/value heads of size E, V' draft vocabulary."""

    def __init__(self, weights: HeadWeights, embedding: torch.Tensor, kind: LinearWeights = "float16") -> None:
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that round to zero in half precision
            self._fuse = make_linear(torch.from_numpy(weights.fuse).float(), kind)
            self._qkv = make_linear(self._pairs_together(torch.from_numpy(weights.qkv).float()), kind)
            self._out = make_linear(torch.from_numpy(weights.out).float(), kind)
            self._gate_up = make_linear(torch.from_numpy(weights.gate_up).float(), kind)
            self._down = make_linear(torch.from_numpy(weights.down).float(), kind)
            self._logits = make_linear(embedding[self.draft_vocab], kind)
        self._turns = rotations(self.head_dim, geometry.rope_theta, FIRST_POSITIONS)

    def _pairs_together(self, qkv: torch.Tensor) -> torch.Tensor:
        """Rotary pairs of queries and keys side by side: turning one is a complex product, and scores stay the same."""
        turned = (self.geometry.num_heads + self.geometry.num_kv_heads) * self.head_dim
        halves = qkv[:turned].view(-1, 2, self.head_dim // 2, qkv.shape[1])
        return torch.cat([halves.transpose(1, 2).reshape(turned, -1), qkv[turned:]])

    def fuse(self, streams: torch.Tensor) -> torch.Tensor:
        """Captured streams ``[R, C * D]`` -> hidden input ``[R, D]``; each stream is brought to unit scale first.

        The scales of residual streams differ by orders of magnitude between layers and positions.
        """
        rows = streams.view(streams.shape[0], -1, self.hidden_size)
        unit = functional.rms_norm(rows, (self.hidden_size,), None, self.geometry.norm_eps)
        return self._fuse(unit.flatten(1))

    def project(
        self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries ``[R, H, E]``, and keys then values ``[R, 2 G, E]`` of rows.

        ``tokens`` int64 [R]: the token after each position; ``hidden`` [R, D]; ``positions`` int64 [R].
        """
        queries, turned = self.geometry.num_heads, self.geometry.num_heads + self.geometry.num_kv_heads
        pair = torch.cat(
            [self._norm(self._embedding[tokens], self._embed_norm), self._norm(hidden, self._hidden_norm)], dim=-1
        )
        heads = self._qkv(pair).view(len(tokens), -1, self.head_dim)
        highest = int(positions.max())
        if highest >= len(self._turns):
            self._turns = rotations(self.head_dim, self.geometry.rope_theta, 2 * highest)
        pairs = heads[:, :turned].view(len(tokens), turned, self.head_dim // 2, 2)
        torch.view_as_complex(pairs).mul_(self._turns.index_select(0, positions)[:, None])
        return heads[:, :queries], heads[:, queries:]

    def layer(self, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """The rest of the layer, from ``mixed [N, H * E]``, what rows have read by attention: ``hidden`` ``[N, D]``."""
        middle = hidden + self._out(mixed)
        gate, up = self._gate_up(self._norm(middle, self._ffn_norm)).chunk(2, dim=-1)
        return middle + self._down(functional.silu(gate).mul_(up))

    def draft(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest token of each row, int64 [N] target ids, and its probability within the draft vocabulary."""
        logits = self._logits(self._norm(hidden, self._output_norm))
        index = torch.from_numpy(logits.numpy().argmax(axis=-1))  # many times as quick as torch's
        behind = logits.sub_(logits.gather(1, index[:, None]))
        if self.geometry.confidence_temperature != 1.0:
            behind.mul_(1.0 / self.geometry.confidence_temperature)
        return self.draft_vocab[index], behind.exp_().sum(dim=-1).reciprocal()

    def _norm(self, rows: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (self.hidden_size,), gain, self.geometry.norm_eps)
