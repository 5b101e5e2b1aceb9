"""Planners by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, get_args

import numpy as np

from lightspec_lightllm.errors import ConfigError, PlanError
from lightspec_lightllm.planner.costs import CostModel
from lightspec_lightllm.planner.dspark import DsparkPlanner
from lightspec_lightllm.planner.lightspec import LightspecPlanner
from lightspec_lightllm.planner.mean_ema import MeanEmaPlanner
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS, PlannerOptions
from lightspec_lightllm.planner.types import BatchView, DrafterKind, Plan, PlannerCounters, RoundFeedback


class Planner(Protocol):
    """What every strategy offers. Deterministic: the same views and feedbacks give the same plans on every rank."""

    max_draft_steps: int
    counters: PlannerCounters

    def plan(self, view: BatchView) -> Plan:
        """Choose the verify budget of this round and the draft steps for the next."""

    def observe(self, feedback: RoundFeedback) -> None:
        """Learn from a round that ran."""


class FixedPlanner:
    """Draft the same number of steps every round and verify all of them, as a server with fixed steps does.

    With 0 steps this is no speculation at all.
    """

    def __init__(self, costs: CostModel, *, max_draft_steps: int, drafter: DrafterKind, steps: int) -> None:
        if not _is_whole(steps) or not 0 <= steps <= max_draft_steps:
            raise ConfigError(
                f"fixed steps: expected 0..{max_draft_steps} (the largest number of draft steps), got {steps!r}"
            )
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.steps = steps
        self.counters = PlannerCounters()

    def plan(self, view: BatchView) -> Plan:
        """All waiting drafts are verified, the same number is drafted again."""
        proposed = np.asarray(view.proposed, dtype=np.int64)
        if proposed.shape != (view.num_requests,):
            raise PlanError(
                f"proposed: expected one count per request, {view.num_requests}, got shape {proposed.shape}"
            )
        num_requests = view.num_requests
        if num_requests == 0:
            return Plan(0, 0)
        self.counters.plans += 1
        rows = num_requests + int(np.minimum(proposed, self.steps).sum())
        if self.costs.max_rows is not None:
            rows = max(num_requests, min(rows, self.costs.max_rows))
        context = float(np.mean(view.context_tokens))
        table_ms = self.costs.target_ms(rows, num_requests, context) + self.costs.draft_ms(
            self.drafter, num_requests, rows, self.steps, block=self.max_draft_steps, context=context
        )
        return Plan(rows, self.steps, num_requests, proposed=proposed, table_ms=table_ms, predicted_ms=table_ms)

    def observe(self, feedback: RoundFeedback) -> None:  # noqa: ARG002 - the interface's, there is nothing to learn
        """Count the round."""
        self.counters.observed += 1


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _lightspec(costs: CostModel, max_draft_steps: int, drafter: DrafterKind, options: dict[str, Any]) -> Planner:
    try:
        parsed = PlannerOptions(**options)
    except TypeError as error:
        raise ConfigError(f"strategy 'lightspec': {error}; its options are the fields of PlannerOptions") from None
    return LightspecPlanner(costs, max_draft_steps=max_draft_steps, drafter=drafter, options=parsed)


def _fixed(costs: CostModel, max_draft_steps: int, drafter: DrafterKind, options: dict[str, Any]) -> Planner:
    if set(options) - {"steps"}:
        raise ConfigError(f"strategy 'fixed': expected only the option 'steps', got {sorted(options)}")
    return FixedPlanner(
        costs, max_draft_steps=max_draft_steps, drafter=drafter, steps=options.get("steps", max_draft_steps)
    )


def _off(costs: CostModel, max_draft_steps: int, drafter: DrafterKind, options: dict[str, Any]) -> Planner:
    if options:
        raise ConfigError(f"strategy 'off': expected no options, got {sorted(options)}")
    return FixedPlanner(costs, max_draft_steps=max_draft_steps, drafter=drafter, steps=0)


def _mean_ema(costs: CostModel, max_draft_steps: int, drafter: DrafterKind, options: dict[str, Any]) -> Planner:
    if options:
        raise ConfigError(f"strategy 'mean-ema': expected no options, got {sorted(options)}")
    return MeanEmaPlanner(costs, max_draft_steps=max_draft_steps, drafter=drafter)


def _dspark(costs: CostModel, max_draft_steps: int, drafter: DrafterKind, options: dict[str, Any]) -> Planner:
    if options:
        raise ConfigError(f"strategy 'dspark': expected no options, got {sorted(options)}")
    return DsparkPlanner(costs, max_draft_steps=max_draft_steps, drafter=drafter)


_STRATEGIES: dict[str, Callable[[CostModel, int, DrafterKind, dict[str, Any]], Planner]] = {
    "lightspec": _lightspec,
    "mean-ema": _mean_ema,
    "dspark": _dspark,
    "fixed": _fixed,
    "off": _off,
}


def make_planner(
    strategy: str, costs: CostModel, *, max_draft_steps: int, drafter: DrafterKind = "serial", **options: Any
) -> Planner:
    """Make a planner.

    Args:
        strategy: ``lightspec``, ``fixed`` (option ``steps``, or written ``fixed:3``) or ``off``; and, to compare with,
            ``mean-ema`` and ``dspark``.
        costs: what rounds cost.
        max_draft_steps: K, 1..15.
        drafter: how the drafter's time grows, see `costs.draft_terms`.
        options: of the strategy; those of ``lightspec`` are the fields of `PlannerOptions`.

    Raises:
        ConfigError: an unknown strategy or option, or a value out of range.
    """
    name, colon, argument = strategy.partition(":")
    if name not in _STRATEGIES:
        raise ConfigError(f"strategy: expected one of {', '.join(sorted(_STRATEGIES))}, got {strategy!r}")
    if not _is_whole(max_draft_steps) or not 1 <= max_draft_steps <= MAX_DRAFT_STEPS:
        raise ConfigError(f"max_draft_steps: expected 1..{MAX_DRAFT_STEPS}, got {max_draft_steps!r}")
    if drafter not in get_args(DrafterKind):
        raise ConfigError(f"drafter: expected one of {', '.join(get_args(DrafterKind))}, got {drafter!r}")
    if colon:
        if name != "fixed" or not argument.isdecimal():
            raise ConfigError(f"strategy: expected a name, or fixed: with a number of steps, got {strategy!r}")
        if "steps" in options:
            raise ConfigError(f"strategy: {strategy!r} says how many steps, expected no option 'steps' besides")
        options["steps"] = int(argument)
    return _STRATEGIES[name](costs, max_draft_steps, drafter, options)
