"""Arms beside each other: each has an engine of its own over the same weights, and they take turns of half a second.

A machine whose speed changes from minute to minute falls on all arms alike, which runs one after the other cannot
offer: the arm that has generated least goes on, so that all are at the same place in the text at any time.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from lightspec_lightllm.bench.runner import ClosedLoop, RunResult, Server, Stepper

TURN_SECONDS = 0.5
"""A turn ends with the round that reaches this."""


class StopWatch:
    """A clock that only goes on while its arm has its turn."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._shown = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        """Seconds of all turns so far."""
        return self._shown if self._since is None else self._shown + self._clock() - self._since

    def start(self) -> None:
        """A turn begins."""
        self._since = self._clock()

    def stop(self) -> None:
        """The turn is over."""
        self._shown, self._since = self(), None


@dataclass
class _Lane:
    steps: Generator[int, None, RunResult]
    watch: StopWatch
    tokens: int = 0
    result: RunResult | None = None

    def turn(self) -> None:
        self.watch.start()
        began = self.watch()
        try:
            while self.watch() - began < TURN_SECONDS:
                self.tokens = next(self.steps)
        except StopIteration as end:
            self.result = end.value
        finally:
            self.watch.stop()


def run_interleaved(
    arms: Sequence[tuple[Server, Stepper]], loop: ClosedLoop, clock: Callable[[], float] = time.perf_counter
) -> list[RunResult]:
    """`ClosedLoop.run` of several arms on the same prompts; the times of each are those of its own turns."""
    lanes = []
    for server, rounds in arms:
        watch = StopWatch(clock)
        lanes.append(_Lane(loop.steps(server, rounds, watch), watch))
    while going := [lane for lane in lanes if lane.result is None]:
        min(going, key=lambda lane: lane.tokens).turn()
    return [lane.result for lane in lanes if lane.result is not None]
