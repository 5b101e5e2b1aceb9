"""How a scenario is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS
from lightspec_lightllm.simulate.scenario import MAX_REQUESTS, MAX_ROUNDS

DEFAULT_ARMS = (
    "off",
    "fixed",
    "static",
    "static+ranking",
    "mean-ema",
    "dspark",
    "lightspec",
    "optimum",
    "clairvoyant",
)
"""``fixed`` stands for every number of fixed steps."""

MAX_SEEDS = 1000

SEARCH_ROUNDS = 200
"""Rounds of each run by which a static setting or a price is found."""


@dataclass(frozen=True, slots=True)
class PlanTime:
    """What planning costs: its measured time, or a fixed one per round; the planner is told neither.

    Attributes:
        microseconds: per round, or None for what is measured.
    """

    microseconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> PlanTime:
        """From ``measured``, ``none`` or a number of microseconds. Raises ConfigError for anything else."""
        if text in ("measured", "none"):
            return cls(None if text == "measured" else 0.0)
        try:
            microseconds = float(text)
        except ValueError:
            microseconds = -1.0
        if not 0 <= microseconds < float("inf"):
            raise ConfigError(f"--plan-time: expected measured, none or microseconds of at least 0, got {text!r}")
        return cls(microseconds)

    def charge_ms(self, measured_us: float) -> float:
        """Milliseconds that a round of an arm that plans is charged."""
        return 1e-3 * (measured_us if self.microseconds is None else self.microseconds)


FREE = PlanTime(0.0)


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """How a scenario is run.

    Attributes:
        arms: what competes, see `arms.expand`.
        seeds: of the runs; every arm is served the same text on each.
        plan_time: what planning is charged.
        counts: requests at a time, one variant of the scenario each; none: as the scenario says.
        max_draft_steps: the same of K.
        kinds: the same of the drafter's kind.
        confidence: when the host knows it; None: as the scenario says.
        rounds: of every segment; None: as the scenario says.
        search_rounds: of each run by which a static setting or a price is found.
    """

    arms: tuple[str, ...] = DEFAULT_ARMS
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    plan_time: PlanTime = field(default_factory=PlanTime)
    counts: tuple[int, ...] = ()
    max_draft_steps: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    confidence: str | None = None
    rounds: int | None = None
    search_rounds: int = SEARCH_ROUNDS

    def __post_init__(self) -> None:
        if not self.arms:
            raise ConfigError("--arms: expected at least one")
        if not self.seeds or min(self.seeds) < 0:
            raise ConfigError("--seeds: expected at least one seed, of at least 0")
        if not 10 <= self.search_rounds <= MAX_ROUNDS:
            raise ConfigError(f"--search-rounds: expected 10 to {MAX_ROUNDS}, got {self.search_rounds}")
        if self.rounds is not None and not 1 <= self.rounds <= MAX_ROUNDS:
            raise ConfigError(f"--rounds: expected 1 to {MAX_ROUNDS}, got {self.rounds}")
        for flag, values, most in (
            ("--requests", self.counts, MAX_REQUESTS),
            ("--max-draft-steps", self.max_draft_steps, MAX_DRAFT_STEPS),
        ):
            for value in values:
                if not 1 <= value <= most:
                    raise ConfigError(f"{flag}: expected 1 to {most}, got {value}")
