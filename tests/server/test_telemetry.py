"""Rounds as they are told: sums that lose nothing, a ring that cannot grow, readers that miss nothing."""

import asyncio
import dataclasses
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.planner import CostModel, make_planner
from lightspec_lightllm.server.bucket import MAX_POINTS
from lightspec_lightllm.server.round_event import NUM_BINS, STAGES, Tally
from lightspec_lightllm.server.telemetry import About, RoundEvent, RoundReporter, Telemetry

DEPTHS = 5
COSTS = CostModel.from_tables({1: 10.0, 8: 12.0, 16: 15.0, 32: 24.0, 64: 44.0}, {1: 1.0, 64: 2.0})
ABOUT = About("model", "lightspec", "head", DEPTHS)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def rounds_of(strategy: str = "lightspec", *, requests: int = 8, confidence: bool = True, **options: Any) -> Round:
    host = SimulatedHost(
        COSTS,
        requests,
        AcceptanceProfile((0.8, 0.7), spread=0.5, noise=0.7, confidence=confidence, bias=0.5),
        max_draft_steps=DEPTHS,
        lifetime=60,
        cost_noise=0.05,
    )
    return Round(host, make_planner(strategy, COSTS, max_draft_steps=DEPTHS, **options))


def run(rounds: Round, number: int, *, start: float = 1000.0) -> Iterator[tuple[RoundRecord, RoundEvent]]:
    """Records and their events, on the host's clock."""
    reporter = RoundReporter(rounds)
    for _ in range(number):
        record = rounds.step()
        assert record is not None
        yield record, reporter.event(record, num_waiting=3, time=start + rounds.host.now())


def buckets_of(telemetry: Telemetry) -> list[dict[str, Any]]:
    return list(json.loads(telemetry.history())["buckets"])


def test_sums_over_all_buckets_are_the_counters_of_the_rounds() -> None:
    clock = Clock()
    telemetry, rounds = Telemetry(ABOUT, clock=clock), rounds_of()
    for _, event in run(rounds, 300):
        telemetry.add(event)
        clock.now = event.time
    clock.now += 2
    buckets, counters = buckets_of(telemetry), rounds.counters
    assert len(buckets) > 3

    def total(name: str) -> float:
        return float(sum(bucket.get(name, 0) for bucket in buckets))

    assert total("rounds") == counters.num_rounds == 300
    assert total("requests") == counters.num_request_rounds
    assert total("drafted") == counters.num_draft_tokens
    assert total("verified") == counters.num_verified_tokens
    assert total("accepted") == counters.num_accepted_tokens
    assert total("committed") == counters.num_committed_tokens
    right = np.sum([bucket["right"] for bucket in buckets], axis=0)
    assert right.tolist() == counters.accepted_per_position.tolist()
    assert sum(count for bucket in buckets for *_, count in bucket["decisions"]) == 300
    for stage in STAGES:
        assert sum(count for bucket in buckets for _, count in bucket["stages"][stage]) == 300


def test_what_was_foretold_of_drafts_is_tallied_as_one_would_by_hand() -> None:
    for record, event in run(rounds_of(), 40):
        by_depth = [[0, 0.0, 0] for _ in range(DEPTHS)]
        confidence = [[0, 0.0, 0] for _ in range(NUM_BINS)]
        survival = record.plan.survival
        for n in range(record.num_requests):
            hits = int(record.accepted[n]) - 1
            for j in range(int(record.verified[n])):
                assert survival is not None
                right = j < hits
                by_depth[j] = [by_depth[j][0] + 1, by_depth[j][1] + survival[n, j], by_depth[j][2] + right]
                if j <= hits:
                    assert record.confidence is not None
                    told = float(record.confidence[n, j])
                    line = confidence[min(int(told * NUM_BINS), NUM_BINS - 1)]
                    line[:] = [line[0] + 1, line[1] + told, line[2] + right]
        if not record.verified.any():
            assert event.by_depth is None
            assert event.confidence is None
            continue
        for tally, expected in ((event.by_depth, by_depth), (event.confidence, confidence)):
            assert tally is not None
            count, foretold, right_counts = zip(*expected, strict=True)
            assert tally.count == count
            assert tally.foretold == pytest.approx(foretold)
            assert tally.right == right_counts
        assert event.survival is not None
        assert sum(event.survival.count) == event.verified
        assert sum(event.survival.right) == event.accepted


