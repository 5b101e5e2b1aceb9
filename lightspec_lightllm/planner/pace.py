"""What time is worth: the running rate of tokens, and how measured rounds differ from the table."""

from __future__ import annotations

import math

NEAR_ROUNDS = 8.0
"""Rounds over which a machine is taken to keep its speed."""

MOST_BEYOND = 1.4
"""A round that is further off counts as so many times what was expected: one stalled round moves the level little."""

SETTLED_WEIGHT = 16.0
"""Rounds, the older ones counting less, after which the difference of one from the regression is its own."""


class Pace:
    """Committed tokens per off-round of time, a running mean: the speed-up over no speculation.

    The best long-run rate is reached by maximising ``tokens - lambda * time`` in every round with lambda that rate
    (Dinkelbach 1967, and the average-reward optimality equation); where all rounds are alike this is the plain ratio.
    Kept relative to what the same batch would do without speculation, so that lambda follows a change of the batch at
    once.
    """

    def __init__(self, rounds: float) -> None:
        self._keep = math.exp(-1.0 / rounds)
        self._tokens = 1.0
        self._time = 1.0

    def update(self, tokens_per_request: float, time_in_off_rounds: float) -> None:
        """Take in a round: committed tokens per request, and its time over that of a round without speculation."""
        self._tokens = self._keep * self._tokens + tokens_per_request
        self._time = self._keep * self._time + time_in_off_rounds

    @property
    def speedup(self) -> float:
        """At least 1: no speculation is always at hand."""
        return max(1.0, self._tokens / max(self._time, 1e-9))


class CostDrift:
    """Measured time of a round as ``overhead + slope * predicted``.

    A round costs more than its forwards (launch, sampling, commit), and a busy machine stretches all of it. How far the
    slope is told from the overhead depends on how much predictions vary; where they do not, all of it is slope, which
    changes no decision.

    A machine's speed wanders over some rounds, and what it does while the plans change for other reasons would pass for
    what they cost. So the slope is learned from how rounds differ from those just before them, an exponentially
    weighted regression over ``rounds``; the level is that of the last ``NEAR_ROUNDS``.
    """

    def __init__(self, rounds: float = 128.0) -> None:
        self._keep = math.exp(-1.0 / rounds)
        self._keep_near = math.exp(-1.0 / NEAR_ROUNDS)
        self._weight = self._near_weight = 0.0
        self._near_x = self._near_y = self._xx = self._xy = 0.0
        self.slope = 1.0
        self.overhead_ms = 0.0

    @property
    def settled(self) -> bool:
        """Whether enough rounds were seen for the difference of a single one to be its own."""
        return self._weight >= SETTLED_WEIGHT

    def update(self, predicted_ms: float, measured_ms: float) -> None:
        """Take in one round; one that is far off the current fit counts as `MOST_BEYOND` times it, or that part."""
        if predicted_ms < 1e-9:
            return
        measured_ms = min(max(measured_ms, 1e-6 * predicted_ms), 1e6 * predicted_ms)
        expected = self.correct(predicted_ms)
        if self._weight >= 4.0:
            measured_ms = min(max(measured_ms, expected / MOST_BEYOND), expected * MOST_BEYOND)
        beyond_x, beyond_y = predicted_ms - self._near_x, measured_ms - self._near_y
        keep, first = self._keep, self._weight == 0.0
        self._weight = keep * self._weight + 1.0
        self._xx = keep * self._xx + (0.0 if first else beyond_x * beyond_x)
        self._xy = keep * self._xy + (0.0 if first else beyond_x * beyond_y)
        self._near_weight = self._keep_near * self._near_weight + 1.0
        self._near_x += beyond_x / self._near_weight
        self._near_y += beyond_y / self._near_weight
        ratio = self._near_y / self._near_x
        # Ridge towards the plain ratio: 16 rounds' worth of a tenth of the mean prediction.
        ridge = 0.03 * self._near_x * self._near_x * 16.0 / (16.0 + self._weight)
        slope = (self._xy / self._weight + ridge * ratio) / (self._xx / self._weight + ridge)
        self.slope = min(max(slope, 0.25 * ratio), ratio)
        self.overhead_ms = max(self._near_y - self.slope * self._near_x, 0.0)

    def correct(self, predicted_ms: float) -> float:
        """What a round predicted from the tables will measure."""
        return self.overhead_ms + self.slope * predicted_ms
