"""DFlash and DSpark drafters of the ``dense`` targets, in the published layouts.

DFlash ``copy``, ``mostly`` and ``opposite`` know a ``cycle`` target's text: an embedding turns by a fixed angle per
dimension from one token of the cycle to the next, so the next one's embedding is a linear map of this one's. Layer l
gives every row what the row before it holds, turned once; after l layers the l rows behind the anchor hold theirs.
DSpark ``copy``, ``mostly`` and ``opposite`` have it in the Markov head. ``mostly`` never drafts every fourth token.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch

from tests.adapters.lightllm.harness.models import dense
from tests.adapters.lightllm.harness.models.cycle import NUM_SPECIAL, VOCAB_SIZE, cycle_head, embeddings, successors
from tests.adapters.lightllm.harness.models.mistral import Weights, uniform

HIDDEN = dense.HIDDEN
HEAD = 16
LAYER: dict[str, Any] = {
    **dense.QWEN3,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,  # heads need not add up to the hidden size
    "num_key_value_heads": 4,
    "head_dim": HEAD,
    "intermediate_size": 96,
    "layer_types": ["full_attention", "full_attention"],
}
POINTS = (1, 2, 3)
"""Layers whose input is captured."""
MASK = 0
"""No text of a ``cycle`` target has it."""
BLOCK = 8
LONG_BLOCK = 16

Kind = Literal["copy", "mostly", "opposite", "random"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Head = Literal["vanilla", "gated", "rnn"]
HEADS: tuple[Head, ...] = get_args(Head)


def dflash(kind: Kind, seed: int = 31) -> tuple[dict[str, Any], Weights]:
    """As DFlash's authors write it: the first row drafts nothing, K + 1 rows; crafted ones have embeddings of their
    own and K = 15, random ones have the target's and K = 7."""
    random = torch.Generator().manual_seed(seed)
    crafted = kind != "random"
    layer = {**LAYER, "attention_bias": crafted, "num_hidden_layers": LONG_BLOCK - 1 if crafted else 2}
    if crafted:
        layer["rms_norm_eps"] = 0.1  # rows that hold nothing yet hold next to nothing: norms must not scale that up
    layer["layer_types"] = ["full_attention"] * layer["num_hidden_layers"]
    config = {
        **layer,
        "architectures": ["DFlashDraftModel"],
        "block_size": LONG_BLOCK if crafted else BLOCK,
        "num_target_layers": dense.QWEN3["num_hidden_layers"],
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [point - 1 for point in POINTS]},
    }
    weights = backbone(layer, random)
    if crafted:
        _turn_the_row_before(layer, weights)
        table = turning_embeddings()
        weights["embed_tokens.weight"] = table.index_fill(0, torch.tensor(MASK), 0.0)
        # Special tokens share their places with another one, and are in no text.
        weights["lm_head.weight"] = (_strength(kind) * table).index_fill(0, torch.arange(NUM_SPECIAL), 0.0)
    return config, weights


