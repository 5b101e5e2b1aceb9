"""The draft head's arithmetic, after EAGLE-3 (https://arxiv.org/abs/2503.01840): one decoder layer, no state.

A row of the head stands for position p: it reads a hidden vector of position p and the embedding of token p + 1, and
its output predicts token p + 2. The hidden vector is the fusion of the target's captured streams where the target has
been (`HeadNetwork.fuse`), and the head's own previous output where it has not yet.
"""

import warnings

import numpy as np
import numpy.typing as npt
import torch

from lightspec_lightllm.cpu.linear import FloatArray, LinearWeights, make_linear, product
from lightspec_lightllm.cpu.rotary import rotations
from lightspec_lightllm.cpu.rows import row_arithmetic
from lightspec_lightllm.drafters.checkpoint import HeadWeights
from lightspec_lightllm.errors import FeedbackError, ModelError

IntArray = npt.NDArray[np.int64]

FIRST_POSITIONS = 2048
"""Rotations that are made at the start."""


class HeadNetwork:
    """R rows, N requests, D hidden size, H / G query and key/value heads of size E, V' draft vocabulary.

    Arrays are float32 and int64, in C order. Keys and values go to ``cache`` ``[2 G, slots, E]``, keys first.
    """

    def __init__(self, weights: HeadWeights, embedding: torch.Tensor, kind: LinearWeights = "float16") -> None:
        """``embedding`` is the target's, float32 ``[V, D]``; it is read, never copied as a whole."""
        geometry = weights.geometry
        if embedding.dtype != torch.float32:
            raise ModelError(f"expected the target's embedding in float32, got {embedding.dtype}")
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
        self.draft_vocab: IntArray = np.asarray(weights.draft_vocab, dtype=np.int64)
        self._rows = row_arithmetic()
        self._embedding: FloatArray = embedding.detach().contiguous().numpy()
        self._embed_norm, self._hidden_norm, self._ffn_norm, self._output_norm = (
            np.array(gain, dtype=np.float32)
            for gain in (weights.embed_norm, weights.hidden_norm, weights.ffn_norm, weights.output_norm)
        )
        queries, keys_values = self._pairs_together(torch.from_numpy(weights.qkv).float())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that round to zero in half precision
            self._fuse = make_linear(torch.from_numpy(weights.fuse).float(), kind)
            self._queries = make_linear(queries, kind)
            self._keys_values = make_linear(keys_values, kind)
            self._out = make_linear(torch.from_numpy(weights.out).float(), kind)
            self._gate_up = make_linear(torch.from_numpy(weights.gate_up).float(), kind)
            self._down = make_linear(torch.from_numpy(weights.down).float(), kind)
            self._logits = make_linear(embedding[torch.from_numpy(self.draft_vocab)], kind)
        self._turns = self._turned(FIRST_POSITIONS)

    def _pairs_together(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights of the queries, and of keys and values, with rotary pairs side by side; scores stay the same."""
        queries = self.geometry.num_heads * self.head_dim
        turned = queries + self.geometry.num_kv_heads * self.head_dim
        halves = qkv[:turned].view(-1, 2, self.head_dim // 2, qkv.shape[1])
        pairs = halves.transpose(1, 2).reshape(turned, -1)
        return pairs[:queries], torch.cat([pairs[queries:], qkv[turned:]])

    def _turned(self, num_positions: int) -> FloatArray:
        """[positions, E / 2, 2]: cosine and sine of each pair's rotation."""
        turns: FloatArray = torch.view_as_real(
            rotations(self.head_dim, self.geometry.rope_theta, num_positions)
        ).numpy()
        return turns

    def take_in(  # noqa: PLR0917 - what the rows are, and where they go
        self,
        streams: FloatArray,
        tokens: IntArray,
        positions: IntArray,
        slots: IntArray,
        cache: FloatArray,
        last: IntArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Store keys and values of rows that the target has been at; hidden inputs and queries of some of them.

        Each stream is brought to unit scale first (``streams`` is overwritten): the scales of residual streams differ
        by orders of magnitude between layers and positions.

        Args:
            streams: [R, C * D], captured streams of the rows' positions.
            tokens: int64[R], the token after each position.
            positions: int64[R].
            slots: int64[R], where in the cache each row's keys and values go.
            cache: as of the class.
            last: int64[N], rows whose queries are wanted.

        Returns:
            ``[N, D]`` and ``[N, H, E]``.

        Raises:
            FeedbackError: a token is not the target's, or there is not one for each row.
        """
        if len(tokens) != len(streams) or tokens.min() < 0 or tokens.max() >= len(self._embedding):
            raise FeedbackError(
                f"expected one token of 0..{len(self._embedding) - 1} for each of {len(streams)} rows, got"
                f" {len(tokens)} from {tokens.min(initial=0)} to {tokens.max(initial=0)}"
            )
        self._rows.unit(streams, self.hidden_size, self.geometry.norm_eps)
        hidden = product(self._fuse, streams)
        pair = self._pair(tokens, hidden, int(positions.max()))
        self._store(pair, positions, slots, cache)
        return hidden[last], self._turned_queries(pair[last], positions[last])

    def step(
        self, tokens: IntArray, hidden: FloatArray, positions: IntArray, slots: IntArray, cache: FloatArray
    ) -> FloatArray:
        """Store keys and values of rows where the target has not been; their queries ``[N, H, E]``.

        As `take_in`, with the head's own last output for ``hidden`` ``[N, D]``.
        """
        pair = self._pair(tokens, hidden, int(positions.max()))
        self._store(pair, positions, slots, cache)
        return self._turned_queries(pair, positions)

    def _pair(self, tokens: IntArray, hidden: FloatArray, highest: int) -> FloatArray:
        """[R, 2 D], what queries, keys and values are made of; rotations reach the highest position from now on."""
        if highest >= len(self._turns):
            self._turns = self._turned(2 * highest)
        gains = self._embed_norm, self._hidden_norm
        return self._rows.pair(self._embedding, tokens, hidden, *gains, self.geometry.norm_eps)

    def _store(self, pair: FloatArray, positions: IntArray, slots: IntArray, cache: FloatArray) -> None:
        heads = product(self._keys_values, pair).reshape(len(pair), -1, self.head_dim)
        self._rows.place(heads, 0, self._turns, positions, slots, cache)

    def _turned_queries(self, pair: FloatArray, positions: IntArray) -> FloatArray:
        heads = product(self._queries, pair).reshape(len(pair), -1, self.head_dim)
        self._rows.place(heads, heads.shape[1], self._turns, positions, positions, heads)
        return heads

    def layer(self, hidden: FloatArray, mixed: FloatArray) -> FloatArray:
        """The rest of the layer, in place, from ``mixed [N, H * E]``, what rows have read by attention.

        Returns:
            ``[N, D]``, the same normalised, for `draft`.
        """
        epsilon, normed = self.geometry.norm_eps, np.empty_like(hidden)
        self._rows.add_norm(hidden, product(self._out, mixed), self._ffn_norm, epsilon, normed)
        gate_up = product(self._gate_up, normed)
        gated = np.empty((len(gate_up), gate_up.shape[1] // 2), dtype=np.float32)
        self._rows.gate(gate_up, gated)
        self._rows.add_norm(hidden, product(self._down, gated), self._output_norm, epsilon, normed)
        return normed

    def draft(self, normed: FloatArray) -> tuple[IntArray, FloatArray]:
        """The likeliest token of each row, int64 [N] target ids, and its probability within the draft vocabulary."""
        logits = product(self._logits, normed)
        best = logits.argmax(axis=-1)
        return self.draft_vocab[best], self._rows.chance(logits, best, self.geometry.confidence_temperature)
