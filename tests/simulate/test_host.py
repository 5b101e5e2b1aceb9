"""The scenario as a host: its clock is the cost table, and a confidence is known when the scenario says."""

from __future__ import annotations

import numpy as np
import pytest

from lightspec_lightllm.decode import Round, select_rows
from lightspec_lightllm.errors import SlotError
from lightspec_lightllm.planner import DrafterKind, make_planner
from lightspec_lightllm.simulate.host import ScenarioHost
from tests.planner.worlds import KINDS
from tests.simulate.workloads import GPU_COSTS, plain, scenario, serve


@pytest.mark.parametrize("kind", KINDS)
def test_the_clock_is_the_true_cost_of_the_target_and_the_drafter(kind: DrafterKind) -> None:
    timed = plain(
        costs=GPU_COSTS | {"draft_start": {8: 1.0, 24: 2.0}},
        drafter={"kind": kind, "max_backlog": 10, "max_draft_steps": 4},
        classes={"only": {"acceptance": [0.7]}},
        segments=[{"rounds": 8, "mix": {"only": 1.0}}, {"rounds": 8, "mix": {"only": 1.0}, "cost_factor": 1.5}],
    )
    _, planner, records = serve(timed, steps=(4, 0, 0, 4))
    tables = timed.tables.model()
    for number, (view, record) in enumerate(zip(planner.views, records, strict=True)):
        factor = 1.5 if number >= 8 else 1.0
        rows, context = view.num_requests + int(record.verified.sum()), float(np.mean(view.context_tokens))
        assert 1e3 * record.seconds["target"] == pytest.approx(factor * tables.target_ms(rows, 16, context))
        draft = tables.draft_ms(kind, 16, rows, record.draft_steps, block=4, backlog=view.draft_backlog or 0)
        assert (draft > 1.5) == (record.draft_steps > 0 and kind != "free")
        assert 1e3 * record.seconds["draft"] == pytest.approx(factor * draft)
        assert record.seconds["plan"] == record.seconds["schedule"] == record.seconds["commit"] == 0.0
    backlogs = [view.draft_backlog for view in planner.views]
    if kind in ("serial", "chained", "block"):
        skipped = int(records[1].committed.sum())
        assert backlogs[2] == skipped
        assert backlogs[3] == int(np.minimum(records[1].committed + records[2].committed, 10).sum())
        assert backlogs[4] == 0
    else:
        assert set(backlogs) == {0}


def test_noise_of_costs_has_the_configured_size_and_is_the_same_for_all() -> None:
    noisy = plain(cost_noise=0.1, rounds=400)
    times = []
    for steps in ((0,), (4,)):
        _, _, records = serve(noisy, steps=steps)
        exact = [noisy.tables.model().target_ms(r.num_requests + int(r.verified.sum()), 16, 0.0) for r in records]
        times.append(np.log([1e3 * r.seconds["target"] for r in records]) - np.log(exact))
    assert np.std(times[0]) == pytest.approx(0.1, rel=0.15)
    assert times[0] == pytest.approx(times[1])


def test_a_live_confidence_is_in_the_view_and_a_late_one_in_the_feedback_alone() -> None:
    for when, in_view, in_feedback in (("live", True, True), ("late", False, True), ("none", False, False)):
        _, planner, records = serve(plain(noise=1.0, rounds=5).varied(confidence=when), steps=(4,), ranks=True)
        assert all((view.confidence is not None) is in_view for view in planner.views)
        assert all((feedback.confidence is not None) is in_feedback for feedback in planner.feedbacks)
        assert all((record.confidence is not None) is in_feedback for record in records)


def test_where_the_confidence_is_late_the_host_takes_the_likeliest_rows() -> None:
    late = plain(spread=0.8, noise=1.5, rounds=30).varied(confidence="late")
    _, planner, records = serve(late, steps=(4,), share=0.5, ranks=True)
    differing = 0
    for feedback, record in zip(planner.feedbacks, records, strict=True):
        assert feedback.confidence is not None
        survival = np.asarray(np.cumprod(feedback.confidence, axis=1))
        rows = feedback.plan.verify_rows
        assert (record.verified == select_rows(record.drafted, rows, survival)).all()
        differing += bool((record.verified != select_rows(record.drafted, rows)).any())
    assert differing > 20


def test_a_host_that_is_not_to_rank_takes_rows_as_the_plan_says() -> None:
    late = plain(spread=0.8, noise=1.5, rounds=10).varied(confidence="late")
    _, planner, records = serve(late, steps=(4,), share=0.5)
    for feedback, record in zip(planner.feedbacks, records, strict=True):
        assert (record.verified == select_rows(record.drafted, feedback.plan.verify_rows)).all()


@pytest.mark.parametrize("strategy", ["lightspec", "mean-ema", "dspark", "fixed:2", "off"])
@pytest.mark.parametrize("when", ["live", "late", "none"])
def test_every_strategy_runs_on_it_without_falling_back(strategy: str, when: str) -> None:
    lively = scenario().varied(confidence=when)
    for kind in KINDS:
        varied = lively.varied(kind=kind)
        host = ScenarioHost(varied, 0, ranks=True)
        planner = make_planner(strategy, varied.tables.model(), max_draft_steps=4, drafter=kind)
        loop = Round(host, planner)
        for _ in range(varied.num_rounds):
            loop.step()
            host.check_slots()
        assert loop.counters.fallback is None, loop.counters.fallback
        assert loop.counters.num_refused_feedback == 0


def test_a_slot_owned_twice_is_found() -> None:
    host = ScenarioHost(plain(), 0)
    host.schedule()
    host.check_slots()
    host.world.slots[1] = host.world.slots[0]
    with pytest.raises(SlotError):
        host.check_slots()
