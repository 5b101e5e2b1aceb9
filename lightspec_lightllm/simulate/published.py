"""The published comparison of dynamic with fixed draft steps, served again on a modelled GPU.

Published: Qwen3-14B with Eagle3 on one H200, 256 requests at a time, 3, 7 and 11 draft steps (MTP), three sets of
prompts. Acceptance here is drawn so that a fixed server's mean accept length at 7 steps, and the acceptance of its
first draft, are the published ones; costs are a roofline's. Both are models: what is compared is what they give.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.roofline import Roofline
from lightspec_lightllm.simulate.arms import OFF, STATIC
from lightspec_lightllm.simulate.comparison import Spread, best_static
from lightspec_lightllm.simulate.experiment import Cell, run_cell
from lightspec_lightllm.simulate.options import SimulateOptions
from lightspec_lightllm.simulate.scenario import (
    Confidence,
    Drafter,
    RequestClass,
    Requests,
    Scenario,
    Segment,
)
from lightspec_lightllm.simulate.trace import Trace

STEPS = (3, 7, 11)
MOST = STEPS[-1]
NUM_REQUESTS = 256
ROUNDS = 300
SEARCH_ROUNDS = 60
WORLD_SEEDS = 2
"""Seeds that other worlds than the modelled one are run on, of those that are given."""
DYNAMIC = "lightspec"


@dataclass(frozen=True, slots=True)
class Claim:
    """What was published of dynamic against 11 fixed steps.

    Attributes:
        gain: requests per second, relative, less 1.
        fewer_rows: rows that fixed steps verify for each that is verified dynamically.
        more_accepted: share of verified drafts that is accepted, the difference.
    """

    gain: float
    fewer_rows: float
    more_accepted: float


@dataclass(frozen=True, slots=True)
class Load:
    """One set of prompts.

    Attributes:
        requests: how drafts are accepted.
        prompt_tokens: assumed, from the sets' usual lengths, as
        answer_tokens: are.
        accept_length: published mean at 7 fixed steps.
        first_accepted: published acceptance of the first draft.
    """

    name: str
    requests: RequestClass
    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    accept_length: float
    first_accepted: float
    claim: Claim


LOADS = (
    # Acceptance is the mean over requests and tokens. What a server counts is lower at the first draft, since hard
    # requests take more rounds, and rises with depth, since what survives is easy: 0.56 to 0.74 over 7 depths of chat,
    # 0.81 to 0.92 of math. Spread and noise, taken to be equal, are what makes accept lengths the published ones.
    # The first acceptance of HumanEval lies between the other two, assumed.
    Load("ShareGPT", RequestClass((0.611,), 0.76, 0.76), (32, 512), (64, 512), 2.55, 0.56, Claim(0.64, 3.2, 0.43)),
    Load("HumanEval", RequestClass((0.797,), 1.07, 1.07), (96, 320), (64, 384), 4.1, 0.74, Claim(0.39, 1.8, 0.29)),
    Load(
        "GSM8K",
        RequestClass((0.844, 0.884, 0.894), 0.91, 0.91),
        (64, 192),
        (96, 320),
        5.2,
        0.81,
        Claim(0.089, 1.5, 0.19),
    ),
)


@dataclass(frozen=True, slots=True)
class Assumption:
    """Another world in which the comparison could have been made.

    Attributes:
        num_requests: in a batch.
        cheaper_rows: rows at the knee, over those of the model.
        confidence: when the host knows it.
        acceptance: added to the acceptance of every draft.
    """

    name: str
    num_requests: int = NUM_REQUESTS
    cheaper_rows: float = 1.0
    confidence: Confidence = "late"
    acceptance: float = 0.0


MODELLED = Assumption(f"as modelled: {NUM_REQUESTS} in a batch")
ASSUMPTIONS = (
    MODELLED,
    Assumption("64 in a batch", num_requests=64),
    Assumption("32 in a batch", num_requests=32),
    Assumption("16 in a batch", num_requests=16),
    Assumption("knee at 4 times the rows", cheaper_rows=4.0),
    Assumption("knee at 8 times the rows", cheaper_rows=8.0),
    Assumption("knee at 16 times the rows", cheaper_rows=16.0),
    Assumption("confidence never known", confidence="none"),
    Assumption("drafts accepted 5 points more", acceptance=0.05),
    Assumption("drafts accepted 5 points less", acceptance=-0.05),
)


def scenario(load: Load, model: Roofline, world: Assumption, *, max_draft_steps: int, rounds: int) -> Scenario:
    """A load as a scenario."""
    gpu = dataclasses.replace(model.gpu, tflops=model.gpu.tflops * world.cheaper_rows)
    model = dataclasses.replace(model, gpu=gpu)
    acceptance = tuple(min(max(a + world.acceptance, 0.01), 0.99) for a in load.requests.acceptance)
    return Scenario(
        name=load.name,
        classes={load.name: dataclasses.replace(load.requests, acceptance=acceptance)},
        segments=(Segment(rounds, {load.name: 1.0}),),
        # An asynchronous GPU host ranks by the confidence, and tells the planner of it one round later.
        drafter=Drafter("serial", max_draft_steps, confidence=world.confidence, noise=0.5),
        requests=Requests(world.num_requests, load.prompt_tokens, load.answer_tokens),
        correlation=0.5,
        costs=CostTables(
            target=dict(model.target_table()),
            draft=dict(model.draft_table()),
            overhead_ms=model.overhead_ms,
            request_token_ms=model.kv_ms_per_token,
        ),
        cost_noise=0.02,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One arm on one load.

    Attributes:
        steps: MTP, or None for an arm without.
        accepted: share of verified drafts, or None where none is verified.
        rows: verified per round.
        to_off, to_static, to_most: tokens per second over those of off, best static and 11 fixed steps.
        charged_us: planning time that a round is charged, microseconds.
    """

    arm: str
    steps: int | None
    accepted: Spread | None
    rows: Spread
    to_off: Spread
    to_static: Spread
    to_most: Spread
    charged_us: Spread


