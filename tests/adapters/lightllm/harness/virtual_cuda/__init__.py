"""A CUDA device made of the CPU: the unmodified LightLLM runs on a machine without a GPU.

"cuda" is an alias of the CPU. Host and device copies stay real copies, streams and events do nothing (all work is
synchronous, so every order they ask for holds), nccl becomes gloo, and Triton kernels run in Triton's own
interpreter. What this cannot show: the order of streams, races, CUDA graphs and their padding, a forgotten
``.cuda()``, kernels that are not Triton's, speed.

:func:`install` must run before anything imports LightLLM.
"""

import functools
import os
import sys
import types

# Triton decides when a kernel is decorated, its own functions at its import: so before any module here imports it.
os.environ["TRITON_INTERPRET"] = "1"
# 3 switches off LightLLM's autotuner, which measures kernels through CUDA graphs.
os.environ.setdefault("LIGHTLLM_TRITON_AUTOTUNE_LEVEL", "3")


@functools.cache
def install() -> None:
    """Patch torch and triton of this process, once."""
    # PyPI's torchvision is built for CUDA torch: its C++ operators do not load beside a CPU torch, and the module that
    # describes them then fails. LightLLM needs torchvision's python transforms at import, nothing of this module.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

    # Dynamo tabulates torch's functions at import and refuses replaced ones: it must see the originals.
    import torch._dynamo  # noqa: F401

    from tests.adapters.lightllm.harness.virtual_cuda import communication, interpreter, runtime, tensors

    tensors.patch()
    runtime.patch()
    communication.patch()
    interpreter.patch()
