"""The planner of a model rank: plans before a round's launch, learns once its accept lengths are on the CPU."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lightspec_lightllm.adapters.lightllm.batch import DecodeBatch
from lightspec_lightllm.adapters.lightllm.metrics import Reporter, RoundReport
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from lightspec_lightllm.decode.counters import DecodeCounters
from lightspec_lightllm.decode.guard import FALLBACK_STEPS, GuardedPlanner
from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.planner import CostModel, DrafterKind, Plan, Planner, RoundFeedback, make_planner
from lightspec_lightllm.plugins import InstalledStrategies

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PlannedRound:
    """One round from its plan to its feedback.

    Attributes:
        plan, batch: what was planned, and for which requests.
        plan_seconds: time that planning took.
        padded_rows: rows that the captured graph has beyond the plan's.
        verified: int64[N], drafts that had a row; known with the accept lengths.
        accepted: int64[N], accept lengths, the target's own token included.
        confidence: float64[N, K], the drafter's probabilities of the drafts that waited.
        started: a timed CUDA event before the round's first kernel.
        ended: the one before the next round's, where that followed at once.
    """

    plan: Plan
    batch: DecodeBatch
    plan_seconds: float
    padded_rows: int = 0
    verified: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    accepted: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    confidence: npt.NDArray[np.float64] | None = None
    started: Any = None
    ended: Any = None


class RoundPlanner:
    """Plans rounds and passes on what they did.

    A round's time is known only when the next one has begun, so feedback comes one round late. It carries no time when
    something else ran in between, nor on several ranks, which would measure differently and then plan differently.
    """

    def __init__(
        self, planner: Planner, reporter: Reporter | None, *, timed: bool, why_fixed: str | None = None
    ) -> None:
        self.max_draft_steps = planner.max_draft_steps
        self.counters = DecodeCounters(planner.max_draft_steps)
        self._planner = GuardedPlanner(planner, self.counters)
        self._reporter = reporter
        self._timed = timed
        self._finished: PlannedRound | None = None
        if why_fixed is not None:
            self.counters.fallback = why_fixed

    def plan(self, batch: DecodeBatch) -> PlannedRound:
        """Choose the verify budget of this round and the draft steps for the next."""
        began = time.perf_counter()
        plan = self._planner.plan(batch.view)
        return PlannedRound(plan, batch, time.perf_counter() - began)

    def begin(self, round_: PlannedRound) -> None:
        """A round is being launched on the current stream: it ends the one before it."""
        round_.started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        round_.started.record()
        if self._finished is not None:
            self._finished.ended = round_.started

    def finish(self, round_: PlannedRound) -> None:
        """A round's accept lengths are known: learn from the one before it, whose time is known too by now."""
        batch = round_.batch
        self.counters.add_round(batch.drafts.astype(np.int64), round_.verified, round_.accepted, round_.accepted)
        self.flush()
        self._finished = round_

    def interrupt(self) -> None:
        """Something else than a decode round is launched: the last round's time will not be known."""
        if self._finished is not None and self._finished.ended is None:
            self._finished.started = None

    def flush(self) -> None:
        """Learn from the last round."""
        round_, self._finished = self._finished, None
        if round_ is None:
            return
        measured = None
        if self._timed and round_.started is not None and round_.ended is not None:
            measured = float(round_.started.elapsed_time(round_.ended))
        began, refused = time.perf_counter(), self.counters.num_refused_feedback
        self._planner.observe(
            RoundFeedback(
                round_.plan,
                round_.verified,
                round_.accepted,
                confidence=round_.confidence,
                measured_ms=measured or None,
                request_ids=round_.batch.request_ids,
            )
        )
        seconds = round_.plan_seconds + time.perf_counter() - began
        self.counters.plan_seconds += seconds
        if self._reporter is not None:
            refused = self.counters.num_refused_feedback - refused
            self._reporter.add(self._report(round_, seconds, measured, refused=refused > 0))

    def _report(self, round_: PlannedRound, seconds: float, measured_ms: float | None, *, refused: bool) -> RoundReport:
        batch = round_.batch
        return RoundReport(
            plan=round_.plan,
            num_requests=len(batch.reqs),
            context_tokens=int(batch.seq_len.sum()),
            request_ids=batch.request_ids,
            drafted=batch.drafts.astype(np.int64),
            verified=round_.verified,
            accepted=round_.accepted,
            draft_steps=round_.plan.draft_steps,
            padded_rows=round_.padded_rows,
            plan_seconds=seconds,
            measured_ms=measured_ms,
            fallback=self.counters.fallback is not None,
            refused=refused,
            confidence=round_.confidence,
        )


def plan_digest(plan: Plan) -> int:
    """A number that two ranks share exactly if their plans are the same."""
    parts = [np.array([plan.verify_rows, plan.draft_steps, plan.num_requests], dtype=np.int64).tobytes()]
    if plan.survival is not None:
        parts.append(np.ascontiguousarray(plan.survival, dtype=np.float64).tobytes())
    digest = hashlib.blake2b(b"".join(parts), digest_size=7)
    return int.from_bytes(digest.digest(), "little")


def check_digests(lowest: int, highest: int) -> None:
    """Raises PlanError unless the smallest and the largest digest over all ranks agree."""
    if lowest != highest:
        raise PlanError(
            "ranks planned different rounds: every rank must run the same versions of lightspec_lightllm and numpy and "
            "read the same cost table; restart the server, or run it with planner.strategy: fixed:3"
        )


def open_planner(config: LightLLMConfig, costs: CostModel, kind: DrafterKind) -> Planner:
    """The planner that the configuration names."""
    choice = config.planner.resolve(config.planner.strategy)
    return make_planner(
        choice.strategy,
        costs,
        max_draft_steps=config.planner.max_draft_steps,
        drafter=kind,
        registered=InstalledStrategies(),
        **choice.options,
    )


def fixed_planner(max_draft_steps: int, kind: DrafterKind, max_rows: int) -> Planner:
    """Fixed steps without a cost table, for a server whose table cannot be had; at most ``max_rows`` rows a round."""
    steps = max_draft_steps if kind in ("chained", "block") else min(FALLBACK_STEPS, max_draft_steps)
    flat = CostModel.from_tables({1: 1.0}, max_rows=max_rows)
    return make_planner("fixed", flat, max_draft_steps=max_draft_steps, drafter=kind, steps=steps)
