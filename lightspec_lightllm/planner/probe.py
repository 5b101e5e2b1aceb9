"""When to try what does not seem to pay, so that a workload that got easier is noticed."""

from __future__ import annotations

LONGEST = 16
"""The longest interval, in first intervals."""


class ProbeSchedule:
    """Rounds between probes while nothing is verified: doubling while they disappoint, short after one that surprises.

    Args:
        rounds: the first interval; it grows to `LONGEST` times that.
    """

    def __init__(self, rounds: int) -> None:
        self._base = rounds
        self._interval = rounds
        self._quiet = 0

    def due(self, least_rounds: float = 0.0) -> bool:
        """Whether it is time, given that its cost wants ``least_rounds`` between probes (heeded up to the longest)."""
        return self._quiet >= min(max(self._interval, least_rounds), self._base * LONGEST)

    def worthwhile(self) -> None:
        """Drafting pays by what is known: the next quiet spell starts with the first interval."""
        self._interval = self._base

    def planned(self) -> None:
        """A probe verifies in the round that is being planned; its feedback may be late."""
        self._quiet = 0

    def observed(self, num_trials: int, probe: bool, residual: float, *, grow: bool = True) -> None:
        """Count a round; after one that verified for a probe, set the next interval by whether it surprised.

        Args:
            grow: whether enough is known for a disappointment to make the next probe rarer.
        """
        if num_trials == 0:
            self._quiet += 1
            return
        self._quiet = 0
        if probe:
            if residual > 0:
                self._interval = max(self._base // 6, 2)
            elif grow:
                self._interval = min(max(self._interval, self._base // 2) * 2, self._base * LONGEST)
