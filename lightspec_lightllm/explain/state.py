"""A batch as a planner meets it, written down by hand: what `lightspec plan --explain` reads."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.roofline import load_roofline
from lightspec_lightllm.config import load_yaml
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import MAX_DRAFT_STEPS, CostModel, DrafterKind, PlannerOptions
from lightspec_lightllm.planner.types import FloatArray, IntArray

MAX_REQUESTS = 1024


@dataclass(frozen=True, slots=True)
class State:
    """One moment of a batch.

    Attributes:
        num_requests: N.
        max_draft_steps: K, 1 to 15.
        proposed: drafts that wait: one number for all requests, or one each.
        acceptance: conditional acceptance per depth, each in (0, 1), the last one for all deeper drafts; or else
        confidence: a list of the same for each request, taken to be calibrated.
        drafter: ``serial``, ``serial_no_kv``, ``chained``, ``block`` or ``free``.
        draft_steps: d that the batch runs with by now; none: the largest number proposed.
        context_tokens: mean context per request.
        draft_backlog: committed tokens that the drafter has not seen yet.
        speedup: running tokens per second over those without speculation, which sets the price of time; or else
        price: tokens per millisecond. Neither: the rate that this very batch would settle at.
        options: of the strategy; the search uses ``steps_margin`` alone.
        costs: tables of what rounds cost; or else
        costs_file: a YAML file of such tables, relative to the state's; or else
        roofline_file: the same of a modelled GPU, see `adapters.roofline`.
    """

    num_requests: int
    max_draft_steps: int
    proposed: int | tuple[int, ...]
    acceptance: tuple[float, ...] | None = None
    confidence: tuple[tuple[float, ...], ...] | None = None
    drafter: DrafterKind = "serial"
    draft_steps: int | None = None
    context_tokens: float = 0.0
    draft_backlog: int = 0
    speedup: float | None = None
    price: float | None = None
    options: PlannerOptions = field(default_factory=PlannerOptions)
    costs: CostTables | None = None
    costs_file: str | None = None
    roofline_file: str | None = None

    def __post_init__(self) -> None:
        most, steps = self.num_requests, self.max_draft_steps
        _expect(1 <= most <= MAX_REQUESTS, f"num_requests: expected 1 to {MAX_REQUESTS}, got {most}")
        _expect(1 <= steps <= MAX_DRAFT_STEPS, f"max_draft_steps: expected 1 to {MAX_DRAFT_STEPS}, got {steps}")
        counts = (self.proposed,) * most if isinstance(self.proposed, int) else self.proposed
        _expect(len(counts) == most, f"proposed: expected one number, or one for each of {most}, got {len(counts)}")
        _expect(all(0 <= n <= steps for n in counts), f"proposed: expected counts in 0..{steps}, got {self.proposed}")
        _expect(
            (self.acceptance is None) != (self.confidence is None),
            "acceptance: expected either acceptance or confidence, and not both",
        )
        lines = (self.acceptance,) if self.acceptance is not None else self.confidence or ()
        name = "confidence" if self.acceptance is None else "acceptance"
        _expect(name == "acceptance" or len(lines) == most, f"confidence: expected {most} lists, got {len(lines)}")
        for line in lines:
            good = 1 <= len(line) <= steps and all(0 < value < 1 for value in line)
            _expect(good, f"{name}: expected 1 to {steps} probabilities above 0 and below 1, got {list(line)}")
        now = self.draft_steps
        _expect(now is None or 0 <= now <= steps, f"draft_steps: expected 0 to {steps}, got {now}")
        context = self.context_tokens
        _expect(math.isfinite(context) and context >= 0, f"context_tokens: expected at least 0, got {context}")
        limit = 4096 * self.num_requests
        good = 0 <= self.draft_backlog <= limit
        _expect(good, f"draft_backlog: expected 0 to {limit}, got {self.draft_backlog}")
        _expect(self.speedup is None or self.price is None, "price: expected speedup or price, or neither")
        for name, value, least in (("speedup", self.speedup, 1.0), ("price", self.price, 0.0)):
            good = value is None or (math.isfinite(value) and value >= least)
            _expect(good, f"{name}: expected a finite number of at least {least:g}, got {value}")
        sources = sum(source is not None for source in (self.costs, self.costs_file, self.roofline_file))
        _expect(sources == 1, "costs: expected one of costs, costs_file and roofline_file")

    @property
    def waiting(self) -> IntArray:
        """int[N], drafts waiting."""
        counts = np.array(self.proposed, dtype=np.int64)
        return np.asarray(np.broadcast_to(counts, self.num_requests))

    @property
    def survival(self) -> FloatArray:
        """float[N, K], probability that drafts 1..j of a request are all accepted."""
        lines = (self.acceptance or (),) * self.num_requests if self.confidence is None else self.confidence
        depths = range(self.max_draft_steps)
        conditional = np.array([[line[min(depth, len(line) - 1)] for depth in depths] for line in lines])
        return np.asarray(np.multiply.accumulate(conditional, axis=1))

    @property
    def steps(self) -> int:
        """Draft steps that the batch runs with by now."""
        return int(self.waiting.max()) if self.draft_steps is None else self.draft_steps


def load_state(path: Path) -> tuple[State, CostModel]:
    """Reads a state and what rounds cost it.

    Raises:
        ConfigError: a file cannot be read, or a key or value is wrong; the message names it.
    """
    state = load_yaml(path, State, name="state")
    if state.roofline_file is not None:
        return state, load_roofline(path.parent / state.roofline_file).costs()
    if state.costs is not None:
        return state, state.costs.model()
    return state, load_yaml(path.parent / (state.costs_file or ""), CostTables, name="costs").model()


def _expect(good: bool, message: str) -> None:
    if not good:
        raise ConfigError(message)


def known_keys() -> tuple[str, ...]:
    """The keys of a state file."""
    return tuple(field.name for field in dataclasses.fields(State))
