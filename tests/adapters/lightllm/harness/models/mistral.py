"""Mistral targets and their MTP layers without attention, as LightLLM reads them."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tests.adapters.lightllm.harness.models.cycle import VOCAB_SIZE, cycle_head, embeddings

Weights = dict[str, Tensor]

CONFIG: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,  # two per rank at tp = 2, and two per KV head
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

HIDDEN = CONFIG["hidden_size"]


def uniform(generator: torch.Generator, outputs: int, inputs: int) -> Tensor:
    """A random layer that keeps the scale of its input."""
    return torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)


def target(kind: Literal["mixed", "cycle"], seed: int = 0) -> Weights:
    """See the package's docstring. A ``mixed`` target's output layer is random."""
    random = torch.Generator().manual_seed(seed)
    mix = {"mixed": 0.5, "cycle": 0.3}[kind]
    inner, width = CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * width, CONFIG["num_key_value_heads"] * width
    embedded = embeddings(HIDDEN)
    weights = {
        "model.embed_tokens.weight": embedded,
        "lm_head.weight": cycle_head(embedded) if kind == "cycle" else uniform(random, VOCAB_SIZE, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "self_attn.q_proj.weight": uniform(random, queries, HIDDEN),
            prefix + "self_attn.k_proj.weight": uniform(random, keys, HIDDEN),
            prefix + "self_attn.v_proj.weight": uniform(random, keys, HIDDEN),
            prefix + "self_attn.o_proj.weight": uniform(random, HIDDEN, queries) * mix,
            prefix + "mlp.gate_proj.weight": uniform(random, inner, HIDDEN),
            prefix + "mlp.up_proj.weight": uniform(random, inner, HIDDEN),
            prefix + "mlp.down_proj.weight": uniform(random, HIDDEN, inner) * mix,
            prefix + "input_layernorm.weight": torch.ones(HIDDEN),
            prefix + "post_attention_layernorm.weight": torch.ones(HIDDEN),
        }
    return weights


def drafter(kind: Literal["copy", "opposite", "random"], seed: int = 7) -> Weights:
    """An MTP layer: ``copy`` passes the token's embedding on, ``opposite`` its negative, both with a little of the
    hidden state; the target's norm and output layer follow."""
    random = torch.Generator().manual_seed(seed)
    inner, prefix = CONFIG["intermediate_size"], "mtp.layers.0."
    joined = joining(kind, random, HIDDEN)
    quiet = 1.0 if kind == "random" else 0.1
    return {
        "mtp.eh_proj.weight": joined,
        "mtp.enorm.weight": torch.ones(HIDDEN),
        "mtp.hnorm.weight": torch.ones(HIDDEN),
        prefix + "mlp.gate_proj.weight": uniform(random, inner, HIDDEN),
        prefix + "mlp.up_proj.weight": uniform(random, inner, HIDDEN),
        prefix + "mlp.down_proj.weight": uniform(random, HIDDEN, inner) * quiet,
        prefix + "post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def joining(kind: Literal["copy", "opposite", "random"], random: torch.Generator, hidden_size: int) -> Tensor:
    """float32[hidden, 2 * hidden]: what a drafter makes of its token's embedding and of the hidden state."""
    if kind == "random":
        return uniform(random, hidden_size, 2 * hidden_size)
    sign = {"copy": 1.0, "opposite": -1.0}[kind]
    return torch.cat([sign * torch.eye(hidden_size), 0.1 * uniform(random, hidden_size, hidden_size)], dim=1)
