"""The seam between the round and what it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.planner import BatchView, Plan

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What the target made of a round's rows.

    Attributes:
        accepted: int[N], accept lengths, the target's own token included.
        tokens: int[N, 1 + K], the tokens to commit; those past ``accepted`` mean nothing.
        confidence: float[N, K] of the drafts that were waiting, from a host that did not know it when it scheduled.
        prompt_tokens: prompt positions that were computed since the round before, in the same forward or on its own.
            The rows' time cannot be told from theirs, and a drafter takes them in with its next draft: such a round is
            no measure of what its plan costs.
    """

    accepted: IntArray
    tokens: IntArray
    confidence: npt.NDArray[np.float64] | None = None
    prompt_tokens: int = 0


class StepRule(Protocol):
    """Decides, while drafting, whether one more step is worth its time; see `planner.ChainRule`."""

    def worth_another_step(self, confidence: npt.NDArray[np.float64], request_ids: IntArray) -> bool:
        """After j steps: ``confidence`` float[n, j] and ids int[n] of the requests that are drafted for."""


class Host(Protocol):
    """An engine as a round sees it. A round calls schedule, verify, commit and draft, in this order, once each.

    Arrays are in the order of the requests of the last `schedule`.
    """

    max_draft_steps: int

    def schedule(self) -> BatchView:
        """Admit, resume or pause requests, and reserve 1 + K slots for each that decodes: the batch. Prompts are read
        here or in `verify`."""

    def verify(self, verified: IntArray) -> Verdict:
        """Run the target on row 0 and the first ``verified`` drafts of each request, sample, and accept the longest
        prefix of drafts that equals what was sampled."""

    def commit(self, verdict: Verdict) -> IntArray:
        """Append the accepted tokens and give back the slots that they do not need, once.

        Returns:
            int[N], tokens kept: fewer than accepted where a request ended.
        """

    def draft(self, steps: int, chain: StepRule | None = None) -> int:
        """Propose drafts for each request that goes on, and for those whose prompt was read in `verify`; with 0 steps
        what was proposed is dropped.

        A host that sees each step's confidence in time may ask ``chain`` after every step and make anything from 1 to
        K of them; ``steps`` is then what is expected. Any other host makes ``steps``.

        Returns:
            The steps made.
        """

    def now(self) -> float:
        """Seconds on the clock that rounds are measured by."""

    def check_slots(self) -> None:
        """Raise SlotError unless every slot is free or owned by exactly one live request."""


@runtime_checkable
class RankingHost(Protocol):
    """A host that learns how likely its drafts are only once the round is planned, as an asynchronous GPU does: the
    plan says how many rows there are, the host in which order they are taken."""

    def rank(self, plan: Plan) -> npt.NDArray[np.float64] | None:
        """float[N, K], in the place of the plan's survival (see `select_rows`)."""
