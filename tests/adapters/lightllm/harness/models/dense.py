"""Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE targets of four layers: what drafters that read hidden states are for."""

from typing import Any, Literal

import torch

from tests.adapters.lightllm.harness.models.cycle import VOCAB_SIZE, cycle_head, embeddings
from tests.adapters.lightllm.harness.models.mistral import Weights, uniform

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN3: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "sliding_window": None,
}
QWEN2: dict[str, Any] = {**QWEN3, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MISTRAL: dict[str, Any] = {
    **LLAMA,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": None,
}
Family = Literal["llama", "mistral4", "qwen2", "qwen3", "qwen3_moe"]
Kind = Literal["mixed", "cycle"]
CONFIGS: dict[Family, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral4": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
}
KINDS: tuple[Kind, ...] = ("mixed", "cycle")

HIDDEN = LLAMA["hidden_size"]


def target(family: Family, kind: Kind, seed: int = 0) -> Weights:
    """See the package's docstring. A ``mixed`` target's output layer is random."""
    random = torch.Generator().manual_seed(seed + 1)
    mix = {"mixed": 0.35, "cycle": 0.2}[kind]
    embedded = embeddings(HIDDEN)
    weights = {
        "model.embed_tokens.weight": embedded,
        "lm_head.weight": cycle_head(embedded) if kind == "cycle" else mixed_head(seed),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for index in range(LLAMA["num_hidden_layers"]):
        layer = decoder_layer(CONFIGS[family], random, mix)
        weights |= {f"model.layers.{index}.{name}": weight for name, weight in layer.items()}
    return weights


def mixed_head(seed: int = 0) -> torch.Tensor:
    """float32[VOCAB_SIZE, hidden]: the output layer of ``mixed`` targets."""
    return uniform(torch.Generator().manual_seed(seed), VOCAB_SIZE, HIDDEN)


def decoder_layer(config: dict[str, Any], random: torch.Generator, mix: float, *, inputs: int = HIDDEN) -> Weights:
    """A layer; ``mix`` scales what it adds to the residual stream, ``inputs`` is what its attention reads."""
    hidden, width = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    layer = {
        "self_attn.q_proj.weight": uniform(random, queries, inputs),
        "self_attn.k_proj.weight": uniform(random, keys, inputs),
        "self_attn.v_proj.weight": uniform(random, keys, inputs),
        "self_attn.o_proj.weight": uniform(random, hidden, queries) * mix,
        **feed_forward(config, random, mix),
        "input_layernorm.weight": torch.ones(hidden),
        "post_attention_layernorm.weight": torch.ones(hidden),
    }
    if config["model_type"] == "qwen2":
        sizes = {"q": queries, "k": keys, "v": keys}
        layer |= {f"self_attn.{one}_proj.bias": 0.2 * torch.randn(sizes[one], generator=random) for one in sizes}
    if config["model_type"] in {"qwen3", "qwen3_moe"}:
        # Norms whose weights differ per place show where they are swapped or left out.
        layer["self_attn.q_norm.weight"] = 1 + 0.3 * torch.randn(width, generator=random)
        layer["self_attn.k_norm.weight"] = 1 + 0.3 * torch.randn(width, generator=random)
    return layer


def feed_forward(config: dict[str, Any], random: torch.Generator, mix: float) -> Weights:
    """The MLP of a layer, or its experts and the gate that chooses among them."""
    hidden = config["hidden_size"]
    if "num_experts" not in config:
        return {
            f"mlp.{name}": weight for name, weight in _mlp(hidden, config["intermediate_size"], random, mix).items()
        }
    weights = {"mlp.gate.weight": uniform(random, config["num_experts"], hidden)}
    for expert in range(config["num_experts"]):
        layer = _mlp(hidden, config["moe_intermediate_size"], random, mix)
        weights |= {f"mlp.experts.{expert}.{name}": weight for name, weight in layer.items()}
    return weights


def _mlp(hidden: int, inner: int, random: torch.Generator, mix: float) -> Weights:
    return {
        "gate_proj.weight": uniform(random, inner, hidden),
        "up_proj.weight": uniform(random, inner, hidden),
        "down_proj.weight": uniform(random, hidden, inner) * mix,
    }
