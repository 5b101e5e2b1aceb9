"""Feedback: what no round can have given is refused and changes nothing; what comes late is as good."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.errors import FeedbackError, PlanError
from lightspec_lightllm.planner import (
    BatchView,
    CostModel,
    DrafterKind,
    Plan,
    Planner,
    RoundFeedback,
    make_planner,
)
from tests.planner.worlds import CPU, GPU, KINDS, by_plan, play, wild_rounds

STEPS = 4


def trained(kind: DrafterKind = "serial", seed: int = 0) -> Planner:
    """A planner with some experience; the same seed gives the same planner."""
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS, drafter=kind)
    for _ in play(planner, wild_rounds(seed, 30, 6, STEPS, with_ids=True, with_confidence=True), late=False):
        pass
    return planner


def next_plans(planner: Planner, seed: int = 1) -> list[tuple[Any, ...]]:
    """Every bit of the plans of some more rounds."""
    out = []
    for with_confidence in (True, False):
        rounds = wild_rounds(seed, 12, 6, STEPS, with_ids=True, with_confidence=with_confidence)
        for plan in play(planner, rounds, late=False):
            survival = None if plan.survival is None else plan.survival.tobytes()
            out.append((plan.verify_rows, plan.draft_steps, plan.predicted_ms, plan.predicted_tokens, survival))
    return out


def good() -> RoundFeedback:
    """A round of two requests that the planner could learn from."""
    plan = Plan(6, 2, 2, proposed=np.array([2, 3]), table_ms=8.0)
    return RoundFeedback(
        plan,
        np.array([2, 2]),
        np.array([3, 1]),
        confidence=np.full((2, STEPS), 0.5),
        measured_ms=9.0,
        request_ids=np.array([1, 2]),
    )


BAD: dict[str, dict[str, Any]] = {
    "verified below 0": {"verified": np.array([-1, 2])},
    "verified above K": {"verified": np.array([5, 2])},
    "accepted 0": {"accepted": np.array([0, 1])},
    "accepted past the verified": {"accepted": np.array([4, 1])},
    "accepted as floats": {"accepted": np.array([3.0, 1.0])},
    "accepted NaN": {"accepted": np.array([math.nan, 1.0])},
    "verified as floats": {"verified": np.array([2.0, 2.0])},
    "verified as truth values": {"verified": np.array([True, True])},
    "verified as text": {"verified": np.array(["2", "2"])},
    "fewer accepted": {"accepted": np.array([3])},
    "verified a number": {"verified": np.int64(2)},
    "verified a matrix": {"verified": np.array([[2, 2]]), "accepted": np.array([[3, 1]])},
    "verified ragged": {"verified": [[1], [1, 2]]},
    "measured NaN": {"measured_ms": math.nan},
    "measured infinite": {"measured_ms": math.inf},
    "measured negative": {"measured_ms": -1.0},
    "measured 0": {"measured_ms": 0.0},
    "measured as text": {"measured_ms": "fast"},
    "too few ids": {"request_ids": np.array([1])},
    "ids as floats": {"request_ids": np.array([1.5, math.nan])},
    "ids as text": {"request_ids": np.array(["a", "b"])},
    "confidence infinite": {"confidence": np.full((2, STEPS), math.inf)},
    "confidence negative beside NaN": {"confidence": np.array([[math.nan, -0.1, 0.5, 0.5]] * 2)},
    "confidence above 1": {"confidence": np.full((2, STEPS), 1.5)},
    "confidence below 0": {"confidence": np.full((2, STEPS), -0.5)},
    "confidence too narrow": {"confidence": np.full((2, STEPS - 1), 0.5)},
    "confidence of others": {"confidence": np.full((3, STEPS), 0.5)},
    "confidence as text": {"confidence": np.full((2, STEPS), "high")},
    "draft steps below 0": {"draft_steps": -1},
    "draft steps above K": {"draft_steps": STEPS + 1},
    "draft steps no whole number": {"draft_steps": 1.5},
    "draft steps as text": {"draft_steps": "2"},
    "draft steps a truth value": {"draft_steps": True},
    "more verified than proposed": {"verified": np.array([3, 2])},
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_feedback_is_refused_counted_and_changes_nothing(name: str) -> None:
    planner, twin = trained(), trained()
    with pytest.raises(FeedbackError):
        planner.observe(replace(good(), **BAD[name]))
    assert planner.counters.refused_feedback == 1
    assert planner.counters.observed == twin.counters.observed
    assert next_plans(planner) == next_plans(twin)


def test_the_same_feedback_without_the_fault_is_taken() -> None:
    planner = trained()
    planner.observe(good())
    assert planner.counters.refused_feedback == 0
    assert planner.counters.observed == trained().counters.observed + 1


@pytest.mark.parametrize("measured", [1e-300, 1e300, 1.7e308])
def test_a_time_beyond_all_reason_leaves_predictions_finite(measured: float) -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
    for _ in range(3):
        planner.observe(replace(good(), measured_ms=measured))
    for _ in range(400):
        planner.observe(good())
    plan = planner.plan(BatchView(2, np.array([2, 3])))
    assert math.isfinite(plan.predicted_ms)
    assert 2 <= plan.verify_rows <= 7


@pytest.mark.parametrize("made", [0, 1, STEPS])
def test_a_draft_that_ended_early_is_timed_by_the_steps_that_it_made(made: int) -> None:
    told, untold = (make_planner("lightspec", CPU, max_draft_steps=STEPS, drafter="serial_no_kv") for _ in range(2))
    ids, sure = np.arange(4), np.full((4, STEPS), 0.8)
    for _ in range(60):
        for planner, steps in ((told, made), (untold, None)):
            plan = planner.plan(BatchView(4, np.full(4, STEPS), 0, confidence=sure, request_ids=ids))
            assert plan.draft_steps > 1
            measured = CPU.target_ms(plan.verify_rows, 4, 0) + CPU.draft_ms(
                "serial_no_kv", 4, plan.verify_rows, made, block=STEPS
            )
            verified = np.full(4, (plan.verify_rows - 4) // 4)
            planner.observe(
                RoundFeedback(plan, verified, 1 + verified, sure, measured, request_ids=ids, draft_steps=steps)
            )

    def last(planner: Planner) -> Plan:
        return planner.plan(BatchView(4, np.zeros(4, dtype=np.int64), 0, request_ids=ids))

    assert last(told).predicted_ms == pytest.approx(last(told).table_ms, rel=1e-6)
    assert made == STEPS or last(untold).predicted_ms < 0.98 * last(untold).table_ms


def test_a_draft_that_ended_early_is_timed_by_its_own_plan_however_late_it_is_told() -> None:
    costs = CostModel.from_tables({64: {8: 5.0}, 8192: {8: 50.0}}, {64: {8: 1.0}, 8192: {8: 20.0}})
    planner = make_planner("lightspec", costs, max_draft_steps=STEPS, drafter="serial_no_kv")
    early = planner.plan(BatchView(2, np.zeros(2, dtype=np.int64), 64))
    assert early.draft_steps > 0
    planner.plan(BatchView(2, np.zeros(2, dtype=np.int64), 8192))
    planner.observe(RoundFeedback(early, np.zeros(2, int), np.ones(2, int), measured_ms=5.0, draft_steps=0))
    late = planner.plan(BatchView(2, np.zeros(2, dtype=np.int64), 64))
    assert late.predicted_ms == pytest.approx(late.table_ms)
    assert late.draft_steps > 0


def test_whole_numbers_of_any_width_are_taken() -> None:
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        planner = trained()
        planner.observe(replace(good(), verified=np.array([2, 2], dtype=dtype), accepted=np.array([3, 1], dtype=dtype)))
        assert planner.counters.refused_feedback == 0


def test_plain_lists_are_taken_as_arrays_are() -> None:
    planner, twin = trained(), trained()
    planner.observe(replace(good(), verified=[2, 2], accepted=[3, 1], request_ids=[1, 2]))  # type: ignore[arg-type]  # on purpose
    twin.observe(good())
    assert next_plans(planner) == next_plans(twin)


def test_feedback_of_no_requests_is_nothing() -> None:
    planner, twin = trained(), trained()
    none = np.zeros(0, dtype=np.int64)
    planner.observe(RoundFeedback(Plan(0, 0), none, none))
    assert next_plans(planner) == next_plans(twin)


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_feedback_may_come_late_out_of_step_twice_or_never(kind: DrafterKind, seed: int, data: st.DataObject) -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=STEPS, drafter=kind)
    pending: list[RoundFeedback] = []
    for round_ in wild_rounds(seed, 30, 5, STEPS, with_ids=True, with_confidence=True):
        plan = planner.plan(round_.view)
        assert round_.view.num_requests <= plan.verify_rows
        pending.append(round_.feedback(plan, by_plan(round_, plan), told=True))
        for _ in range(data.draw(st.integers(0, 2))):
            if pending:
                feedback = pending[data.draw(st.integers(0, len(pending) - 1))]
                planner.observe(feedback)
                if data.draw(st.booleans()):
                    pending.remove(feedback)
    assert planner.counters.refused_feedback == 0


def late_and_prompt(acceptance: float, num_rounds: int = 250) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Decisions of a planner that hears of rounds at once, and of one that hears a round later."""
    out = []
    for late in (False, True):
        planner = make_planner("lightspec", GPU, max_draft_steps=STEPS)
        rng = np.random.default_rng(7)
        pending: list[RoundFeedback] = []
        decisions = []
        proposed = np.zeros(8, dtype=np.int64)
        for _ in range(num_rounds):
            plan = planner.plan(BatchView(8, proposed, 300, request_ids=np.arange(8)))
            decisions.append((plan.verify_rows, plan.draft_steps))
            verified = np.minimum(proposed, (plan.verify_rows - 8) // 8)
            right = np.logical_and.accumulate(rng.random((8, STEPS)) < acceptance, axis=1).sum(axis=1)
            pending.append(RoundFeedback(plan, verified, 1 + np.minimum(right, verified), request_ids=np.arange(8)))
            proposed = np.full(8, plan.draft_steps)
            while len(pending) > int(late):
                planner.observe(pending.pop(0))
        out.append(decisions[-50:])
    return out[0], out[1]


def test_a_round_s_delay_leads_to_the_same_plans_in_the_end() -> None:
    prompt, late = late_and_prompt(0.9)
    assert np.mean(prompt, axis=0) == pytest.approx(np.mean(late, axis=0), rel=0.1)


def test_ids_that_come_and_go_take_bounded_memory() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=2)
    sizes = []
    proposed, verified, accepted = np.full(500, 2), np.ones(500, dtype=np.int64), np.full(500, 2)
    for start in range(0, 100_000, 500):
        ids = np.arange(start, start + 500)
        plan = planner.plan(BatchView(500, proposed, 300, request_ids=ids))
        planner.observe(RoundFeedback(plan, verified, accepted, request_ids=ids))
        if start in {50_000, 99_500}:
            sizes.append(reachable_bytes(planner))
    assert sizes[1] <= 1.15 * sizes[0]  # up to six rounds are held until they are taken in
    assert sizes[1] < 4_000_000


