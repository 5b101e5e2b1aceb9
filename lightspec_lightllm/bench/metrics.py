"""The numbers of a run, named as ``vllm bench serve`` names them where it has them; the rest is about speculation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.bench.runner import UNFINISHED, RunResult


@dataclass(frozen=True)
class Metrics:
    """One run in numbers. A latency that no request has (a single token has no time per output token) is None."""

    duration: float
    """Seconds."""
    completed: int
    """Requests that finished. Tokens and latencies are also of those whose run ended before them."""
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    """Requests per second."""
    output_throughput: float
    """Output tokens per second, prefill included in the time."""
    total_token_throughput: float
    """Input and output tokens per second."""
    mean_ttft_ms: float | None
    median_ttft_ms: float | None
    std_ttft_ms: float | None
    p50_ttft_ms: float | None
    p99_ttft_ms: float | None
    mean_tpot_ms: float | None
    median_tpot_ms: float | None
    std_tpot_ms: float | None
    p50_tpot_ms: float | None
    p99_tpot_ms: float | None
    mean_itl_ms: float | None
    median_itl_ms: float | None
    std_itl_ms: float | None
    p50_itl_ms: float | None
    p99_itl_ms: float | None
    num_rounds: int
    mean_accept_length: float
    """Tokens a request commits per round, the target's own included."""
    accepted_per_verified: float | None
    """Accepted drafts over drafts that were verified. None: nothing was verified."""
    accepted_per_drafted: float | None
    """Accepted drafts over all drafts proposed. None: nothing was proposed."""
    verify_rows_per_round: float
    draft_steps_per_round: float
    mean_running_requests: float
    decode_throughput: float | None
    """Committed tokens per second of rounds that read no prompts, all but admission. None: all rounds read some."""
    plan_ms_per_round: float
    draft_ms_per_round: float | None
    target_ms_per_round: float | None
    """The last two over rounds that read no prompts. None: all did."""


def measure(run: RunResult) -> Metrics:
    rounds = run.rounds
    requests = [r for r in run.requests if r.tokens]
    completed = sum(r.finish_reason != UNFINISHED for r in run.requests)
    input_tokens = sum(r.prompt_tokens for r in requests)
    output_tokens = sum(len(r.tokens) for r in requests)
    ttft = _Latency.of([r.ttft for r in requests])
    tpot = _Latency.of([(r.latency - r.ttft) / (len(r.tokens) - 1) for r in requests if len(r.tokens) > 1])
    itl = _Latency.of([gap for r in requests for gap in r.gaps])
    rows = sum(r.num_requests for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    drafts_accepted = accepted - rows
    decoding = [r for r in rounds if not r.prompt_tokens]
    decode_ms = sum(r.plan_ms + r.target_ms + r.draft_ms + r.commit_ms for r in decoding)
    return Metrics(
        duration=run.duration,
        completed=completed,
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=completed / run.duration,
        output_throughput=output_tokens / run.duration,
        total_token_throughput=(input_tokens + output_tokens) / run.duration,
        mean_ttft_ms=ttft.mean,
        median_ttft_ms=ttft.p50,
        std_ttft_ms=ttft.std,
        p50_ttft_ms=ttft.p50,
        p99_ttft_ms=ttft.p99,
        mean_tpot_ms=tpot.mean,
        median_tpot_ms=tpot.p50,
        std_tpot_ms=tpot.std,
        p50_tpot_ms=tpot.p50,
        p99_tpot_ms=tpot.p99,
        mean_itl_ms=itl.mean,
        median_itl_ms=itl.p50,
        std_itl_ms=itl.std,
        p50_itl_ms=itl.p50,
        p99_itl_ms=itl.p99,
        num_rounds=len(rounds),
        mean_accept_length=_ratio(accepted, rows) or 0.0,
        accepted_per_verified=_ratio(drafts_accepted, sum(r.verified for r in rounds)),
        accepted_per_drafted=_ratio(drafts_accepted, sum(r.drafted for r in rounds)),
        verify_rows_per_round=_mean([r.verify_rows for r in rounds]),
        draft_steps_per_round=_mean([r.draft_steps for r in rounds]),
        mean_running_requests=_mean([r.num_requests for r in rounds]),
        decode_throughput=_ratio(1e3 * sum(r.committed for r in decoding), decode_ms),
        plan_ms_per_round=_mean([r.plan_ms for r in rounds]),
        draft_ms_per_round=_ratio(sum(r.draft_ms for r in decoding), len(decoding)),
        target_ms_per_round=_ratio(sum(r.target_ms for r in decoding), len(decoding)),
    )


@dataclass(frozen=True)
class _Latency:
    """Milliseconds."""

    mean: float | None
    p50: float | None
    p99: float | None
    std: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "_Latency":
        if not seconds:
            return cls(None, None, None, None)
        ms = 1e3 * np.asarray(seconds)
        return cls(float(ms.mean()), float(np.percentile(ms, 50)), float(np.percentile(ms, 99)), float(ms.std()))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
