"""The drafter that the start arguments name, where LightLLM's own code would load MTP layers."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint, Target, open_checkpoint
from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from lightspec_lightllm.errors import ModelError


def served_checkpoint(args: Any, config: LightLLMConfig) -> tuple[DraftCheckpoint, Target]:
    """The checkpoint that a server drafts with, and what it says of its target.

    Raises:
        ModelError: the folder holds no drafter of this target, or one of another kind.
    """
    return _open(Path(args.mtp_draft_model_dir[0]), Path(args.model_dir), config.drafter)


@lru_cache(maxsize=2)
def _open(draft: Path, model: Path, kind: str | None) -> tuple[DraftCheckpoint, Target]:
    target = Target.read(model)
    checkpoint = open_checkpoint(draft, target)
    if checkpoint.layout.kind != kind:
        raise ModelError(f"{draft} holds a {checkpoint.layout.kind} drafter: use --mtp_mode {checkpoint.layout.kind}")
    return checkpoint, target


def load_drafter(backend: Any, main_kvargs: dict[str, Any]) -> tuple[list[Any], LightLLMDrafter]:
    """Build the configured drafter on the backend's target.

    Args:
        main_kvargs: what the target was built with.

    Returns:
        Its models, as LightLLM keeps them, and the drafter.
    """
    config: LightLLMConfig = backend.config
    checkpoint, _ = served_checkpoint(backend.args, config)
    # A drafter's prefill is no larger than the target's, which has been tried at its largest.
    os.environ["DISABLE_CHECK_MAX_LEN_INFER"] = "1"
    kvargs = {
        **main_kvargs,
        "weight_dir": str(checkpoint.folder),
        "max_total_token_num": backend.model.mem_manager.size,
        "is_token_healing": False,
        "return_all_prompt_logics": False,
        "run_mode": "normal",
        # Drafters are small; a quantised one would draft worse.
        "quant_type": "none",
        "quant_cfg": None,
        "expert_dtype": None,
        "main_model": backend.model,
        "checkpoint": checkpoint,
    }
    from lightspec_lightllm.adapters.lightllm.drafters import dflash, dspark, eagle3

    load = {"eagle3": eagle3.load, "dflash": dflash.load, "dspark": dspark.load}[checkpoint.layout.kind]
    return load(kvargs, config.planner.max_draft_steps)
