"""The values of a drafter's tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint


def load_tensors(checkpoint: DraftCheckpoint) -> dict[str, torch.Tensor]:
    """All of them, on the CPU, by the names of `checkpoints.expected_tensors`."""
    opened: dict[Path, Any] = {}
    values = {}
    for name, tensor in checkpoint.tensors.items():
        if tensor.file not in opened:
            opened[tensor.file] = _open(tensor.file)
        values[name] = opened[tensor.file](tensor.name)
    return values


def _open(file: Path) -> Any:
    """A function from names to tensors."""
    if file.suffix == ".safetensors":
        return safe_open(file, "pt", "cpu").get_tensor
    return torch.load(file, map_location="cpu", weights_only=True).__getitem__
