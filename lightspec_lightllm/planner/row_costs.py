"""Measured milliseconds of a forward by its rows: one table, and tables by number of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

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

    def dense(self, max_rows: int) -> FloatArray:
        """float[C, max_rows + 1]: what 0..max_rows rows cost; extrapolated past the last measured size."""
        last = int(self.rows[-1])
        if self.interpolate:
            wanted = np.arange(max_rows + 1)
            out = np.stack([np.interp(wanted, self.rows, line) for line in self.ms])
        else:
            tiers = np.diff(np.minimum(self.rows, max_rows), prepend=-1)
            tiers[-1] += max_rows - min(last, max_rows)
            out = self.ms.repeat(tiers, axis=1)
        if max_rows > last:
            slope = self.ms[:, -1] / last
            if len(self.rows) > 1:
                tail = (self.ms[:, -1] - self.ms[:, -2]) / (last - int(self.rows[-2]))
                slope = np.maximum(tail, 0.0) if self.interpolate else np.maximum(tail, slope)
            out[:, last + 1 :] = self.ms[:, -1:] + slope[:, None] * np.arange(1, max_rows - last + 1)
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


def starts_by_requests(table: RowTable) -> RowCosts:
    """Check ``{requests: ms}``, times that are linear between two numbers of requests and do not fall with them.

    Raises:
        CostTableError: a number of requests or a time is impossible.
    """
    name = "draft_start table"
    if any(isinstance(ms, Mapping) for ms in table.values()):
        raise CostTableError(f"{name}: expected {{requests: ms}}, got tables within it; measure it again")
    return RowCosts.from_table(table, name=name, interpolate=True)


def between(tables: Mapping[int, RowCosts], num_requests: int) -> RowCosts:
    """The table of N requests: linear in N between those of fewer and of more at the same rows, and beyond.

    Times have steps at sums of rows, whatever requests those are of. What requests add changes slowly, so where only
    one of the two tables reaches, the other is taken to be as far from it as at the nearest rows where both do. Beyond
    the most requests measured, more never make the same rows cheaper.
    """
    counts = list(tables)
    if num_requests in tables or len(counts) == 1:
        return tables[num_requests if num_requests in tables else counts[0]]
    upper = min(max(int(np.searchsorted(counts, num_requests)), 1), len(counts) - 1)
    few, many = tables[counts[upper - 1]], tables[counts[upper]]
    low = max(few.rows[0], many.rows[0])
    high = max(low, min(few.rows[-1], many.rows[-1]))
    last = max(num_requests, int(few.rows[-1]), int(many.rows[-1])) + 1
    rows = np.union1d(few.rows, many.rows)
    rows = np.union1d(rows[rows > num_requests], (num_requests, last))
    fewer, more = few.dense(last)[0], many.dense(last)[0]
    apart = (more - fewer)[np.clip(rows, low, high)]
    known = np.where(rows < low, few.rows[0] <= many.rows[0], few.rows[-1] > many.rows[-1])
    fewer = np.where(known, fewer[rows], more[rows] - apart)
    share = (num_requests - counts[upper - 1]) / (counts[upper] - counts[upper - 1])
    ms = np.maximum(fewer + np.where(apart < 0.0, min(share, 1.0), share) * apart, 0.0)
    table = dict(zip(rows.tolist(), ms.tolist(), strict=True))
    return RowCosts.from_table(table, name="target table", interpolate=few.interpolate)
