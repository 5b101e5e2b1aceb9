"""Turns: who goes on, and whose time passes."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.bench.interleaved import TURN_SECONDS, StopWatch, run_interleaved
from lightspec_lightllm.bench.runner import ClosedLoop
from lightspec_lightllm.engine.options import SamplingParams
from tests.bench.fakes import FakeHost, FakeRounds


class Clock:
    """Seconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(FakeRounds):
    """Rounds of a given length."""

    clock: Clock
    seconds: Iterator[float]
    log: list[str]

    def step(self):  # type: ignore[no-untyped-def]
        self.clock.now += next(self.seconds)
        self.log.append(self.arm)
        return super().step()


def slow(arm: str, tokens: int, clock: Clock, seconds: Iterator[float], log: list[str]) -> tuple[FakeHost, Slow]:
    host = FakeHost()
    rounds = Slow(host, arm, tokens)
    rounds.clock, rounds.seconds, rounds.log = clock, seconds, log
    return host, rounds


def always(seconds: float) -> Iterator[float]:
    while True:
        yield seconds


PROMPTS = [([1, 2, 3], SamplingParams(max_tokens=40)), ([4, 5], SamplingParams(max_tokens=25))]


def test_a_watch_goes_on_only_during_its_turns() -> None:
    clock = Clock()
    watch = StopWatch(clock)
    clock.now = 5.0
    assert watch() == 0.0
    watch.start()
    clock.now = 7.0
    assert watch() == 2.0
    watch.stop()
    clock.now = 100.0
    assert watch() == 2.0
    watch.start()
    clock.now = 100.5
    assert watch() == 2.5


def test_each_arm_is_charged_its_own_rounds_alone_and_all_progress_together() -> None:
    clock = Clock()
    log: list[str] = []
    arms = [slow("off", 1, clock, always(0.2), log), slow("lightspec", 2, clock, always(0.3), log)]
    results = run_interleaved(arms, ClosedLoop(PROMPTS, concurrency=2), clock)
    assert results[0].duration == pytest.approx(40 * 0.2)
    assert results[1].duration == pytest.approx(20 * 0.3)
    assert [request.tokens for request in results[0].requests] == [request.tokens for request in results[1].requests]
    assert max(sum(request.gaps) for request in results[1].requests) <= results[1].duration
    done = {"off": 0, "lightspec": 0}
    for arm in log[:30]:
        done[arm] += 2 if arm == "off" else 4
        assert abs(done["off"] - done["lightspec"]) <= 2 * 4 * (TURN_SECONDS / 0.2 + 1)


@given(st.lists(st.floats(0.05, 0.6), min_size=60, max_size=60), st.floats(1.1, 3.0))
def test_a_machine_that_changes_its_speed_changes_no_ratio_of_arms_by_much(speeds: list[float], ratio: float) -> None:
    """Two arms of which one takes ``ratio`` as long: the speed is that of the moment, and changes every two seconds."""
    clock = Clock()
    log: list[str] = []

    def rounds(factor: float) -> Iterator[float]:
        while True:
            yield factor * 0.1 * (1.0 + speeds[int(clock.now / 2.0) % len(speeds)])

    arms = [slow("off", 1, clock, rounds(1.0), log), slow("fixed:3", 1, clock, rounds(ratio), log)]
    prompts = [([1, 2, 3], SamplingParams(max_tokens=120))]
    quick, late = run_interleaved(arms, ClosedLoop(prompts, concurrency=1), clock)
    assert late.duration / quick.duration == pytest.approx(ratio, rel=0.12)
