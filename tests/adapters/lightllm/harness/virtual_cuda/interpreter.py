"""Triton kernels in Triton's interpreter, one launch at a time, and what may stand in for one or watch it.

The interpreter's internals are used, so the version of triton is pinned in requirements.txt.
"""

import functools
import inspect
import threading
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.adapters.lightllm.harness.job import Kernels
from tests.adapters.lightllm.harness.virtual_cuda import twins
from tests.adapters.lightllm.harness.virtual_cuda.runtime import CAPABILITY
from tests.adapters.lightllm.harness.virtual_cuda.tensors import constantly, replace

Arguments = dict[str, Any]
Watcher = Callable[[Arguments], None]

kernels: Kernels = "fast"
"""How kernels that have a twin run from now on."""

watchers: dict[str, list[Watcher]] = {}
"""By kernel name ("module:function"): called after each launch with its arguments by name; may change tensors."""

compared: Counter[str] = Counter()
"""Launches that a kernel's twin was compared in, by kernel name; only while ``kernels`` is "checked"."""

TOLERANCE = 1e-5
"""Largest difference, absolute or relative, between a kernel and its twin in float32; see also `twins.COARSE`."""


class TwinMismatchError(AssertionError):
    """A twin wrote other values than the kernel it stands for."""


def use(choice: Kernels) -> None:
    global kernels  # noqa: PLW0603 - one setting of a process, read at every launch
    kernels = choice


def patch() -> None:
    triton.runtime.driver.set_active(Driver())
    executor = interpreter.GridExecutor
    # Host arguments share their storage with the device's here: copying back would be a copy onto itself of every
    # storage that a launch touches, the whole KV pool included.
    replace(executor, _restore_args_dev=constantly(None))
    replace(executor, __call__=launching(executor.__call__))
    # The interpreter patches triton.language anew at every launch and at every call of a device function: once is
    # enough for a process that only interprets.
    replace(interpreter, _patch_lang=patch_language_once())
    # MLA's decode asks a compiled kernel for its registers to choose a grid.
    compiled = types.SimpleNamespace(
        n_regs=64, metadata=types.SimpleNamespace(shared=0), _init_handles=constantly(None)
    )
    replace(interpreter.InterpretedFunction, warmup=constantly(compiled))


def launching(interpret: Callable[..., None]) -> Callable[..., None]:
    # The interpreter keeps the position in the grid in a global, and LightLLM launches from two threads.
    lock = threading.RLock()

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        name = f"{self.fn.__module__}:{self.fn.__name__}"
        twin = twins.TWINS.get(name) if kernels != "interpreted" else None
        watching = watchers.get(name, ())
        with lock:
            if twin is None:
                interpret(self, *args, **kwargs)
            else:
                arguments = by_name(self.fn, args, kwargs)
                if kernels == "checked":
                    compare(name, twin, arguments, lambda copies: interpret(self, **{**kwargs, **copies}))
                twin(**arguments)
            if watching:
                arguments = by_name(self.fn, args, kwargs)
                for watch in watching:
                    watch(arguments)

    return launch


def by_name(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
    """The kernel's arguments by name; launch options such as ``num_warps`` left out."""
    defaults = parameters(kernel)
    named = {name: value for name, value in kwargs.items() if name in defaults}
    return {**defaults, **dict(zip(defaults, args, strict=False)), **named}


@functools.cache
def parameters(kernel: Callable[..., Any]) -> Arguments:
    """A kernel's parameters in their order, with their defaults; None where there is none."""
    given = inspect.signature(kernel).parameters.values()
    return {each.name: None if each.default is each.empty else each.default for each in given}


def compare(name: str, twin: Callable[..., None], arguments: Arguments, interpret: Callable[[Arguments], None]) -> None:
    """Run kernel and twin on copies of the same arguments.

    Raises:
        TwinMismatchError: a tensor differs afterwards.
    """
    expected, actual = ({key: copy(value) for key, value in arguments.items()} for _ in range(2))
    interpret(expected)
    twin(**actual)
    tolerance = twins.COARSE.get(name, TOLERANCE)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor) and not torch.allclose(
            value.double(), actual[key].double(), rtol=tolerance, atol=tolerance, equal_nan=True
        ):
            worst = (value.double() - actual[key].double()).abs().max().item()
            raise TwinMismatchError(f"{name}: the twin's {key} differs from the kernel's by up to {worst:g}")
    compared[name] += 1


def copy(value: Any) -> Any:
    """A copy of a tensor with the same strides, which kernels are told; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    spanned = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    storage = value.as_strided((spanned if value.numel() else 0,), (1,)).clone()
    return storage.as_strided(value.shape, value.stride(), 0)


def patch_language_once() -> Callable[..., Any]:
    done: list[bool] = []
    scope = types.SimpleNamespace(restore=constantly(None))

    def patch_language(fn: object) -> Any:
        if not done:
            lasting, builder = interpreter._LangPatchScope(), interpreter.interpreter_builder
            for module in (tl.core, tl, tl.math, tl.core.tensor, tl.core.tensor_descriptor_base):
                interpreter._patch_builtin(module, builder, lasting)
            interpreter._patch_lang_tensor(tl.core.tensor, lasting)
            for module in (tl.core, tl):
                interpreter._patch_lang_core(module, lasting)
            done.append(True)
        return scope

    return patch_language


class Driver:
    """The driver of a virtual device, as far as LightLLM and Triton ask it."""

    utils = types.SimpleNamespace(
        get_device_properties=constantly(
            {"multiprocessor_count": 8, "max_num_regs": 65536, "max_shared_mem": 166912, "warpSize": 32}
        )
    )

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda
