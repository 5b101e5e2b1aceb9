"""Logits of DFlash and DSpark drafters by ``speculators``, in a process of its own, from hidden states by transformers.

Run as a module it reads one JSON object from the standard input: ``target`` and ``draft`` folders, ``points``, and
``proposals``, each with ``text`` (tokens up to the anchor, it included) and ``drafts``. It answers with the logits and
the log-odds of the confidence head of each proposal. See `reference_process` for the interpreter.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any


def answer(question: dict[str, Any]) -> list[dict[str, Any]]:
    # A torchvision for CUDA, which LightLLM's requirements bring, does not load beside a CPU torch.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    import torch
    from transformers import AutoModelForCausalLM

    target: Any = AutoModelForCausalLM.from_pretrained(
        question["target"], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    drafter = load(Path(question["draft"]), len(question["points"]), target)
    seen: list[dict[str, Any]] = []
    watch_losses(seen)
    found = []
    for proposal in question["proposals"]:
        text, drafts, block = proposal["text"], proposal["drafts"], drafter.block_size
        anchor, length = len(text) - 1, len(text) + 2 * block
        with torch.no_grad():
            states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
            captured = torch.cat([states[point][0] for point in question["points"]], dim=-1)
            padded = torch.zeros(1, length, captured.shape[1])
            padded[0, :anchor] = captured[:anchor]
            tokens = torch.zeros(1, length, dtype=torch.long)
            tokens[0, : len(text) + len(drafts)] = torch.tensor([*text, *drafts])
            drafter(
                padded,
                tokens,
                torch.zeros(1, length).index_fill(1, torch.tensor(anchor), 1.0),
                torch.zeros(1, length, target.config.hidden_size),
                torch.zeros(1, length, dtype=torch.long),
                max_anchors=1,
            )
        first = 0 if drafter.config.sample_from_anchor else 1
        given = seen.pop()
        found.append({name: value[0][first:].tolist() for name, value in given.items()})
    return found


def watch_losses(seen: list[dict[str, Any]]) -> None:
    """Take what the training losses are computed from, instead of computing them."""
    import torch
    from speculators.models.dflash import core as dflash
    from speculators.models.dspark import core as dspark

    def plain(logits: Any, *_: Any, **__: Any) -> Any:
        seen.append({"logits": logits})
        return torch.zeros(()), {}

    def with_confidence(logits: Any, _targets: Any, confidence: Any, *_: Any, **__: Any) -> Any:
        seen.append({"logits": logits, "log_odds": confidence})
        return torch.zeros(()), {}

    dflash.compute_metrics = plain
    dspark.compute_metrics = with_confidence


def load(folder: Path, num_points: int, target: Any) -> Any:
    """A folder in any of the layouts as ``speculators``' own model; embedding and output layer where it has none."""
    import torch
    from safetensors.torch import load_file
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig

    config = json.loads((folder / "config.json").read_text())
    layer = config.get("transformer_layer_config", config)
    settings = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
    is_dspark = bool(config.get("markov_rank"))
    config_class: Any = DSparkSpeculatorConfig if is_dspark else DFlashSpeculatorConfig
    model_class: Any = DSparkDraftModel if is_dspark else DFlashDraftModel
    every_row_drafts = is_dspark or config["architectures"] == ["Qwen3DSparkModel"]
    made = config_class(
        transformer_layer_config={key: value for key, value in layer.items() if key != "architectures"},
        draft_vocab_size=config.get("draft_vocab_size", layer["vocab_size"]),
        block_size=config["block_size"],
        mask_token_id=config.get("mask_token_id", config.get("dflash_config", {}).get("mask_token_id")),
        sample_from_anchor=config.get("sample_from_anchor", every_row_drafts),
        aux_hidden_state_layer_ids=list(range(num_points)),
        **({name: config[name] for name in settings} if is_dspark else {}),
    )
    made.transformer_layer_config._attn_implementation = "eager"
    drafter = model_class(made).eval()
    weights = load_file(folder / "model.safetensors")
    weights.setdefault("embed_tokens.weight", target.model.embed_tokens.weight)
    weights.setdefault("lm_head.weight", target.lm_head.weight)
    missing, unexpected = drafter.load_state_dict(weights, strict=False)
    assert not unexpected, f"speculators does not know {unexpected}"
    assert all(name.startswith("verifier_") for name in missing), f"speculators also wants {missing}"
    return drafter.to(torch.float32)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
