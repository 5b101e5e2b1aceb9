"""What rounds cost, as files write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lightspec_lightllm.errors import ConfigError, CostTableError
from lightspec_lightllm.planner import CostModel
from lightspec_lightllm.planner.row_costs import RowCosts
from lightspec_lightllm.planner.types import FloatArray


@dataclass(frozen=True, slots=True)
class CostTables:
    """What rounds truly cost; see `CostModel.from_tables`.

    Attributes:
        target: ``{rows: ms}`` or ``{context: {rows: ms}}`` of one target forward.
        draft: the same of one drafter forward; empty: drafting is free.
        interpolate: linear between the sizes of the tables, else the next larger size is what is paid.
        overhead_ms: time of a round outside its forwards.
        request_ms: target time per request.
        request_token_ms: target time per request and token of context.
        max_rows: the largest batch that the target may run.
        fill: as ``draft``, of what the drafter runs over all verified rows; empty: a forward like any other.
        by_requests: ``{requests: {rows: ms}}``, target times where they depend on that; empty: ``target`` is for all.
        draft_start: ``{requests: ms}``, what a draft takes beside its steps, however many; empty: nothing.
    """

    target: dict[int, float | dict[int, float]]
    draft: dict[int, float | dict[int, float]] = field(default_factory=dict)
    interpolate: bool = False
    overhead_ms: float = 0.0
    request_ms: float = 0.0
    request_token_ms: float = 0.0
    max_rows: int | None = None
    fill: dict[int, float | dict[int, float]] = field(default_factory=dict)
    by_requests: dict[int, dict[int, float]] = field(default_factory=dict)
    draft_start: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.model()
        except CostTableError as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def of(cls, costs: CostModel) -> CostTables:
        """The tables that a cost model was made from."""
        target, draft, fill, start = costs.target, costs.draft, costs.fill, costs.draft_start
        return cls(
            target=_table(target),
            draft={} if draft is None else _table(draft),
            interpolate=target.interpolate,
            overhead_ms=costs.overhead_ms,
            request_ms=costs.request_ms,
            request_token_ms=costs.request_token_ms,
            max_rows=costs.max_rows,
            fill={} if fill is None else _table(fill),
            by_requests={count: _line(table, table.ms[0]) for count, table in costs.by_requests.items()},
            draft_start={} if start is None else _line(start, start.ms[0]),
        )

    def model(self, factor: float = 1.0) -> CostModel:
        """The tables, ``factor`` times as slow."""
        return CostModel.from_tables(
            _scaled(self.target, factor),
            _scaled(self.draft, factor),
            fill=_scaled(self.fill, factor),
            draft_start=_scaled(self.draft_start, factor),
            interpolate=self.interpolate,
            overhead_ms=factor * self.overhead_ms,
            request_ms=factor * self.request_ms,
            request_token_ms=factor * self.request_token_ms,
            max_rows=self.max_rows,
            by_requests=_scaled(self.by_requests, factor),
        )


def _table(costs: RowCosts) -> dict[int, float | dict[int, float]]:
    if len(costs.ms) == 1:
        return dict(_line(costs, costs.ms[0]))
    return {int(context): _line(costs, line) for context, line in zip(costs.contexts.tolist(), costs.ms, strict=True)}


def _line(costs: RowCosts, ms: FloatArray) -> dict[int, float]:
    return dict(zip(costs.rows.tolist(), ms.tolist(), strict=True))


def _scaled(table: Any, factor: float) -> Any:
    return {size: _scaled(ms, factor) if isinstance(ms, dict) else factor * ms for size, ms in table.items()}
