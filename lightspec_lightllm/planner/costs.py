"""What a round costs: a staircase over measured row counts, per context length.

A CUDA graph is replayed at the next captured size, so the target's time is a staircase of the rows, and the last row
of a tier is free once its first is paid. A CPU engine pads nothing; its table is interpolated instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from lightspec_lightllm.errors import CostTableError
from lightspec_lightllm.planner.row_costs import (
    ContextTable,
    RowCosts,
    RowTable,
    between,
    starts_by_requests,
    tables_by_requests,
)
from lightspec_lightllm.planner.types import DrafterKind, FloatArray, IntArray

DENSE_ROWS = 256
"""So many numbers of rows in a row are candidate budgets where times grow from each to the next."""

MAX_CONTEXTS = 64
"""Contexts whose lines of times are kept."""

MAX_GRIDS = 256
"""Batches whose candidate budgets are kept."""


class CostModel:
    """Milliseconds of the target and the drafter, by rows, requests, context and draft steps.

    Built with `from_tables`; immutable for its user, it only caches dense look-up tables.
    """

    def __init__(
        self,
        target: RowCosts,
        draft: RowCosts | None,
        *,
        fill: RowCosts | None = None,
        draft_start: RowCosts | None = None,
        overhead_ms: float = 0.0,
        request_ms: float = 0.0,
        request_token_ms: float = 0.0,
        max_rows: int | None = None,
        by_requests: Mapping[int, RowCosts] | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.fill = fill
        self.draft_start = draft_start
        self.overhead_ms = overhead_ms
        self.request_ms = request_ms
        self.request_token_ms = request_token_ms
        self.max_rows = max_rows
        self.by_requests = dict(sorted(by_requests.items())) if by_requests else {}
        self._of_requests: dict[int, CostModel] = {}
        self._any_context = all(len(table.contexts) == 1 for table in (target, draft, fill) if table is not None)
        self._size = 0
        self._lines: dict[float, tuple[tuple[FloatArray, FloatArray], FloatArray]] = {}
        self._budgets: dict[tuple[tuple[int, ...], int], BudgetCosts] = {}
        self._grow(int(target.rows[-1]))

    @classmethod
    def from_tables(
        cls,
        target: RowTable | ContextTable,
        draft: RowTable | ContextTable | None = None,
        *,
        fill: RowTable | ContextTable | None = None,
        draft_start: RowTable | None = None,
        interpolate: bool = False,
        overhead_ms: float = 0.0,
        request_ms: float = 0.0,
        request_token_ms: float = 0.0,
        max_rows: int | None = None,
        by_requests: Mapping[int, RowTable] | None = None,
    ) -> CostModel:
        """Make a cost model from measured tables.

        Args:
            target: ``{rows: ms}`` or ``{context tokens per request: {rows: ms}}`` of one target forward.
            draft: the same of one drafter forward; None or empty for a drafter that costs nothing.
            fill: the same of what a drafter runs over all verified rows (see `draft_terms`), by those rows; None or
                empty where that is a forward like any other.
            draft_start: ``{requests: ms}``, what a draft takes beside its steps, however many (at least one) it has: a
                drafter that takes in accepted rows before its first step. Always linear between two numbers of
                requests. A free drafter is not charged it. None or empty where a draft is its steps alone.
            interpolate: times between two measured sizes are linear (no padding) rather than those of the larger size.
            overhead_ms: time of a round outside its forwards, whatever its rows.
            request_ms: target time that each request adds, whatever its rows.
            request_token_ms: target time that each token of context adds per request, whatever the request's rows.
            max_rows: the largest batch that the target may run, or None.
            by_requests: ``{requests: {rows: ms}}``, what one target forward takes with so many requests, where the same
                rows take longer if they are of more requests; in place of ``target`` wherever their number is known.

        Raises:
            CostTableError: a table is empty or malformed, or a term is negative.
        """
        for key, value in (
            ("overhead_ms", overhead_ms),
            ("request_ms", request_ms),
            ("request_token_ms", request_token_ms),
        ):
            if not (np.isfinite(value) and value >= 0):
                raise CostTableError(f"{key}: expected a finite time of at least 0 ms, got {value!r}")
        return cls(
            RowCosts.from_table(target, name="target table", interpolate=interpolate),
            RowCosts.from_table(draft, name="draft table", interpolate=interpolate) if draft else None,
            fill=RowCosts.from_table(fill, name="fill table", interpolate=interpolate) if fill else None,
            draft_start=starts_by_requests(draft_start) if draft_start else None,
            overhead_ms=overhead_ms,
            request_ms=request_ms,
            request_token_ms=request_token_ms,
            max_rows=max_rows,
            by_requests=tables_by_requests(by_requests or {}, interpolate=interpolate),
        )

    def with_target(self, target: RowCosts, by_requests: Mapping[int, RowCosts] | None = None) -> CostModel:
        """The same with other times of the target."""
        return CostModel(
            target,
            self.draft,
            fill=self.fill,
            draft_start=self.draft_start,
            overhead_ms=self.overhead_ms,
            request_ms=self.request_ms,
            request_token_ms=self.request_token_ms,
            max_rows=self.max_rows,
            by_requests=by_requests,
        )

    def for_requests(self, num_requests: int) -> CostModel:
        """The costs of a batch of N requests: these, or where they depend on N, those with N's own target table."""
        if not self.by_requests:
            return self
        held = self._of_requests.pop(num_requests, None)
        if held is None:
            if len(self._of_requests) >= MAX_GRIDS:
                self._of_requests.pop(next(iter(self._of_requests)))
            held = self.with_target(between(self.by_requests, num_requests))
        self._of_requests[num_requests] = held
        return held

    def _grow(self, rows: int) -> None:
        self._size = max(64, 1 << int(rows).bit_length())
        self._target_dense = self.target.dense(self._size)
        free = np.zeros((1, self._size + 1))
        self._draft_dense = self.draft.dense(self._size) if self.draft is not None else free
        self._fill_dense = self.fill.dense(self._size) if self.fill is not None else None
        self._start_dense = self.draft_start.dense(self._size)[0] if self.draft_start is not None else None
        self._lines.clear()
        self._budgets.clear()

    @staticmethod
    def _at(dense: FloatArray, contexts: FloatArray, context: float) -> FloatArray:
        """The line of ``dense`` at a context, linear between measured contexts, the nearest one outside them."""
        if len(contexts) == 1 or context <= contexts[0]:
            return cast(FloatArray, dense[0])
        if context >= contexts[-1]:
            return cast(FloatArray, dense[-1])
        upper = int(np.searchsorted(contexts, context))
        share = (context - contexts[upper - 1]) / (contexts[upper] - contexts[upper - 1])
        return cast(FloatArray, (1 - share) * dense[upper - 1] + share * dense[upper])

    def lines(self, rows: int, context: float) -> tuple[FloatArray, FloatArray]:
        """Target and draft milliseconds, arrays indexed by 0..rows or more, at a mean context per request."""
        return self._held(rows, context)[0]

    def fill_line(self, rows: int, context: float) -> FloatArray:
        """The same of what a drafter runs over all verified rows; without a table of its own, the draft line."""
        return self._held(rows, context)[1]

    def _held(self, rows: int, context: float) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
        if rows > self._size:
            self._grow(rows)
        if self._any_context:
            context = 0.0
        held = self._lines.pop(context, None)
        if held is None:
            target = self._at(self._target_dense, self.target.contexts, context)
            draft = self._draft_dense[0]
            if self.draft is not None:
                draft = self._at(self._draft_dense, self.draft.contexts, context)
            fill = draft
            if self.fill is not None and self._fill_dense is not None:
                fill = self._at(self._fill_dense, self.fill.contexts, context)
            if len(self._lines) >= MAX_CONTEXTS:
                self._lines.pop(next(iter(self._lines)))
            held = ((target, draft), fill)
        self._lines[context] = held  # the last one asked for is the last one to go
        return held

    def base_ms(self, num_requests: int, context: float) -> float:
        """The part of a round that neither the budget nor the draft steps change."""
        return self.overhead_ms + num_requests * (self.request_ms + self.request_token_ms * context)

    def target_ms(self, rows: int, num_requests: int, context: float) -> float:
        """One round without drafting."""
        line = self.for_requests(num_requests).lines(rows, context)[0]
        return float(line[rows]) + self.base_ms(num_requests, context)

    def draft_ms(
        self,
        kind: DrafterKind,
        num_requests: int,
        rows: int,
        steps: int,
        *,
        block: int,
        context: float = 0.0,
        backlog: int = 0,
    ) -> float:
        """Time to draft ``steps`` tokens for N requests after a round of B rows (see `draft_terms`)."""
        chained, fills = draft_terms(kind, steps)
        if chained == fills == 0.0:
            return 0.0
        chain_rows = num_requests * block if kind == "block" else num_requests
        (_, draft), fill = self._held(max(rows + backlog, chain_rows), context)
        passes = chained * float(draft[chain_rows]) + fills * float(fill[rows + backlog])
        return passes + self.draft_start_ms(kind, num_requests, steps)

    def draft_start_ms(self, kind: DrafterKind, num_requests: int, steps: int) -> float:
        """start(N): what a draft for N requests takes beside its d steps; 0 for none, and for a free drafter."""
        if self._start_dense is None or steps == 0 or kind == "free":
            return 0.0
        if num_requests > self._size:
            self._grow(num_requests)
        return float(self._start_dense[num_requests])

    def budgets(self, ends: tuple[int, ...], context: float, backlog: int) -> BudgetCosts:
        """The budgets worth comparing between the first and the last of ``ends``, which are all among them.

        On a staircase that is the last row of every tier: of the target's, and of the drafter's fill, which runs the
        backlog besides. Where times grow from row to row (interpolated, or past the last measured size) it is every
        row, of the first `DENSE_ROWS`. The last answers are kept, since a batch changes rarely.
        """
        key = (ends, backlog)
        (target, _), fill = self._held(ends[-1] + backlog, context)
        held = self._budgets.pop(key, None)
        if held is not None and held.target_line is target and held.fill_line is fill:
            self._budgets[key] = held
            return held
        low, high = ends[0], ends[-1]
        sizes = self.target.rows
        growing = low if self.target.interpolate else int(sizes[-1])
        filling = self.fill or self.draft
        if filling is not None:
            edges = filling.rows - backlog
            growing = min(growing, int(edges[-1]))
            sizes = np.concatenate((sizes, edges))
        inside = sizes[(sizes >= low) & (sizes <= high)]
        every = np.arange(max(low, growing), min(high, max(low, growing) + DENSE_ROWS) + 1)
        rows = np.unique(np.concatenate((np.array(ends), inside, every)))
        held = BudgetCosts(rows, np.searchsorted(rows, ends), backlog, target, fill)
        if len(self._budgets) >= MAX_GRIDS:
            self._budgets.pop(next(iter(self._budgets)))
        self._budgets[key] = held
        return held


