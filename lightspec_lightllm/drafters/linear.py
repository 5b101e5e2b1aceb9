"""Matrix products of the draft head, with weights packed once for the CPU.

Half-precision weights with float32 activations are the quickest for the one to sixteen rows of a draft step. Their
rounding can change which token is drafted, never which token is committed.
"""

import warnings
from typing import Literal

import torch
from torch.nn import functional

WeightKind = Literal["float16", "float32"]


class PackedLinear:
    """``y = x @ weight.T`` for float32 ``x [rows, inputs]``; ``weight [outputs, inputs]`` is packed at construction.

    float16: half-precision weights in FBGEMM's layout, where this build of torch has it; float32: plain weights.
    """

    def __init__(self, weight: torch.Tensor, kind: WeightKind) -> None:
        self._weight: torch.Tensor | None = None
        self._packed: object = None
        if kind == "float16" and "fbgemm" in torch.backends.quantized.supported_engines:
            with warnings.catch_warnings():
                # Packing warns for weights that round to zero in half precision; nothing is lost that matters here.
                warnings.simplefilter("ignore")
                self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)
        else:
            self._weight = weight.float().contiguous()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product, float32 ``[rows, outputs]``."""
        if self._weight is not None:
            return functional.linear(rows, self._weight)
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._packed)
        return product
