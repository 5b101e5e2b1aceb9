"""Planners by name: the ones that are built in, and those that others register."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.dspark import DsparkPlanner
from lightspec_lightllm.planner.fixed import FixedOptions, FixedPlanner
from lightspec_lightllm.planner.hybrid import HybridOptions, HybridPlanner
from lightspec_lightllm.planner.lightspec import LightspecPlanner
from lightspec_lightllm.planner.mean_ema import MeanEmaPlanner
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS, PlannerOptions, read_options
from lightspec_lightllm.planner.types import DrafterKind, Planner


class StrategyFactory(Protocol):
    """Makes planners of a strategy that is not built in.

    It raises ConfigError for an option that it does not know or a value that it cannot use.
    """

    def __call__(
        self, costs: CostModel, /, *, max_draft_steps: int, drafter: DrafterKind, **options: Any
    ) -> Planner: ...


Registered = Mapping[str, StrategyFactory]
"""Strategies that are not built in, by name. Read only when a name is not that of a built-in one."""

NONE_REGISTERED: Registered = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """A strategy and what it is given.

    Attributes:
        strategy: a name, or ``fixed:3``.
        options: by name; what there are is up to the strategy.
    """

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of a strategy that has none."""


class _Setup(NamedTuple):
    """What every planner is made from."""

    costs: CostModel
    max_draft_steps: int
    drafter: DrafterKind
    registered: Registered


def _lightspec(setup: _Setup, options: PlannerOptions) -> Planner:
    costs, steps, drafter, _ = setup
    return LightspecPlanner(costs, max_draft_steps=steps, drafter=drafter, options=options)


def _fixed(setup: _Setup, options: FixedOptions) -> Planner:
    costs, steps, drafter, _ = setup
    return FixedPlanner(costs, max_draft_steps=steps, drafter=drafter, steps=options.steps)


def _off(setup: _Setup, options: NoOptions) -> Planner:  # noqa: ARG001 - as all the others
    return _fixed(setup, FixedOptions(0))


def _mean_ema(setup: _Setup, options: NoOptions) -> Planner:  # noqa: ARG001
    costs, steps, drafter, _ = setup
    return MeanEmaPlanner(costs, max_draft_steps=steps, drafter=drafter)


def _dspark(setup: _Setup, options: NoOptions) -> Planner:  # noqa: ARG001
    costs, steps, drafter, _ = setup
    return DsparkPlanner(costs, max_draft_steps=steps, drafter=drafter)


def _hybrid(setup: _Setup, options: HybridOptions) -> Planner:
    costs, steps, drafter, registered = setup

    def make(part: Any) -> Planner:
        choice = read_choice(part)
        return make_planner(
            choice.strategy, costs, max_draft_steps=steps, drafter=drafter, registered=registered, **choice.options
        )

    planners = [make(part) for part in options.planners]
    return HybridPlanner(costs, max_draft_steps=steps, drafter=drafter, planners=planners, options=options)


BUILT_IN: Mapping[str, tuple[type[Any], Callable[[_Setup, Any], Planner]]] = MappingProxyType(
    {
        "lightspec": (PlannerOptions, _lightspec),
        "mean-ema": (NoOptions, _mean_ema),
        "dspark": (NoOptions, _dspark),
        "hybrid": (HybridOptions, _hybrid),
        "fixed": (FixedOptions, _fixed),
        "off": (NoOptions, _off),
    }
)
"""The strategies that are built in: the options of each, and how it is made."""


