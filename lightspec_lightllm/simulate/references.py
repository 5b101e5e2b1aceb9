"""What the oracle arms are set to: the best static settings and the optimum's price of time, found by running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.decode import Round
from lightspec_lightllm.planner import Planner, make_planner
from lightspec_lightllm.planner.steps import legal_steps
from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.oracles import ClairvoyantPlanner, OptimumPlanner, Setting, StaticPlanner
from lightspec_lightllm.simulate.runner import run
from lightspec_lightllm.simulate.scenario import Scenario

SETTLE_ROUNDS = 4
"""Rounds of a run that are not rated: the first drafts are yet to be made."""

PRICE_ITERATIONS = 3
POOL_STRIDE = 5
SHORTLIST = 5
FRACTION = 0.125
"""Budgets per request that are compared are this far apart; the tiers of the costs besides."""

MakePlanner = Callable[[ScenarioHost], Planner]


@dataclass(frozen=True, slots=True)
class Pool:
    """Drafts of some rounds of a segment.

    Attributes:
        rounds: (survival, told survival) of each round, float[N, K], and drafts that the drafter makes, int[N].
        context: mean context of its requests.
    """

    rounds: tuple[tuple[FloatArray, FloatArray, IntArray], ...]
    context: float


def trial_rate(scenario: Scenario, seed: int, make: MakePlanner, *, drawn: bool = False) -> float:
    """Tokens per second of a planner on a scenario."""
    host = ScenarioHost(scenario, seed)
    return run(host, make(host), scenario.num_rounds).after(SETTLE_ROUNDS).rate(drawn=drawn)


def solve_price(scenario: Scenario, seed: int, *, clairvoyant: bool = False) -> float:
    """Lambda of one segment, tokens per millisecond: the rate that planning with it reaches (W. Dinkelbach, 1967).

    Args:
        scenario: of one segment.
    """
    steps = scenario.drafter.max_draft_steps
    off = make_planner("off", scenario.tables.model(), max_draft_steps=steps, drafter=scenario.drafter.kind)
    price = 1e-3 * trial_rate(scenario, seed, lambda _: off)
    oracle = ClairvoyantPlanner if clairvoyant else OptimumPlanner
    for _ in range(PRICE_ITERATIONS):
        current = price
        reached = 1e-3 * trial_rate(scenario, seed, lambda host: oracle(host, [current]), drawn=clairvoyant)  # noqa: B023
        price = max(price, reached)
        if reached <= 1.001 * current:
            break
    return price


def sample_pool(scenario: Scenario, seed: int, price: float | None) -> Pool:
    """Drafts that the optimum meets in one segment; without a price, those that the most fixed steps meet."""
    host = ScenarioHost(scenario, seed)
    most = scenario.drafter.max_draft_steps
    everything = StaticPlanner(host, [Setting(most, most)])
    loop = Round(host, everything if price is None else OptimumPlanner(host, [price]))
    # An outcome tells less than a probability: there every round counts.
    stride = 1 if price is None else POOL_STRIDE
    rounds, contexts = [], []
    for number in range(scenario.num_rounds):
        record = loop.step()
        if record is not None and number >= SETTLE_ROUNDS and number % stride == 0:
            drafts = host.world.drafts
            rounds.append((drafts.survival, np.asarray(np.cumprod(drafts.told, axis=1)), drafts.available))
            contexts.append(record.context_tokens / record.num_requests)
    return Pool(tuple(rounds), float(np.mean(contexts)))


def best_setting(scenario: Scenario, pools: Sequence[Pool], seeds: Sequence[int], *, ranked: bool) -> Setting:
    """The static setting of the highest mean rate: all are compared on pools of drafts, the best of them by runs.

    Args:
        scenario: of one segment.
        ranked: rows are taken by the live confidence, else breadth-first.
    """
    by_rate = sorted(scan(scenario, pools, ranked=ranked), key=lambda pair: -pair[0])
    # Where drafting is free, the same budget is the same setting whatever the steps: the fewest stand for all.
    distinct = {(rate, setting.budget): setting for rate, setting in reversed(by_rate)}
    shortlist = list(distinct.values())[::-1][:SHORTLIST]

    def mean_rate(setting: Setting) -> float:
        make: MakePlanner = lambda host: StaticPlanner(host, [setting], ranked=ranked)  # noqa: E731
        return float(np.mean([trial_rate(scenario, seed, make) for seed in seeds]))

    return max(shortlist, key=mean_rate)


def scan(scenario: Scenario, pools: Sequence[Pool], *, ranked: bool) -> list[tuple[float, Setting]]:
    """The best two budgets of every legal d with the rate that the pools' drafts give them."""
    drafter, costs = scenario.drafter, scenario.tables.model(scenario.segments[0].cost_factor)
    found = []
    for steps in legal_steps(drafter.kind, drafter.max_draft_steps):
        budgets = _budgets(scenario, pools, steps)
        tokens, time = np.zeros(len(budgets)), np.zeros(len(budgets))
        for pool in pools:
            for survival, told, available in pool.rounds:
                num_requests = len(survival)
                made = np.arange(steps) < available[:, None]
                held, key = survival[:, :steps], told[:, :steps]
                gained = held[made][np.argsort(-key[made], kind="stable")] if ranked else held.T[made.T]
                gain = np.concatenate(([0.0], np.cumsum(gained)))
                drafted = np.count_nonzero(available)
                extra = np.minimum((budgets * drafted + 1e-9).astype(np.int64), len(gained))
                if costs.max_rows is not None:
                    extra = np.clip(extra, 0, max(0, costs.max_rows - num_requests))
                tokens += num_requests + gain[extra]
                time += [
                    costs.target_ms(num_requests + e, num_requests, pool.context)
                    + costs.draft_ms(
                        drafter.kind,
                        num_requests,
                        num_requests + e,
                        steps,
                        block=drafter.max_draft_steps,
                        context=pool.context,
                    )
                    for e in extra.tolist()
                ]
        rates = tokens / time
        found += [(float(rates[at]), Setting(steps, float(budgets[at]))) for at in np.argsort(-rates)[:2]]
    return found


def _budgets(scenario: Scenario, pools: Sequence[Pool], steps: int) -> FloatArray:
    """Drafts per request worth comparing: an even grid, and where the batch fills a tier of the target."""
    grid = np.arange(0.0, steps + FRACTION / 2, FRACTION)
    sizes = {len(survival) for pool in pools for survival, _, _ in pool.rounds}
    if len(sizes) > 4:  # a batch that wanders meets no tier twice
        return np.asarray(grid)
    edges = [(rows - n) / n for n in sizes for rows in scenario.tables.model().target.rows.tolist()]
    return np.unique(np.concatenate((grid, [edge for edge in edges if 0 <= edge <= steps])))