def test_a_batch_that_grows_beyond_the_table_of_requests_is_still_planned() -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=2)
    ids = np.arange(5000)
    for _ in range(3):
        plan = planner.plan(BatchView(5000, np.full(5000, 1), 300, request_ids=ids))
        planner.observe(RoundFeedback(plan, np.ones(5000, dtype=np.int64), np.full(5000, 2), request_ids=ids))
    assert plan.verify_rows >= 5000


def reachable_bytes(root: object) -> int:
    """Memory of everything an object holds on to, arrays included."""
    import sys

    seen: set[int] = set()
    stack: list[Any] = [root]
    total = 0
    grow: Callable[[Any], None] = stack.append
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type) or callable(item):
            continue
        seen.add(id(item))
        total += item.nbytes if isinstance(item, np.ndarray) else sys.getsizeof(item)
        if isinstance(item, dict):
            for key, value in item.items():
                grow(key)
                grow(value)
        elif isinstance(item, list | tuple | set) or type(item).__name__ == "deque":
            stack.extend(item)
        else:
            stack.extend(vars(item).values() if hasattr(item, "__dict__") else ())
            stack.extend(getattr(item, name) for name in getattr(type(item), "__slots__", ()) if hasattr(item, name))
    return total


def drafting(planner: Planner, rounds: int, acceptance: float, *, confident: bool, seed: int = 0) -> Plan:
    """The last plan of some rounds of 16 requests that have K drafts waiting, with true confidences or none."""
    rng, ids, plan = np.random.default_rng(seed), np.arange(16), Plan(0, 0)
    steps = planner.max_draft_steps
    for _ in range(rounds):
        sure = np.full((16, steps), acceptance) if confident else None
        plan = planner.plan(BatchView(16, np.full(16, steps), 300, confidence=sure, request_ids=ids))
        verified = select_rows(np.full(16, steps), plan.verify_rows, plan.survival)
        right = np.logical_and.accumulate(rng.random((16, steps)) < acceptance, axis=1).sum(axis=1)
        accepted = 1 + np.minimum(right, verified)
        planner.observe(RoundFeedback(plan, verified, accepted, confidence=sure, request_ids=ids))
    return plan


