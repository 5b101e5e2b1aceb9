"""Measured milliseconds of a forward by its rows: one table, and tables by number of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.errors import CostTableError
from lightspec_lightllm.planner.types import FloatArray, IntArray

RowTable = Mapping[int, float]
ContextTable = Mapping[int, RowTable]

MAX_TABLE_ROWS = 1_000_000
"""The most rows of a forward that a table may hold."""


@dataclass(frozen=True, slots=True, eq=False)
class RowCosts:
    """Milliseconds of one forward by rows, at one or several context lengths.

    Attributes:
        rows: int[R], measured row counts, ascending.
        contexts: float[C], context tokens per request, ascending (one entry when context was not measured).
        ms: float[C, R], non-decreasing along the rows.
        interpolate: linear between measured rows (nothing is padded), else the next measured size is what is paid.
    """

    rows: IntArray
    contexts: FloatArray
    ms: FloatArray
    interpolate: bool = False

    @classmethod
    def from_table(cls, table: RowTable | ContextTable, *, name: str, interpolate: bool = False) -> RowCosts:
        """Check ``{rows: ms}`` or ``{context: {rows: ms}}`` and make it monotone in the rows.

        Raises:
            CostTableError: the table is empty, its contexts differ in their rows, or a size or a time is impossible.
        """
        if not table:
            raise CostTableError(
                f"{name}: expected a table {{rows: ms}} with at least one entry, got an empty one; measure it again"
            )
        malformed = CostTableError(
            f"{name}: expected {{rows: ms}} or {{context: {{rows: ms}}}} with whole numbers of rows of at least 1 and "
            "finite times of at least 0 ms; measure it again"
        )
        nested = isinstance(next(iter(table.values())), Mapping)
        by_context: Mapping[Any, Any] = table if nested else {0: table}
        if not all(isinstance(line, Mapping) and line for line in by_context.values()):
            raise malformed
        if not all(isinstance(size, int | np.integer) for line in (by_context, *by_context.values()) for size in line):
            raise malformed
        contexts = sorted(by_context)
        rows = sorted(by_context[contexts[0]])
        for context in contexts:
            if sorted(by_context[context]) != rows:
                raise CostTableError(
                    f"{name}: expected the rows {rows} in every context, context {context} has others; measure it again"
                )
        try:
            ms = np.array([[float(by_context[c][r]) for r in rows] for c in contexts], dtype=np.float64)
        except (TypeError, ValueError):
            raise malformed from None
        if rows[0] < 1 or not np.isfinite(ms).all() or (ms < 0).any():
            raise malformed
        if rows[-1] > MAX_TABLE_ROWS:
            raise CostTableError(f"{name}: expected at most {MAX_TABLE_ROWS} rows, got {rows[-1]}; measure it again")
        return cls(
            rows=np.array(rows, dtype=np.int64),
            contexts=np.array(contexts, dtype=np.float64),
            ms=np.maximum.accumulate(ms, axis=1),
            interpolate=interpolate,
        )

    def at(self, rows: npt.NDArray[np.floating[Any]]) -> FloatArray:
        """Milliseconds at the first context of numbers of rows that need not be whole, linear between sizes and past
        the last."""
        line, last = self.ms[0], float(self.rows[-1])
        slope = line[-1] / last
        if len(line) > 1:
            slope = (line[-1] - line[-2]) / (last - float(self.rows[-2]))
        return cast(FloatArray, np.interp(rows, self.rows, line) + slope * np.maximum(rows - last, 0.0))

    def dense(self, max_rows: int) -> FloatArray:
        """float[C, max_rows + 1]: what 0..max_rows rows cost; extrapolated past the last measured size."""
        wanted = np.arange(max_rows + 1)
        last = int(self.rows[-1])
        if self.interpolate:
            out = np.stack([np.interp(wanted, self.rows, line) for line in self.ms])
        else:
            tier = np.minimum(np.searchsorted(self.rows, wanted), len(self.rows) - 1)
            out = self.ms[:, tier]
        past = wanted > last
        if past.any():
            slope = self.ms[:, -1] / last
            if len(self.rows) > 1:
                tail = (self.ms[:, -1] - self.ms[:, -2]) / (last - int(self.rows[-2]))
                slope = np.maximum(tail, 0.0) if self.interpolate else np.maximum(tail, slope)
            out[:, past] = self.ms[:, -1:] + slope[:, None] * (wanted[past] - last)
        out[:, 0] = 0.0
        return cast(FloatArray, out)


def tables_by_requests(tables: Mapping[Any, RowTable], *, interpolate: bool) -> dict[int, RowCosts]:
    """Check ``{requests: {rows: ms}}``.

    Raises:
        CostTableError: a number of requests is impossible, or its table is.
    """
    found = {}
    for count, table in tables.items():
        name = f"target table of {count} requests"
        if not isinstance(count, int | np.integer) or not 1 <= count <= MAX_TABLE_ROWS:
            raise CostTableError(f"{name}: expected a whole number of requests of at least 1; measure it again")
        costs = RowCosts.from_table(table, name=name, interpolate=interpolate)
        if isinstance(next(iter(table.values())), Mapping) or int(costs.rows[0]) < count:
            raise CostTableError(f"{name}: expected {{rows: ms}} with a row per request or more; measure it again")
        found[int(count)] = costs
    return found


def between(tables: Mapping[int, RowCosts], num_requests: int) -> RowCosts:
    """The table of N requests: linear in N between those of fewer and of more with the same mean rows, and beyond."""
    counts = list(tables)
    if num_requests in tables or len(counts) == 1:
        return tables[num_requests if num_requests in tables else counts[0]]
    upper = min(max(int(np.searchsorted(counts, num_requests)), 1), len(counts) - 1)
    few, many = counts[upper - 1], counts[upper]
    means = np.concatenate((tables[few].rows / few, tables[many].rows / many))
    rows = np.unique(np.rint(means * num_requests).astype(np.int64))
    fewer, more = (tables[count].at(rows * (count / num_requests)) for count in (few, many))
    share = (num_requests - few) / (many - few)
    ms = np.maximum((1.0 - share) * fewer + share * more, 0.0)
    table = dict(zip(rows.tolist(), ms.tolist(), strict=True))
    return RowCosts.from_table(table, name="target table", interpolate=tables[few].interpolate)
