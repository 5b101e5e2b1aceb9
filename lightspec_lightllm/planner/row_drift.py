"""How single entries of the cost tables differ from what served rounds take."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.row_costs import RowCosts

PRIOR_SHARE = 0.03
"""What an entry is off by before anything is known, as a share of its time (standard deviation)."""

LEAST_NOISE, MOST_NOISE = 0.02, 0.1
"""What a round's time is off by, as a share of it; within these bounds it is learned."""

NOISE_ROUNDS = 64.0
"""Rounds over which it is."""

MOST_SHARE = 0.1
"""No entry is corrected by more; a round that is off by more counts as off by three times that at most."""

MEMORY_ROUNDS = 4000.0
"""Rounds after which an entry that is not served is as unknown as at first."""

APART = 1.12
"""Sizes that are corrected apart are so many times as large as each other at least."""

FIRST_ROUNDS, MOST_ROUNDS = 8, 512
"""Rounds from one corrected table to the next: doubling from the first to the last, since making one takes time."""


@dataclass(slots=True)
class _Entries:
    """Corrections of one table: piecewise linear over some of its sizes.

    Attributes:
        sizes: numbers of rows.
        share: what their entries are off by, as far as it is known.
        told: the same when the table was last corrected: what rounds are measured against.
        variance: of ``share``.
    """

    sizes: list[int]
    share: list[float] = field(init=False)
    told: list[float] = field(init=False)
    variance: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.share = [0.0] * len(self.sizes)
        self.told = list(self.share)
        self.variance = [PRIOR_SHARE * PRIOR_SHARE] * len(self.sizes)

    @classmethod
    def of(cls, table: RowCosts) -> _Entries:
        sizes: list[int] = []
        for size in table.rows.tolist():
            if not sizes or size >= APART * sizes[-1]:
                sizes.append(size)
        return cls(sizes)

    def learn(self, rows: int, surprise: float, noise: float) -> None:
        """A Kalman filter's step, of which variances alone are kept, no covariances."""
        upper = min(bisect_left(self.sizes, rows), len(self.sizes) - 1)
        lower = max(upper - 1, 0)
        low, high = self.sizes[lower], self.sizes[upper]
        weight = min(max((rows - low) / (high - low), 0.0), 1.0) if high > low else 1.0
        parts = ((upper, weight),) if weight == 1.0 else ((lower, 1.0 - weight), (upper, weight))
        total = noise
        for index, part in parts:
            total += part * part * self.variance[index]
            surprise -= part * (self.share[index] - self.told[index])
        for index, part in parts:
            gain = part * self.variance[index] / total
            self.share[index] = min(max(self.share[index] + gain * surprise, -MOST_SHARE), MOST_SHARE)
            self.variance[index] *= 1.0 - gain * part

    def forget(self, rounds: int) -> None:
        keep = math.exp(-rounds / MEMORY_ROUNDS)
        prior = PRIOR_SHARE * PRIOR_SHARE
        self.share = [keep * share for share in self.share]
        self.variance = [prior + keep * (variance - prior) for variance in self.variance]

    def correct(self, table: RowCosts) -> RowCosts:
        self.told = list(self.share)
        factor = 1.0 + np.interp(table.rows, self.sizes, self.told)
        ms = np.maximum.accumulate(table.ms * factor, axis=1)
        return RowCosts(table.rows, table.contexts, ms, table.interpolate)


class RowDrift:
    """Corrects target times by number of rows, from what whole rounds took beyond `CostDrift`'s expectation.

    Entries of a measured table are off by some per cent, and who chooses by them chooses those that look cheaper than
    they are: where a round with so many rows keeps taking longer than expected, its entry grows. What all rounds take
    beyond the table is not seen here; `CostDrift` has taken it out.

    Args:
        costs: the tables as they were measured.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._counts = list(costs.by_requests)
        self._entries: dict[int, _Entries] = {}
        self._noise = 0.05 * 0.05
        self._rounds = 0
        self._interval = FIRST_ROUNDS

    def learn(self, num_requests: int, rows: int, surprise: float) -> None:
        """Take in a round of N requests and B rows: its time beyond the expected one, over the target's part of it."""
        surprise = min(max(surprise, -3.0 * MOST_SHARE), 3.0 * MOST_SHARE)
        key = self._nearest(num_requests)
        entries = self._entries.get(key)
        if entries is None:
            entries = self._entries[key] = _Entries.of(self._table(key))
        self._noise += (surprise * surprise - self._noise) / NOISE_ROUNDS
        entries.learn(rows, surprise, min(max(self._noise, LEAST_NOISE**2), MOST_NOISE**2))
        self._rounds += 1

    def corrected(self) -> CostModel | None:
        """The tables by what is known now, once in a while; else None."""
        if self._rounds < self._interval:
            return None
        for entries in self._entries.values():
            entries.forget(self._rounds)
        self._rounds, self._interval = 0, min(2 * self._interval, MOST_ROUNDS)
        tables = {key: entries.correct(self._table(key)) for key, entries in self._entries.items()}
        if self._counts:
            return self._costs.with_target(self._costs.target, {**self._costs.by_requests, **tables})
        return self._costs.with_target(tables[0])

    def _nearest(self, num_requests: int) -> int:
        """The number of requests whose table says most of N; 0 where there is one table."""
        if not self._counts:
            return 0
        return min(self._counts, key=lambda count: abs(math.log(count / num_requests)))

    def _table(self, key: int) -> RowCosts:
        return self._costs.by_requests[key] if key else self._costs.target
