"""A compact CPU engine for Llama-architecture language models, with a slot-based KV cache and continuous batching.

It serves requests and runs *rows*: a request may bring several token positions to one forward. It knows nothing of
planning or drafting; whoever drives it decides how many rows each request gets and how many tokens it commits.

`options` and `fetch` import without torch; the rest is loaded on first use.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if "torch" not in sys.modules:
    # Worker threads that spin at barriers stall the forward by a factor of ten when another process wants the core.
    # There are two sets of them, torch's and numba's, each of its own copy of libgomp; both read this when loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from lightspec_lightllm.engine.options import EngineOptions, SamplingParams, WeightFormat

if TYPE_CHECKING:
    from lightspec_lightllm.engine.engine import Engine, Forward
    from lightspec_lightllm.engine.loading import load_model
    from lightspec_lightllm.engine.model import Model, ModelConfig
    from lightspec_lightllm.engine.sequence import Sequence
    from lightspec_lightllm.engine.slots import SlotPool
    from lightspec_lightllm.engine.tokenizer import Tokenizer

_HOMES = {
    "Engine": "engine",
    "Forward": "engine",
    "Model": "model",
    "ModelConfig": "model",
    "Sequence": "sequence",
    "SlotPool": "slots",
    "Tokenizer": "tokenizer",
    "load_model": "loading",
}

__all__ = [
    "Engine",
    "EngineOptions",
    "Forward",
    "Model",
    "ModelConfig",
    "SamplingParams",
    "Sequence",
    "SlotPool",
    "Tokenizer",
    "WeightFormat",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
