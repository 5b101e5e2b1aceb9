"""The simulated world does what its scenario says, and serves the same text to everybody."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.planner.types import FloatArray
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import Scenario
from lightspec_lightllm.simulate.text import CHUNK, Text
from lightspec_lightllm.simulate.world import World
from tests.simulate.workloads import Scripted, plain, serve


def test_a_text_depends_on_nothing_but_seed_request_and_position() -> None:
    one, other = Text(5, 0.6, 3), Text(5, 0.6, 8)
    one.open(0, 11)
    one.open(1, 12)
    other.open(6, 12)
    slots, place = np.array([0, 1]), np.array([0, 0])
    for start in range(0, 3 * CHUNK, 40):  # in small steps and in large ones
        mine = one.read(slots, place + start, 20)
        theirs = other.read(np.array([6]), np.array([start]), 20) if start % 120 == 0 else None
        if theirs is not None:
            for left, right in zip(mine, theirs, strict=True):
                assert (left[1] == right[0]).all()
    different = Text(6, 0.6, 1)
    different.open(0, 12)
    assert (different.read(np.array([0]), np.array([0]), 20)[1] != other.read(np.array([6]), place[:1], 20)[1]).all()


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
def test_token_noise_is_standard_normal_and_correlated_as_told(correlation: float) -> None:
    text = Text(1, correlation, 300)
    for slot in range(300):
        text.open(slot, slot)
    slots = np.arange(300)
    z = np.concatenate([text.read(slots, np.full(300, start), 50)[0] for start in range(0, 1000, 50)], axis=1)
    assert abs(z.mean()) < 0.06
    assert abs(z.var() - 1) < 0.06
    for lag in (1, 3):
        assert np.mean(z[:, lag:] * z[:, :-lag]) == pytest.approx(correlation**lag, abs=0.06)


def all_right(scenario: Scenario, seeds: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Trials and successes by depth, every draft verified."""
    depths = scenario.drafter.max_draft_steps
    trials, successes = np.zeros(depths), np.zeros(depths)
    for seed in seeds:
        _, _, records = serve(scenario, steps=(depths,), seed=seed)
        for record in records:
            for depth in range(depths):
                tried = (record.drafted > 0) & (record.accepted > depth)
                trials[depth] += tried.sum()
                successes[depth] += (record.accepted[tried] > depth + 1).sum()
    return trials, successes


def test_drafts_are_accepted_as_often_as_configured() -> None:
    acceptance = (0.8, 0.6, 0.7)
    trials, successes = all_right(plain(acceptance=acceptance, count=64, steps=5), (0, 1))
    expected = np.array([*acceptance, 0.7, 0.7])
    score = (successes - trials * expected) / np.sqrt(trials * expected * (1 - expected))
    assert (np.abs(score) < 4).all(), score


def test_the_mean_acceptance_is_as_configured_however_requests_and_tokens_differ() -> None:
    world = World(plain(acceptance=(0.7, 0.4), spread=1.0, noise=1.5, count=2000, steps=3, correlation=0.5), 0)
    world.open_round()
    truth = world.drafts.truth
    for depth, expected in enumerate((0.7, 0.4, 0.4)):
        assert truth[:, depth].mean() == pytest.approx(expected, abs=4 * truth[:, depth].std() / 2000**0.5)
    assert truth[:, 0].std() > 0.2


def calibration(scenario: Scenario) -> tuple[float, float]:
    """Standardised surplus of right drafts over those told, and of the same weighted by how sure the drafter is."""
    surplus = weighted = variance = weighted_variance = 0.0
    depths = scenario.drafter.max_draft_steps
    _, planner, records = serve(scenario, steps=(depths,))
    for view, record in zip(planner.views, records, strict=True):
        assert view.confidence is not None
        for depth in range(depths):
            tried = (record.drafted > 0) & (record.accepted > depth)
            told = view.confidence[tried, depth]
            came = record.accepted[tried] > depth + 1
            sure = told - 0.5
            surplus += float((came - told).sum())
            weighted += float(((came - told) * sure).sum())
            variance += float((told * (1 - told)).sum())
            weighted_variance += float((told * (1 - told) * sure**2).sum())
    return surplus / variance**0.5, weighted / weighted_variance**0.5


def test_a_confidence_without_noise_and_bias_is_calibrated() -> None:
    mean, slope = calibration(plain(spread=0.8, noise=1.5, count=64, correlation=0.5))
    assert abs(mean) < 4
    assert abs(slope) < 4


def test_bias_makes_it_over_confident_and_noise_makes_it_too_sure() -> None:
    biased, _ = calibration(plain(spread=0.8, noise=1.5, count=64, drafter={"bias": 1.0, "max_draft_steps": 4}))
    assert biased < -10
    _, noisy = calibration(plain(spread=0.8, noise=1.5, count=64, drafter={"noise": 1.5, "max_draft_steps": 4}))
    assert noisy < -10


def test_a_random_confidence_says_nothing_and_a_constant_one_is_constant() -> None:
    for quality in ("random", "constant"):
        _, planner, records = serve(
            plain(noise=1.5, count=64, drafter={"quality": quality, "max_draft_steps": 4}), steps=(4,)
        )
        told = np.concatenate([view.confidence[:, 0] for view in planner.views[1:] if view.confidence is not None])
        came = np.concatenate([record.accepted > 1 for record in records[1:]])
        if quality == "constant":
            assert set(told.tolist()) == {0.5}
        else:
            assert np.quantile(told, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
            assert abs(np.corrcoef(told, came)[0, 1]) < 0.04


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), pace=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_what_is_true_of_a_token_does_not_depend_on_the_planner(seed: int, pace: list[int]) -> None:
    steady = plain(spread=0.5, noise=1.0, count=3, rounds=25, correlation=0.5)
    seen: dict[tuple[int, int], float] = {}
    for steps in ((4,), tuple(pace)):
        world = World(steady, seed)
        for number in range(25):
            world.open_round()
            truth = world.drafts.truth
            for slot, request, line in zip(world.slots, world.request_ids, truth, strict=True):
                key = (int(request), int(world.position[slot]))
                assert seen.setdefault(key, float(line[0])) == float(line[0])
            world.commit(1 + np.minimum(world.drafts.runs, steps[number % len(steps)]))
            world.end_round()


