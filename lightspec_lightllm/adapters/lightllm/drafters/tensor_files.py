"""The tensors of a checkpoint folder: their names and shapes from the headers, their values when asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightspec_lightllm.errors import ModelError

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 100_000_000
"""Of a safetensors file, by its specification."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor: where it is, under which name, and its shape."""

    file: Path
    name: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder by their names. Safetensors headers need no torch; ``.bin`` files do.

    Raises:
        ModelError: there are none, a file is damaged, or two files hold the same name.
    """
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"{folder}: expected *.safetensors or pytorch_model*.bin, found none; fetch the weights")
    found: dict[str, StoredTensor] = {}
    for file in files:
        shapes = _safetensors_shapes(file) if file.suffix == ".safetensors" else _pickled_shapes(file)
        for name, shape in shapes.items():
            if name in found:
                raise ModelError(
                    f"{folder}: tensor {name} is in {found[name].file.name} and in {file.name}; remove one"
                )
            found[name] = StoredTensor(file, name, shape)
    return found


def read_tensors(wanted: Iterable[StoredTensor]) -> dict[str, torch.Tensor]:
    """The values of tensors, on the CPU, by the names in their files."""
    by_file: dict[Path, list[str]] = {}
    for tensor in wanted:
        by_file.setdefault(tensor.file, []).append(tensor.name)
    values: dict[str, torch.Tensor] = {}
    for file, names in by_file.items():
        if file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(file, "pt", "cpu") as opened:
                values |= {name: opened.get_tensor(name) for name in names}
        else:
            stored = _load_pickle(file, "cpu")
            values |= {name: stored[name] for name in names}
    return values


def _safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if not 0 < size <= min(MAX_HEADER_BYTES, file.stat().st_size):
                raise ValueError(f"its header would be {size} bytes long")
            header = json.loads(opened.read(size))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: not a whole safetensors file ({error}); fetch it again") from None


def _pickled_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    stored = _load_pickle(file, "meta")
    return {name: tuple(value.shape) for name, value in stored.items()}


def _load_pickle(file: Path, device: str) -> dict[str, Any]:
    import torch

    try:
        stored = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever a damaged pickle raises
        raise ModelError(f"{file}: cannot be read as tensors ({type(error).__name__}); fetch it again") from None
    if not isinstance(stored, dict) or not all(isinstance(value, torch.Tensor) for value in stored.values()):
        raise ModelError(f"{file}: expected tensors by their names; convert it to safetensors")
    return stored
