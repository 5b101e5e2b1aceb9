"""What the runs of a cell say about its arms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.planner.types import FloatArray
from lightspec_lightllm.simulate.arms import CLAIRVOYANT, OPTIMUM, is_static, plans
from lightspec_lightllm.simulate.experiment import Cell
from lightspec_lightllm.simulate.trace import Trace, smoothed

ADAPTED = 0.95
"""Share of the optimum's rate at which an arm counts as adapted."""

WINDOW = 20
"""Rounds over which a rate is smoothed, at least, to say when an arm has adapted."""

WINDOW_REQUESTS = 1600
"""Request rounds, of all seeds together, that a smoothed rate is made of: fewer leave too much noise."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest over seeds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm in one cell.

    Attributes:
        arm: its name.
        rate: tokens per second, planning charged.
        to: by reference (an arm, or ``best static``), the time that the reference would take for what the arm
            committed, segment by segment, over the time that the arm took: above 1 the arm is faster.
        adapt_rounds: after each change of segment, rounds until the smoothed rate stays at `ADAPTED` of the optimum's;
            None where it never does; empty without the optimum.
        segment_rates: tokens per second in each segment.
        rows: verify rows per request and round.
        steps: draft steps per round.
        accept_length: tokens per request and round.
        fresh_rounds: share of rounds with a new request.
        plan_us_p50: measured microseconds of plan and observe together.
        plan_us_p99: the same.
        plan_share: share of the arm's time that planning was charged.
    """

    arm: str
    rate: Spread
    to: dict[str, Spread]
    adapt_rounds: tuple[int | None, ...]
    segment_rates: tuple[Spread, ...]
    rows: float
    steps: float
    accept_length: float
    fresh_rounds: float
    plan_us_p50: float
    plan_us_p99: float
    plan_share: float

    @property
    def regret(self) -> float | None:
        """Share of the arm's time that the optimum would not have needed."""
        return 1.0 - self.to[OPTIMUM].median if OPTIMUM in self.to else None


BEST_STATIC = "best static"


def summaries(cell: Cell) -> list[ArmSummary]:
    """Every arm of a cell, in order."""
    rates = {(arm, seed): segment_rates(cell, arm, seed) for arm in cell.arms for seed in cell.seeds}
    best = best_static(cell)
    references = {arm: {seed: rates[arm, seed] for seed in cell.seeds} for arm in cell.arms}
    if best:
        references[BEST_STATIC] = {
            seed: np.array([rates[arm, seed][segment] for segment, arm in enumerate(best)]) for seed in cell.seeds
        }
    return [_summary(cell, arm, references) for arm in cell.arms]


def telling(lines: list[ArmSummary], best: tuple[str, ...]) -> list[ArmSummary]:
    """The arms worth showing: all but fixed steps that are neither the fewest, the most nor the best of any segment."""
    fixed = [line for line in lines if line.arm.startswith("fixed:")]
    if len(fixed) <= 4:
        return lines
    medians = np.array([[rate.median for rate in line.segment_rates] for line in fixed])
    leading = {fixed[at].arm for at in medians.argmax(axis=0)}
    kept = {fixed[0].arm, fixed[-1].arm, *leading, *best}
    return [line for line in lines if not line.arm.startswith("fixed:") or line.arm in kept]


def segment_rates(cell: Cell, arm: str, seed: int) -> FloatArray:
    """float[segments], tokens per second; those drawn for an arm that knows the draw, else those expected."""
    trace = cell.traces[arm, seed]
    drawn = arm == CLAIRVOYANT
    return np.array([trace.of(segment).rate(drawn=drawn) for segment in range(len(cell.scenario.segments))])


def best_static(cell: Cell) -> tuple[str, ...]:
    """The fixed server's arm of the highest median rate in each segment; empty when none ran."""
    arms = [arm for arm in cell.arms if is_static(arm)]
    if not arms:
        return ()
    medians = np.array([np.median([segment_rates(cell, arm, seed) for seed in cell.seeds], axis=0) for arm in arms])
    return tuple(arms[at] for at in medians.argmax(axis=0))


def relative(trace: Trace, reference: FloatArray, *, drawn: bool) -> float:
    """The time that rates float[segments] would take for a run's tokens, over the time that the run took."""
    needed = 0.0
    for segment, rate in enumerate(reference.tolist()):
        part = trace.of(segment)
        needed += float((part.tokens if drawn else part.expected).sum()) / rate
    return 1e3 * needed / trace.total_ms


def adapt_rounds(cell: Cell, arm: str) -> tuple[int | None, ...]:
    """Rounds after each change of segment until the arm's rate stays near the optimum's of the same rounds.

    Rates are smoothed over all seeds and `WINDOW` rounds, or as many as make `WINDOW_REQUESTS`, but half the segment at
    most; they count from the first round of the window.
    """
    if OPTIMUM not in cell.arms:
        return ()
    out: list[int | None] = []
    for segment in range(1, len(cell.scenario.segments)):
        rate, best = (_smoothed_rate(cell, name, segment) for name in (arm, OPTIMUM))
        below = np.flatnonzero(rate < ADAPTED * best)
        first = int(below[-1]) + 1 if len(below) else 0
        out.append(first if first < len(rate) else None)
    return tuple(out)


def _smoothed_rate(cell: Cell, arm: str, segment: int) -> FloatArray:
    parts = [cell.traces[arm, seed].of(segment) for seed in cell.seeds]
    per_round = sum(float(p.num_requests.mean()) for p in parts)
    window = max(1, min(max(WINDOW, math.ceil(WINDOW_REQUESTS / per_round)), len(parts[0].ms) // 2))
    tokens = np.sum([p.tokens if arm == CLAIRVOYANT else p.expected for p in parts], axis=0)
    time = np.sum([p.ms + p.charged_ms for p in parts], axis=0)
    return smoothed(tokens, window) / smoothed(time, window)


def _summary(cell: Cell, arm: str, references: dict[str, dict[int, FloatArray]]) -> ArmSummary:
    traces = [cell.traces[arm, seed] for seed in cell.seeds]
    drawn = arm == CLAIRVOYANT
    requests = sum(int(t.num_requests.sum()) for t in traces)
    plan_us = np.concatenate([t.plan_us for t in traces]) if plans(arm) else np.zeros(1)
    own = [segment_rates(cell, arm, seed) for seed in cell.seeds]
    return ArmSummary(
        arm=arm,
        rate=Spread.of([t.rate(drawn=drawn) for t in traces]),
        to={
            name: Spread.of([relative(cell.traces[arm, seed], by_seed[seed], drawn=drawn) for seed in cell.seeds])
            for name, by_seed in references.items()
        },
        adapt_rounds=adapt_rounds(cell, arm),
        segment_rates=tuple(Spread.of(column) for column in np.array(own).T.tolist()),
        rows=sum(int(t.rows.sum()) for t in traces) / requests,
        steps=float(np.mean(np.concatenate([t.steps for t in traces]))),
        accept_length=sum(float((t.tokens if drawn else t.expected).sum()) for t in traces) / requests,
        fresh_rounds=float(np.mean(np.concatenate([t.fresh for t in traces]) > 0)),
        plan_us_p50=float(np.percentile(plan_us, 50)),
        plan_us_p99=float(np.percentile(plan_us, 99)),
        plan_share=sum(float(t.charged_ms.sum()) for t in traces) / sum(t.total_ms for t in traces),
    )
