"""How single entries of the cost tables differ from what served rounds take."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.row_costs import RowCosts
from lightspec_lightllm.planner.types import FloatArray, IntArray

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


class _Entries:
    """Corrections of one table: piecewise linear over some of its sizes.

    Attributes:
        sizes: int[E], numbers of rows.
        share: float[E], what their entries are off by, as far as it is known.
        told: the same when the table was last corrected: what rounds are measured against.
        variance: float[E], of ``share``.
    """

    def __init__(self, table: RowCosts) -> None:
        sizes: list[int] = []
        for size in table.rows.tolist():
            if not sizes or size >= APART * sizes[-1]:
                sizes.append(size)
        self.sizes = np.array(sizes)
        self._tiers = None if table.interpolate else table.rows
        self.share = np.zeros(len(sizes))
        self.told = self.share
        self.variance = np.full(len(sizes), PRIOR_SHARE * PRIOR_SHARE)

    def learn(self, rows: IntArray, surprise: FloatArray, noise: float) -> None:
        """Take in rounds of int[M] rows, float[M] beyond what was expected of them, with errors of variance ``noise``.

        A Kalman filter's step for all of them at once, in its information form; of what it finds the variances alone
        are kept, no covariances. On a staircase rows pay for the size they are padded to, and tell of that one alone.
        """
        if self._tiers is not None:
            rows = self._tiers[np.searchsorted(self._tiers, rows).clip(max=len(self._tiers) - 1)]
        upper = np.searchsorted(self.sizes, rows).clip(max=len(self.sizes) - 1)
        lower = np.maximum(upper - 1, 0)
        apart = np.maximum(self.sizes[upper] - self.sizes[lower], 1)
        weight = np.where(upper > lower, ((rows - self.sizes[lower]) / apart).clip(0.0, 1.0), 1.0)
        rest = 1.0 - weight
        size, beyond = len(self.sizes), surprise + weight * self.told[upper] + rest * self.told[lower]

        def sums(into: IntArray, values: FloatArray) -> FloatArray:
            return np.bincount(into, values, size) / noise

        known = 1.0 / self.variance + sums(upper, weight * weight) + sums(lower, rest * rest)
        told = self.share / self.variance + sums(upper, weight * beyond) + sums(lower, rest * beyond)
        found, self.variance = _solved(known, sums(upper, weight * rest)[1:], told)
        self.share = found.clip(-MOST_SHARE, MOST_SHARE)

    def forget(self, rounds: int) -> None:
        keep = math.exp(-rounds / MEMORY_ROUNDS)
        prior = PRIOR_SHARE * PRIOR_SHARE
        self.share = keep * self.share
        self.variance = prior + keep * (self.variance - prior)

    def correct(self, table: RowCosts) -> RowCosts:
        self.told = self.share
        factor = 1.0 + np.interp(table.rows, self.sizes, self.told)
        ms = np.maximum.accumulate(table.ms * factor, axis=1)
        return RowCosts(table.rows, table.contexts, ms, table.interpolate)


def _solved(diagonal: FloatArray, beside: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
    """float[E] solution and diagonal of the inverse of a symmetric tridiagonal matrix that is positive definite.

    By elimination from the front (Thomas) and from the back, in plain arithmetic: the same bits on every machine, which
    LAPACK does not promise.

    Args:
        diagonal: float[E].
        beside: float[E - 1], the entries next to it.
        right: float[E], what the matrix makes of the solution.
    """
    front, back, values = diagonal.tolist(), diagonal.tolist(), right.tolist()
    links = beside.tolist()
    for at, link in enumerate(links):
        factor = link / front[at]
        front[at + 1] -= factor * link
        values[at + 1] -= factor * values[at]
    values[-1] /= front[-1]
    for at in range(len(links) - 1, -1, -1):
        back[at] -= links[at] * links[at] / back[at + 1]
        values[at] = (values[at] - links[at] * values[at + 1]) / front[at]
    return np.array(values), 1.0 / (np.array(front) + np.array(back) - diagonal)


class RowDrift:
    """Corrects target times by number of rows, from what whole rounds took beyond `CostDrift`'s expectation.

    Entries of a measured table are off by some per cent, and who chooses by them chooses those that look cheaper than
    they are: where a round with so many rows keeps taking longer than expected, its entry grows. What all rounds take
    beyond the table is not seen here; `CostDrift` has taken it out.

    Rounds are noted, which takes a microsecond, and taken in together when a corrected table is made of them.

    Args:
        costs: the tables as they were measured.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._counts = np.array(list(costs.by_requests))
        self._entries: dict[int, _Entries] = {}
        self._noise = 0.05 * 0.05
        self._requests: list[int] = []
        self._rows: list[int] = []
        self._surprises: list[float] = []
        self._interval = FIRST_ROUNDS

    def learn(self, num_requests: int, rows: int, surprise: float) -> None:
        """Note a round of N requests and B rows: its time beyond the expected one, over the target's part of it."""
        self._requests.append(num_requests)
        self._rows.append(rows)
        self._surprises.append(surprise)

    def corrected(self) -> CostModel | None:
        """The tables by what is known now, once in a while; else None."""
        rounds = len(self._rows)
        if rounds < self._interval:
            return None
        self._take_in()
        self._interval = min(2 * self._interval, MOST_ROUNDS)
        tables = {}
        for key, entries in self._entries.items():
            entries.forget(rounds)
            tables[key] = entries.correct(self._table(key))
        if len(self._counts):
            return self._costs.with_target(self._costs.target, {**self._costs.by_requests, **tables})
        return self._costs.with_target(tables[0])

    def _take_in(self) -> None:
        rows = np.array(self._rows)
        surprises = np.array(self._surprises).clip(-3.0 * MOST_SHARE, 3.0 * MOST_SHARE)
        keep = math.exp(-len(rows) / NOISE_ROUNDS)
        self._noise = keep * self._noise + (1.0 - keep) * float(np.mean(surprises * surprises))
        noise = min(max(self._noise, LEAST_NOISE**2), MOST_NOISE**2)
        tables = self._nearest(np.array(self._requests))
        for key in np.unique(tables).tolist():
            if key not in self._entries:
                self._entries[key] = _Entries(self._table(key))
            own = tables == key
            self._entries[key].learn(rows[own], surprises[own], noise)
        self._requests, self._rows, self._surprises = [], [], []

    def _nearest(self, num_requests: IntArray) -> IntArray:
        """The numbers of requests whose tables say most of int[M]; 0 where there is one table."""
        if not len(self._counts):
            return np.zeros_like(num_requests)
        times = self._counts / num_requests[:, None]
        return cast(IntArray, self._counts[np.maximum(times, 1.0 / times).argmin(axis=1)])

    def _table(self, key: int) -> RowCosts:
        return self._costs.by_requests[key] if key else self._costs.target
