"""One decode round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.decode.counters import DecodeCounters
from lightspec_lightllm.decode.guard import GuardedPlanner
from lightspec_lightllm.decode.host import Host, IntArray, RankingHost, Verdict
from lightspec_lightllm.decode.select import select_rows
from lightspec_lightllm.planner import BatchView, Plan, Planner, RoundFeedback


@dataclass(frozen=True, slots=True, eq=False)
class RoundRecord:
    """What one round did; arrays are per request, in batch order.

    Attributes:
        plan: what was planned.
        num_requests: N.
        context_tokens: tokens in the KV cache over all requests before the round.
        request_ids: int[N].
        drafted: int[N], drafts that were waiting.
        verified: int[N], of them had a row.
        accepted: int[N], accept lengths, the target's own token included.
        committed: int[N], tokens kept.
        draft_steps: steps drafted for the next round.
        seconds: time of each stage: schedule (admission), plan, target (the forward, which reads prompts besides),
            commit, draft.
        confidence: float[N, K] of the waiting drafts, or None.
        prompt_tokens: see `Verdict`.
    """

    plan: Plan
    num_requests: int
    context_tokens: int
    request_ids: IntArray
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    committed: IntArray
    draft_steps: int
    seconds: dict[str, float]
    confidence: npt.NDArray[np.float64] | None = None
    prompt_tokens: int = 0

    @property
    def round_ms(self) -> float:
        """Time that the plan had a say in: all but scheduling. More than that with prompt tokens."""
        return 1e3 * (self.seconds["plan"] + self.seconds["target"] + self.seconds["commit"] + self.seconds["draft"])


class Round:
    """Runs rounds of one planner on one host."""

    def __init__(self, host: Host, planner: Planner) -> None:
        self.host = host
        self._ranking = host if isinstance(host, RankingHost) else None
        self.counters = DecodeCounters(planner.max_draft_steps)
        self.planner = GuardedPlanner(planner, self.counters)

    def step(self) -> RoundRecord | None:
        """Run one round; None when no request decodes (there may still be prefill to do).

        Only accept lengths and tokens are read back: rows are request-major and the kept ones a prefix, so they say
        everything.
        """
        host, times = self.host, [self.host.now()]
        view = host.schedule()
        times.append(host.now())
        if view.num_requests == 0:
            return None
        plan = self.planner.plan(view)
        survival = self._ranking.rank(plan) if self._ranking else plan.survival
        verified = select_rows(view.proposed, plan.verify_rows, survival)
        times.append(host.now())
        verdict = host.verify(verified)
        times.append(host.now())
        committed = host.commit(verdict)
        times.append(host.now())
        steps = host.draft(plan.draft_steps, self.planner.rule(plan))
        times.append(host.now())
        record = _record(view, plan, verified, verdict, committed, steps, times)
        self.planner.observe(_feedback(view, record))
        self.counters.add_round(view.proposed, verified, verdict.accepted, committed)
        self.counters.plan_seconds += record.seconds["plan"] + host.now() - times[-1]
        return record


def _record(  # noqa: PLR0917 - the round's parts in their order
    view: BatchView,
    plan: Plan,
    verified: IntArray,
    verdict: Verdict,
    committed: IntArray,
    draft_steps: int,
    times: list[float],
) -> RoundRecord:
    stages = ("schedule", "plan", "target", "commit", "draft")
    ids = np.arange(view.num_requests) if view.request_ids is None else view.request_ids
    return RoundRecord(
        plan=plan,
        num_requests=view.num_requests,
        context_tokens=int(np.sum(np.broadcast_to(view.context_tokens, view.num_requests))),
        request_ids=ids,
        drafted=view.proposed,
        verified=verified,
        accepted=verdict.accepted,
        committed=committed,
        draft_steps=draft_steps,
        seconds={stage: end - start for stage, start, end in zip(stages, times, times[1:], strict=False)},
        confidence=verdict.confidence if view.confidence is None else view.confidence,
        prompt_tokens=verdict.prompt_tokens,
    )


def _feedback(view: BatchView, record: RoundRecord) -> RoundFeedback:
    return RoundFeedback(
        record.plan,
        record.verified,
        record.accepted,
        confidence=record.confidence,
        measured_ms=record.round_ms if record.round_ms > 0 and not record.prompt_tokens else None,
        request_ids=view.request_ids,
        draft_steps=record.draft_steps,
    )
