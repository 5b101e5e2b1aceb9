"""``torch.cuda`` of a machine with virtual devices: streams and events that need not wait, no graphs."""

import contextlib
import time
import types
from collections.abc import Iterator
from typing import Any

import torch

from tests.adapters.lightllm.harness.virtual_cuda.tensors import constantly, replace

DEVICES = 2
MEMORY_BYTES = 4 * 1024**3
CAPABILITY = (8, 0)
"""Below 9.0: LightLLM then keeps off TMA descriptors, FlashAttention 3 and DeepGEMM, which have no interpreter."""


class Event:
    """Recorded at once, for everything before it is done."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.seconds = 0.0

    def record(self, stream: object = None) -> None:
        self.seconds = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds, as CUDA's events count."""
        return (end.seconds - self.seconds) * 1e3


class Stream:
    """A stream whose work is always finished."""

    cuda_stream = 0
    device_index = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.device = torch.device("cpu")

    def wait_stream(self, stream: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass


class CUDAGraph:
    """Exists for type annotations; nothing can be captured."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("a virtual device captures no CUDA graphs: run with --disable_cudagraph")


@contextlib.contextmanager
def nothing(*args: object, **kwargs: object) -> Iterator[None]:
    yield


def patch() -> None:
    stream = Stream()
    properties = types.SimpleNamespace(
        name="Virtual CUDA",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=MEMORY_BYTES,
        multi_processor_count=8,
        warp_size=32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=166912,
        L2_cache_size=1 << 20,
    )
    constants: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "can_device_access_peer": True,
        "is_current_stream_capturing": False,
        "device_count": DEVICES,
        "current_device": 0,
        "get_device_name": properties.name,
        "get_device_capability": CAPABILITY,
        "get_device_properties": properties,
        "current_stream": stream,
        "default_stream": stream,
        "graph_pool_handle": (0, 0),
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
    }
    constants |= dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"),
        0,
    )
    constants |= dict.fromkeys(
        (
            "init",
            "_lazy_init",
            "_lazy_call",
            "set_device",
            "set_stream",
            "synchronize",
            "empty_cache",
            "ipc_collect",
            "reset_peak_memory_stats",
            "manual_seed",
            "manual_seed_all",
        )
    )
    replace(torch.cuda, **{name: constantly(value) for name, value in constants.items()})
    replace(torch.cuda, Stream=Stream, ExternalStream=Stream, Event=Event, CUDAGraph=CUDAGraph)
    replace(torch.cuda, device=nothing, stream=nothing, StreamContext=nothing, graph=nothing)
    replace(torch.version, cuda="13.0")
