"""DeepSeek-V3 targets (latent attention, dense MLPs) and their MTP layers with attention, as LightLLM reads them."""

from typing import Any, Literal

import torch

from tests.adapters.lightllm.harness.models.cycle import VOCAB_SIZE, cycle_head, embeddings
from tests.adapters.lightllm.harness.models.mistral import Weights, joining, uniform

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 32,  # other than v_head_dim: where the two are mixed up, it shows
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,  # the only size of LightLLM's decode attention
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 99,  # beyond the last layer: dense MLPs, no fused kernels of experts
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DRAFT_CONFIG: dict[str, Any] = {**CONFIG, "num_hidden_layers": 1}

HIDDEN = CONFIG["hidden_size"]


def target(kind: Literal["mixed", "cycle"], seed: int = 0) -> Weights:
    """See the package's docstring. A ``mixed`` target's output layer is random."""
    random = torch.Generator().manual_seed(seed)
    mix = {"mixed": 0.5, "cycle": 0.3}[kind]
    embedded = embeddings(HIDDEN)
    weights = {
        "model.embed_tokens.weight": embedded,
        "lm_head.weight": cycle_head(embedded) if kind == "cycle" else uniform(random, VOCAB_SIZE, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for index in range(CONFIG["num_hidden_layers"]):
        weights |= layer(index, random, mix)
    return weights


def drafter(kind: Literal["copy", "opposite", "random"], seed: int = 5) -> Weights:
    """An MTP layer, as Mistral's but with attention of its own."""
    random = torch.Generator().manual_seed(seed)
    prefix = "model.layers.0."
    return layer(0, random, 1.0 if kind == "random" else 0.1) | {
        prefix + "eh_proj.weight": joining(kind, random, HIDDEN),
        prefix + "enorm.weight": torch.ones(HIDDEN),
        prefix + "hnorm.weight": torch.ones(HIDDEN),
        prefix + "shared_head.norm.weight": torch.ones(HIDDEN),
    }


def layer(index: int, random: torch.Generator, mix: float) -> Weights:
    """One layer; ``mix`` scales what it adds to the residual stream."""
    heads, inner = CONFIG["num_attention_heads"], CONFIG["intermediate_size"]
    plain, rope, latent, value = (
        CONFIG[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
    )
    prefix = f"model.layers.{index}."
    return {
        prefix + "self_attn.q_proj.weight": uniform(random, heads * (plain + rope), HIDDEN),
        prefix + "self_attn.kv_a_proj_with_mqa.weight": uniform(random, latent + rope, HIDDEN),
        prefix + "self_attn.kv_a_layernorm.weight": torch.ones(latent),
        prefix + "self_attn.kv_b_proj.weight": uniform(random, heads * (plain + value), latent),
        prefix + "self_attn.o_proj.weight": uniform(random, HIDDEN, heads * value) * mix,
        prefix + "mlp.gate_proj.weight": uniform(random, inner, HIDDEN),
        prefix + "mlp.up_proj.weight": uniform(random, inner, HIDDEN),
        prefix + "mlp.down_proj.weight": uniform(random, HIDDEN, inner) * mix,
        prefix + "input_layernorm.weight": torch.ones(HIDDEN),
        prefix + "post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
