"""Tensor operations of the round on a GPU: each a Triton kernel with a plain torch twin of the same name.

`reference` is the specification. For tensors on a GPU, where triton can be imported, the kernels run instead; both
give the same bits unless a docstring says otherwise. A kernel never waits for the device, and is compiled anew only
when the number of requests or rows passes a power of two for the first time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, cast

from lightspec_lightllm.ops import reference
from lightspec_lightllm.ops.types import Segments, SelectedRows

__all__ = [
    "Segments",
    "SelectedRows",
    "accepted_last_row",
    "copy_page_table",
    "draft_scores",
    "exponential_noise",
    "mask_invalid_tokens",
    "segments",
    "select_rows",
]

_Operation = TypeVar("_Operation", bound=Callable[..., Any])


def _dispatched(twin: _Operation) -> _Operation:
    """The operation that runs the kernel of the twin's name where its first argument allows one."""

    @functools.wraps(twin)
    def run(*args: Any) -> Any:
        return _kernel(twin.__name__)(*args) if args[0].is_cuda and _has_triton() else twin(*args)

    return cast(_Operation, run)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernel(name: str) -> Callable[..., Any]:
    kernels = importlib.import_module("lightspec_lightllm.ops.kernels")
    return cast(Callable[..., Any], getattr(kernels, name))


accepted_last_row = _dispatched(reference.accepted_last_row)
copy_page_table = _dispatched(reference.copy_page_table)
draft_scores = _dispatched(reference.draft_scores)
exponential_noise = _dispatched(reference.exponential_noise)
mask_invalid_tokens = _dispatched(reference.mask_invalid_tokens)
segments = _dispatched(reference.segments)
select_rows = _dispatched(reference.select_rows)