def make_planner(
    strategy: str,
    costs: CostModel,
    *,
    max_draft_steps: int,
    drafter: DrafterKind = "serial",
    registered: Registered = NONE_REGISTERED,
    **options: Any,
) -> Planner:
    """Make a planner.

    Args:
        strategy: ``lightspec``; ``fixed`` (option ``steps``, or written ``fixed:3``) or ``off``; ``hybrid``, a switch
            between others; to compare with, ``mean-ema`` and ``dspark``; or one that is registered.
        costs: what rounds cost.
        max_draft_steps: K, 1..15.
        drafter: how the drafter's time grows, see `costs.draft_terms`.
        registered: strategies that are not built in.
        options: of the strategy: the fields of `PlannerOptions`, `FixedOptions` or `HybridOptions`.

    Raises:
        ConfigError: an unknown strategy or option, or a value out of range.
    """
    name, given = _split(strategy, options, max_draft_steps)
    if drafter not in get_args(DrafterKind):
        raise ConfigError(f"drafter: expected one of {', '.join(get_args(DrafterKind))}, got {drafter!r}")
    if name not in BUILT_IN:
        return _registered(name, registered)(costs, max_draft_steps=max_draft_steps, drafter=drafter, **given)
    owner, make = BUILT_IN[name]
    with _Named(name):
        return make(_Setup(costs, max_draft_steps, drafter, registered), read_options(owner, given))


def check_options(choice: StrategyChoice, max_draft_steps: int, registered: Registered = NONE_REGISTERED) -> None:
    """Check what can be told of a strategy before there are costs and a drafter.

    Raises:
        ConfigError: as `make_planner`; of a registered strategy, its options' names are checked, not their values.
    """
    name, given = _split(choice.strategy, choice.options, max_draft_steps)
    if name not in BUILT_IN:
        factory = _registered(name, registered)
        try:
            inspect.signature(factory).bind(None, max_draft_steps=max_draft_steps, drafter="serial", **given)
        except TypeError as error:
            raise ConfigError(f"strategy {name!r}: {error}") from None
        return
    with _Named(name):
        options = read_options(BUILT_IN[name][0], given)
        if isinstance(options, FixedOptions) and not 0 <= options.steps <= max_draft_steps:
            raise ConfigError(f"steps: expected 0..{max_draft_steps}, got {options.steps}")
        for part in options.planners if isinstance(options, HybridOptions) else ():
            check_options(read_choice(part), max_draft_steps, registered)


def read_choice(part: Any) -> StrategyChoice:
    """A strategy as a name, as a mapping of ``strategy`` and ``options``, or as what this returns.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(part, StrategyChoice):
        return part
    if isinstance(part, str):
        return StrategyChoice(part)
    expected = "expected the name of a strategy, or a mapping of strategy and options"
    if (
        not isinstance(part, Mapping)
        or not isinstance(part.get("strategy"), str)
        or set(part) - {"strategy", "options"}
    ):
        raise ConfigError(f"{expected}, got {part!r}")
    options = part.get("options", {})
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(f"options: expected a mapping of names to values, got {options!r}")
    return StrategyChoice(part["strategy"], dict(options))


def _split(strategy: str, options: Mapping[str, Any], max_draft_steps: int) -> tuple[str, dict[str, Any]]:
    """The name and the options of a strategy; of ``fixed``, those that its name says or implies too."""
    name, colon, argument = strategy.partition(":")
    given = dict(options)
    if not _is_count(max_draft_steps):
        raise ConfigError(f"max_draft_steps: expected 1..{MAX_DRAFT_STEPS}, got {max_draft_steps!r}")
    if colon:
        if name != "fixed" or not argument.isdecimal():
            raise ConfigError(f"strategy: expected a name, or fixed: with a number of steps, got {strategy!r}")
        if "steps" in given:
            raise ConfigError(f"strategy: {strategy!r} says how many steps, expected no option 'steps' besides")
        given["steps"] = int(argument)
    if name == "fixed":
        given.setdefault("steps", max_draft_steps)
    return name, given


def _is_count(value: object) -> bool:
    """Whether it is a whole number that draft steps may be."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= int(value) <= MAX_DRAFT_STEPS


def _registered(name: str, registered: Registered) -> StrategyFactory:
    if name not in registered:
        known = [*BUILT_IN, *sorted(registered)]
        raise ConfigError(f"strategy: expected one of {', '.join(known)}, or fixed:3 for 3 steps; got {name!r}")
    return registered[name]


class _Named:
    """Says in a ConfigError which strategy it is about."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConfigError):
            raise ConfigError(f"strategy {self._name!r}: {error}") from None
