"""The numbers of a run, defined and named as ``vllm bench serve`` defines and names them.

======  ===============================================================================================================
TTFT    from sending a request to the first event that brings text
TPOT    of a request with n > 1 output tokens: (latency - TTFT) / (n - 1). Several tokens in one event count as several
ITL     between one event that brings text and the next, over all requests. A speculative server brings several tokens
        in an event, so that ITL is the time between *rounds*, and larger than TPOT; `tokens_per_event` says how many
E2EL    from sending to the last event of the answer
======  ===============================================================================================================

Only requests that succeeded count, but the time that failed ones took is part of the duration. Two differences:
events without text do not count as arrivals (vLLM counts the one that names the role and the one that ends the
answer), and a latency that no request has is None rather than 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.client.request import RequestOutput


@dataclass(frozen=True)
class Latency:
    """Milliseconds. All None when there is nothing to describe."""

    mean: float | None
    median: float | None
    std: float | None
    percentiles: dict[float, float | None]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> "Latency":
        if not seconds:
            return cls(None, None, None, dict.fromkeys(percentiles))
        ms = 1e3 * np.asarray(seconds)
        at: dict[float, float | None] = {p: float(np.percentile(ms, p)) for p in percentiles}
        return cls(float(ms.mean()), float(np.median(ms)), float(ms.std()), at)


@dataclass(frozen=True)
class LoadMetrics:
    """One run in numbers. Throughputs are per second of the whole run."""

    completed: int
    failed: int
    total_input_tokens: int | None
    """None where neither the server nor a tokenizer counts prompts."""
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    """Requests per second that meet every objective; None without objectives."""
    output_throughput: float
    total_token_throughput: float | None
    max_output_tokens_per_s: float
    """In the best second of the run; the tokens of a request are spread evenly over its events."""
    max_concurrent_requests: int
    tokens_per_event: float | None
    latencies: dict[str, Latency]
    """By name of `options.LATENCIES`."""


def measure(
    outputs: Sequence[RequestOutput],
    duration: float,
    *,
    percentiles: Sequence[float],
    goodput: dict[str, float],
) -> LoadMetrics:
    """``goodput``: the most milliseconds a good request takes, by name of `options.SLO_NAMES`."""
    good = [output for output in outputs if output.succeeded]
    output_tokens = sum(output.output_tokens for output in good)
    prompts = [output.prompt_tokens for output in good if output.prompt_tokens is not None]
    input_tokens = sum(prompts) if len(prompts) == len(good) else None
    events = sum(_num_events(output) for output in good)
    values = {
        "ttft": [output.ttft for output in good],
        "tpot": [tpot for output in good if (tpot := tpot_of(output)) is not None],
        "itl": [gap for output in good for gap in output.itl],
        "e2el": [output.latency for output in good],
        "client_queue_time": [output.queued for output in good],
    }
    return LoadMetrics(
        completed=len(good),
        failed=len(outputs) - len(good),
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=len(good) / duration,
        request_goodput=sum(meets(output, goodput) for output in good) / duration if goodput else None,
        output_throughput=output_tokens / duration,
        total_token_throughput=None if input_tokens is None else (input_tokens + output_tokens) / duration,
        max_output_tokens_per_s=_busiest_second(good),
        max_concurrent_requests=_most_at_once(good),
        tokens_per_event=output_tokens / events if events else None,
        latencies={name: Latency.of(seconds, percentiles) for name, seconds in values.items()},
    )


def tpot_of(output: RequestOutput) -> float | None:
    """Seconds per output token after the first; None for a single token."""
    return (output.latency - output.ttft) / (output.output_tokens - 1) if output.output_tokens > 1 else None


def meets(output: RequestOutput, goodput: dict[str, float]) -> bool:
    """Whether a request meets every objective; one of a single token meets that for TPOT."""
    measured = {"ttft": output.ttft, "tpot": tpot_of(output) or 0.0, "e2el": output.latency}
    return all(1e3 * measured[name] <= most for name, most in goodput.items())


def _num_events(output: RequestOutput) -> int:
    return len(output.itl) + 1 if output.output_tokens else 0


def _busiest_second(outputs: Sequence[RequestOutput]) -> float:
    if not outputs:
        return 0.0
    began = min(output.start for output in outputs)
    seconds: dict[int, float] = {}
    for output in outputs:
        at = output.start + output.ttft - began
        share = output.output_tokens / max(_num_events(output), 1)
        for gap in (0.0, *output.itl):
            at += gap
            seconds[int(at)] = seconds.get(int(at), 0.0) + share
    return max(seconds.values())


def _most_at_once(outputs: Sequence[RequestOutput]) -> int:
    """Requests in flight at the same time; one that ends as another begins is gone by then."""
    changes = [(output.start, 1) for output in outputs]
    changes += [(output.start + output.latency, -1) for output in outputs]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
