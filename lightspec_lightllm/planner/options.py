"""The knobs of the ``lightspec`` strategy, and how the options of any strategy are read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from typing import Any, TypeVar, get_type_hints

from lightspec_lightllm.errors import ConfigError

T = TypeVar("T")

MAX_DRAFT_STEPS = 15
"""The largest K: a request's rows must fit the 16 that LightLLM's verification kernels take."""


LEAST_PRIOR = 1e-6
"""Bound of the acceptance assumed at first, and of its distance from 1: its odds must be numbers to reckon with."""


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Parameters of the acceptance estimator and of the search.

    A *trial* is one draft that was verified after all before it were accepted; a trial at acceptance q carries
    q (1 - q) of Fisher information on its log-odds, about 0.2.

    Attributes:
        prior_acceptance: acceptance assumed before the first trial, in 1e-6..1 - 1e-6. Optimistic, so that drafting
            is tried.
        memory_trials: trials after which an acceptance statistic has forgotten 1 - 1/e of the past.
        request_memory_trials: the same for the offset of one request.
        request_prior_trials: trials that pull a request's offset towards the batch; larger trusts requests less.
        pace_rounds: rounds over which the running tokens per second (the price of time) are averaged.
        probe_rounds: rounds without any trial before one is made on purpose; doubles while probes do not pay.
        probe_cost: share of time that probes may take, in (0, 1); some times as much while little is known.
        steps_margin: relative gain in a round's value that a change of the draft steps must bring.
        drift: correct the costs by the measured time of served rounds, as a whole and by number of rows.
    """

    prior_acceptance: float = 0.7
    memory_trials: float = 400.0
    request_memory_trials: float = 80.0
    request_prior_trials: float = 12.0
    pace_rounds: float = 48.0
    probe_rounds: int = 24
    probe_cost: float = 0.005
    steps_margin: float = 0.003
    drift: bool = True

    def __post_init__(self) -> None:
        checks = {
            "prior_acceptance": LEAST_PRIOR <= self.prior_acceptance <= 1 - LEAST_PRIOR,
            "memory_trials": self.memory_trials >= 1,
            "request_memory_trials": self.request_memory_trials >= 1,
            "request_prior_trials": self.request_prior_trials > 0,
            "pace_rounds": self.pace_rounds >= 1,
            "probe_rounds": self.probe_rounds >= 1,
            "probe_cost": 0 < self.probe_cost < 1,
            "steps_margin": 0 <= self.steps_margin < 1,
        }
        for name, good in checks.items():
            if not good:
                default = next(f.default for f in fields(self) if f.name == name)
                raise ConfigError(f"{name}: {getattr(self, name)!r} is out of range; the default is {default!r}")


def read_options(owner: type[T], options: Mapping[str, Any]) -> T:
    """Options as a dataclass, whose fields are the names and types that there are.

    Raises:
        ConfigError: a name is unknown or missing, or a value is of the wrong type or out of range.
    """
    kinds = get_type_hints(owner)
    for name, value in options.items():
        if name not in kinds:
            near = difflib.get_close_matches(str(name), kinds, n=1)
            there = f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds) or 'no options'}"
            raise ConfigError(f"{name} is not an option; {there}")
        wanted = _TYPES.get(kinds[name])
        if wanted is not None and not _is_of(value, kinds[name]):
            raise ConfigError(f"{name}: expected {wanted}, got {value!r} ({type(value).__name__})")
    required = [f.name for f in fields(owner) if f.default is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in required if name not in options]:
        raise ConfigError(f"{missing[0]}: expected a value, the option is missing")
    return owner(**{name: _in_order(value) for name, value in options.items()})


_TYPES: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    tuple[Any, ...]: "a list",
    tuple[float, ...]: "a list of numbers",
}


def _is_of(value: object, kind: object) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real)
    if not isinstance(value, list | tuple):
        return False
    return kind != tuple[float, ...] or all(_is_of(part, float) for part in value)


def _in_order(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