def test_a_round_that_read_prompts_is_not_held_against_its_plan() -> None:
    rounds, clock = rounds_of(), Clock()
    reporter, telemetry = RoundReporter(rounds), Telemetry(ABOUT, clock=clock)
    for _ in range(20):
        record = rounds.step()
    assert record is not None
    slow = dataclasses.replace(
        record, prompt_tokens=100, seconds=record.seconds | {"target": record.seconds["target"] + 0.2}
    )
    plain, reading = (reporter.event(each, num_waiting=0, time=1000.0) for each in (record, slow))
    assert (plain.predicted_ms, reading.predicted_ms) == (record.plan.predicted_ms, 0.0)
    assert reading.measured_ms == pytest.approx(plain.measured_ms + 200.0)
    assert reading.off_ms == plain.off_ms
    for event in (plain, reading):
        telemetry.add(event)
    clock.now += 2
    (bucket,) = (bucket for bucket in buckets_of(telemetry) if bucket.get("rounds"))
    assert (bucket["rounds"], bucket["timed"], bucket["plain"]) == (2, 1, 1)
    assert bucket["timed_ms"] == bucket["measured_ms"] == pytest.approx(plain.measured_ms, abs=1e-3)
    assert bucket["off_ms"] == pytest.approx(plain.off_ms, abs=1e-3)
    assert (bucket["plain_requests"], bucket["plain_committed"]) == (plain.num_requests, plain.committed)


def test_reporting_changes_no_plan() -> None:
    plain, reported = rounds_of(), rounds_of()
    without = []
    for _ in range(200):
        record = plain.step()
        assert record is not None
        without.append(record)
    for expected, (record, _) in zip(without, run(reported, 200), strict=True):
        assert record.plan.verify_rows == expected.plan.verify_rows
        assert record.plan.draft_steps == expected.plan.draft_steps
        assert record.plan.predicted_tokens == expected.plan.predicted_tokens


def test_an_event_travels_between_processes_and_is_small() -> None:
    for _, event in run(rounds_of(requests=64), 20):
        packed = pickle.dumps(event)
        assert pickle.loads(packed) == event  # noqa: S301 - made in the line before
        assert len(packed) < 2500


def test_one_plan_a_second_is_explained() -> None:
    events = [event for _, event in run(rounds_of(), 200)]
    times = [event.time for event in events if event.reason is not None]
    assert len(times) >= 3
    assert all(after - before >= 1.0 for before, after in pairwise(times))


def test_a_round_without_speculation_is_the_tables_as_the_plan_is_corrected() -> None:
    for record, event in run(rounds_of("fixed:2"), 10):
        assert event.off_ms == pytest.approx(COSTS.target_ms(8, 8, record.context_tokens / 8))
        assert event.confidence is None or sum(event.confidence.count) == sum(event.tried)
        assert event.by_depth is None


@pytest.fixture
def event() -> RoundEvent:
    return next(event for _, event in run(rounds_of(), 1))


def test_seconds_without_rounds_are_kept_with_the_load_last_told(event: RoundEvent) -> None:
    clock = Clock(1000.0)
    telemetry = Telemetry(ABOUT, clock=clock)
    telemetry.add(dataclasses.replace(event, time=1000.5))
    telemetry.set_load(2, 7)
    clock.now = 1004.5
    assert [(b["t"], b.get("rounds", 0), b["running"], b["waiting"]) for b in buckets_of(telemetry)] == [
        (1000, 1, 2, 7),
        (1001, 0, 2, 7),
        (1002, 0, 2, 7),
        (1003, 0, 2, 7),
    ]


def test_an_event_that_is_late_counts_in_the_second_that_is_open(event: RoundEvent) -> None:
    clock = Clock(1000.0)
    telemetry = Telemetry(ABOUT, clock=clock)
    for time in (1002.1, 1000.2, 1001.9):
        telemetry.add(dataclasses.replace(event, time=time))
    clock.now = 1003.5
    assert [bucket.get("rounds", 0) for bucket in buckets_of(telemetry)] == [0, 0, 3]


