"""Tensor factories, copies and generators that accept "cuda" and stay on the CPU."""

import functools
from collections.abc import Callable
from typing import Any

import torch

FACTORIES = (
    "empty",
    "zeros",
    "ones",
    "full",
    "tensor",
    "arange",
    "rand",
    "randn",
    "randint",
    "randperm",
    "linspace",
    "logspace",
    "eye",
    "as_tensor",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "empty_strided",
    "asarray",
    "frombuffer",
    "tril_indices",
    "triu_indices",
    "hann_window",
    "scalar_tensor",
    "range",
)
METHODS = (
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_tensor",
    "new_empty_strided",
)


def is_cuda(device: object) -> bool:
    """Whether ``device`` names a CUDA device: "cuda:0", ``torch.device("cuda")`` or a bare index."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def replace(owner: Any, **members: object) -> None:
    for name, member in members.items():
        setattr(owner, name, member)


def patch() -> None:
    replace(torch, **{name: on_cpu(getattr(torch, name)) for name in FACTORIES})
    replace(torch.Tensor, **{name: on_cpu(getattr(torch.Tensor, name)) for name in METHODS})
    replace(torch, Generator=Generator, load=load_on_cpu(torch.load))
    replace(
        torch.Tensor,
        to=copying_to(torch.Tensor.to),
        cuda=copied,
        cpu=copied,
        pin_memory=itself,
        is_pinned=constantly(True),
        record_stream=constantly(None),
        is_cuda=property(constantly(True)),  # LightLLM asserts it; host and device are the same here
        get_device=constantly(0),
    )


def copied(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """A real copy: LightLLM reuses its pinned buffers while the device's copy is still in use."""
    return tensor.clone()


def itself(tensor: torch.Tensor, *args: object) -> torch.Tensor:
    return tensor


def constantly(value: object) -> Any:
    """A function that returns ``value`` whatever it is called with."""

    def answer(*args: object, **kwargs: object) -> object:
        return value

    return answer


def on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)  # needs a real accelerator
        return factory(*args, **kwargs)

    return create


def copying_to(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.to`` where a named device always means a copy, as between a host and a GPU."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = (*args[:1], *([kwargs["device"]] if "device" in kwargs else []))
        if any(isinstance(device, (str, torch.device)) or is_cuda(device) for device in named):
            args = ("cpu", *args[1:]) if args and not isinstance(args[0], torch.dtype) else args
            kwargs = {**kwargs, "copy": True, **({"device": "cpu"} if "device" in kwargs else {})}
        return original(self, *args, **kwargs)

    return to


def load_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        return original(file, map_location=None if is_cuda(map_location) else map_location, **kwargs)

    return load


class Generator(torch._C.Generator):
    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator.__new__(cls, "cpu" if is_cuda(device) else device)  # type: ignore[call-arg] # stub
