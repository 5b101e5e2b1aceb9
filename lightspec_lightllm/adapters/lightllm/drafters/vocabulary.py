"""Drafters whose output layer has fewer tokens than the target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightspec_lightllm.errors import ModelError


def target_offsets(weights: Mapping[str, torch.Tensor], vocab_size: int, folder: Path) -> torch.Tensor | None:
    """int64[draft vocabulary]: what to add to a drafted token to have the target's; None: nothing.

    Args:
        weights: a checkpoint's tensors.
        vocab_size: of the target.
        folder: where they are from, for messages.

    Raises:
        ModelError: they lead out of the target's vocabulary.
    """
    offsets = weights.get("d2t")
    if offsets is None or not offsets.any():
        return None
    tokens = offsets.long() + torch.arange(len(offsets))
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise ModelError(
            f"{folder}: tensor d2t: expected offsets to tokens below {vocab_size}, got tokens {int(tokens.min())} to "
            f"{int(tokens.max())}"
        )
    return offsets.long()
