"""What tests of several kinds of drafters ask of dynamic rounds, and the jobs that make it hard."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.drafters.setups import WRONG_ROUNDS
from tests.adapters.lightllm.harness.job import FINISHED, Job, JobResult, Request
from tests.adapters.lightllm.harness.models import cycle_text
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

DISTURBED: dict[str, Any] = {
    **CHUNKS,
    "requests": (*CHUNKS["requests"], Request(PROMPTS[1], max_new_tokens=60, abort_after=8)),
}
"""The same beside a request whose client goes away, see `check_disturbed`."""

PAUSES: dict[str, Any] = {
    "requests": requests(40),
    "max_total_token_num": 120,
    "max_req_total_len": 80,
    "batch_max_tokens": 64,
    "chunked_prefill_size": 64,
}
"""Fewer token slots than all requests need together."""

SETUPS = "tests.adapters.lightllm.drafters.setups"

WRONG_AT_FIRST: dict[str, Any] = {
    "requests": requests(400),
    "setup": (f"{SETUPS}:priced", f"{SETUPS}:wrong_at_first"),
    "max_total_token_num": 2400,
    "max_req_total_len": 512,
}
"""A drafter of a ``cycle`` target that is always right but for its first rounds, see `check_wrong_at_first`."""

SMALL_GPU: dict[str, Any] = {
    "requests": (Request(PROMPTS[0], 4),),
    "setup": (f"{SETUPS}:small_gpu",),
    "start_args": {"max_total_token_num": None, "mem_fraction": 0.9},
}
"""LightLLM sizes its pool by the memory of the device, see `check_pool`."""


def text(reference: Reference, job: Job) -> list[list[int]]:
    """Transformers' text for each request."""
    return [list(reference.text(job.target, one.prompt, one.max_new_tokens).tokens) for one in job.requests]


def assert_dynamic(result: JobResult) -> None:
    """The plugin's backend ran, and no KV slot is lost or owned twice."""
    for rank in result.ranks:
        assert rank.backend == "DynamicMtpBackend"
        assert rank.slots.intact, rank.slots


def check_disturbed(run_backend: RunBackend, reference: Reference, job: Job) -> None:
    """`DISTURBED`, the third request with a stop in the middle of its text: all say what the target says."""
    right = text(reference, job)
    stop = right[2][9]
    stopping = Request(PROMPTS[0], sampling={"stop_sequences": [[stop]]})
    result = run_backend(dataclasses.replace(job, requests=(*job.requests[:2], stopping, job.requests[3])))
    again, stopped, aborted = result.outcomes[1:]
    assert result.tokens[:2] == right[:2]
    assert again.cached_tokens >= len(job.requests[0].prompt) - 1
    assert stopped.finish_reason == "stop"
    assert list(stopped.tokens) == right[2][: right[2].index(stop) + 1]
    assert aborted.finish_reason == "abort"
    assert list(aborted.tokens) == right[3][: len(aborted.tokens)]
    assert_dynamic(result)


def check_pauses(run_backend: RunBackend, reference: Reference, job: Job) -> None:
    """`PAUSES`, or fewer slots: requests pause, resume and say what the target says."""
    result = run_backend(job)
    assert result.ranks[0].pauses > 0
    assert result.tokens == text(reference, job)
    assert_dynamic(result)


def check_wrong_at_first(run_backend: RunBackend, job: Job) -> None:
    """`WRONG_AT_FIRST`: drafting has ended after 50 rounds, and goes on within 100 of those that are right."""
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 400) for prompt in PROMPTS]
    wrong = [rows for step in result.rounds[50:WRONG_ROUNDS] for rows in step.rows]
    assert wrong.count(1) > 0.8 * len(wrong), "drafting goes on"
    right = [length for step in result.rounds[WRONG_ROUNDS : WRONG_ROUNDS + 100] for length in step.accepted]
    assert np.mean(right[-4:]) > 3, "drafting has not begun again"


def check_costs(run_backend: RunBackend, job: Job) -> None:
    """What a drafter that reads hidden states runs over verified rows has a table of its own."""
    noting = dataclasses.replace(job, setup=(f"{SETUPS}:note_costs",))
    measured = run_backend(noting).ranks[0].notes["costs"]
    assert measured["fill"] == measured["target"]
    assert measured["draft"]


def check_pool(run_backend: RunBackend, job: Job, *, slot_bytes: int, weights: int) -> None:
    """`SMALL_GPU`: the pool has exactly what a drafter leaves of it.

    Args:
        slot_bytes: of the drafter's KV in each slot.
        weights: numbers in the drafter's weights, of 4 bytes.
    """
    drafted = run_backend(job).ranks[0].slots.total
    plain = run_backend(Job(job.target, job.requests, setup=job.setup, start_args=job.start_args))
    without = plain.ranks[0].slots.total
    cell = 2 * 4 * 2 * 16 * 4  # keys and values of the target's 4 layers with 2 heads of 16, in 4 bytes
    assert without > 3000
    assert drafted == (without * cell - 4 * weights) // (cell + slot_bytes)
