"""Eagle3 drafters of the ``dense`` targets, in the published layouts.

``copy`` and ``opposite`` pass the token's embedding to the output layer, or its negative: attention looks at its own
row alone, since queries and keys are the same projection of the embedding, normed and scaled up. ``mostly`` is ``copy``
but for every fourth token, which it never drafts. ``half`` has the output layer of ``mixed`` targets instead.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from tests.adapters.lightllm.harness.models import dense
from tests.adapters.lightllm.harness.models.cycle import VOCAB_SIZE, cycle_head, embeddings
from tests.adapters.lightllm.harness.models.mistral import Weights, uniform

HIDDEN = dense.HIDDEN
HEAD = 16
LAYER: dict[str, Any] = {
    **dense.QWEN3,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,  # heads need not add up to the hidden size
    "num_key_value_heads": 4,
    "head_dim": HEAD,
    "intermediate_size": 96,
}
COMMON_LAYER: dict[str, Any] = {**LAYER, "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}
POINTS = (1, 2, 3)
"""Layers whose input is captured."""
LEFT_OUT = 2
"""The first tokens, which two of three special ones are: two ranks must share the others evenly."""


Kind = Literal["copy", "mostly", "half", "opposite", "random"]


def speculators(kind: Kind, seed: int = 21) -> tuple[dict[str, Any], Weights]:
    """In the format of ``speculators``; the draft vocabulary leaves out tokens that come in no cycle."""
    random = torch.Generator().manual_seed(seed)
    draft_vocab = VOCAB_SIZE - LEFT_OUT
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": LAYER,
        "draft_vocab_size": draft_vocab,
        "norm_before_residual": kind != "random",
        "eagle_aux_hidden_state_layer_ids": list(POINTS),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": None, "architectures": ["Qwen3ForCausalLM"]},
        },
        "torch_dtype": "float32",
    }
    layer = dense.decoder_layer(LAYER, random, 1.0, inputs=2 * HIDDEN)
    layer["hidden_norm.weight"] = 1 + 0.3 * torch.randn(HIDDEN, generator=random)
    head = uniform(random, VOCAB_SIZE, HIDDEN)
    if kind != "random":
        _look_at_own_token(layer, -1.0 if kind == "opposite" else 1.0)
        head = dense.mixed_head() if kind == "half" else cycle_head(embeddings(HIDDEN))
        if kind == "mostly":
            head[::4] = 0.0
    weights = {f"layers.0.{name}": weight for name, weight in layer.items()} | {
        "fc.weight": uniform(random, HIDDEN, len(POINTS) * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head[LEFT_OUT:],
        "d2t": torch.full((draft_vocab,), LEFT_OUT),
        "t2d": torch.arange(VOCAB_SIZE) >= LEFT_OUT,
    }
    return config, weights


def normed(which: Literal["each", "all"], seed: int = 24) -> tuple[dict[str, Any], Weights]:
    """A random drafter of ``speculators`` with optional norms: of each captured state and of what goes into the next
    step, or of all captured states at once and of the residual."""
    random = torch.Generator().manual_seed(seed)
    config, weights = speculators("random", seed)
    flags = ("fc_norm", "norm_output") if which == "each" else ("norm_before_fc", "norm_before_residual")
    names = [f"fc_norm.{point}.weight" for point in range(len(POINTS))] if which == "each" else ["input_norm.weight"]
    width = len(POINTS) * HIDDEN // len(names)
    weights |= {name: 1 + 0.3 * torch.randn(width, generator=random) for name in names}
    weights["norm.weight"] = 1 + 0.3 * torch.randn(HIDDEN, generator=random)
    return {**config, **dict.fromkeys(flags, True)}, weights


def common(seed: int = 22) -> tuple[dict[str, Any], Weights]:
    """As Eagle3's authors and SpecForge write it: a Llama layer, half of the vocabulary."""
    random = torch.Generator().manual_seed(seed)
    config = {
        **COMMON_LAYER,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCAB_SIZE // 2,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [point - 1 for point in POINTS]},
    }
    layer = dense.decoder_layer(COMMON_LAYER, random, 1.0, inputs=2 * HIDDEN)
    layer["hidden_norm.weight"] = 1 + 0.3 * torch.randn(HIDDEN, generator=random)
    kept = torch.randperm(VOCAB_SIZE, generator=random)[: VOCAB_SIZE // 2].sort().values
    weights = {f"midlayer.{name}": weight for name, weight in layer.items()} | {
        "fc.weight": uniform(random, HIDDEN, len(POINTS) * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": uniform(random, len(kept), HIDDEN),
        "d2t": kept - torch.arange(len(kept)),
        "t2d": torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, kept, value=True),
    }
    return config, weights


def deepspec(seed: int = 23) -> tuple[dict[str, Any], Weights]:
    """As DeepSpec releases it: a Qwen3 layer, the whole vocabulary, an embedding of its own."""
    random = torch.Generator().manual_seed(seed)
    points = (1, 3)
    config = {
        **LAYER,
        "architectures": ["Qwen3Eagle3Model"],
        "num_target_layers": dense.QWEN3["num_hidden_layers"],
        "target_layer_ids": [point - 1 for point in points],
        "layer_types": ["full_attention"],
        "ttt_length": 7,
    }
    layer = dense.decoder_layer(LAYER, random, 1.0, inputs=2 * HIDDEN)
    layer["hidden_norm.weight"] = 1 + 0.3 * torch.randn(HIDDEN, generator=random)
    weights = {f"layers.0.{name}": weight for name, weight in layer.items()} | {
        "embed_tokens.weight": embeddings(HIDDEN, seed=4),
        "fc.weight": uniform(random, HIDDEN, len(points) * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": uniform(random, VOCAB_SIZE, HIDDEN),
    }
    return config, weights


def _look_at_own_token(layer: Weights, sign: float) -> None:
    random = torch.Generator().manual_seed(6)
    groups = LAYER["num_attention_heads"] // LAYER["num_key_value_heads"]
    keys = torch.cat([uniform(random, HIDDEN, HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    queries = keys.view(-1, HEAD, 2 * HIDDEN).repeat_interleave(groups, 0).flatten(0, 1)
    sharp = torch.full((HEAD,), 4.0)
    first_of_group = torch.tensor([1.0] + [0.0] * (groups - 1)).repeat(LAYER["num_key_value_heads"])
    pick = torch.eye(HIDDEN).view(HIDDEN, -1, 1, HEAD) * first_of_group.view(1, -1, groups, 1)
    layer |= {
        "self_attn.q_proj.weight": queries,
        "self_attn.k_proj.weight": keys,
        "self_attn.q_norm.weight": sharp,
        "self_attn.k_norm.weight": sharp.clone(),
        "self_attn.v_proj.weight": torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1),
        "self_attn.o_proj.weight": sign * pick.flatten(1),
        "hidden_norm.weight": torch.full((HIDDEN,), 0.05),
        "mlp.down_proj.weight": layer["mlp.down_proj.weight"] * 0.02,
    }
