"""What competes on a scenario, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import Planner, make_planner
from lightspec_lightllm.planner.steps import legal_steps
from lightspec_lightllm.plugins import InstalledStrategies
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.oracles import ClairvoyantPlanner, OptimumPlanner, Setting, StaticPlanner
from lightspec_lightllm.simulate.references import best_setting, sample_pool, solve_price
from lightspec_lightllm.simulate.scenario import Scenario

OFF, STATIC, RANKED, OPTIMUM, CLAIRVOYANT = "off", "static", "static+ranking", "optimum", "clairvoyant"
ORACLES = (STATIC, RANKED, OPTIMUM, CLAIRVOYANT)


def is_static(arm: str) -> bool:
    """Whether an arm is a fixed server's."""
    return arm in (OFF, STATIC, RANKED) or arm.startswith("fixed:")


def plans(arm: str) -> bool:
    """Whether an arm is a real planner, whose time is charged."""
    return arm not in ORACLES and not is_static(arm)


def expand(arms: Sequence[str], scenario: Scenario) -> tuple[str, ...]:
    """The arms that a scenario can run, ``fixed`` written out.

    Raises:
        ConfigError: there is no such arm.
    """
    drafter, out = scenario.drafter, list[str]()
    for arm in arms:
        if arm == "fixed":
            out += [f"fixed:{steps}" for steps in legal_steps(drafter.kind, drafter.max_draft_steps) if steps]
        elif arm in ORACLES:
            out.append(arm)
        else:
            try:
                _planner(arm, scenario)
            except ConfigError as error:
                raise ConfigError(f"--arms: {error}; or one of fixed, {', '.join(ORACLES)}") from None
            out.append(arm)
    return tuple(dict.fromkeys(arm for arm in out if not skipped(arm, scenario)))


def skipped(arm: str, scenario: Scenario) -> str | None:
    """Why a scenario cannot run an arm, or None."""
    if arm == RANKED and scenario.drafter.confidence == "none":
        return "the drafter tells no confidence to take rows by"
    if arm == OPTIMUM and scenario.trace_file is not None:
        return "a trace says which drafts were right, not how likely each was: what could be known is not"
    return None


@dataclass(frozen=True, slots=True)
class References:
    """What oracles are set to.

    Attributes:
        static: best setting of each segment, rows taken breadth-first.
        ranked: the same, rows taken by confidence.
        prices: by arm and seed, lambda of each segment.
    """

    static: tuple[Setting, ...]
    ranked: tuple[Setting, ...]
    prices: Mapping[tuple[str, int], tuple[float, ...]]


def find_references(
    scenario: Scenario, arms: Sequence[str], seeds: Sequence[int], *, rounds: int, report: Callable[[str], None]
) -> References:
    """Search what the oracles among ``arms`` need, each segment by itself.

    Args:
        rounds: of each trial run.
    """
    alone = [scenario.only(segment, rounds) for segment in range(len(scenario.segments))]
    prices: dict[tuple[str, int], tuple[float, ...]] = {}
    settings = [arm for arm in (STATIC, RANKED) if arm in arms]
    for arm in (OPTIMUM, CLAIRVOYANT):
        if arm in arms or (arm == OPTIMUM and settings and not skipped(arm, scenario)):
            for seed in seeds:
                report(f"price of time, {arm}, seed {seed}")
                prices[arm, seed] = tuple(solve_price(s, seed, clairvoyant=arm == CLAIRVOYANT) for s in alone)

    def price_of(seed: int, segment: int) -> float | None:
        return prices[OPTIMUM, seed][segment] if (OPTIMUM, seed) in prices else None

    found: dict[str, tuple[Setting, ...]] = {STATIC: (), RANKED: ()}
    if settings:
        report("drafts to compare static settings on")
        pools = [[sample_pool(s, seed, price_of(seed, at)) for seed in seeds] for at, s in enumerate(alone)]
        for arm in settings:
            report(f"best setting of {arm}")
            found[arm] = tuple(best_setting(s, pools[at], seeds, ranked=arm == RANKED) for at, s in enumerate(alone))
    return References(found[STATIC], found[RANKED], prices)


def make_arm(arm: str, host: ScenarioHost, references: References, seed: int) -> Planner:
    """The planner of an arm; real ones are given the scenario's tables, not what a segment makes of them."""
    scenario = host.scenario
    if arm == STATIC:
        return StaticPlanner(host, references.static)
    if arm == RANKED:
        return StaticPlanner(host, references.ranked, ranked=True)
    if arm == OPTIMUM:
        return OptimumPlanner(host, references.prices[arm, seed])
    if arm == CLAIRVOYANT:
        return ClairvoyantPlanner(host, references.prices[arm, seed])
    return _planner(arm, scenario)


def _planner(arm: str, scenario: Scenario) -> Planner:
    drafter = scenario.drafter
    return make_planner(
        arm,
        scenario.tables.model(),
        max_draft_steps=drafter.max_draft_steps,
        drafter=drafter.kind,
        registered=InstalledStrategies(),
    )
