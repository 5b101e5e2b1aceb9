"""The tensors of a checkpoint folder: their names and shapes, from the headers and without torch."""

from __future__ import annotations

import io
import json
import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightspec_lightllm.errors import ModelError

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
    """All tensors of a folder by their names.

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
    """Of a file that ``torch.save`` wrote: a zip archive, whose pickle refers to the values and does not hold them."""
    try:
        with zipfile.ZipFile(file) as archive:
            (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            stored = _ShapeUnpickler(io.BytesIO(archive.read(pickled))).load()
        if not all(isinstance(shape, tuple) for shape in stored.values()):
            raise ValueError("it holds more than tensors by their names")
    except Exception as error:  # noqa: BLE001 - whatever a damaged pickle raises
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ModelError(f"{file}: cannot be read as tensors ({reason}); fetch it again, or convert it") from None
    return dict(stored)


class _ShapeUnpickler(pickle.Unpickler):
    """Makes shapes of tensors, and nothing that is not part of one."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _shape_of_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _shape_of_parameter
        if module.startswith("torch") and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")

    def persistent_load(self, pid: Any) -> None:
        """What a tensor's values are referred to by."""


def _shape_of_tensor(_storage: None, _offset: int, size: tuple[int, ...], *_rest: Any) -> tuple[int, ...]:
    return tuple(size)


def _shape_of_parameter(shape: tuple[int, ...], *_rest: Any) -> tuple[int, ...]:
    return shape