@dataclass(frozen=True, slots=True)
class Comparison:
    """Dynamic against 11 fixed steps, in the terms of `Claim`."""

    gain: Spread
    fewer_rows: Spread
    more_accepted: Spread | None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Everything on one load.

    Attributes:
        best: the best static arm, with its setting.
        lines: off, best static, then fixed and dynamic by steps.
        compared: by assumption's name.
    """

    load: Load
    best: str
    lines: tuple[Line, ...]
    compared: dict[str, Comparison]


def rounds_of(options: SimulateOptions) -> int:
    """Rounds of each run."""
    return ROUNDS if options.rounds is None else options.rounds


def run_load(load: Load, model: Roofline, options: SimulateOptions, report: Callable[[str], None]) -> LoadResult:
    """Serve a load with every arm, and with two of them in the worlds of `ASSUMPTIONS`."""
    rounds = rounds_of(options)
    fixed = tuple(f"fixed:{steps}" for steps in STEPS)
    cells = {}
    for steps in STEPS:
        arms = (OFF, *fixed, STATIC, DYNAMIC) if steps == MOST else (DYNAMIC,)
        served = scenario(load, model, MODELLED, max_draft_steps=steps, rounds=rounds)
        chosen = dataclasses.replace(options, arms=arms, search_rounds=SEARCH_ROUNDS)
        cells[steps] = run_cell(served, chosen, _under(f"{load.name}, MTP {steps}: ", report))
    most = cells[MOST]
    compared = {}
    for world in ASSUMPTIONS:
        cell = most if world is MODELLED else _other_world(load, model, world, options, report)
        compared[world.name] = _compare(cell)
    return LoadResult(load, _best(most), _lines(cells), compared)


def _other_world(
    load: Load, model: Roofline, world: Assumption, options: SimulateOptions, report: Callable[[str], None]
) -> Cell:
    served = scenario(load, model, world, max_draft_steps=MOST, rounds=rounds_of(options))
    chosen = dataclasses.replace(options, arms=(f"fixed:{MOST}", DYNAMIC), seeds=options.seeds[:WORLD_SEEDS])
    return run_cell(served, chosen, _under(f"{load.name}, {world.name}: ", report))


def _under(head: str, report: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: report(head + line)


def _best(cell: Cell) -> str:
    (best,) = best_static(cell)
    if best != STATIC:
        return best
    (setting,) = cell.references.static
    return f"d {setting.steps}, {setting.budget:.3g} drafts verified per request"


def _lines(cells: dict[int, Cell]) -> tuple[Line, ...]:
    most = cells[MOST]
    (best,) = best_static(most)
    traces: list[tuple[str, int | None, list[Trace]]] = [
        (OFF, None, [most.traces[OFF, seed] for seed in most.seeds]),
        ("best static", None, [most.traces[best, seed] for seed in most.seeds]),
    ]
    for steps, cell in cells.items():
        traces.append(("fixed", steps, [most.traces[f"fixed:{steps}", seed] for seed in most.seeds]))
        traces.append(("dynamic", steps, [cell.traces[DYNAMIC, seed] for seed in most.seeds]))

    def over(own: Sequence[Trace], base: str) -> Spread:
        pairs = zip(own, most.seeds, strict=True)
        return Spread.of([trace.rate() / most.traces[base, seed].rate() for trace, seed in pairs])

    return tuple(
        Line(
            arm,
            steps,
            accepted=_spread([accepted(trace) for trace in own]),
            rows=Spread.of([float(trace.rows.mean()) for trace in own]),
            to_off=over(own, OFF),
            to_static=over(own, best),
            to_most=over(own, f"fixed:{MOST}"),
            charged_us=Spread.of([1e3 * float(trace.charged_ms.mean()) for trace in own]),
        )
        for arm, steps, own in traces
    )


def accepted(trace: Trace) -> float:
    """Share of verified drafts that can be expected to be accepted; NaN where none is verified."""
    verified = int((trace.rows - trace.num_requests).sum())
    return float((trace.expected - trace.num_requests).sum()) / verified if verified else math.nan


def _spread(shares: Sequence[float]) -> Spread | None:
    """Over the seeds on which anything was verified."""
    known = [share for share in shares if not math.isnan(share)]
    return Spread.of(known) if known else None


def _compare(cell: Cell) -> Comparison:
    pairs = [(cell.traces[f"fixed:{MOST}", seed], cell.traces[DYNAMIC, seed]) for seed in cell.seeds]
    return Comparison(
        gain=Spread.of([dynamic.rate() / fixed.rate() - 1.0 for fixed, dynamic in pairs]),
        fewer_rows=Spread.of([float(fixed.rows.mean() / dynamic.rows.mean()) for fixed, dynamic in pairs]),
        more_accepted=_spread([accepted(dynamic) - accepted(fixed) for fixed, dynamic in pairs]),
    )


def outside_share(modelled: float, published: float) -> float | None:
    """Time outside decode rounds, over a fixed server's time in them, at which a gain shrinks to the published one.

    With rounds g times as fast and all other time P as it was, ``(P + 1) / (P + 1 / g) = G``, so
    ``P = (1 - G / g) / (G - 1)``.

    Args:
        modelled: g - 1.
        published: G - 1.

    Returns:
        P, or None where the model's gain is the smaller one.
    """
    ratio = (1.0 + published) / (1.0 + modelled)
    return (1.0 - ratio) / published if ratio <= 1.0 else None
