"""Compiled loops give what numpy's give, bit for bit."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.planner import BatchView, DrafterKind, Plan, RoundFeedback, make_planner
from lightspec_lightllm.planner.confidence import NUM_BINS, NUM_CODES
from lightspec_lightllm.planner.loops import INNER, plain
from lightspec_lightllm.planner.loops.interface import Loops
from lightspec_lightllm.planner.loops.plain.arithmetic import curve_of
from lightspec_lightllm.planner.loops.plain.learning import hashed
from lightspec_lightllm.planner.scale import LEVEL_AGAINST, LEVEL_OFFSETS, LEVELS
from lightspec_lightllm.planner.survival import CURVE_CELLS, MOST_ODDS, ODDS_STEPS
from lightspec_lightllm.planner.types import IntArray
from tests.planner.worlds import CPU, GPU

numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed (extra fast)")

NAMES = sorted(name for name in vars(Loops) if not name.startswith("_"))


def compiled() -> Loops:
    INNER.prepare()
    assert INNER.described == "compiled"
    return INNER.loops


@contextmanager
def using(loops: Loops) -> Iterator[None]:
    before, INNER.loops = INNER.loops, loops
    try:
        yield
    finally:
        INNER.loops = before


def made_up(seed: int, num_requests: int, most: int) -> dict[str, tuple[Any, ...]]:
    """Arguments of every loop, of a batch that may be empty."""
    rng = np.random.default_rng(seed)
    proposed: IntArray = rng.integers(0, most + 1, num_requests)
    verified: IntArray = rng.integers(0, proposed + 1)
    accepted: IntArray = rng.integers(1, verified + 2)
    trials, levels = np.minimum(verified, accepted), rng.integers(0, LEVELS, num_requests)
    if rng.random() < 0.3:
        levels = levels[:0]
    deepest = int(rng.integers(1, most + 1))
    codes = rng.integers(0, NUM_CODES, (most, num_requests))
    codes[rng.random(codes.shape) < 0.1] = NUM_CODES
    terms, depths = rng.normal(0.0, 2.0, NUM_CODES + most), rng.normal(0.0, 1.0, most)
    bins, information = rng.normal(0.0, 2.0, NUM_BINS), rng.exponential(5.0, NUM_BINS)
    whole = [np.rint(a * ODDS_STEPS).astype(np.int16) for a in (terms, depths + MOST_ODDS, LEVEL_OFFSETS)]
    confidence = rng.random((num_requests, most))
    confidence[rng.random(confidence.shape) < 0.1] = rng.choice([0.0, 1.0, math.nan])
    strange = confidence.copy()
    if strange.size:
        strange.flat[rng.integers(strange.size)] = rng.choice([-0.0, 1.0 + 1e-15, math.inf, -1.0, 5e-324, math.nan])
    wrong = verified.copy()
    if num_requests:
        wrong[rng.integers(num_requests)] += rng.integers(-2, 3)
    bits, ids = 5, rng.integers(-5, 40, num_requests)
    owner = np.full(1 << bits, -1, dtype=np.int64)
    some = ids[rng.random(num_requests) < 0.7]
    owner[hashed(some, bits)] = some
    tables = rng.normal(size=1 << bits), rng.exponential(9.0, 1 << bits), rng.integers(0, LEVELS, 1 << bits)
    num_kinds = int(rng.integers(1, 60))
    value, count = np.sort(rng.random(num_kinds))[::-1].copy(), rng.exponential(2.0, num_kinds)
    count[rng.random(num_kinds) < 0.3] = 0.0
    rows, gain = curve_of(np.rint(count), value)
    extra = np.unique(np.append(rng.integers(0, 200, 50), 0)).astype(np.float64)
    ms, price = 5.0 + np.maximum.accumulate(rng.random(len(extra))), float(rng.exponential(0.2))
    steps = np.unique(np.append(rng.integers(0, most + 1, 5), most))
    size, cells = LEVELS * most, rng.integers(0, 3000, (most, num_requests + 1))
    place = np.stack((rng.integers(0, LEVELS, size), rng.integers(1, most + 1, size)))
    zeros = np.zeros
    return {
        "are_probabilities": (strange,),
        "proposal_counts": (wrong, zeros(most + 1, dtype=np.int64)),
        "round_counts": (wrong, accepted, proposed, most, trials.copy()),
        "cells": (codes[:deepest], levels, *whole),
        "read_drafts": (
            *(confidence, deepest, np.minimum(proposed, deepest) if rng.random() < 0.5 else proposed[:0], levels),
            *(*whole, True, codes[:deepest].copy(), zeros((most, num_requests)), zeros((2, CURVE_CELLS + 1))),
        ),
        "lay_codes": (
            zeros((most, num_requests + 9), dtype=np.int64),
            codes[:deepest],
            np.minimum(proposed, deepest),
            4,
        ),
        "score_trials": (
            *(
                trials,
                accepted,
                codes,
                levels,
                np.exp(terms),
                np.exp(depths),
                LEVEL_AGAINST,
                rng.uniform(0.05, 0.95, most),
            ),
            *(zeros((2, NUM_BINS)), zeros((2, most)), zeros((2, num_requests))),
        ),
        "whole_terms": (
            bins,
            depths,
            depths[::-1],
            terms.copy(),
            depths.copy(),
            zeros(NUM_CODES + 2 * most, dtype=np.int16),
        ),
        "depth_scores": (trials, accepted, rng.random(most)),
        "level_scores": (
            *(trials, accepted, rng.integers(0, LEVELS, num_requests)),
            *(rng.random((LEVELS, most)), rng.random((2, LEVELS, most + 1))),
        ),
        "level_table": (
            *(np.round(rng.normal(0.0, 3.0, most)), zeros((LEVELS, most)), zeros((LEVELS, most))),
            *(zeros((2, LEVELS, most + 1)), zeros(size), zeros((2, size), dtype=np.int64)),
        ),
        "level_curve": (
            *(proposed, rng.integers(0, LEVELS, num_requests), rng.random(size), place, zeros((2, size + 1))),
        ),
        "acceptances": (10.0 * depths,),
        "learn_depths": (
            *(depths, rng.exponential(9.0, most), depths + 0.1, rng.normal(size=most), rng.exponential(2.0, most)),
            *(80.0, 0.8, 1.0),
        ),
        "learn_bins": (
            bins,
            information,
            bins - 0.1,
            rng.normal(size=NUM_BINS),
            rng.exponential(1.0, NUM_BINS),
            80.0,
            1.2,
        ),
        "read_bins": (bins, information, 1.2),
        "find_entries": (ids, owner, *tables, bits),
        "learn_offsets": (
            *(ids, rng.normal(size=num_requests), rng.exponential(1.0, num_requests), float(rng.normal()), 16.0),
            *(owner, zeros(1 << bits, dtype=np.int64), *tables, (25.0, 64.0, 2.4)),
        ),
        "gain_at": (rows, gain, float(rng.integers(0, 200)) / 2.0),
        "best_extra": (rows, gain, extra, ms, float(rng.integers(0, 200)), 5.0 + float(rng.random()), price),
        "expected_drafts": (np.maximum.accumulate(cells, axis=0).astype(np.int16), max(num_requests, 1)),
        "waiting_curve": (np.bincount(proposed, minlength=most + 1), rng.random(most)),
        "net_values": (rng.normal(size=most), num_requests, rng.random(most), price, *rng.random(3).tolist()),
        "ladder_values": (value, count, extra, ms, np.sort(rng.integers(0, len(extra), 4)), price),
        "best_values": (value, rng.integers(1, most + 1, num_kinds), count, steps, extra, ms, price),
    }


@numba
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_requests=st.integers(0, 80), most=st.integers(1, 15))
def test_a_compiled_loop_gives_what_numpy_gives_bit_for_bit(seed: int, num_requests: int, most: int) -> None:
    mine, theirs = made_up(seed, num_requests, most), made_up(seed, num_requests, most)
    assert sorted(mine) == NAMES
    for name in NAMES:
        found, expected = getattr(compiled(), name)(*mine[name]), getattr(plain, name)(*theirs[name])
        if name == "round_counts" and not expected[0]:
            continue  # of a round that cannot be
        if name == "proposal_counts" and expected < 0:
            assert found < 0
            continue
        written = slice(None) if name != "learn_offsets" else slice(7, None)
        same((found, mine[name][written]), (expected, theirs[name][written]), name)


def same(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, tuple):
        assert len(found) == len(expected), name
        for pair in zip(found, expected, strict=True):
            same(*pair, name)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)
    else:
        assert found == expected, name


@numba
@pytest.mark.parametrize("told", ["never", "late", "live", "partly"])
@pytest.mark.parametrize("kind", get_args(DrafterKind))
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), most_requests=st.sampled_from([1, 6, 90]), with_ids=st.booleans())
def test_planners_with_and_without_compiled_loops_plan_alike(
    kind: DrafterKind, told: str, seed: int, most_requests: int, with_ids: bool
) -> None:
    """Some hundred rounds, in which requests come and go and the text changes."""
    loops, steps = compiled(), 7
    costs = GPU if seed % 2 else CPU
    with_it, without = (make_planner("lightspec", costs, max_draft_steps=steps, drafter=kind) for _ in range(2))
    rng, drafted = np.random.default_rng(seed), steps
    for number in range(300):
        size = int(rng.integers(max(1, most_requests - 4), most_requests + 1))
        ids = np.sort(rng.choice(most_requests + number // 20 + 4, size, replace=False)) if with_ids else None
        proposed = np.where(rng.random(size) < 0.9, drafted, rng.integers(0, drafted + 1, size))
        truth = 1.0 / (1.0 + np.exp(-(math.sin(number / 40) + 0.8 + rng.standard_normal((size, steps)))))
        sure = None if told == "never" else truth.copy()
        if sure is not None and told == "partly":
            sure[rng.random(sure.shape) < 0.2] = math.nan
        live = sure if told == "live" or (told == "partly" and rng.random() < 0.5) else None
        view = BatchView(size, proposed, 300.0 + number, live, ids)
        with using(loops):
            plan = with_it.plan(view)
        with using(plain):
            again = without.plan(view)
        assert facts(plan) == facts(again)
        verified = select_rows(proposed, plan.verify_rows, plan.survival)
        right = (rng.random((size, steps)) < truth) & (np.arange(steps) < verified[:, None])
        accepted = 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1)
        time = plan.table_ms * float(rng.uniform(0.9, 1.2))
        with using(loops):
            with_it.observe(RoundFeedback(plan, verified, accepted, sure, time, ids))
        with using(plain):
            without.observe(RoundFeedback(again, verified, accepted, sure, time, ids))
        drafted = plan.draft_steps


def facts(plan: Plan) -> tuple[Any, ...]:
    survival = None if plan.survival is None else np.ascontiguousarray(plan.survival).tobytes()
    chain = None if plan.chain is None else (plan.chain.row_price, plan.chain.step_price)
    return (
        *(plan.verify_rows, plan.draft_steps, plan.probe, survival, chain),
        *(plan.table_ms, plan.predicted_ms, plan.predicted_tokens),
    )


def strided(values: IntArray) -> Any:
    return np.stack((values, values), axis=1)[:, 0]


def unaligned(values: IntArray) -> Any:
    raw = np.zeros(values.nbytes + 1, dtype=np.uint8)
    shifted = raw[1:].view(values.dtype)
    shifted[:] = values
    return shifted


def read_only(values: IntArray) -> IntArray:
    found: IntArray = values.copy()
    found.flags.writeable = False
    return found


def swapped(values: IntArray) -> Any:
    return values.astype(values.dtype.newbyteorder(">"))


@pytest.mark.parametrize("given_as", [strided, unaligned, read_only, swapped])
def test_a_host_may_give_arrays_of_any_layout(given_as: Callable[[IntArray], Any]) -> None:
    planners = [make_planner("lightspec", GPU, max_draft_steps=3) for _ in range(2)]
    proposed, ids, rng = np.array([3, 1, 0, 2]), np.arange(4), np.random.default_rng(0)
    for _ in range(30):
        sure = rng.random((4, 3))
        odd = (
            given_as(sure.ravel().view(np.int64)).view(np.float64)
            if given_as in (unaligned, read_only)
            else sure.T.copy().T
        )
        plans = [
            planners[0].plan(BatchView(4, proposed, 300, sure, ids)),
            planners[1].plan(BatchView(4, given_as(proposed), 300, odd.reshape(4, 3), given_as(ids))),
        ]
        assert facts(plans[0]) == facts(plans[1])
        verified = select_rows(proposed, plans[0].verify_rows, plans[0].survival)
        accepted = 1 + verified
        planners[0].observe(RoundFeedback(plans[0], verified, accepted, sure, None, ids))
        observed = given_as(verified), given_as(accepted)
        planners[1].observe(RoundFeedback(plans[1], *observed, odd.reshape(4, 3), None, given_as(ids)))


LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize("loops", [plain, pytest.param("compiled", marks=numba)])
@pytest.mark.parametrize(
    ("verified", "proposed"), [(-1, 3), (LOWEST, 3), (LOWEST + 1, 3), (0, LOWEST), (2, LOWEST + 1), (HIGHEST, HIGHEST)]
)
def test_counts_that_wrap_are_refused(loops: Any, verified: int, proposed: int) -> None:
    loops = compiled() if loops == "compiled" else loops
    counts = np.array([2, verified]), np.array([1, 1]), np.array([3, proposed])
    assert not loops.round_counts(*counts, 7, np.zeros(2, dtype=np.int64))[0]


@pytest.mark.parametrize("loops", [plain, pytest.param("compiled", marks=numba)])
@pytest.mark.parametrize("some_unknown", [False, True])
def test_a_buffer_that_changed_after_it_was_checked_is_read_within_the_tables(loops: Any, some_unknown: bool) -> None:
    loops = compiled() if loops == "compiled" else loops
    arguments = list(made_up(0, 5, 3)["read_drafts"])
    codes = np.zeros((3, 5), dtype=np.int64)
    arguments[:2] = np.tile([[87.0], [math.inf], [-math.inf], [math.nan], [-1.0]], 3), 3
    arguments[7:] = some_unknown, codes, np.zeros((3, 5)), np.zeros((2, CURVE_CELLS + 1))
    loops.read_drafts(*arguments)
    unknown = (NUM_CODES + np.arange(3)).tolist() if some_unknown else [0, 0, 0]
    assert codes.T.tolist() == [[NUM_CODES - 1] * 3, [NUM_CODES - 1] * 3, [0] * 3, unknown, [0] * 3]