def dflash_speculators(seed: int = 32) -> tuple[dict[str, Any], Weights]:
    """In the format of ``speculators``, with a draft vocabulary of two thirds; random."""
    random = torch.Generator().manual_seed(seed)
    config = speculators_config("dflash", "DFlashDraftModel", BLOCK, VOCAB_SIZE * 2 // 3)
    return config, backbone(LAYER, random) | vocabulary(config, random)


def dflash_deepspec(seed: int = 33) -> tuple[dict[str, Any], Weights]:
    """As DeepSpec releases it: every row drafts, embeddings of its own; random."""
    random = torch.Generator().manual_seed(seed)
    config = {**deepspec_config(BLOCK - 1), "markov_rank": 0, "enable_confidence_head": False}
    return config, backbone(LAYER, random) | own_vocabulary(random)


def dspark(kind: Kind, seed: int = 34) -> tuple[dict[str, Any], Weights]:
    """As DeepSpec releases it: a Markov head that looks up the token before, and a confidence head that reads it.
    Crafted ones have K = 15, random ones K = 7."""
    random = torch.Generator().manual_seed(seed)
    rank = 24 if kind == "random" else HIDDEN
    config = {
        **deepspec_config(BLOCK - 1 if kind == "random" else LONG_BLOCK - 1),
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    weights = backbone(LAYER, random) | own_vocabulary(random) | heads(random, rank, VOCAB_SIZE)
    if kind != "random":
        embedded = embeddings(HIDDEN)
        weights["markov_head.markov_w1.weight"] = embedded
        weights["markov_head.markov_w2.weight"] = 10 * _strength(kind) * cycle_head(embedded)
        weights["confidence_head.proj.bias"] = torch.tensor([3.0])
    return config, weights


def dspark_speculators(head: Head, seed: int = 35) -> tuple[dict[str, Any], Weights]:
    """In the format of ``speculators``, with a draft vocabulary of two thirds; random. The first row of ``gated``
    drafts nothing, and its confidence head does not read the token before."""
    random = torch.Generator().manual_seed(seed)
    config = {
        **speculators_config("dspark", "DSparkDraftModel", BLOCK - 1, VOCAB_SIZE * 2 // 3),
        "sample_from_anchor": head != "gated",
        "markov_rank": 24,
        "markov_head_type": head,
        "enable_confidence_head": True,
        "confidence_head_with_markov": head != "gated",
    }
    weights = backbone(LAYER, random) | vocabulary(config, random)
    return config, weights | heads(random, 24, config["draft_vocab_size"], head, reads_markov=head != "gated")


def _strength(kind: str) -> torch.Tensor:
    """float32[VOCAB_SIZE, 1]: a factor for each token's row of an output layer."""
    if kind == "mostly":
        return (torch.arange(VOCAB_SIZE) % 4 > 0).float()[:, None]
    return torch.full((VOCAB_SIZE, 1), -1.0 if kind == "opposite" else 1.0)


def backbone(layer: dict[str, Any], random: torch.Generator) -> Weights:
    """Layers, norms and the projection."""
    weights = {
        "fc.weight": uniform(random, HIDDEN, len(POINTS) * HIDDEN),
        "norm.weight": 1 + 0.3 * torch.randn(HIDDEN, generator=random),
        "hidden_norm.weight": 1 + 0.3 * torch.randn(HIDDEN, generator=random),
    }
    for index in range(layer["num_hidden_layers"]):
        tensors = dense.decoder_layer(layer, random, 1.0)
        weights |= {f"layers.{index}.{name}": tensor for name, tensor in tensors.items()}
    return weights


def heads(
    random: torch.Generator, rank: int, draft_vocab: int, kind: str = "vanilla", *, reads_markov: bool = True
) -> Weights:
    """A Markov head strong enough to decide tokens, and a confidence head."""
    weights = {
        "markov_head.markov_w1.weight": torch.randn(VOCAB_SIZE, rank, generator=random),
        "markov_head.markov_w2.weight": 2 * uniform(random, draft_vocab, rank),
    }
    joint = {"gated": ("gate_proj", rank, HIDDEN + rank), "rnn": ("joint_proj", 3 * rank, HIDDEN + 2 * rank)}
    if kind in joint:
        name, outputs, inputs = joint[kind]
        weights[f"markov_head.{name}.weight"] = uniform(random, outputs, inputs)
        weights[f"markov_head.{name}.bias"] = torch.randn(outputs, generator=random)
    weights["confidence_head.proj.weight"] = uniform(random, 1, HIDDEN + (rank if reads_markov else 0))
    weights["confidence_head.proj.bias"] = torch.randn(1, generator=random)
    return weights


def own_vocabulary(random: torch.Generator) -> Weights:
    return {
        "embed_tokens.weight": embeddings(HIDDEN, seed=4),
        "lm_head.weight": uniform(random, VOCAB_SIZE, HIDDEN),
    }


def vocabulary(config: dict[str, Any], random: torch.Generator) -> Weights:
    """An output layer of fewer tokens than the target has, and which they are."""
    size = config["draft_vocab_size"]
    kept = torch.randperm(VOCAB_SIZE, generator=random)[:size].sort().values
    return {
        "lm_head.weight": uniform(random, size, HIDDEN),
        "d2t": kept - torch.arange(size),
        "t2d": torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, kept, value=True),
    }


def deepspec_config(block_size: int) -> dict[str, Any]:
    return {
        **LAYER,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": block_size,
        "mask_token_id": MASK,
        "num_anchors": 4,
        "num_target_layers": dense.QWEN3["num_hidden_layers"],
        "target_layer_ids": [-1, 1, 2],  # -1: the embedding
    }


def speculators_config(kind: str, architecture: str, block_size: int, draft_vocab: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "transformer_layer_config": LAYER,
        "draft_vocab_size": draft_vocab,
        "block_size": block_size,
        "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": list(POINTS),
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": block_size - 1}],
            "verifier": {"name_or_path": None, "architectures": ["Qwen3ForCausalLM"]},
        },
        "torch_dtype": "float32",
    }


def turning_embeddings() -> torch.Tensor:
    """float32[VOCAB_SIZE, HIDDEN]: a token's place on the cycle as angles, one per pair of dimensions. A special token
    is where the token is that has its successor."""
    after, place, token = successors(), torch.empty(VOCAB_SIZE), NUM_SPECIAL
    length = VOCAB_SIZE - NUM_SPECIAL
    for index in range(length):
        place[token] = index
        token = int(after[token])
    place[:NUM_SPECIAL] = (place[after[0]] - 1) % length
    angles = place[:, None] * turns()
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def turns() -> torch.Tensor:
    """float32[HIDDEN / 2]: angles from one token of the cycle to the next."""
    return 2 * math.pi * torch.arange(1, HIDDEN // 2 + 1) / (VOCAB_SIZE - NUM_SPECIAL)


def _turn_the_row_before(layer: dict[str, Any], weights: Weights) -> None:
    """Make every layer add, to each row, what the row before it holds, turned once; the context adds nothing.

    Queries and keys are constants, so attention depends on the distance alone, and is sharp: with rotary positions it
    is largest where the distance is the query's own turn, one.
    """
    queries, keys = layer["num_attention_heads"], layer["num_key_value_heads"]
    frequencies = layer["rope_theta"] ** (-torch.arange(0, HEAD, 2) / HEAD)
    key = torch.cat((torch.ones(HEAD // 2), torch.zeros(HEAD // 2)))
    query = torch.cat((frequencies.cos(), -frequencies.sin()))
    cos, sin = turns().cos().diag(), turns().sin().diag()
    turn = torch.cat((torch.cat((cos, -sin), dim=1), torch.cat((sin, cos), dim=1)))
    # One query head of each group gathers the group's values.
    first = torch.tensor([1.0] + [0.0] * (queries // keys - 1)).repeat(keys)
    pick = torch.eye(HIDDEN).view(HIDDEN, keys, 1, HEAD) * first.view(1, keys, -1, 1)
    weights["fc.weight"] = torch.zeros_like(weights["fc.weight"])
    for name in ("norm.weight", "hidden_norm.weight"):
        weights[name] = torch.ones(HIDDEN)
    for index in range(layer["num_hidden_layers"]):
        prefix = f"layers.{index}."
        attention = prefix + "self_attn."
        for one, width in (("q", queries * HEAD), ("k", keys * HEAD)):
            weights[f"{attention}{one}_proj.weight"] = torch.zeros(width, HIDDEN)
            weights[f"{attention}{one}_norm.weight"] = torch.full((HEAD,), 16.0)
        weights |= {
            attention + "q_proj.bias": query.repeat(queries),
            attention + "k_proj.bias": key.repeat(keys),
            attention + "v_proj.bias": torch.zeros(keys * HEAD),
            attention + "o_proj.bias": torch.zeros(HIDDEN),
            attention + "v_proj.weight": turn.clone(),
            attention + "o_proj.weight": pick.flatten(1).clone(),
            prefix + "mlp.down_proj.weight": torch.zeros_like(weights[prefix + "mlp.down_proj.weight"]),
            prefix + "input_layernorm.weight": torch.ones(HIDDEN),
        }
