"""Counts of what rounds did: only additions in the hot path; rates are left to whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class DecodeCounters:
    """Totals since the start.

    Attributes:
        num_rounds: rounds run.
        num_request_rounds: requests summed over rounds; each had one guaranteed row.
        num_drafts: requests that had a proposal, summed over rounds.
        num_draft_tokens: drafts proposed.
        num_verified_tokens: drafts that had a row.
        num_accepted_tokens: drafts accepted, the target's own tokens not counted.
        num_committed_tokens: tokens kept, the target's own included.
        accepted_per_position: int[K], drafts accepted at each depth.
        num_refused_feedback: rounds whose feedback the planner refused.
        fallback: why dynamic planning was given up, or None.
        plan_seconds: time spent planning and observing.
    """

    max_draft_steps: int
    num_rounds: int = 0
    num_request_rounds: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    num_committed_tokens: int = 0
    num_refused_feedback: int = 0
    fallback: str | None = None
    plan_seconds: float = 0.0
    accepted_per_position: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.accepted_per_position = np.zeros(self.max_draft_steps, dtype=np.int64)

    def add_round(self, drafted: IntArray, verified: IntArray, accepted: IntArray, committed: IntArray) -> None:
        """Count one round; arguments are per request."""
        self.num_rounds += 1
        self.num_request_rounds += len(drafted)
        self.num_drafts += int(np.count_nonzero(drafted))
        self.num_draft_tokens += int(drafted.sum())
        self.num_verified_tokens += int(verified.sum())
        self.num_accepted_tokens += int(accepted.sum()) - len(accepted)
        self.num_committed_tokens += int(committed.sum())
        tally = np.bincount(accepted - 1, minlength=self.max_draft_steps + 1)
        self.accepted_per_position += tally[::-1].cumsum()[::-1][1:]
