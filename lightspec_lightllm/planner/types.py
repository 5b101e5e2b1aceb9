"""The nouns of planning: what a planner sees, what it answers, what it is told afterwards.

Shapes: ``N`` requests of the batch, ``K`` the largest number of draft steps. Arrays are in request order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lightspec_lightllm.planner.chain import ChainRule
    from lightspec_lightllm.planner.trials import Reading

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

DrafterKind = Literal["serial", "serial_no_kv", "chained", "block", "free"]
"""How the drafter's time grows (see `CostModel.draft_ms`)."""

BY_STEP: tuple[DrafterKind, ...] = ("serial", "serial_no_kv")
"""Drafters that take a forward per step: they make as many as they are asked for, and may end a draft after any."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchView:
    """What is known on the CPU when a round is planned.

    Attributes:
        num_requests: N, requests that decode in this round; each owns one guaranteed row.
        proposed: int[N], drafts waiting per request, 0 where there is no valid proposal.
        context_tokens: tokens in the KV cache per request: a mean, or int[N].
        confidence: float[N, K] or None. The drafter's probability that draft j is right given that 1..j-1 are;
            entries past ``proposed`` are ignored. NaN: not known of this draft, which is then judged by depth and
            request alone. Only given when the host knows it before it plans.
        request_ids: int[N] or None. Ties the rounds of one request together; None forgoes per-request statistics.
        draft_backlog: committed tokens that the drafter has not seen yet and must catch up on before its first step
            (rounds that drafted nothing leave them behind), or None when the host does not count them.
    """

    num_requests: int
    proposed: IntArray
    context_tokens: Any = 0
    confidence: FloatArray | None = None
    request_ids: IntArray | None = None
    draft_backlog: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What one round does.

    Attributes:
        verify_rows: B, rows of the target's batch, ``N <= B <= N + sum(proposed)``.
        draft_steps: d, drafts to propose after this round's verification, for the next round.
        num_requests: N.
        survival: float[N, K] or None: the planner's estimate that drafts 1..j of a request are all accepted. Rows are
            taken by it, highest first (a prefix per request, since it never grows with j); None means breadth first.
        proposed: int[N] or None: the drafts waiting when the plan was made.
        table_ms: the round's expected time straight from the cost tables.
        step_ms: what of it one draft step more or fewer makes, where steps are made one by one; else 0.
        predicted_ms: the same, corrected by the measured time of earlier rounds.
        predicted_tokens: the round's expected committed tokens.
        probe: whether the round was made to learn rather than to gain.
        reading: the planner's own notes on the confidences it saw; a host passes the plan back as it is.
        chain: whether each further draft step pays, for a host that drafts step by step; None: make ``draft_steps``.
    """

    verify_rows: int
    draft_steps: int
    num_requests: int = 0
    survival: FloatArray | None = None
    proposed: IntArray | None = None
    table_ms: float = 0.0
    step_ms: float = 0.0
    predicted_ms: float = 0.0
    predicted_tokens: float = 0.0
    probe: bool = False
    chain: ChainRule | None = None
    reading: Reading | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class RoundFeedback:
    """What a round did. May arrive late and out of step with plans.

    Attributes:
        plan: the plan that the round ran.
        verified: int[N], drafted rows verified per request.
        accepted: int[N], accept lengths, the target's own token included (``1 <= accepted <= 1 + verified``).
        confidence: float[N, K] or None, of the drafts that were up for verification, trimmed ones included.
        measured_ms: the whole round's time, or None. Every rank must be given the same number.
        request_ids: int[N] or None.
        draft_steps: those made, where a host ended the draft early or went on (see `ChainRule`); None: as planned.
    """

    plan: Plan
    verified: IntArray
    accepted: IntArray
    confidence: FloatArray | None = None
    measured_ms: float | None = None
    request_ids: IntArray | None = None
    draft_steps: int | None = None


@dataclass(slots=True)
class PlannerCounters:
    """What a planner did so far; read by metrics, never by the planner itself.

    Attributes:
        plans: rounds planned.
        observed: rounds fed back.
        probes: rounds planned to learn rather than to gain.
        skips: rounds planned without verifying a draft.
        changes: changes of the workload that were detected.
        refused_feedback: rounds whose feedback no round can have given.
        unknown_confidences: confidences of proposed drafts that were NaN, each taken as not known. Counted once for
            each time that an array is read: what the plan was made from is not read again when it is fed back.
        switches: changes of the planner that plans, of a hybrid.
    """

    plans: int = 0
    observed: int = 0
    probes: int = 0
    skips: int = 0
    changes: int = 0
    refused_feedback: int = 0
    unknown_confidences: int = 0
    switches: int = 0


class Planner(Protocol):
    """What every strategy offers. Deterministic: the same views and feedbacks give the same plans on every rank."""

    max_draft_steps: int

    @property
    def counters(self) -> PlannerCounters:
        """What it did so far."""

    def plan(self, view: BatchView) -> Plan:
        """Choose the verify budget of this round and the draft steps for the next."""

    def observe(self, feedback: RoundFeedback) -> None:
        """Learn from a round that ran."""
