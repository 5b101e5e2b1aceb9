"""y = x @ W.T with float32 activations, in the two weight formats that are lossless for speculation.

Both give a row the same result, up to float rounding, whatever other rows are in its batch. Dynamic int8 kernels do
not: they scale activations over the whole batch, so they are not offered.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

from lightspec_lightllm.engine.options import WeightFormat

Linear = Callable[[torch.Tensor], torch.Tensor]
_PACK_ROWS = 16  # batch size the float32 packing is tuned for; it serves any


def make_linear(weight: torch.Tensor, weights: WeightFormat) -> Linear:
    """A function [rows, in] -> [rows, out] for a float32 weight [out, in], which may be released afterwards.

    Packed kernels are private or deprecated torch operators: where this build of torch lacks one, the plain product
    serves, in half precision weights as in float32.
    """
    weight = weight.contiguous()
    packers = {"float16": _pack_half, "float32": _pack_single}
    packed = packers[weights](weight)
    if packed is not None:
        return packed
    plain = weight.half().float() if weights == "float16" else weight
    return lambda x: linear(x, plain)


def _pack_half(weight: torch.Tensor) -> Linear | None:
    try:
        packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, None)
        kernel: Any = torch.ops.quantized.linear_dynamic_fp16
        kernel(torch.zeros(1, weight.shape[1]), packed)
    except (AttributeError, RuntimeError):
        return None
    return lambda x: kernel(x, packed)


def _pack_single(weight: torch.Tensor) -> Linear | None:
    try:
        packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)  # noqa: SLF001 - has no public name
        kernel: Any = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - has no public name
        kernel(torch.zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return lambda x: kernel(x, packed, None, "none", [], "")
