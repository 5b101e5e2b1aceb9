"""Draft folders without values: configurations and tensor files whose headers are all there is to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import Target, expected_tensors
from lightspec_lightllm.adapters.lightllm.drafters.layouts import read_layout

DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 128,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_theta": 1000000,
}
BLOCK_DECODER = {**DECODER, "num_hidden_layers": 2}
TARGET = Target(Path("target"), "qwen3", hidden_size=64, vocab_size=128, num_layers=12)

CONFIGS: dict[str, dict[str, Any]] = {
    "common": {**DECODER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 96},
    "common with layers": {
        **DECODER,
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
        "fc_norm": True,
    },
    "deepspec eagle3": {
        **DECODER,
        "architectures": ["Qwen3Eagle3Model"],
        "target_layer_ids": [1, 3, 5, 7, 9],
        "num_target_layers": 12,
    },
    "deepspec dspark": {
        **BLOCK_DECODER,
        "architectures": ["Qwen3DSparkModel"],
        "target_layer_ids": [-1, 4, 8],
        "num_target_layers": 12,
        "block_size": 7,
        "mask_token_id": 127,
        "markov_rank": 8,
        "markov_head_type": "gated",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
    "deepspec dflash": {
        **BLOCK_DECODER,
        "architectures": ["Qwen3DSparkModel"],
        "target_layer_ids": [1, 4, 8],
        "num_target_layers": 12,
        "block_size": 7,
        "mask_token_id": 127,
        "markov_rank": 0,
        "enable_confidence_head": False,
    },
    "dflash": {
        **BLOCK_DECODER,
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"target_layer_ids": [1, 9], "mask_token_id": 127},
        "num_target_layers": 12,
        "block_size": 16,
    },
    "speculators eagle3": {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {**DECODER, "model_type": "llama"},
        "draft_vocab_size": 100,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
    },
    "speculators dflash": {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": {**BLOCK_DECODER, "model_type": "qwen3"},
        "draft_vocab_size": 128,
        "aux_hidden_state_layer_ids": [2, 10],
        "block_size": 8,
        "mask_token_id": 127,
    },
}
"""One of every published layout, all of them for `TARGET`."""


def write(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] | None = None) -> Path:
    """A folder with these tensors; None: those that the configuration asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if shapes is None:
        shapes = expected_tensors(read_layout(config, "config.json"))
    header = {name: {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    return folder