def test_the_share_of_rounds_with_a_new_request_is_as_configured() -> None:
    for share in (0.0, 0.7, 1.0):
        busy = plain(count=8, rounds=400, requests={"count": 8, "arrivals": share})
        _, planner, _ = serve(busy, steps=(2,))
        newest = [int(view.request_ids.max()) for view in planner.views if view.request_ids is not None]
        came = np.diff(newest) > 0
        assert came.mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 400) ** 0.5)
        assert all(view.num_requests == 8 for view in planner.views)


def test_a_wandering_batch_stays_in_its_range_and_moves_by_two_at_most() -> None:
    _, planner, _ = serve(plain(rounds=500, requests={"count": [10, 20]}), steps=(2,))
    sizes = np.array([view.num_requests for view in planner.views])
    assert (sizes.min(), sizes.max()) == (10, 20)
    assert np.abs(np.diff(sizes)).max() <= 2


def test_answers_have_the_configured_lengths_and_new_requests_come_in() -> None:
    world = World(plain(count=5, requests={"count": 5, "answer_tokens": [30, 40]}), 3)
    total: dict[int, int] = {}
    for _ in range(200):
        world.open_round()
        assert len(world.slots) == 5
        ids = world.request_ids
        kept = world.commit(1 + np.minimum(world.drafts.runs, 3))
        for request, tokens in zip(ids.tolist(), kept.tolist(), strict=True):
            total[request] = total.get(request, 0) + tokens
        world.end_round()
    finished = [tokens for request, tokens in total.items() if 5 <= request < max(total) - 5]
    assert len(finished) > 20
    assert min(finished) >= 30
    assert max(finished) <= 40


def test_a_paused_request_comes_back_where_it_was_and_without_drafts() -> None:
    world = World(plain(requests={"count": 6, "pauses": 0.2, "pause_rounds": 4}), 1)
    last: dict[int, int] = {}
    away: dict[int, int] = {}
    returned = 0
    for number in range(150):
        world.open_round()
        here = world.request_ids.tolist()
        assert 1 <= len(here) <= 6
        for slot, request in zip(world.slots.tolist(), here, strict=True):
            if request in away:
                returned += 1
                assert number - away.pop(request) >= 4
                assert world.proposed[slot] == 0
                assert world.position[slot] == last[request]
        for request in set(last) - set(here):
            away.setdefault(request, number)
        world.commit(1 + np.minimum(world.drafts.runs, 4))
        last |= dict(zip(world.request_ids.tolist(), world.position[world.slots].tolist(), strict=True))
        world.end_round()
        world.proposed[world.slots] = 4
    assert returned > 20


def test_classes_come_in_their_shares_and_change_with_the_segment() -> None:
    changing = plain(
        count=100,
        classes={"easy": {"acceptance": [0.9]}, "hard": {"acceptance": [0.2]}},
        segments=[{"rounds": 2, "mix": {"easy": 3.0, "hard": 1.0}}, {"rounds": 2, "mix": {"hard": 1.0}}],
    )
    world = World(changing, 0)
    for expected in (0.75, 0.75, 0.0, 0.0, 0.0):
        world.open_round()
        assert (world.drafts.truth[:, 0] > 0.5).mean() == pytest.approx(expected, abs=0.02)


def test_expected_tokens_are_the_mean_of_those_drawn() -> None:
    busy = plain(spread=0.5, noise=1.0, requests={"count": 64, "answer_tokens": [5, 20]}, rounds=300)
    trace = run(ScenarioHost(busy, 0), Scripted(busy, (4, 1)), busy.num_rounds)
    surplus = trace.tokens - trace.expected
    assert abs(surplus.sum()) < 4 * float((surplus**2).sum()) ** 0.5
    assert trace.expected.std() > 1


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 12) | st.tuples(st.integers(1, 6), st.integers(6, 12)),
    longest=st.none() | st.integers(1, 30),
    arrivals=st.sampled_from([0.0, 0.5, 1.0]),
    pauses=st.sampled_from([0.0, 0.3, 0.9]),
    pause_rounds=st.integers(1, 20),
    seed=st.integers(0, 10_000),
)
def test_however_requests_come_go_and_pause_each_keeps_a_slot_and_the_batch_its_bounds(
    *,
    count: int | tuple[int, int],
    longest: int | None,
    arrivals: float,
    pauses: float,
    pause_rounds: int,
    seed: int,
) -> None:
    low, high = count if isinstance(count, tuple) else (count, count)
    requests = {
        "count": list(count) if isinstance(count, tuple) else count,
        "answer_tokens": None if longest is None else [1, longest],
        "arrivals": arrivals,
        "pauses": pauses,
        "pause_rounds": pause_rounds,
    }
    _, planner, records = serve(plain(requests=requests, rounds=60), steps=(4, 0, 2), seed=seed)  # checks slots
    for view, record in zip(planner.views, records, strict=True):
        assert 1 <= view.num_requests <= high
        assert pauses or view.num_requests >= low
        assert (record.committed <= record.accepted).all()
        assert (record.committed >= 1).all()
