"""Checkpoints of random weights, targets and drafters, of any size: speed depends on shapes alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import SHARED, expected_tensors
from lightspec_lightllm.adapters.lightllm.drafters.layouts import read_layout
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS


@dataclass(frozen=True)
class Shape:
    """A decoder with grouped-query attention, as Mistral's.

    Attributes:
        hidden: width H of the residual stream.
        inner: width of the MLP.
        layers: of the target; its MTP drafter has one, without attention.
        heads, kv_heads, head_dim: of the attention.
        vocab: tokens.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def parameters(self) -> int:
        """Of the target."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + 2 * self.hidden * self.vocab


SHAPES = {
    "tiny": Shape(hidden=64, inner=64, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=128),
    "2b": Shape(hidden=2048, inner=8192, layers=24, heads=16, kv_heads=8, head_dim=128, vocab=131072),
    "8b": Shape(hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, head_dim=128, vocab=128256),
    "14b": Shape(hidden=5120, inner=17408, layers=40, heads=40, kv_heads=8, head_dim=128, vocab=151936),
}

BLOCK_LAYERS = 5
"""Of DFlash and DSpark drafters at most, as published ones have; an Eagle3 drafter has one."""

MARKOV_RANK = 256

Part = dict[str, tuple[int, ...]]
"""Shapes of one file's tensors by name; those of one dimension are ones, the others random."""


def write(folder: Path, shape: Shape, dtype: torch.dtype, device: str, max_length: int) -> tuple[Path, Path]:
    """Write both; the same seed and device give the same weights.

    Returns:
        The folders of the target and of the drafter.
    """
    random, config = torch.Generator(device).manual_seed(0), _config(shape, dtype, max_length)
    target, draft = folder / "target", folder / "draft"
    _save(target, config, _target(shape), dtype, random)
    _save(draft, config, _drafter(shape), dtype, random)
    return target, draft


def write_drafter(folder: Path, kind: str, shape: Shape, *, dtype: torch.dtype, device: str, max_length: int) -> Path:
    """Write an ``eagle3``, ``dflash`` or ``dspark`` drafter of a target of this shape, which lends it embedding and
    output layer; its folder."""
    config = drafter_config(kind, shape, dtype, max_length)
    tensors = expected_tensors(read_layout(config, kind))
    part = {name: size for name, size in tensors.items() if name not in SHARED}
    _save(folder / kind, config, [part], dtype, torch.Generator(device).manual_seed(1))
    return folder / kind


def _save(
    place: Path, config: dict[str, Any], parts: Iterable[Part], dtype: torch.dtype, random: torch.Generator
) -> None:
    from safetensors.torch import save_file  # LightLLM needs it, this package does not

    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config, indent=1))
    for number, part in enumerate(parts):
        tensors = {key: _tensor(size, random).to(dtype).cpu().contiguous() for key, size in part.items()}
        save_file(tensors, place / f"model-{number:05d}.safetensors", {"format": "pt"})


def _tensor(size: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    if len(size) == 1:
        return torch.ones(size, device=random.device)
    return torch.randn(size, generator=random, device=random.device) / math.sqrt(size[1])


def _target(shape: Shape) -> Iterator[Part]:
    width = shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield {
        "model.embed_tokens.weight": (shape.vocab, width),
        "lm_head.weight": (shape.vocab, width),
        "model.norm.weight": (width,),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield _mlp(prefix, shape) | {
            f"{prefix}self_attn.q_proj.weight": (queries, width),
            f"{prefix}self_attn.k_proj.weight": (keys, width),
            f"{prefix}self_attn.v_proj.weight": (keys, width),
            f"{prefix}self_attn.o_proj.weight": (width, queries),
            f"{prefix}input_layernorm.weight": (width,),
        }


def _drafter(shape: Shape) -> Iterator[Part]:
    width = shape.hidden
    yield _mlp("mtp.layers.0.", shape) | {
        "mtp.eh_proj.weight": (width, 2 * width),
        "mtp.enorm.weight": (width,),
        "mtp.hnorm.weight": (width,),
    }


def _mlp(prefix: str, shape: Shape) -> Part:
    return {
        f"{prefix}mlp.gate_proj.weight": (shape.inner, shape.hidden),
        f"{prefix}mlp.up_proj.weight": (shape.inner, shape.hidden),
        f"{prefix}mlp.down_proj.weight": (shape.hidden, shape.inner),
        f"{prefix}post_attention_layernorm.weight": (shape.hidden,),
    }


def drafter_config(kind: str, shape: Shape, dtype: torch.dtype, max_length: int) -> dict[str, Any]:
    """Of a drafter of so many drafts as a round may have, in a published layout."""
    # Near the start, the middle and near the end; such layouts count layers that a state leaves.
    left = [point - 1 for point in sorted({1, shape.layers // 2, shape.layers - 1})]
    same = {**_config(shape, dtype, max_length), "num_target_layers": shape.layers, "target_layer_ids": left}
    if kind == "eagle3":
        return {**same, "architectures": ["Qwen3Eagle3Model"], "num_hidden_layers": 1}
    block = {**same, "num_hidden_layers": min(BLOCK_LAYERS, shape.layers)}
    if kind == "dflash":
        reads = {"target_layer_ids": left, "mask_token_id": 0}
        return {
            **block,
            "architectures": ["DFlashDraftModel"],
            "block_size": 1 + MAX_DRAFT_STEPS,
            "dflash_config": reads,
        }
    return {
        **block,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": MAX_DRAFT_STEPS,
        "mask_token_id": 0,
        "markov_rank": MARKOV_RANK,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _config(shape: Shape, dtype: torch.dtype, max_length: int) -> dict[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": max_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "sliding_window": None,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
