"""Models on disk, each a folder that LightLLM and transformers read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.adapters.lightllm.harness.models import blocks, deepseek, dense, eagle3, mistral, qwen3_moe
from tests.adapters.lightllm.harness.models.cycle import VOCAB_SIZE
from tests.adapters.lightllm.harness.models.mistral import Weights


@dataclass(frozen=True)
class Models:
    """Where written models are. Names of drafters: see the package's docstring."""

    folder: Path

    def target(self, family: str, kind: str) -> str:
        """``family``: "mistral", "qwen3_moe" (MTP layers without attention), "deepseek" (with), or one of `dense` (for
        drafters that read hidden states); ``kind``: "mixed" or "cycle"."""
        return self._existing(f"{family}-{kind}")

    def drafter(self, family: str, kind: str) -> str:
        """``kind``: "always" (on a ``cycle`` target; on a ``mixed`` one it is "half"), "never" or "random"; of
        "eagle3", drafters of those three in the format of ``speculators``, also "mostly", which is right three
        times out of four on a ``cycle`` target, "half", and random ones: "normed-each", "normed-all" and, in those
        layouts, "common" and "deepspec"; of "dflash" and "dspark", for ``cycle`` targets, see `blocks`."""
        same = {"always": "copy", "half": "copy", "never": "opposite"}
        own = f"{family}-draft-{kind}"
        return self._existing(own if (self.folder / own).is_dir() else f"{family}-draft-{same.get(kind, kind)}")

    def _existing(self, name: str) -> str:
        path = self.folder / name
        if not path.is_dir():
            known = ", ".join(sorted(each.name for each in self.folder.iterdir()))
            raise ValueError(f"no model {name} in {self.folder}; there are {known}")
        return str(path)


def write_models(folder: Path) -> Models:
    """Write all of them, some 20 MB. Equal bytes every time."""
    for name, module, draft_config in (
        ("mistral", mistral, mistral.CONFIG),
        ("deepseek", deepseek, deepseek.DRAFT_CONFIG),
    ):
        for kind in ("mixed", "cycle"):
            save(folder / f"{name}-{kind}", module.CONFIG, module.target(kind))
            save_tokenizer(folder / f"{name}-{kind}")
        for draft in ("copy", "opposite", "random"):
            save(folder / f"{name}-draft-{draft}", draft_config, module.drafter(draft))
    for layer in qwen3_moe.KINDS:
        save(folder / f"qwen3_moe-draft-{layer}", qwen3_moe.DRAFT_CONFIG, qwen3_moe.drafter(layer))
    for family, config in dense.CONFIGS.items():
        for kind in dense.KINDS:
            save(folder / f"{family}-{kind}", config, dense.target(family, kind))
            save_tokenizer(folder / f"{family}-{kind}")
    kinds: tuple[eagle3.Kind, ...] = ("copy", "mostly", "half", "opposite", "random")
    for drafter in kinds:
        save(folder / f"eagle3-draft-{drafter}", *eagle3.speculators(drafter))
    save(folder / "eagle3-draft-normed-each", *eagle3.normed("each"))
    save(folder / "eagle3-draft-normed-all", *eagle3.normed("all"))
    save(folder / "eagle3-draft-common", *eagle3.common())
    save(folder / "eagle3-draft-deepspec", *eagle3.deepspec())
    for crafted in blocks.KINDS:
        save(folder / f"dflash-draft-{crafted}", *blocks.dflash(crafted))
        save(folder / f"dspark-draft-{crafted}", *blocks.dspark(crafted))
    save(folder / "dflash-draft-speculators", *blocks.dflash_speculators())
    save(folder / "dflash-draft-deepspec", *blocks.dflash_deepspec())
    for head in blocks.HEADS:
        save(folder / f"dspark-draft-{head}", *blocks.dspark_speculators(head))
    return Models(folder)


def save(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    from safetensors.torch import save_file  # comes with LightLLM's requirements

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words: the text "t5 t9" is the ids 5, 9."""
    special = {0: "<unk>", 1: "<s>", 2: "</s>"}
    words = {special.get(token, f"t{token}"): token for token in range(VOCAB_SIZE)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({**options, **names}))
