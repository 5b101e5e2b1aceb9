"""y = x @ W.T on the CPU: float32 in, float32 out, weights packed once.

``float16`` and ``float32`` take activations as they are. They give a row the same result, up to float rounding,
whatever other rows are in its batch, so a target may use them: speculation changes no text. Dynamic int8 kernels do
not: they scale activations over the whole batch, so they are not offered. ``bfloat16`` rounds activations to 8 bits of
mantissa, and so makes rounding differences of what it is given visible; it is quick where the processor multiplies
tiles of it (`has_bfloat16_tiles`). It is for drafters, whose rounding can change which token is proposed, never which
is committed.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import linear

FloatArray = npt.NDArray[np.float32]
Linear = Callable[[torch.Tensor], torch.Tensor]
LinearWeights = Literal["float16", "float32", "bfloat16"]
_PACK_ROWS = 16  # batch size that packing is tuned for; it serves any


def make_linear(weight: torch.Tensor, weights: LinearWeights) -> Linear:
    """A function [rows, in] -> [rows, out] for a float32 weight [out, in], which may be released afterwards.

    Packed kernels are private or deprecated torch operators: where this build of torch lacks one, the plain product
    serves, of the same weights in float32.
    """
    weight = weight.contiguous()
    packers = {"float16": _pack_half, "float32": _pack_single, "bfloat16": _pack_bfloat}
    packed = packers[weights](weight)
    if packed is not None:
        return packed
    plain = weight if weights == "float32" else weight.to(getattr(torch, weights)).float()
    return lambda x: linear(x, plain)


class Scratch:
    """float32 [R, width] for what is multiplied next: as an array to be written and as a tensor, made once."""

    def __init__(self, rows: int, width: int) -> None:
        self.tensor = torch.empty(rows, width)
        self.array: FloatArray = self.tensor.numpy()


def product(linear: Linear, rows: FloatArray | Scratch) -> FloatArray:
    """``linear`` of ``rows [R, in]``."""
    found: FloatArray = linear(rows.tensor if isinstance(rows, Scratch) else torch.from_numpy(rows)).numpy()
    return found


def has_bfloat16_tiles() -> bool:
    """Whether this processor multiplies tiles of bfloat16 (Intel AMX), and this build of torch lets it."""
    tiles: Any = getattr(torch.cpu, "_is_amx_tile_supported", None)
    onednn: Any = torch.backends.mkldnn.is_available
    return tiles is not None and bool(tiles()) and bool(onednn())


def _pack_half(weight: torch.Tensor) -> Linear | None:
    try:
        packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, None)
        kernel: Any = torch.ops.quantized.linear_dynamic_fp16
        kernel(torch.zeros(1, weight.shape[1]), packed)
    except (AttributeError, RuntimeError):
        return None
    return lambda x: kernel(x, packed)


def _pack_single(weight: torch.Tensor) -> Linear | None:
    return _pack_onednn(weight)


def _pack_bfloat(weight: torch.Tensor) -> Linear | None:
    """Always `_PACK_ROWS` rows at a time, so that a row's product depends on that row alone.

    For another number of rows the kernel sums in another order, and a sum that is rounded to 8 bits would tell.
    """
    product = _pack_onednn(weight.bfloat16())
    if product is None:
        return None

    def by_rows(x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        padded = torch.zeros(-(-rows // _PACK_ROWS) * _PACK_ROWS, x.shape[1], dtype=torch.bfloat16)
        padded[:rows] = x
        parts = [product(padded[first : first + _PACK_ROWS]) for first in range(0, len(padded), _PACK_ROWS)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:rows].float()

    return by_rows


def _pack_onednn(weight: torch.Tensor) -> Linear | None:
    try:
        packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)  # noqa: SLF001 - has no public name
        kernel: Any = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - has no public name
        kernel(torch.zeros(1, weight.shape[1], dtype=weight.dtype), packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return lambda x: kernel(x, packed, None, "none", [], "")
