"""A Llama decoder on the CPU: float32 activations, weights in one of two lossless formats."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import rms_norm, silu

from lightspec_lightllm.cpu.linear import Linear, make_linear
from lightspec_lightllm.cpu.rotary import rotations
from lightspec_lightllm.cpu.row_attention import row_kernel
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
        self.layers = list(torch.from_numpy(memory[first : first + size].reshape(shape)))


@dataclass(frozen=True)
class Batch:
    """Rows of a forward: int64 [rows] tokens, positions and slots, and how they attend."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    plan: AttentionPlan


@dataclass(frozen=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    attention_output: Linear
    ffn_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Model:
    """`tensor` gives the checkpoint's tensors by name (see checkpoint.py), float32.

    embedding       [vocab, hidden] float32, for drafters that share it
    output_norm     [hidden]
    capture_layers  layers whose input (the residual stream) a forward hands out; num_layers means the final one
    """

    def __init__(self, config: ModelConfig, tensor: Callable[[str], torch.Tensor], weights: WeightFormat) -> None:
        self.config = config
        self.weights: WeightFormat = weights
        self.embedding = tensor("embedding")
        self.output_norm = tensor("output_norm")
        self._capture_layers: tuple[int, ...] = ()

        def make_layer(index: int) -> _Layer:
            prefix = f"layers.{index}."
            return _Layer(
                attention_norm=tensor(prefix + "attention_norm"),
                qkv=make_linear(tensor(prefix + "qkv"), weights),
                attention_output=make_linear(tensor(prefix + "attention_output"), weights),
                ffn_norm=tensor(prefix + "ffn_norm"),
                gate_up=make_linear(tensor(prefix + "gate_up"), weights),
                down=make_linear(tensor(prefix + "down"), weights),
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # packing runs outside the interpreter lock
            head = pool.submit(make_linear, self.embedding if config.tied_head else tensor("head"), weights)
            layers = pool.map(make_layer, range(config.num_layers))
            row_kernel(config.head_dim)  # compiled meanwhile
            self._layers = list(layers)
            self._head = head.result()
        self._frequencies = rotations(config.head_dim, config.rope_base, config.max_positions)

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
                final = final.index_select(0, logit_rows)
            logits = self._head(self._norm(final, self.output_norm)) if final.shape[0] else final
        if not captured:
            return logits, None
        return logits, torch.cat(captured, dim=1)  # outside inference mode: the caller may compute on it in place

    def _decode(self, batch: Batch, cache: KVCache) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The final residual stream and the captured ones."""
        config = self.config
        rows, heads, keys, dim = batch.tokens.shape[0], config.num_heads, config.num_kv_heads, config.head_dim
        x = self.embedding.index_select(0, batch.tokens)
        turn = self._rotary(batch.positions)
        captured: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in self._capture_layers:
                captured[index] = x.clone()
            qkv = layer.qkv(self._norm(x, layer.attention_norm)).view(rows, heads + 2 * keys, dim)
            # GGUF keeps rotary pairs side by side, so turning a pair is one complex product.
            torch.view_as_complex(qkv[:, : heads + keys].view(rows, heads + keys, dim // 2, 2)).mul_(turn)
            kv = cache.layers[index]
            kv.index_copy_(1, batch.slots, qkv[:, heads:].transpose(0, 1))
            x.add_(layer.attention_output(attend(qkv[:, :heads], kv, batch.plan)))
            gate, up = layer.gate_up(self._norm(x, layer.ffn_norm)).chunk(2, dim=1)
            x.add_(layer.down(silu(gate).mul_(up)))
        if config.num_layers in self._capture_layers:
            captured[config.num_layers] = x
        return x, [captured[index] for index in self._capture_layers]

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (self.config.hidden_size,), weight, self.config.norm_epsilon)

    def _rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """Rotation of every row: complex [rows, 1, head_dim / 2]. Positions past the model's limit get theirs too."""
        highest = int(positions.max())
        if highest >= self._frequencies.shape[0]:
            self._frequencies = rotations(self.config.head_dim, self.config.rope_base, highest + 1)
        return self._frequencies.index_select(0, positions).unsqueeze(1)