class BudgetCosts:
    """Candidate budgets with the time each takes; kept by `CostModel` while a batch stays as it is.

    Attributes:
        rows: int[C], ascending from N.
        least: N.
        extra: float[C], ``rows - N``: drafted rows.
        ends: where the budgets that were asked for stand in ``rows``.
        backlog: rows that a drafter pass runs besides.
        target_line: time of one target forward, indexed by its rows.
        fill_line: the same of what a drafter runs over all verified rows.
    """

    __slots__ = ("_ms", "backlog", "ends", "extra", "fill_line", "least", "rows", "target_line")

    def __init__(
        self, rows: IntArray, ends: IntArray, backlog: int, target_line: FloatArray, fill_line: FloatArray
    ) -> None:
        self.rows = rows
        self.least = int(rows[0])
        self.extra: FloatArray = (rows - rows[0]).astype(np.float64)
        self.ends = ends
        self.backlog = backlog
        self.target_line = target_line
        self.fill_line = fill_line
        self._ms: dict[float, FloatArray] = {}

    def ms(self, fills: float) -> FloatArray:
        """float[C]: one target forward and ``fills`` times what the drafter runs over each budget and the backlog."""
        held = self._ms.get(fills)
        if held is None:
            held = self.target_line[self.rows] + fills * self.fill_line[self.rows + self.backlog]
            self._ms[fills] = held
        return held

    def ms_of(self, rows: int, fills: float) -> float:
        """The same for one budget, a candidate or not."""
        return float(self.target_line[rows]) + fills * float(self.fill_line[rows + self.backlog])