@given(jumps=st.lists(st.floats(0, 5000), max_size=12))
def test_the_ring_is_bounded_and_in_order_whatever_the_clock_does(jumps: list[float]) -> None:
    clock = Clock()
    telemetry = Telemetry(ABOUT, clock=clock, seconds=20)
    for jump in jumps:
        clock.now += jump
        telemetry.history()
    seconds = [bucket["t"] for bucket in buckets_of(telemetry)]
    assert len(seconds) <= 20
    assert seconds == sorted(set(seconds))
    if seconds:
        assert seconds == list(range(seconds[0], seconds[-1] + 1))


def test_numbers_that_are_not_finite_do_not_break_the_feed(event: RoundEvent) -> None:
    clock = Clock()
    telemetry = Telemetry(ABOUT, clock=clock)
    telemetry.add(dataclasses.replace(event, predicted_ms=float("inf"), predicted_tokens=float("nan"), off_ms=-0.0))
    clock.now += 2
    assert buckets_of(telemetry)[0]["predicted_tokens"] == 0.0


def test_only_a_few_rounds_of_a_second_are_kept_one_by_one(event: RoundEvent) -> None:
    clock = Clock()
    telemetry = Telemetry(ABOUT, clock=clock)
    for _ in range(50):
        telemetry.add(dataclasses.replace(event, time=1000.1))
    clock.now += 2
    assert len(buckets_of(telemetry)[0]["points"]) == MAX_POINTS


def test_events_of_several_threads_are_all_counted(event: RoundEvent) -> None:
    clock = Clock()
    telemetry = Telemetry(ABOUT, clock=clock)
    threads = [
        threading.Thread(target=lambda: [telemetry.add(event) for _ in range(200)])  # type: ignore[func-returns-value]
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 2
    assert sum(bucket.get("rounds", 0) for bucket in buckets_of(telemetry)) == 800


def test_a_tally_of_nothing_counts_nothing() -> None:
    empty = np.zeros(0)
    tally = Tally.of(empty.astype(np.int64), empty, empty.astype(bool), 3)
    assert tally == Tally((0, 0, 0), (0.0, 0.0, 0.0), (0, 0, 0))


# --- followers --------------------------------------------------------------------------------------------------------


async def take(telemetry: Telemetry, number: int, after: int | None) -> list[tuple[str, dict[str, Any]]]:
    """The first events of a follower, by name and data."""
    found = []
    async with aclosing(telemetry.follow(after, pause=0.001)) as feed:  # type: ignore[type-var]
        async for message in feed:
            fields = dict(line.split(": ", 1) for line in message.decode().strip().split("\n"))
            found.append((fields["event"], json.loads(fields["data"])))
            if len(found) == number:
                break
    return found


def test_a_follower_is_greeted_and_then_gets_every_second_it_has_not(event: RoundEvent) -> None:
    clock = Clock()
    telemetry = Telemetry(ABOUT, clock=clock)
    telemetry.add(event)
    clock.now = 1005.5
    greeting, *buckets = asyncio.run(take(telemetry, 4, after=1001))
    assert greeting[0] == "hello"
    assert greeting[1]["instance"] == telemetry.instance
    assert greeting[1]["about"]["max_draft_steps"] == DEPTHS
    assert [(name, bucket["t"]) for name, bucket in buckets] == [("bucket", 1002), ("bucket", 1003), ("bucket", 1004)]


def test_a_notice_is_told_to_those_who_follow_already() -> None:
    telemetry = Telemetry(ABOUT, clock=Clock())

    async def told() -> list[str | None]:
        following = asyncio.create_task(take(telemetry, 2, None))
        await asyncio.sleep(0.02)
        telemetry.set_notice("the engine is being restarted")
        return [data["notice"] for _, data in await following]

    assert asyncio.run(told()) == [None, "the engine is being restarted"]


def test_followers_end_when_the_telemetry_is_closed() -> None:
    telemetry = Telemetry(ABOUT, clock=Clock())

    async def ended() -> list[tuple[str, dict[str, Any]]]:
        following = asyncio.create_task(take(telemetry, 10**6, None))
        await asyncio.sleep(0.02)
        telemetry.close()
        return await asyncio.wait_for(following, 5)

    assert [name for name, _ in asyncio.run(ended())] == ["hello"]
