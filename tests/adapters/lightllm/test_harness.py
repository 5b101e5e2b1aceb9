"""The harness itself: the torch twins of LightLLM's kernels, and what it does when a job goes wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.harness import checkout
from tests.adapters.lightllm.harness.job import Job, JobResult, Request, read_job, read_result, write
from tests.adapters.lightllm.harness.launcher import JobError
from tests.adapters.lightllm.harness.models import NUM_SPECIAL, VOCAB_SIZE, Models, cycle_text
from tests.adapters.lightllm.harness.workload import mtp_job, plain_job

if TYPE_CHECKING:
    from tests.adapters.lightllm.harness.rank import Rank

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1}
SHORT = (Request((5, 9, 33, 77, 120), 3, PENALTIES), Request((101, 3, 44), 3))


@pytest.mark.lightllm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "family", "kernels"),
    [("eagle_no_att", None, 11), ("eagle_with_att", None, 12), ("eagle_no_att", "qwen3_moe", 17)],
)
def test_twins_compute_what_the_kernels_compute(
    mode: str, family: str | None, kernels: int, tiny_models: Models, run_backend: RunBackend
) -> None:
    """On the arguments of a real run, chunked so that prefill attention has something cached to look at."""
    checked: dict[str, Any] = {"kernels": "checked", "chunked_prefill_size": 3, "timeout": 600}
    job = mtp_job(tiny_models, mode, 2, "half", family=family, requests=SHORT, **checked)
    compared = run_backend(job).ranks[0].compared_kernels
    assert len(compared) == kernels
    assert min(compared.values()) > 1


@pytest.mark.lightllm
@pytest.mark.slow
def test_the_text_is_the_same_on_interpreted_kernels(tiny_models: Models, run_backend: RunBackend) -> None:
    job = plain_job(tiny_models, "deepseek", requests=SHORT, timeout=600)
    assert run_backend(dataclasses.replace(job, kernels="interpreted")).tokens == run_backend(job).tokens


def fail(rank: Rank) -> None:
    raise RuntimeError(f"rank {rank.index} fails on purpose")


def hang(rank: Rank) -> None:
    import time

    time.sleep(600)


@pytest.mark.lightllm
def test_a_rank_that_fails_is_named_with_its_log(tiny_models: Models, run_backend: RunBackend) -> None:
    job = plain_job(tiny_models, "mistral", requests=SHORT, setup=(f"{__name__}:fail",))
    with pytest.raises(JobError, match="rank 0 fails on purpose"):
        run_backend(job)


@pytest.mark.lightllm
def test_a_job_that_hangs_ends_at_its_timeout(tiny_models: Models, run_backend: RunBackend) -> None:
    job = plain_job(tiny_models, "mistral", requests=SHORT, setup=(f"{__name__}:hang",), timeout=2)
    with pytest.raises(JobError, match="rank 0 did not answer in time"):
        run_backend(job)


def test_jobs_and_results_survive_their_files(tmp_path: Path) -> None:
    job = Job("model", (Request((3, 4), after=(0, 5), sampling={"seed": 1}),), drafts=("a", "b"), setup=("x:y",))
    write(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job
    result = JobResult((), (), {"start": 1.0})
    write(tmp_path / "result.json", result)
    assert read_result(tmp_path / "result.json") == result


def test_the_cycle_visits_every_ordinary_token_once() -> None:
    text = cycle_text(NUM_SPECIAL, VOCAB_SIZE - NUM_SPECIAL)
    assert sorted(text) == list(range(NUM_SPECIAL, VOCAB_SIZE))


def test_a_missing_checkout_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(checkout.VARIABLE, str(tmp_path))
    problem = checkout.problem.__wrapped__()
    assert problem is not None
    assert str(tmp_path) in problem
    assert checkout.COMMIT in problem
