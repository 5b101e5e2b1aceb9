"""What tests of several kinds of drafters ask of a result, and jobs that make it hard."""

from __future__ import annotations

from typing import Any

from tests.adapters.lightllm.harness.job import FINISHED, Job, JobResult, Request
from tests.adapters.lightllm.harness.reference import Reference
from tests.adapters.lightllm.harness.workload import PROMPTS, requests

CHUNKS: dict[str, Any] = {
    "requests": (
        Request(tuple(range(10, 60))),
        Request(tuple(range(10, 60)), after=(0, FINISHED)),
        Request(PROMPTS[0]),
    ),
    "batch_max_tokens": 32,
    "chunked_prefill_size": 16,
}
"""Prompts in several chunks, and one that finds its prefix in the cache."""

PAUSES: dict[str, Any] = {
    "requests": requests(40),
    "max_total_token_num": 120,
    "max_req_total_len": 80,
    "batch_max_tokens": 64,
    "chunked_prefill_size": 64,
}
"""Fewer token slots than all requests need together."""


def text(reference: Reference, job: Job) -> list[list[int]]:
    """Transformers' text for each request."""
    return [list(reference.text(job.target, one.prompt, one.max_new_tokens).tokens) for one in job.requests]


def assert_dynamic(result: JobResult) -> None:
    """The plugin's backend ran, and no KV slot is lost or owned twice."""
    for rank in result.ranks:
        assert rank.backend == "DynamicMtpBackend"
        assert rank.slots.intact, rank.slots
