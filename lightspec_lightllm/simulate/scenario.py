"""A simulated workload, as a scenario file under ``configs/scenarios`` describes it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.recording import load_recording
from lightspec_lightllm.adapters.roofline import Roofline
from lightspec_lightllm.config import load_yaml
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import MAX_DRAFT_STEPS, DrafterKind

Confidence = Literal["live", "late", "none"]
"""When the host knows the drafter's confidence: before it plans, only after it planned, or never."""

Quality = Literal["informed", "random", "constant"]

PROMPT_TOKENS = (512, 512)

MAX_REQUESTS = 4096
MAX_ROUNDS = 1_000_000
MAX_TOKENS = 10_000_000
MAX_SPREAD = 8.0


def _expect(good: bool, name: str, expected: str, owner: Any) -> None:
    if not good:
        raise ConfigError(f"{name}: expected {expected}, got {getattr(owner, name)!r}")


@dataclass(frozen=True, slots=True)
class Drafter:
    """What proposes tokens.

    Attributes:
        kind: ``serial``, ``serial_no_kv``, ``chained``, ``block`` or ``free``, see `planner.DrafterKind`.
        max_draft_steps: K, 1 to 15.
        confidence: ``live`` (known before a round is planned), ``late`` (known to the host that selects rows, told to
            the planner afterwards, as an asynchronous GPU host does it) or ``none``.
        quality: what the confidence is made of: ``informed`` by the true acceptance, ``random`` (uniform, of no
            meaning) or ``constant`` (0.5 for every draft).
        noise: standard deviation, in log-odds, of an informed confidence around what is true.
        bias: log-odds added to an informed confidence; above 0 the drafter is over-confident.
        max_backlog: committed tokens per request that a drafter which did not draft must catch up on at most.
    """

    kind: DrafterKind = "serial"
    max_draft_steps: int = 7
    confidence: Confidence = "live"
    quality: Quality = "informed"
    noise: float = 0.0
    bias: float = 0.0
    max_backlog: int = 32

    def __post_init__(self) -> None:
        _expect(1 <= self.max_draft_steps <= MAX_DRAFT_STEPS, "max_draft_steps", f"1 to {MAX_DRAFT_STEPS}", self)
        _expect(0 <= self.noise <= MAX_SPREAD, "noise", f"0 to {MAX_SPREAD:g}", self)
        _expect(abs(self.bias) <= MAX_SPREAD, "bias", f"-{MAX_SPREAD:g} to {MAX_SPREAD:g}", self)
        _expect(0 <= self.max_backlog <= 4096, "max_backlog", "0 to 4096", self)


@dataclass(frozen=True, slots=True)
class Requests:
    """Who asks, and for how long.

    Attributes:
        count: N requests at a time, or ``[low, high]`` between which it wanders by at most 2 per round.
        prompt_tokens: context that a request comes with, drawn from ``[low, high]``; it grows with the answer.
        answer_tokens: length of an answer, drawn from ``[low, high]``; none: answers never end.
        arrivals: share of rounds, 0 to 1, in which a new request takes the place of the longest-running one.
        pauses: probability, per request and round, that a request is set aside; it loses its drafts.
        pause_rounds: how long it is.
    """

    count: int | tuple[int, int] = 16
    prompt_tokens: tuple[int, int] = PROMPT_TOKENS
    answer_tokens: tuple[int, int] | None = None
    arrivals: float = 0.0
    pauses: float = 0.0
    pause_rounds: int = 10

    def __post_init__(self) -> None:
        low, high = self.count if isinstance(self.count, tuple) else (self.count, self.count)
        _expect(1 <= low <= high <= MAX_REQUESTS, "count", f"1 to {MAX_REQUESTS}, or [low, high] in it", self)
        for name, least in (("prompt_tokens", 0), ("answer_tokens", 1)):
            bounds = getattr(self, name)
            _expect(
                bounds is None or least <= bounds[0] <= bounds[1] <= MAX_TOKENS,
                name,
                f"[low, high] in {least} to {MAX_TOKENS}",
                self,
            )
        _expect(0 <= self.arrivals <= 1, "arrivals", "a share from 0 to 1", self)
        _expect(0 <= self.pauses < 1, "pauses", "a probability from 0, below 1", self)
        _expect(self.pause_rounds >= 1, "pause_rounds", "at least 1", self)

    @property
    def most(self) -> int:
        """The largest N."""
        return self.count[1] if isinstance(self.count, tuple) else self.count


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests of one kind. The log-odds of draft j of a request, given that drafts 1..j-1 were right, are
    ``level_j + spread * z_request + noise * z_token`` with standard normal z.

    Attributes:
        acceptance: conditional acceptance per depth, averaged over requests and tokens, in (0, 1); the last one holds
            for all deeper drafts.
        spread: standard deviation of requests, in log-odds.
        noise: standard deviation of tokens, in log-odds.
    """

    acceptance: tuple[float, ...]
    spread: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        good = bool(self.acceptance) and all(0.0 < a < 1.0 for a in self.acceptance)
        _expect(good, "acceptance", "one or more probabilities between 0 and 1", self)
        _expect(0 <= self.spread <= MAX_SPREAD, "spread", f"0 to {MAX_SPREAD:g}", self)
        _expect(0 <= self.noise <= MAX_SPREAD, "noise", f"0 to {MAX_SPREAD:g}", self)

    def at(self, depth: int) -> float:
        """Acceptance of the draft at a depth, from 0."""
        return self.acceptance[min(depth, len(self.acceptance) - 1)]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of rounds of one workload.

    Attributes:
        rounds: how many.
        mix: share of each class of requests; they need not sum to 1. Every request changes with the segment, those
            that run too. Of a trace: the same of its sets, for new requests alone; none: all of them, as recorded.
        cost_factor: what every round's time is multiplied by; the planner's table does not know.
        count: as `Requests.count`, for this segment alone.
    """

    rounds: int
    mix: dict[str, float] = field(default_factory=dict)
    cost_factor: float = 1.0
    count: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _expect(1 <= self.rounds <= MAX_ROUNDS, "rounds", f"1 to {MAX_ROUNDS}", self)
        shares = self.mix.values()
        good = not shares or (all(share >= 0 for share in shares) and sum(shares) > 0)
        _expect(good, "mix", "shares of at least 0, one of them above", self)
        _expect(0.01 <= self.cost_factor <= 100, "cost_factor", "0.01 to 100", self)


