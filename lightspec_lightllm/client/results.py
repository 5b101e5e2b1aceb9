"""The file of a run: one flat record with the field names of ``vllm bench serve``, and a few more beside them."""

import dataclasses
from datetime import datetime
from typing import Any

from lightspec_lightllm.client.answers import AnswerCheck
from lightspec_lightllm.client.metrics import Latency
from lightspec_lightllm.client.options import ClientOptions
from lightspec_lightllm.client.run import Run
from lightspec_lightllm.client.speculation import Speculation
from lightspec_lightllm.machine import this_machine

FORMAT = "lightspec-client/1"
MICROSECONDS = 6
"""Decimals of seconds in the file."""

Fields = dict[str, Any]


def to_json(run: Run, options: ClientOptions, model: str, date: datetime) -> Fields:
    return (
        _setting(run, options, model, date)
        | _numbers(run)
        | _requests(run)
        | _speculation(run.speculation)
        | {"answers": _answers(run.answers)}
        | _latencies(run, options)
    )


def _setting(run: Run, options: ClientOptions, model: str, date: datetime) -> Fields:
    sampling = options.sampling
    return {
        "format": FORMAT,
        "date": date.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.api,
        "backend": options.api,
        "label": options.label,
        "model_id": model,
        "tokenizer_id": None if options.tokenizer is None else str(options.tokenizer),
        "num_prompts": len(run.prompts),
        "request_rate": run.load.request_rate if run.load.request_rate < float("inf") else "inf",
        "burstiness": 1.0,
        "max_concurrency": run.load.max_concurrency,
        "base_url": options.base_url,
        "dataset": run.dataset.name,
        "dataset_source": run.dataset.source,
        "num_warmups": run.num_warmups,
        "seed": options.seed,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "ignore_eos": sampling.ignore_eos,
        "extra_body": sampling.extra_body,
        "prompt_template": options.prompt_template,
        "goodput": options.goodput,
        "client": dataclasses.asdict(this_machine()),
    }


def _numbers(run: Run) -> Fields:
    metrics, result = run.metrics, run.result
    return {
        "duration": result.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "cancelled": result.cancelled,
        "interrupted": result.interrupted,
        "retries": run.retries,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "tokens_per_event": metrics.tokens_per_event,
        "output_tokens_counted_by": dict(run.counted_by),
        "error_counts": dict(run.errors.most_common()),
        "client_lag_p99_ms": result.client_lag_p99_ms,
        "client_cpu": result.client_cpu,
    }


def _requests(run: Run) -> Fields:
    """One entry per request that was answered or failed, in the order of sending."""
    outputs = run.result.outputs
    began = min((output.start for output in outputs), default=0.0)
    return {
        "prompts": [run.prompts[output.number].key for output in outputs],
        "input_lens": [output.prompt_tokens for output in outputs],
        "output_lens": [output.output_tokens if output.succeeded else 0 for output in outputs],
        "ttfts": [round(output.ttft, MICROSECONDS) for output in outputs],
        "itls": [[round(gap, MICROSECONDS) for gap in output.itl] for output in outputs],
        "latencies": [round(output.latency, MICROSECONDS) for output in outputs],
        "start_times": [round(output.start - began, MICROSECONDS) for output in outputs],
        "queue_times": [round(output.queued, MICROSECONDS) for output in outputs],
        "generated_texts": [output.text for output in outputs],
        "finish_reasons": [output.finish_reason for output in outputs],
        "errors": [output.error for output in outputs],
    }


def _speculation(found: Speculation | None) -> Fields:
    if found is None:
        return {}
    rate = found.accepted_per_drafted
    return {
        "spec_decode_source": found.source,
        "spec_decode_acceptance_rate": None if rate is None else 100 * rate,
        "spec_decode_acceptance_length": found.acceptance_length,
        "spec_decode_num_drafts": found.num_drafts,
        "spec_decode_draft_tokens": found.draft_tokens,
        "spec_decode_verified_tokens": found.verified_tokens,
        "spec_decode_accepted_tokens": found.accepted_tokens,
        "spec_decode_per_position_acceptance_rates": list(found.per_position_acceptance_rates),
        "mean_accept_length": found.mean_accept_length,
        "accepted_per_verified": found.accepted_per_verified,
        "accepted_per_drafted": found.accepted_per_drafted,
    }


def _answers(check: AnswerCheck | None) -> Fields | None:
    if check is None:
        return None
    return {
        "method": check.method,
        "limits": check.limits,
        "checked": len(check.verdicts),
        "correct": check.correct,
        "accuracy": check.accuracy,
        "verdicts": [dataclasses.asdict(verdict) for verdict in check.verdicts],
    }


def _latencies(run: Run, options: ClientOptions) -> Fields:
    fields: Fields = {}
    for name in options.percentile_metrics:
        latency: Latency = run.metrics.latencies[name]
        fields |= {f"mean_{name}_ms": latency.mean, f"median_{name}_ms": latency.median, f"std_{name}_ms": latency.std}
        fields |= {f"p{percentile:g}_{name}_ms": value for percentile, value in latency.percentiles.items()}
    return fields
