"""One run of one arm, round by round, and the rates that can be read off it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A run, by column.

    Attributes:
        segment: int[R].
        num_requests: int[R], N.
        fresh: int[R], requests that were in no round before.
        rows: int[R], verify rows B.
        steps: int[R], draft steps d for the next round.
        tokens: int[R], committed.
        expected: float[R], tokens that the verified rows could be expected to bring.
        ms: float[R], simulated time of the round.
        plan_us: float[R], measured time of plan and observe together.
        charged_ms: float[R], what of it counts as time.
    """

    segment: IntArray
    num_requests: IntArray
    fresh: IntArray
    rows: IntArray
    steps: IntArray
    tokens: IntArray
    expected: FloatArray
    ms: FloatArray
    plan_us: FloatArray
    charged_ms: FloatArray

    def of(self, segment: int) -> Trace:
        """The rounds of one segment."""
        held = self.segment == segment
        return Trace(**{f.name: getattr(self, f.name)[held] for f in fields(self)})

    def after(self, rounds: int) -> Trace:
        """Without the first rounds."""
        return Trace(**{f.name: getattr(self, f.name)[rounds:] for f in fields(self)})

    @property
    def total_ms(self) -> float:
        """Simulated and charged time."""
        return float(self.ms.sum() + self.charged_ms.sum())

    def rate(self, *, drawn: bool = False) -> float:
        """Tokens per second, expected ones or those drawn."""
        return 1e3 * float((self.tokens if drawn else self.expected).sum()) / max(self.total_ms, 1e-9)


def smoothed(values: FloatArray, window: int) -> FloatArray:
    """float[R - window + 1], sums over windows."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(total[window:] - total[:-window])
