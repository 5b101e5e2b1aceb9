"""A Llama decoder on the CPU: float32 activations, weights in one of two lossless formats."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from lightspec_lightllm.cpu.linear import Linear, Scratch, make_linear, product
from lightspec_lightllm.cpu.rotary import rotations
from lightspec_lightllm.cpu.row_attention import row_kernel
from lightspec_lightllm.cpu.rows import FloatArray, row_arithmetic
from lightspec_lightllm.engine.attention import AttentionPlan, attend
from lightspec_lightllm.engine.checkpoint import ModelConfig
from lightspec_lightllm.engine.options import WeightFormat
from lightspec_lightllm.errors import ModelError

_HUGE_PAGE = 2 << 20  # bytes; a cache that begins at one touches no more of them than it must

__all__ = ["Batch", "KVCache", "Model", "ModelConfig"]


class KVCache:
    """Keys and values of every slot: [layers, key heads then value heads, slots, head_dim], float32.

    Memory is taken as slots are first used, in huge pages where the system gives them: low slots are cheapest.
    """

    def __init__(self, config: ModelConfig, num_slots: int) -> None:
        self.num_kv_heads = config.num_kv_heads
        shape = (config.num_layers, 2 * config.num_kv_heads, num_slots, config.head_dim)
        size = math.prod(shape)
        memory = np.zeros(size + _HUGE_PAGE // 4, dtype=np.float32)
        first = -memory.ctypes.data % _HUGE_PAGE // 4
        self.layers: list[FloatArray] = list(memory[first : first + size].reshape(shape))


@dataclass(frozen=True)
class Batch:
    """Rows of a forward: int64 [rows] tokens, positions and slots, and how they attend."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    plan: AttentionPlan


@dataclass(frozen=True)
class _Layer:
    attention_norm: FloatArray
    qkv: Linear
    attention_output: Linear
    ffn_norm: FloatArray
    gate_up: Linear
    down: Linear


class Model:
    """`tensor` gives the checkpoint's tensors by name (see checkpoint.py), float32.

    embedding       [vocab, hidden] float32, for drafters that share it
    capture_layers  layers whose input (the residual stream) a forward hands out; num_layers means the final one
    """

    def __init__(self, config: ModelConfig, tensor: Callable[[str], torch.Tensor], weights: WeightFormat) -> None:
        self.config = config
        self.weights: WeightFormat = weights
        self.embedding = tensor("embedding")
        self._output_norm = tensor("output_norm").numpy()
        self._capture_layers: tuple[int, ...] = ()

        def make_layer(index: int) -> _Layer:
            prefix = f"layers.{index}."
            return _Layer(
                attention_norm=tensor(prefix + "attention_norm").numpy(),
                qkv=make_linear(tensor(prefix + "qkv"), weights),
                attention_output=make_linear(tensor(prefix + "attention_output"), weights),
                ffn_norm=tensor(prefix + "ffn_norm").numpy(),
                gate_up=make_linear(tensor(prefix + "gate_up"), weights),
                down=make_linear(tensor(prefix + "down"), weights),
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # packing runs outside the interpreter lock
            head = pool.submit(make_linear, self.embedding if config.tied_head else tensor("head"), weights)
            layers = pool.map(make_layer, range(config.num_layers))
            row_kernel(config.head_dim)  # compiled meanwhile
            self._rows = row_arithmetic()
            self._layers = list(layers)
            self._head = head.result()
        self._turns = self._rotations(config.max_positions)

    @property
    def capture_layers(self) -> tuple[int, ...]:
        return self._capture_layers

    @capture_layers.setter
    def capture_layers(self, layers: tuple[int, ...]) -> None:
        bad = [layer for layer in layers if not 0 <= layer <= self.config.num_layers]
        if bad:
            raise ModelError(
                f"cannot capture layer {bad[0]}: the model has inputs of layers 0..{self.config.num_layers}"
            )
        self._capture_layers = tuple(layers)

    def forward(
        self, batch: Batch, cache: KVCache, logit_rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [rows, vocab] and captured hidden states [rows, captured * hidden], or None when none are asked for.

        Keys and values of the rows are written to their slots in the cache. With `logit_rows`, logits are computed
        for these rows only, in this order.
        """
        with torch.inference_mode():
            final, captured = self._decode(batch, cache)
            if logit_rows is not None:
                final = final[logit_rows.numpy()]
            logits = product(self._head, final) if len(final) else final
        return torch.from_numpy(logits), torch.from_numpy(np.concatenate(captured, axis=1)) if captured else None

    def _decode(self, batch: Batch, cache: KVCache) -> tuple[FloatArray, list[FloatArray]]:
        """Output rows, normalised, and the captured residual streams.

        What a layer's feed-forward part gives is added to the stream where the next normalises it.
        """
        config, arithmetic = self.config, self._rows
        rows, heads, dim, epsilon = len(batch.tokens), config.num_heads, config.head_dim, config.norm_epsilon
        positions, slots = batch.positions.numpy(), batch.slots.numpy()
        self._reach(int(positions.max()))
        x: FloatArray = self.embedding.numpy()[batch.tokens.numpy()]
        more = np.zeros_like(x)
        normed, mixed, gated = (Scratch(rows, width) for width in (x.shape[1], heads * dim, config.ffn_size))
        mixed_heads = mixed.array.reshape(rows, heads, dim)
        captured: dict[int, FloatArray] = {}
        for index, layer in enumerate(self._layers):
            arithmetic.add_norm(x, more, layer.attention_norm, epsilon, normed.array)
            if index in self._capture_layers:
                captured[index] = x.copy()
            qkv = product(layer.qkv, normed).reshape(rows, -1, dim)
            # GGUF keeps rotary pairs side by side.
            arithmetic.place(qkv, heads, self._turns, positions, slots, cache.layers[index])
            attend(qkv[:, :heads], cache.layers[index], mixed_heads, batch.plan)
            arithmetic.add_norm(x, product(layer.attention_output, mixed), layer.ffn_norm, epsilon, normed.array)
            arithmetic.gate(product(layer.gate_up, normed), gated.array)
            more = product(layer.down, gated)
        arithmetic.add_norm(x, more, self._output_norm, epsilon, normed.array)
        if config.num_layers in self._capture_layers:
            captured[config.num_layers] = x
        return normed.array, [captured[index] for index in self._capture_layers]

    def _reach(self, position: int) -> None:
        """Have rotations up to a position. Those past the model's limit get theirs too."""
        if position >= len(self._turns):
            self._turns = self._rotations(position + 1)

    def _rotations(self, num_positions: int) -> FloatArray:
        """[positions, head_dim / 2, 2]: cosine and sine."""
        turns = rotations(self.config.head_dim, self.config.rope_base, num_positions)
        return torch.view_as_real(turns).numpy()
