"""The drafter's KV of accepted tokens is what a prefill of the same text would have left there."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.dynamic import dynamic_job
from tests.adapters.lightllm.harness.job import Job, Request
from tests.adapters.lightllm.harness.models import Models
from tests.adapters.lightllm.harness.workload import PROMPTS, mtp_job

pytestmark = pytest.mark.lightllm

TOLERANCE = 1e-4
STEPS = 7


def kept_kv(run_backend: RunBackend, job: Job) -> tuple[list[int], npt.NDArray[np.float32]]:
    """The tokens of the job's only request that are cached, and their KV, float32[layers, tokens, ...]."""
    result = run_backend(dataclasses.replace(job, keep_kv=True))
    assert result.kv is not None
    with np.load(result.kv) as kept:
        return kept["tokens0"].tolist(), kept["kv0"]


def difference(run_backend: RunBackend, job: Job, num_target_layers: int = 2) -> tuple[float, float]:
    """Largest difference of the target's KV, and of the drafters', from those of a prefill of the same tokens.

    Layer i of a drafter reads the token i places further on: the last ``STEPS`` tokens know too little of those.
    """
    tokens, kv = kept_kv(run_backend, job)
    scratch = dataclasses.replace(job, requests=(Request(tuple(tokens), 1),))
    again, right = kept_kv(run_backend, scratch)
    assert again == tokens
    apart = np.abs(kv - right)[:, : -STEPS - 1].reshape(len(kv), -1).max(axis=1)
    return float(apart[:num_target_layers].max()), float(apart[num_target_layers:].max())


@pytest.mark.parametrize("mode", ["eagle_with_att", "vanilla_with_att"])
def test_with_dynamic_rounds_it_is_the_same(mode: str, tiny_models: Models, run_backend: RunBackend) -> None:
    one = (Request(PROMPTS[0], 60),)
    job = dynamic_job(tiny_models, mode, STEPS, "always", kind="cycle", planner="everything", requests=one)
    target, drafter = difference(run_backend, job)
    assert target < TOLERANCE
    assert drafter < TOLERANCE


def test_with_drafts_that_are_half_right_one_layer_run_again_and_again_keeps_it_the_same(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    one = (Request(PROMPTS[0], 60),)
    job = dynamic_job(tiny_models, "eagle_with_att", STEPS, planner="random_plans", requests=one)
    target, drafter = difference(run_backend, job)
    assert target < TOLERANCE
    assert drafter < TOLERANCE


def test_with_lightllms_own_eagle_steps_it_is_not(tiny_models: Models, run_backend: RunBackend) -> None:
    """Its later steps write over accepted tokens with what came of drafts: the reason for a chain of one row."""
    job = mtp_job(tiny_models, "eagle_with_att", STEPS, "always", "cycle", requests=(Request(PROMPTS[0], 60),))
    target, drafter = difference(run_backend, job)
    assert target < TOLERANCE
    assert drafter > 100 * TOLERANCE
