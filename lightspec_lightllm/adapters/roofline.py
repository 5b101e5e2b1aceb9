"""Cost tables of a GPU that is not at hand: a roofline model, read from a file that gives every number its source.

Modelled, not measured: good for the shape of what rounds cost (where rows are free, what one more costs, what context
adds), not for the last tenth of it. `configs/costs/h200-qwen3-14b.yaml` is read first.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightspec_lightllm.config import load_yaml
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import CostModel


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one GPU can do, and the share of it that kernels reach.

    Attributes:
        memory_tb_per_s: memory bandwidth.
        tflops: arithmetic in the model's number format, without sparsity.
        memory_share: share of the bandwidth that a forward reaches, in (0, 1].
        compute_share: the same of the arithmetic.
    """

    memory_tb_per_s: float
    tflops: float
    memory_share: float
    compute_share: float

    def __post_init__(self) -> None:
        _above_zero(self)
        for name in ("memory_share", "compute_share"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name}: expected a share of at most 1, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Target:
    """The served model.

    Attributes:
        weights_b: weights that a forward reads and multiplies, in billions.
        layers: decoder layers.
        query_heads: attention heads of a layer.
        kv_heads: heads that have keys and values of their own.
        head_dim: width of a head.
        bytes_per_value: of a weight and of a value in the KV cache.
    """

    weights_b: float
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    bytes_per_value: float

    def __post_init__(self) -> None:
        _above_zero(self)

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value

    def flops_per_row(self, context: float) -> float:
        """Multiplications and additions of one row: with every weight, and with every token of its context."""
        attention = 4.0 * self.layers * self.query_heads * self.head_dim * context
        return 2e9 * self.weights_b + attention


@dataclass(frozen=True, slots=True)
class SerialDrafter:
    """A drafter that makes one forward per step: ``first_ms + (rows - 1) * row_us``.

    Attributes:
        first_ms: one step for one request.
        row_us: what each further row adds, in microseconds.
    """

    first_ms: float
    row_us: float

    def __post_init__(self) -> None:
        _above_zero(self)


@dataclass(frozen=True, slots=True)
class CapturedSizes:
    """Numbers of rows for which a server captures a graph; a batch is padded up to the next.

    Attributes:
        each_to: every number up to this one.
        step: distance of the next ones,
        step_to: up to here.
        wide_step: distance of those after them,
        largest: up to here.
    """

    each_to: int
    step: int
    step_to: int
    wide_step: int
    largest: int

    def __post_init__(self) -> None:
        _above_zero(self)
        if not self.each_to <= self.step_to <= self.largest:
            raise ConfigError(
                f"captured: expected each_to <= step_to <= largest, got {self.each_to}, {self.step_to}, {self.largest}"
            )

    def sizes(self) -> tuple[int, ...]:
        """Ascending."""
        dense = range(1, self.each_to + 1)
        stepped = range(self.each_to + self.step, self.step_to + 1, self.step)
        wide = range(self.step_to + self.wide_step, self.largest + 1, self.wide_step)
        return tuple(sorted({*dense, *stepped, self.step_to, *wide, self.largest}))


@dataclass(frozen=True, slots=True)
class Roofline:
    """One model on one GPU: a forward takes the time of reading the weights or of multiplying, whichever is longer.

    ``T(B, context) = (floor^p + (row_ms(context) B)^p)^(1/p)``: flat at ``floor``, the time to read the weights, for
    few rows; ``row_ms``, the time of a row's arithmetic, for each of many; bent at their crossing, the knee. Reading
    the KV cache adds ``kv_ms_per_token`` for every request and token of its context, whatever the request's rows.

    Attributes:
        knee_sharpness: p; larger is closer to the maximum of the two.
        overhead_ms: time of a round outside its forwards.
        captured: sizes that batches are padded up to.
        contexts: context tokens per request at which tables are made.
    """

    gpu: Gpu
    target: Target
    drafter: SerialDrafter
    captured: CapturedSizes
    contexts: tuple[int, ...]
    knee_sharpness: float
    overhead_ms: float

    def __post_init__(self) -> None:
        if not self.contexts or list(self.contexts) != sorted(set(self.contexts)) or self.contexts[0] < 0:
            raise ConfigError(f"contexts: expected ascending token counts from 0 on, got {list(self.contexts)}")
        if not (math.isfinite(self.knee_sharpness) and self.knee_sharpness >= 1):
            raise ConfigError(f"knee_sharpness: expected at least 1, got {self.knee_sharpness!r}")
        if not (math.isfinite(self.overhead_ms) and self.overhead_ms >= 0):
            raise ConfigError(f"overhead_ms: expected a time of at least 0, got {self.overhead_ms!r}")

    @property
    def floor_ms(self) -> float:
        """Time to read the weights."""
        read = 1e9 * self.target.weights_b * self.target.bytes_per_value
        return 1e3 * read / (1e12 * self.gpu.memory_tb_per_s * self.gpu.memory_share)

    def row_ms(self, context: float = 0.0) -> float:
        """Time of one row's arithmetic."""
        return 1e3 * self.target.flops_per_row(context) / (1e12 * self.gpu.tflops * self.gpu.compute_share)

    @property
    def knee_rows(self) -> float:
        """Rows whose arithmetic takes as long as reading the weights, at an empty context."""
        return self.floor_ms / self.row_ms()

    @property
    def kv_ms_per_token(self) -> float:
        """Time to read one token of one request's context."""
        return 1e3 * self.target.kv_bytes_per_token / (1e12 * self.gpu.memory_tb_per_s * self.gpu.memory_share)

    def target_ms(self, rows: float, context: float = 0.0) -> float:
        """One target forward of exactly so many rows, without padding and without reading the KV cache."""
        p, floor, arithmetic = self.knee_sharpness, self.floor_ms, rows * self.row_ms(context)
        high, low = max(floor, arithmetic), min(floor, arithmetic)
        return float(high * (1.0 + (low / high) ** p) ** (1.0 / p))

    def draft_ms(self, rows: float) -> float:
        """One drafter forward of so many rows."""
        return self.drafter.first_ms + 1e-3 * self.drafter.row_us * (rows - 1)

    def target_table(self) -> dict[int, dict[int, float]]:
        """``{context: {rows: ms}}`` at the captured sizes."""
        sizes = self.captured.sizes()
        return {context: {rows: self.target_ms(rows, context) for rows in sizes} for context in self.contexts}

    def draft_table(self) -> dict[int, float]:
        """``{rows: ms}`` at the captured sizes."""
        return {rows: self.draft_ms(rows) for rows in self.captured.sizes()}

    def costs(self, *, max_rows: int | None = None) -> CostModel:
        """The tables as a cost model."""
        return CostModel.from_tables(
            self.target_table(),
            self.draft_table(),
            overhead_ms=self.overhead_ms,
            request_token_ms=self.kv_ms_per_token,
            max_rows=max_rows,
        )


def load_roofline(path: Path) -> Roofline:
    """Reads a model from a YAML file that names every field.

    Raises:
        ConfigError: the file cannot be read, or a key or value is missing, unknown or out of range.
    """
    return load_yaml(path, Roofline, name="costs")


def _above_zero(owner: Any) -> None:
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{field.name}: expected a finite number above 0, got {value!r}")
