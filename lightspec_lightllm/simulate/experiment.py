"""Arms times seeds on the variants of a scenario."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from lightspec_lightllm.simulate.arms import References, expand, find_references, make_arm, plans
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.options import FREE, SimulateOptions
from lightspec_lightllm.simulate.replay import check_trace
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import Scenario
from lightspec_lightllm.simulate.trace import Trace


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant of a scenario and the runs on it.

    Attributes:
        scenario: the variant.
        arms: those that ran, in their order.
        references: what the oracles were set to.
        traces: by arm and seed.
    """

    scenario: Scenario
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    references: References
    traces: dict[tuple[str, int], Trace]

    @property
    def label(self) -> str:
        """What tells variants apart."""
        drafter, counts = self.scenario.drafter, []
        for segment in range(len(self.scenario.segments)):
            count = self.scenario.requests_in(segment).count
            counts.append(f"{count}" if isinstance(count, int) else f"{count[0]}..{count[1]}")
        return f"N {', '.join(dict.fromkeys(counts))}, {drafter.kind} K {drafter.max_draft_steps}"


def variants(scenario: Scenario, options: SimulateOptions) -> list[Scenario]:
    """Every combination of the numbers that options vary.

    Raises:
        ConfigError: one of them is out of range, or not what a trace has.
    """
    varied = [
        scenario.varied(
            kind=kind,
            max_draft_steps=steps,
            count=count,
            confidence=options.confidence,
            rounds=options.rounds,
        )
        for kind, steps, count in itertools.product(
            options.kinds or (None,), options.max_draft_steps or (None,), options.counts or (None,)
        )
    ]
    for variant in varied:
        check_trace(variant)
    return varied


def run_cell(scenario: Scenario, options: SimulateOptions, report: Callable[[str], None]) -> Cell:
    """Run every arm on every seed of one variant."""
    arms = expand(options.arms, scenario)
    references = find_references(scenario, arms, options.seeds, rounds=options.search_rounds, report=report)
    traces = {}
    for seed in options.seeds:
        for arm in arms:
            report(f"{arm}, seed {seed}")
            host = ScenarioHost(scenario, seed, ranks=plans(arm))
            planner = make_arm(arm, host, references, seed)
            charged, delay = (options.plan_time, scenario.feedback_delay) if plans(arm) else (FREE, 0)
            traces[arm, seed] = run(host, planner, scenario.num_rounds, plan_time=charged, delay=delay)
    return Cell(scenario, arms, options.seeds, references, traces)