def test_a_host_that_stops_telling_confidences_is_planned_for_without_them() -> None:
    planner = make_planner("lightspec", CPU, max_draft_steps=4)
    assert drafting(planner, 60, 0.9, confident=True).verify_rows > 32
    assert drafting(planner, 200, 0.02, confident=False).verify_rows <= 24


def test_ids_may_come_and_go_from_round_to_round() -> None:
    for num_requests in (4, 64):
        planner = make_planner("lightspec", CPU, max_draft_steps=3)
        for round_number in range(40):
            ids = np.arange(num_requests) if round_number % 3 else None
            plan = planner.plan(BatchView(num_requests, np.full(num_requests, 3), 300, request_ids=ids))
            verified = np.full(num_requests, 1)
            planner.observe(RoundFeedback(plan, verified, verified, request_ids=ids))
        assert planner.counters.observed == 40


def test_a_probe_is_learned_from_though_no_trial_follows() -> None:
    planner = make_planner("lightspec", CPU, max_draft_steps=4)
    drafting(planner, 150, 0.02, confident=False)
    before = planner.plan(BatchView(16, np.full(16, 4), 300, request_ids=np.arange(16))).survival
    plan = Plan(0, 0)
    for round_number in range(40):
        plan = planner.plan(BatchView(16, np.full(16, 4), 300, request_ids=np.arange(16)))
        verified = np.full(16, 0 if round_number else 4)
        planner.observe(RoundFeedback(plan, verified, 1 + verified, request_ids=np.arange(16)))
    assert before is not None
    assert plan.survival is not None
    assert plan.survival.mean() > 1.5 * before.mean()


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (BatchView(1, np.ones(1, dtype=np.int64), np.nan), "context_tokens"),
        (BatchView(1, np.ones(1, dtype=np.int64), np.inf), "context_tokens"),
        (BatchView(1, np.ones(1, dtype=np.int64), 10, draft_backlog=-1), "draft_backlog"),
    ],
    ids=["nan", "inf", "backlog"],
)
def test_a_view_that_cannot_be_is_refused_and_the_next_is_planned(view: BatchView, message: str) -> None:
    planner = make_planner("lightspec", GPU, max_draft_steps=2)
    with pytest.raises(PlanError, match=message):
        planner.plan(view)
    assert planner.plan(BatchView(1, np.ones(1, dtype=np.int64), 10, draft_backlog=10**9)).verify_rows >= 1