def draft_terms(kind: DrafterKind, steps: int) -> tuple[float, float]:
    """The passes of d steps as ``(chained, fills)``; a draft takes ``chained * Td(N) + fills * Tf(B) + start(N)``.

    ============  ================================================================================
    free          0
    serial        Tf(B) + (d - 1) Td(N): the first pass fills the drafter's KV for all rows
    serial_no_kv  d Td(N): nothing to fill
    chained       d Tf(B): every layer has its own KV and needs all rows
    block         Tf(B) + Td(N * block): fill, then one pass over the whole block
    ============  ================================================================================

    Td is one forward of the drafter, Tf what runs over all verified rows: the ``fill`` table, without which it is Td.
    A drafter that reads hidden states may only have to project them there, or have to before its forward.

    start(N), `CostModel.draft_start_ms`, is what any draft takes once, whatever d: 0 without a ``draft_start`` table,
    and for a free drafter.

    For a block drafter the chained pass is over ``N * block`` rows instead of N. Drafting nothing (d = 0) costs
    nothing; what it leaves behind is the backlog of the next draft.
    """
    if steps == 0 or kind == "free":
        return 0.0, 0.0
    if kind == "serial":
        return steps - 1.0, 1.0
    if kind == "serial_no_kv":
        return float(steps), 0.0
    if kind == "chained":
        return 0.0, float(steps)
    return 1.0, 1.0
