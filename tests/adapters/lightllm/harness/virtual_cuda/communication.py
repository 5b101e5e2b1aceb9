"""Process groups and custom operators of the virtual device: gloo for nccl, the CPU's dispatch key for CUDA's."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from tests.adapters.lightllm.harness.virtual_cuda.tensors import replace


def patch() -> None:
    distributed = torch.distributed
    barrier = distributed.barrier

    def any_barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op)

    replace(
        distributed,
        init_process_group=with_gloo(distributed.init_process_group, position=0),
        new_group=with_gloo(distributed.new_group, position=2),
        barrier=any_barrier,
    )
    register: Callable[..., Any] = torch.library.Library.impl

    def register_on_cpu(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **kwargs: Any) -> Any:
        key = "CPU" if self.ns == "lightllm" and dispatch_key == "CUDA" else dispatch_key
        return register(self, op_name, fn, key, *args, **kwargs)

    replace(torch.library.Library, impl=register_on_cpu)


def with_gloo(create: Callable[..., Any], position: int) -> Callable[..., Any]:
    """``create`` with "nccl" replaced where its argument ``position`` or ``backend`` says so."""

    @functools.wraps(create)
    def create_group(*args: Any, **kwargs: Any) -> Any:
        positional = ["gloo" if at == position and value == "nccl" else value for at, value in enumerate(args)]
        if kwargs.get("backend") == "nccl":
            kwargs["backend"] = "gloo"
        kwargs.pop("device_id", None)
        return create(*positional, **kwargs)

    return create_group
