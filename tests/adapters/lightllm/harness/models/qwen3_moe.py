"""MTP layers without attention of the Qwen3-MoE targets in `dense`, as LightLLM reads them."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch

from tests.adapters.lightllm.harness.models import dense
from tests.adapters.lightllm.harness.models.mistral import Weights, joining

DRAFT_CONFIG: dict[str, Any] = {**dense.QWEN3_MOE, "num_hidden_layers": 1}
MAX_STEPS = 15
"""In the vanilla modes LightLLM reads layer i of the folder of step i."""

Kind = Literal["copy", "opposite", "random"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def drafter(kind: Kind, seed: int = 9) -> Weights:
    """An MTP layer, as Mistral's but with experts; the same one for every step."""
    random = torch.Generator().manual_seed(seed)
    ones = torch.ones(dense.HIDDEN)
    weights = {
        "model.layers.0.proj.weight": joining(kind, random, dense.HIDDEN),
        "model.layers.0.norm_after_embedding.weight": ones,
        "model.layers.0.norm_before_output.weight": ones.clone(),
    }
    layer = dense.feed_forward(DRAFT_CONFIG, random, 1.0 if kind == "random" else 0.1)
    layer["post_attention_layernorm.weight"] = ones.clone()
    for step in range(MAX_STEPS):
        weights |= {f"model.layers.{step}.{name}": weight.clone() for name, weight in layer.items()}
    return weights