UNSAID = Drafter()
"""Stands in a scenario that does not say what drafts."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a simulated workload is made of.

    Attributes:
        name: what tables and files call it.
        segments: one after the other.
        classes: the classes of requests that segments mix; or else
        trace_file: a file that ``lightspec bench --record`` or LightLLM with ``observe.trace_file`` wrote, relative to
            the scenario's: recorded requests come
            in an order that the seed draws, again and again. It takes the place of ``classes``, ``drafter``,
            ``correlation`` and the lengths in ``requests``, and of the costs unless they are given.
        drafter: what proposes tokens.
        requests: who asks.
        correlation: of the acceptance of one token with the next one's (AR(1)), 0 to 0.99.
        costs: what rounds cost; or else
        costs_file: a YAML file with the keys of ``costs``, relative to the scenario's; or else
        roofline_file: the same with those of `adapters.roofline.Roofline`.
        cost_noise: relative standard deviation of a round's time.
        feedback_delay: rounds, 0 to 8, by which a planner hears late of what a round did, as of an asynchronous host.
        seed: of everything that is drawn; runs add their own number.
    """

    name: str
    segments: tuple[Segment, ...]
    classes: dict[str, RequestClass] = field(default_factory=dict)
    trace_file: str | None = None
    drafter: Drafter = field(default_factory=lambda: UNSAID)
    requests: Requests = field(default_factory=Requests)
    correlation: float = 0.0
    costs: CostTables | None = None
    costs_file: str | None = None
    roofline_file: str | None = None
    cost_noise: float = 0.0
    feedback_delay: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _expect(bool(self.name.strip()), "name", "a name", self)
        _expect(bool(self.segments), "segments", "at least one segment", self)
        if self.trace_file is None:
            if not self.classes:
                raise ConfigError("classes: expected at least one class of requests, or a trace_file instead")
            self.check_mixes(tuple(self.classes), "classes")
        else:
            self._check_replaced()
        for number, segment in enumerate(self.segments):
            if not segment.mix and self.trace_file is None:
                raise ConfigError(f"segments.{number}.mix: expected shares of {', '.join(self.classes)}, got none")
            if segment.count is not None:
                dataclasses.replace(self.requests, count=segment.count)  # checks it
        _expect(0 <= self.correlation <= 0.99, "correlation", "0 to 0.99", self)
        _expect(0 <= self.cost_noise <= 1, "cost_noise", "0 to 1", self)
        _expect(0 <= self.feedback_delay <= 8, "feedback_delay", "0 to 8", self)
        _expect(self.seed >= 0, "seed", "at least 0", self)
        sources = sum(source is not None for source in (self.costs, self.costs_file, self.roofline_file))
        if sources > 1 or (not sources and self.trace_file is None):
            raise ConfigError("costs: expected one of costs, costs_file and roofline_file")

    def check_mixes(self, known: tuple[str, ...], what: str) -> None:
        """Raises ConfigError where a segment mixes what is not known."""
        for number, segment in enumerate(self.segments):
            for name in segment.mix:
                if name not in known:
                    raise ConfigError(
                        f"segments.{number}.mix: expected names of {what} ({', '.join(known)}), got {name!r}"
                    )

    def _check_replaced(self) -> None:
        drafter, requests = self.drafter, self.requests
        given = {
            "classes": bool(self.classes),
            "correlation": self.correlation != 0,
            "requests.prompt_tokens": requests.prompt_tokens != PROMPT_TOKENS,
            "requests.answer_tokens": requests.answer_tokens is not None,
            "drafter": (drafter.quality, drafter.noise, drafter.bias) != ("informed", 0, 0),
        }
        for name, there in given.items():
            if there:
                raise ConfigError(f"{name}: expected none beside trace_file, which says it; take one of the two out")

    @property
    def tables(self) -> CostTables:
        """The costs, once they were read."""
        if self.costs is None:
            raise ConfigError("costs: the file of costs was not read; use load_scenario")
        return self.costs

    @property
    def num_rounds(self) -> int:
        """Rounds of all segments."""
        return sum(segment.rounds for segment in self.segments)

    def requests_in(self, segment: int) -> Requests:
        """The requests of one segment."""
        count = self.segments[segment].count
        return self.requests if count is None else dataclasses.replace(self.requests, count=count)

    def only(self, segment: int, rounds: int) -> Scenario:
        """One segment alone, for a number of rounds."""
        return dataclasses.replace(self, segments=(dataclasses.replace(self.segments[segment], rounds=rounds),))

    def varied(
        self,
        *,
        count: int | None = None,
        max_draft_steps: int | None = None,
        kind: str | None = None,
        confidence: str | None = None,
        rounds: int | None = None,
        seed: int | None = None,
    ) -> Scenario:
        """The scenario with some of its numbers changed; ``count`` and ``rounds`` in every segment."""
        new = self
        drafter = {"kind": kind, "max_draft_steps": max_draft_steps, "confidence": confidence}
        given = {key: value for key, value in drafter.items() if value is not None}
        new = dataclasses.replace(new, drafter=_replaced(new.drafter, given))
        if count is not None:
            new = dataclasses.replace(
                new,
                requests=dataclasses.replace(new.requests, count=count),
                segments=tuple(dataclasses.replace(segment, count=None) for segment in new.segments),
            )
        if rounds is not None:
            new = dataclasses.replace(
                new, segments=tuple(dataclasses.replace(segment, rounds=rounds) for segment in new.segments)
            )
        return new if seed is None else dataclasses.replace(new, seed=seed)


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario file and the file of costs that it names.

    Raises:
        ConfigError: a file cannot be read, or a key or value is wrong; the message names it.
    """
    scenario = load_yaml(path, Scenario, name="scenario")
    if scenario.trace_file is not None:
        try:
            scenario = _with_trace(scenario, path.parent / scenario.trace_file)
        except ConfigError as error:
            raise ConfigError(f"scenario {path}: {error}") from None
    if scenario.costs_file is not None:
        costs = load_yaml(path.parent / scenario.costs_file, CostTables, name="costs")
    elif scenario.roofline_file is not None:
        roofline = load_yaml(path.parent / scenario.roofline_file, Roofline, name="roofline")
        costs = CostTables(
            target={context: dict(line) for context, line in roofline.target_table().items()},
            draft=dict(roofline.draft_table()),
            overhead_ms=roofline.overhead_ms,
            request_token_ms=roofline.kv_ms_per_token,
        )
    else:
        return scenario
    return dataclasses.replace(scenario, costs=costs, costs_file=None, roofline_file=None)


def _with_trace(scenario: Scenario, path: Path) -> Scenario:
    """The scenario with what its trace says filled in."""
    if scenario.drafter is not UNSAID:
        raise ConfigError(
            "drafter: expected none beside trace_file, which says it; --max-draft-steps and --confidence vary it"
        )
    recording = load_recording(path)
    scenario.check_mixes(recording.datasets, "sets in the trace")
    own = recording.drafter
    unpriced = scenario.costs is None and scenario.costs_file is None and scenario.roofline_file is None
    return dataclasses.replace(
        scenario,
        trace_file=str(path),
        drafter=Drafter(kind=own.kind, max_draft_steps=own.max_draft_steps),
        costs=recording.costs if unpriced else scenario.costs,
    )


def _replaced(owner: Drafter, given: dict[str, Any]) -> Drafter:
    for name, kinds in (("kind", DrafterKind), ("confidence", Confidence)):
        if name in given and given[name] not in get_args(kinds):
            raise ConfigError(f"{name}: expected one of {', '.join(get_args(kinds))}, got {given[name]!r}")
    return dataclasses.replace(owner, **given)
