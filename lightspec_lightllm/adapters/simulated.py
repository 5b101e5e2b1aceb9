"""A host without a model: acceptance is drawn, time is computed. For planning questions and tests in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.decode.host import IntArray, StepRule, Verdict
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind
from lightspec_lightllm.planner.types import FloatArray


@dataclass(frozen=True, slots=True)
class AcceptanceProfile:
    """How drafts of a simulated workload are accepted.

    The log-odds of draft j of a request are ``logit(acceptance[j]) + spread * z_request + noise * z_token`` with
    standard normal z, so requests differ in difficulty, and tokens around it.

    Attributes:
        acceptance: conditional acceptance per depth, in (0, 1); the last one holds for all deeper drafts.
        spread: standard deviation of requests, in log-odds.
        noise: standard deviation of tokens, in log-odds.
        confidence: whether the drafter tells the acceptance of each draft.
        bias: added to the log-odds of the confidence that is told, not to the truth: a miscalibrated drafter.
    """

    acceptance: tuple[float, ...] = (0.7,)
    spread: float = 0.0
    noise: float = 0.0
    confidence: bool = False
    bias: float = 0.0

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0.0 < a < 1.0 for a in self.acceptance):
            raise ConfigError(f"acceptance: expected probabilities between 0 and 1, got {self.acceptance}")
        if self.spread < 0 or self.noise < 0:
            raise ConfigError(f"spread and noise: expected at least 0, got {self.spread} and {self.noise}")


class SimulatedHost:
    """N requests that never end, on a clock that costs set.

    Args:
        costs: true costs of a round, in milliseconds.
        num_requests: N, or a function of the round's number.
        profile: acceptance, or a function of the round's number (a shift of the workload).
        max_draft_steps: K.
        drafter: how the drafter's time grows.
        context_tokens: context of every request at the start; it grows with the committed tokens.
        lifetime: tokens after which a request is replaced by a new one with another difficulty, or None.
        max_backlog: committed tokens per request that a drafter which did not draft must catch up on at most.
        cost_noise: relative standard deviation of a round's time.
        seed: of everything that is drawn.
    """

    def __init__(
        self,
        costs: CostModel,
        num_requests: int | Callable[[int], int],
        profile: AcceptanceProfile | Callable[[int], AcceptanceProfile],
        *,
        max_draft_steps: int,
        drafter: DrafterKind = "serial",
        context_tokens: int = 512,
        lifetime: int | None = None,
        max_backlog: int = 32,
        cost_noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.costs = costs
        self.max_draft_steps = max_draft_steps
        self.drafter: DrafterKind = drafter
        self.rounds = 0
        self._num_requests = num_requests
        self._profile = profile
        self._start_context = context_tokens
        self._lifetime = lifetime
        self._max_backlog = max_backlog
        self._cost_noise = cost_noise
        self._rng = np.random.default_rng(seed)
        self._clock_ms = 0.0
        self._ids = np.zeros(0, dtype=np.int64)
        self._difficulty = np.zeros(0)
        self._context = np.zeros(0, dtype=np.int64)
        self._proposed = np.zeros(0, dtype=np.int64)
        self._unseen = np.zeros(0, dtype=np.int64)
        self._truth = np.zeros((0, max_draft_steps))
        self._told = np.zeros((0, max_draft_steps))
        self._committed = np.zeros(0, dtype=np.int64)
        self._rows = 0
        self._next_id = 0

    def now(self) -> float:
        """Seconds on the simulated clock."""
        return self._clock_ms / 1e3

    def check_slots(self) -> None:
        """There are no slots to lose."""

    def _resize(self) -> None:
        wanted = self._num_requests(self.rounds) if callable(self._num_requests) else self._num_requests
        held = min(len(self._ids), wanted)
        fresh = wanted - held
        self._ids = np.concatenate((self._ids[:held], self._next_id + np.arange(fresh)))
        self._next_id += fresh
        self._difficulty = np.concatenate((self._difficulty[:held], self._rng.standard_normal(fresh)))
        self._context = np.concatenate((self._context[:held], np.full(fresh, self._start_context)))
        self._proposed = np.concatenate((self._proposed[:held], np.zeros(fresh, dtype=np.int64)))
        self._unseen = np.concatenate((self._unseen[:held], np.zeros(fresh, dtype=np.int64)))
        blank = np.zeros((fresh, self.max_draft_steps))
        self._truth = np.concatenate((self._truth[:held], blank))
        self._told = np.concatenate((self._told[:held], blank))

    def schedule(self) -> BatchView:
        """See `Host`."""
        self._resize()
        return BatchView(
            num_requests=len(self._ids),
            proposed=self._proposed,
            context_tokens=self._context,
            confidence=self._told if self.profile.confidence else None,
            request_ids=self._ids,
            draft_backlog=int(self._unseen.sum()),
        )

    @property
    def profile(self) -> AcceptanceProfile:
        """The acceptance profile of this round."""
        return self._profile(self.rounds) if callable(self._profile) else self._profile

    def verify(self, verified: IntArray) -> Verdict:
        """See `Host`."""
        num_requests = len(self._ids)
        self._rows = num_requests + int(verified.sum())
        right = self._rng.random(self._truth.shape) < self._truth
        right &= np.arange(self.max_draft_steps) < verified[:, None]
        accepted = 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1)
        self._spend(self.costs.target_ms(self._rows, num_requests, float(self._context.mean())))
        return Verdict(accepted, np.zeros((num_requests, 1 + self.max_draft_steps), dtype=np.int64))

    def commit(self, verdict: Verdict) -> IntArray:
        """See `Host`."""
        self._context = self._context + verdict.accepted
        self._committed = verdict.accepted
        self.rounds += 1
        return verdict.accepted

    def draft(self, steps: int, chain: StepRule | None = None) -> int:  # noqa: ARG002 - steps are made at once
        """See `Host`. A drafter with a KV cache catches up on what was committed while it did not draft."""
        self._spend(
            self.costs.draft_ms(
                self.drafter,
                len(self._ids),
                self._rows,
                steps,
                block=self.max_draft_steps,
                context=float(self._context.mean()),
                backlog=int(self._unseen.sum()),
            )
        )
        if self.drafter in ("serial", "chained", "block"):
            unseen = np.minimum(self._unseen + self._committed, self._max_backlog)
            self._unseen = np.zeros_like(self._unseen) if steps else unseen
        if self._lifetime is not None:
            going_on = self._context - self._start_context < self._lifetime
            for name in ("_ids", "_difficulty", "_context", "_proposed", "_unseen", "_truth", "_told"):
                setattr(self, name, getattr(self, name)[going_on])
        profile = self.profile
        base = np.array([profile.acceptance[min(j, len(profile.acceptance) - 1)] for j in range(self.max_draft_steps)])
        log_odds = np.log(base / (1 - base)) + profile.spread * self._difficulty[:, None]
        log_odds = log_odds + profile.noise * self._rng.standard_normal(log_odds.shape)
        self._truth = _sigmoid(log_odds)
        self._told = _sigmoid(log_odds + profile.bias)
        self._proposed = np.full(len(self._ids), steps, dtype=np.int64)
        return steps

    def _spend(self, milliseconds: float) -> None:
        factor = 1.0
        if self._cost_noise:
            factor = float(np.exp(self._cost_noise * self._rng.standard_normal()))
        self._clock_ms += milliseconds * factor


def _sigmoid(log_odds: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))
