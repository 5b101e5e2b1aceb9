"""What rounds cost by the tables, corrected by what served rounds took."""

from __future__ import annotations

from lightspec_lightllm.planner.batch_costs import BatchCosts, KeptCosts
from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.pace import CostDrift
from lightspec_lightllm.planner.row_drift import RowDrift
from lightspec_lightllm.planner.types import DrafterKind

FAR_OFF = 3.0
"""A round that took so many times as long as expected, or as short, is no measure of its plan."""


class ServedCosts:
    """Cost tables, and the corrections of whole rounds and of numbers of rows that serving taught.

    Attributes:
        tables: by number of rows corrected; what `of` reads from.
        drift: how whole rounds differ from them.
    """

    def __init__(self, costs: CostModel, *, drafter: DrafterKind, legal: tuple[int, ...]) -> None:
        self.tables = costs
        self.drift = CostDrift()
        self._row_drift = RowDrift(costs)
        self._drafter: DrafterKind = drafter
        self._legal = legal
        self._kept = KeptCosts(costs, drafter=drafter, legal=legal)

    def of(self, num_requests: int, context: float) -> BatchCosts:
        """The costs of a batch of N."""
        return self._kept.of(num_requests, context)

    def learn(self, batch: BatchCosts, rows: int, table_ms: float, measured_ms: float) -> tuple[float, bool]:
        """Take in a round of B rows that took ``measured_ms`` and should have by the tables taken ``table_ms``.

        Returns:
            The milliseconds to reckon it by: those measured, or where they are far off those that were expected; and
            whether the tables are others now.
        """
        expected = self.drift.correct(table_ms)
        # While the correction follows a sudden change, its own figures are the only ones that compare.
        credible = expected / FAR_OFF <= measured_ms <= expected * FAR_OFF
        self.drift.update(table_ms, measured_ms)
        changed = self.drift.settled and self._learn_rows(batch, rows, measured_ms - expected)
        return (measured_ms if credible else expected), changed

    def _learn_rows(self, batch: BatchCosts, rows: int, beyond_ms: float) -> bool:
        target_ms = batch.round_ms(rows, 0, 0)
        self._row_drift.learn(batch.num_requests, rows, beyond_ms / (self.drift.slope * max(target_ms, 1e-9)))
        corrected = self._row_drift.corrected()
        if corrected is None:
            return False
        self.tables = corrected
        self._kept = KeptCosts(corrected, drafter=self._drafter, legal=self._legal)
        return True
