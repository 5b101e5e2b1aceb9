"""What is told of a round outside the engine's process: sums, small enough to be sent for every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.explain.reason import PlanReason, reason_of
from lightspec_lightllm.planner import CostModel, Planner
from lightspec_lightllm.planner.lightspec import CONTEXT_STEP

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

STAGES = ("schedule", "plan", "target", "commit", "draft")
"""The stages of a round in their order; schedule is admission and the reservation of slots.
The target reads prompts beside the rows."""

NUM_BINS = 10
"""Bins of equal width that probabilities are compared with outcomes in."""

REASON_SECONDS = 1.0
"""Least time between two plans that are explained: an explanation takes about as long as a plan."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Drafts by what was foretold of them and by what came of them, in bins or by depth.

    Attributes:
        count: drafts.
        foretold: sum of their probabilities.
        right: how many were accepted.
    """

    count: tuple[int, ...]
    foretold: tuple[float, ...]
    right: tuple[int, ...]

    @classmethod
    def of(cls, group: IntArray, probability: FloatArray, right: BoolArray, size: int) -> Tally:
        """From one entry per draft, ``group`` in 0..size - 1."""
        return cls(
            count=tuple(np.bincount(group, minlength=size).tolist()),
            foretold=tuple(np.bincount(group, weights=probability, minlength=size).tolist()),
            right=tuple(np.bincount(group[right], minlength=size).tolist()),
        )


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round in sums over its requests; picklable, plain numbers only.

    Attributes:
        time: Unix time at the end of the round.
        num_requests: N.
        num_waiting: requests that wait for admission.
        context_tokens: tokens in the KV cache before the round.
        prompt_tokens: read beside the rows or since the round before; the times are then theirs too.
        verify_rows: B.
        draft_steps: d as planned.
        steps_made: d as drafted; a chain that ends early and requests about to end make fewer.
        drafted: drafts that were waiting.
        verified: of them had a row.
        accepted: of them were accepted; the target's own tokens are not counted.
        committed: tokens kept, the target's own included.
        predicted_tokens: committed tokens that the plan expected, or 0 where it expects nothing.
        predicted_ms: the time that the plan expected of the round, or 0; 0 too where prompts were read in it.
        measured_ms: the time that it took, without scheduling.
        off_ms: by the cost table, the time of a round of these requests without speculation, corrected as the plan's
            own prediction is; or 0 where the planner has no costs.
        planner_us: time spent planning and observing.
        stage_ms: time of each of `STAGES`.
        probe: whether the round was made to learn.
        fallback: whether planning has failed and fixed steps are drafted.
        tried: K counts: drafts verified at each depth whose predecessors were all accepted.
        right: K counts: of them were accepted.
        by_depth: verified drafts by depth, against the plan's survival; or None where a plan has none.
        survival: the same in bins of the survival.
        confidence: tried drafts in bins of the drafter's confidence; or None where it tells none.
        reason: why the round was planned so; of one round a second.
    """

    time: float
    num_requests: int
    num_waiting: int
    context_tokens: int
    prompt_tokens: int
    verify_rows: int
    draft_steps: int
    steps_made: int
    drafted: int
    verified: int
    accepted: int
    committed: int
    predicted_tokens: float
    predicted_ms: float
    measured_ms: float
    off_ms: float
    planner_us: float
    stage_ms: tuple[float, ...]
    probe: bool
    fallback: bool
    tried: tuple[int, ...]
    right: tuple[int, ...]
    by_depth: Tally | None = None
    survival: Tally | None = None
    confidence: Tally | None = None
    reason: PlanReason | None = None


class RoundReporter:
    """Makes events of the records of one `Round`, beside it in the engine's process."""

    def __init__(self, rounds: Round) -> None:
        self._rounds = rounds
        self._explained = float("-inf")
        self._plan_seconds = rounds.counters.plan_seconds
        self._context = 0.0

    def event(self, record: RoundRecord, *, num_waiting: int, time: float) -> RoundEvent:
        """Call it once for every record, before the next step.

        Args:
            num_waiting: requests that wait for admission.
            time: Unix time at the end of the round.
        """
        counters, planner, plan = self._rounds.counters, self._rounds.planner.planner, record.plan
        planner_us = 1e6 * (counters.plan_seconds - self._plan_seconds)
        self._plan_seconds = counters.plan_seconds
        depths = np.arange(counters.max_draft_steps)
        hits = record.accepted - 1
        had_row = depths < record.verified[:, None]
        held = depths < hits[:, None]
        tried = had_row & (depths <= hits[:, None])
        by_depth = survival = confidence = reason = None
        if plan.survival is not None and record.verified.any():
            depth, probability, right = np.nonzero(had_row)[1], plan.survival[had_row], held[had_row]
            by_depth = Tally.of(depth, probability, right, len(depths))
            survival = Tally.of(_bins(probability), probability, right, NUM_BINS)
        if record.confidence is not None and tried.any():
            probability = np.nan_to_num(record.confidence[tried], nan=0.0)
            confidence = Tally.of(_bins(probability), probability, held[tried], NUM_BINS)
        if counters.fallback is None and time - self._explained >= REASON_SECONDS:
            self._explained = time
            reason = reason_of(planner, record)
        return RoundEvent(
            time=time,
            num_requests=record.num_requests,
            num_waiting=num_waiting,
            context_tokens=record.context_tokens,
            prompt_tokens=record.prompt_tokens,
            verify_rows=plan.verify_rows,
            draft_steps=plan.draft_steps,
            steps_made=record.draft_steps,
            drafted=int(record.drafted.sum()),
            verified=int(record.verified.sum()),
            accepted=int(hits.sum()),
            committed=int(record.committed.sum()),
            predicted_tokens=plan.predicted_tokens,
            predicted_ms=0.0 if record.prompt_tokens else plan.predicted_ms,
            measured_ms=record.round_ms,
            off_ms=self._off_ms(planner, record),
            planner_us=planner_us,
            stage_ms=tuple(1e3 * record.seconds[stage] for stage in STAGES),
            probe=plan.probe,
            fallback=counters.fallback is not None,
            tried=tuple(tried.sum(axis=0).tolist()),
            right=tuple(held.sum(axis=0).tolist()),
            by_depth=by_depth,
            survival=survival,
            confidence=confidence,
            reason=reason,
        )

    def _off_ms(self, planner: Planner, record: RoundRecord) -> float:
        """A round without speculation, by the planner's table, times what this round's prediction is corrected by.

        That leaves out that a constant overhead weighs more in a shorter round, so that what speculation brings is
        rather understated. The table is read anew where the mean context has moved, not in every round.
        """
        costs, plan, num_requests = getattr(planner, "costs", None), record.plan, record.num_requests
        if not isinstance(costs, CostModel):
            return 0.0
        context = record.context_tokens / num_requests
        if abs(context - self._context) > CONTEXT_STEP * self._context:
            self._context = context
        correction = plan.predicted_ms / plan.table_ms if plan.table_ms > 0 and plan.predicted_ms > 0 else 1.0
        return costs.target_ms(num_requests, num_requests, self._context) * correction


def _bins(probability: FloatArray) -> IntArray:
    return np.clip((probability * NUM_BINS).astype(np.int64), 0, NUM_BINS - 1)