def test_a_buffer_that_the_host_uses_again_does_not_change_what_was_learned() -> None:
    plans = []
    for reused in (False, True):
        planner = make_planner("lightspec", CPU, max_draft_steps=4)
        rng, buffer = np.random.default_rng(3), np.zeros((16, 4))
        for _ in range(60):
            sure = rng.uniform(0.1, 0.9, (16, 4))
            if reused:
                buffer[:] = sure
                sure = buffer
            plan = planner.plan(BatchView(16, np.full(16, 4), 300, request_ids=np.arange(16)))
            right = np.logical_and.accumulate(rng.random((16, 4)) < sure, axis=1).sum(axis=1)
            planner.observe(RoundFeedback(plan, np.full(16, 4), 1 + right, confidence=sure, request_ids=np.arange(16)))
        plans.append(planner.plan(BatchView(16, np.full(16, 4), 300, confidence=np.full((16, 4), 0.5))))
    assert plans[0].survival is not None
    assert plans[1].survival is not None
    assert plans[0].survival.tolist() == plans[1].survival.tolist()


@pytest.mark.parametrize("strategy", ["lightspec", "fixed", "dspark", "mean-ema"])
def test_feedback_fits_the_plan_although_the_host_has_written_the_next_proposals(strategy: str) -> None:
    planner, proposed = make_planner(strategy, GPU, max_draft_steps=4), np.full(4, 4)
    plan = planner.plan(BatchView(4, proposed, 100))
    proposed[:] = 1
    planner.observe(RoundFeedback(plan, np.full(4, 3), np.full(4, 2)))
    assert planner.counters.observed == 1


def test_counts_of_another_plan_are_copied() -> None:
    def taught(*, reused: bool) -> Plan:
        planner, ids = make_planner("lightspec", GPU, max_draft_steps=4), np.arange(80)
        for number in range(60):
            planner.plan(BatchView(80, np.full(80, 4), 300, request_ids=ids))
            verified = np.full(80, 1 + number % 4)
            planner.observe(RoundFeedback(Plan(80, 4), verified, np.full(80, 2), np.full((80, 4), 0.7), None, ids))
            verified[:] = 0 if reused else verified
        return planner.plan(BatchView(80, np.full(80, 4), 300, np.full((80, 4), 0.5), ids))

    plans = taught(reused=False), taught(reused=True)
    assert plans[0].survival is not None
    assert plans[1].survival is not None
    assert plans[0].survival.tolist() == plans[1].survival.tolist()


def test_confidences_of_another_batch_than_the_feedback_are_refused() -> None:
    planner, confidence = make_planner("lightspec", GPU, max_draft_steps=2), np.full((4, 2), 0.5)
    plan = planner.plan(BatchView(4, np.full(4, 2), 10, confidence))
    with pytest.raises(FeedbackError, match="confidence"):
        planner.observe(RoundFeedback(plan, np.full(3, 1), np.full(3, 2), confidence))
    assert planner.counters.refused_feedback == 1
