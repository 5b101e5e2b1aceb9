"""What a request and an engine can be asked for. Standard library only."""

import math
import os
from dataclasses import dataclass
from typing import Literal, get_args

from lightspec_lightllm.errors import ConfigError, RequestError

WeightFormat = Literal["float16", "float32"]


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when the request ends.

    temperature 0 is greedy. top_k 0 and top_p 1.0 filter nothing. The draw for a position depends on the seed, the
    position and the logits alone, never on the batch; seed None derives one from the request id. A stop string ends
    the request and is cut from its text. ignore_eos keeps going past the end-of-sequence token.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stops: object = self.stop
        if not isinstance(stops, tuple) or not all(isinstance(text, str) and text for text in stops):
            raise RequestError(f"stop must be a tuple of non-empty strings, got {stops!r}")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise RequestError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if self.top_k < 0:
            raise RequestError(f"top_k must be at least 0 (0 keeps every token), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class EngineOptions:
    """Size and format of an engine.

    weights        "float16": half-precision weights, float32 arithmetic; "float32": exact. Both are lossless for
                   speculation: a row's result does not depend on the other rows of its batch
    threads        CPU threads of a forward, at most one per CPU; 0 measures at start and takes the faster, robustly
    num_slots      token positions the KV cache holds over all requests
    max_requests   requests that may hold slots at once
    prefill_chunk  prompt tokens computed per forward, beside the rows of running requests
    max_context    longest prompt + output of one request, in tokens
    max_rows       most rows one request may bring to a forward: 1 + the longest draft
    """

    weights: WeightFormat = "float16"
    threads: int = 0
    num_slots: int = 16384
    max_requests: int = 64
    prefill_chunk: int = 256
    max_context: int = 2048
    max_rows: int = 32

    def __post_init__(self) -> None:
        if self.weights not in get_args(WeightFormat):
            raise ConfigError(f"weights must be one of {', '.join(get_args(WeightFormat))}, got {self.weights!r}")
        if self.threads < 0:
            raise ConfigError(f"threads must be at least 0 (0 measures at start), got {self.threads}")
        if self.threads > (cpus := os.cpu_count() or 1):
            raise ConfigError(f"threads must be at most the {cpus} CPUs of this machine, got {self.threads}")
        for name in ("num_slots", "max_requests", "prefill_chunk", "max_context", "max_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
