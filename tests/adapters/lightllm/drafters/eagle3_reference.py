"""Logits of Eagle3 drafters by ``speculators``, in a process of its own, from hidden states by transformers.

A question has the folders ``target`` and ``draft``, the ``points`` that are captured, and ``proposals``, each with
``text``, the tokens up to the one that a draft would follow, and ``drafts``; the answer is the logits of each draft.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

from tests.adapters.lightllm.drafters import reference_process


def logits(question: dict[str, Any]) -> list[list[list[float]]]:
    """Of every proposal, [drafts, draft vocabulary]."""
    found: list[list[list[float]]] = reference_process.ask(__name__, question)
    return found


def answer(question: dict[str, Any]) -> list[list[list[float]]]:
    # A torchvision for CUDA, which LightLLM's requirements bring, does not load beside a CPU torch.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    import torch
    from transformers import AutoModelForCausalLM

    target: Any = AutoModelForCausalLM.from_pretrained(
        question["target"], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    drafter = load(Path(question["draft"]), len(question["points"]), target)
    seen: list[torch.Tensor] = []
    drafter.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    found = []
    for proposal in question["proposals"]:
        text, drafts = proposal["text"], proposal["drafts"]
        with torch.no_grad():
            states = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
            captured = torch.cat([states[point][0] for point in question["points"]], dim=-1)
            # The row of the last state drafts; rows behind it only carry the drafts that its later steps read.
            last, length = len(text) - 2, len(text) - 1 + len(drafts)
            padded = torch.zeros(1, length, captured.shape[1])
            padded[0, : last + 1] = captured
            seen.clear()
            drafter(
                padded,
                torch.tensor([[*text[1:], *drafts]]),
                torch.zeros(1, length, dtype=torch.long),
                ttt_steps=len(drafts),
            )
            found.append([step[last].tolist() for step in seen])
    return found


def load(folder: Path, num_points: int, target: Any) -> Any:
    """A folder in any of the layouts as ``speculators``' own model; embedding and output layer where it has none."""
    import torch
    from safetensors.torch import load_file
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = json.loads((folder / "config.json").read_text())
    layer = config.get("transformer_layer_config", config)
    settings = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    made: Any = Eagle3SpeculatorConfig(
        transformer_layer_config={
            **{key: value for key, value in layer.items() if key != "architectures"},
            "model_type": "llama" if config["architectures"] == ["LlamaForCausalLMEagle3"] else "qwen3",
        },
        draft_vocab_size=config.get("draft_vocab_size", layer["vocab_size"]),
        eagle_aux_hidden_state_layer_ids=list(range(num_points)),
        **{name: config[name] for name in settings if name in config},
    )
    made.transformer_layer_config._attn_implementation = "eager"
    drafter = Eagle3DraftModel(made).eval()
    weights = {
        name.replace("midlayer.", "layers.0."): value for name, value in load_file(folder / "model.safetensors").items()
    }
    weights.setdefault("embed_tokens.weight", target.model.embed_tokens.weight)
    missing, unexpected = drafter.load_state_dict(weights, strict=False)
    assert not unexpected, f"speculators does not know {unexpected}"
    assert all(name.startswith("verifier_") for name in missing), f"speculators also wants {missing}"
    return drafter.to(torch.float32)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
