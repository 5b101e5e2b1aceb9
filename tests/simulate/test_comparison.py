"""What the numbers of a table mean, on runs that are written down."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.errors import ConfigError, PlanError
from lightspec_lightllm.planner import BatchView, Plan
from lightspec_lightllm.simulate.arms import References
from lightspec_lightllm.simulate.comparison import ADAPTED, BEST_STATIC, adapt_rounds, best_static, summaries
from lightspec_lightllm.simulate.experiment import Cell
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.options import PlanTime, SimulateOptions
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.trace import Trace
from tests.simulate.workloads import Scripted, plain, scenario

ROUNDS = (40, 60)


def trace(rates: list[float], *, charged_ms: float = 0.0) -> Trace:
    """Rounds of 1 ms with so many expected tokens in each."""
    segment = np.repeat([0, 1], ROUNDS)
    ones = np.ones(len(segment))
    return Trace(
        segment=segment,
        num_requests=np.full(len(segment), 100),
        fresh=(np.arange(len(segment)) % 4 == 0).astype(np.int64),
        rows=np.full(len(segment), 300),
        steps=np.full(len(segment), 3),
        tokens=np.array(rates, dtype=np.int64),
        expected=np.array(rates),
        ms=ones,
        plan_us=100 * np.arange(1.0, len(segment) + 1),
        charged_ms=charged_ms * ones,
    )


def levels(first: float, second: float) -> list[float]:
    return [first] * ROUNDS[0] + [second] * ROUNDS[1]


def cell(**arms: Trace) -> Cell:
    two = plain(
        segments=[{"rounds": rounds, "mix": {"only": 1.0}} for rounds in ROUNDS],
    )
    names = {arm.replace("fixed_", "fixed:"): made for arm, made in arms.items()}
    nothing = References((), (), {})
    return Cell(two, tuple(names), (0,), nothing, {(arm, 0): made for arm, made in names.items()})


def test_rates_are_tokens_per_second_and_planning_counts_as_time() -> None:
    assert trace(levels(5.0, 5.0)).rate() == pytest.approx(5000.0)
    assert trace(levels(5.0, 5.0), charged_ms=0.25).rate() == pytest.approx(4000.0)


def test_the_best_static_arm_is_chosen_in_each_segment() -> None:
    found = cell(
        off=trace(levels(2.0, 2.0)),
        fixed_1=trace(levels(3.0, 1.0)),
        lightspec=trace(levels(9.0, 9.0)),
        optimum=trace(levels(9.0, 9.0)),
    )
    assert best_static(found) == ("fixed:1", "off")
    line = next(line for line in summaries(found) if line.arm == "off")
    # In the time that 2 x 40 and 2 x 60 tokens took, the best would have needed 80 / 3 and 120 / 2 ms.
    assert line.to[BEST_STATIC].median == pytest.approx((80 / 3 + 60) / 100)
    assert line.to["off"].median == pytest.approx(1.0)
    assert line.regret == pytest.approx(1 - 200 / 9 / 100)


def test_a_summary_says_what_the_arm_did() -> None:
    found = cell(lightspec=trace(levels(4.0, 6.0)), off=trace(levels(2.0, 2.0)))
    line = summaries(found)[0]
    assert line.regret is None
    assert (line.rows, line.steps, line.fresh_rounds) == (3.0, 3.0, 0.25)
    assert line.accept_length == pytest.approx((160 + 360) / 10_000)
    assert [rate.median for rate in line.segment_rates] == [4000.0, 6000.0]
    assert (line.plan_us_p50, line.plan_us_p99) == pytest.approx((5050.0, 9901.0))
    assert line.plan_share == 0.0
    assert summaries(cell(lightspec=trace(levels(4.0, 6.0), charged_ms=0.25)))[0].plan_share == pytest.approx(0.2)
    assert summaries(found)[1].plan_us_p99 == 0.0  # a fixed server does not plan


@pytest.mark.parametrize(("slow", "dip"), [(0, None), (30, None), (10, 35)])
def test_an_arm_has_adapted_once_its_rate_stays_near_the_optimum(slow: int, dip: int | None) -> None:
    rates = levels(10.0, 20.0)
    for number in range(slow):
        rates[40 + number] = 5.0
    if dip is not None:
        rates[40 + dip] = 0.0
    found = cell(lightspec=trace(rates), optimum=trace(levels(10.0, 20.0)))
    (adapted,) = adapt_rounds(found, "lightspec")
    assert adapted is not None
    window = np.array(rates[40:])
    width = 20
    after = [window[start : start + width].mean() for start in range(adapted, 60 - width + 1)]
    assert min(after) >= ADAPTED * 20.0
    assert adapted == 0 or window[adapted - 1 : adapted - 1 + width].mean() < ADAPTED * 20.0
    assert adapt_rounds(found, "optimum") == (0,)


def test_an_arm_that_never_adapts_is_said_to_and_without_the_optimum_nothing_is() -> None:
    found = cell(off=trace(levels(1.0, 1.0)), optimum=trace(levels(10.0, 20.0)))
    assert adapt_rounds(found, "off") == (None,)
    assert adapt_rounds(cell(off=trace(levels(1.0, 1.0))), "off") == ()


def test_plan_time_is_charged_as_asked_and_the_planner_is_told_nothing() -> None:
    def run_with(plan_time: PlanTime) -> tuple[Trace, Scripted]:
        small = plain(rounds=20)
        planner = Scripted(small, (2,))
        return run(ScenarioHost(small, 0), planner, 20, plan_time=plan_time), planner

    free, planner = run_with(PlanTime(0.0))
    dear, same = run_with(PlanTime(500.0))
    measured, _ = run_with(PlanTime())
    assert free.total_ms == pytest.approx(free.ms.sum())
    assert dear.total_ms == pytest.approx(free.total_ms + 20 * 0.5)
    assert (measured.charged_ms > 0).all()
    assert measured.charged_ms == pytest.approx(1e-3 * measured.plan_us)
    told = [[f.measured_ms for f in p.feedbacks] for p in (planner, same)]
    assert told[0] == told[1]


def test_what_planning_is_charged_can_be_written_in_three_ways() -> None:
    assert PlanTime.parse("measured") == PlanTime(None)
    assert PlanTime.parse("none") == PlanTime(0.0)
    assert PlanTime.parse("150") == PlanTime(150.0)
    for text in ("-1", "nan", "inf", "soon"):
        with pytest.raises(ConfigError, match="--plan-time: expected measured, none or microseconds"):
            PlanTime.parse(text)


def test_a_planner_that_fails_ends_the_run_with_its_reason() -> None:
    class Broken(Scripted):
        def plan(self, view: BatchView) -> Plan:
            raise RuntimeError("lost")

    small = plain(rounds=5)
    with pytest.raises(PlanError, match="the planner failed: RuntimeError: lost"):
        run(ScenarioHost(small, 0), Broken(small, (1,)), 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ()}, "--arms: expected at least one"),
        ({"seeds": ()}, "at least one seed"),
        ({"search_rounds": 3}, "expected 10 to 1000000"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimulateOptions(**options)


def test_new_requests_are_counted_once() -> None:
    busy = scenario(requests__pauses=0.2)
    made = run(ScenarioHost(busy, 0), Scripted(busy, (2,)), busy.num_rounds)
    assert made.fresh[0] == 6
    assert made.fresh.sum() > 10
    assert made.fresh.sum() < made.num_requests.sum() / 3


def test_few_requests_are_smoothed_over_more_rounds() -> None:
    def adapted(num_requests: int) -> int | None:
        rates = levels(10.0, 20.0)
        rates[40 + 22] = rates[40 + 23] = 6.0  # costs 7 % of a window of 20 rounds and 4.7 % of one of 30
        arms = {"lightspec": trace(rates), "optimum": trace(levels(10.0, 20.0))}
        few = {arm: dataclasses.replace(t, num_requests=np.full(100, num_requests)) for arm, t in arms.items()}
        return adapt_rounds(cell(**few), "lightspec")[0]

    assert adapted(1000) == 23
    assert adapted(4) == 0
