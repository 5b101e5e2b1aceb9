"""LightLLM alone on the harness: what it must say, and that the harness would notice if it said something else.

These are the baseline that dynamic rounds are compared with, and the proof that the harness can fail.
"""

from __future__ import annotations

import pytest

from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.harness.job import FINISHED, Job, JobResult, Request
from tests.adapters.lightllm.harness.kv import difference_from_scratch
from tests.adapters.lightllm.harness.models import Models, cycle_text
from tests.adapters.lightllm.harness.reference import Reference
from tests.adapters.lightllm.harness.workload import PROMPTS, mtp_job, plain_job, requests

pytestmark = pytest.mark.lightllm

KV_TOLERANCE = 1e-4
MARGIN = 1e-4
"""Logits of LightLLM and transformers differ by some 1e-5 in float32: a smaller lead could be decided by that."""


def texts(reference: Reference, job: Job) -> list[list[int]]:
    """Transformers' text for each request of a greedy job."""
    answers = [reference.text(job.target, request.prompt, request.max_new_tokens) for request in job.requests]
    assert min(answer.margin for answer in answers) > MARGIN, "the prompts must leave no token to rounding"
    return [list(answer.tokens) for answer in answers]


def assert_no_slot_lost(result: JobResult) -> None:
    for rank in result.ranks:
        assert rank.slots.intact, rank.slots


@pytest.mark.parametrize("family", ["mistral", "deepseek"])
def test_without_speculation_the_text_is_transformers(
    family: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = plain_job(tiny_models, family)
    result = run_backend(job)
    assert result.tokens == texts(reference, job)
    assert [outcome.finish_reason for outcome in result.outcomes] == ["length"] * len(PROMPTS)
    assert_no_slot_lost(result)


@pytest.mark.parametrize("mode", ["vanilla_no_att", "eagle_no_att", "vanilla_with_att", "eagle_with_att"])
@pytest.mark.parametrize("draft", [(2, "random"), (3, "half")])
def test_mtp_of_fixed_steps_says_the_same(
    mode: str, draft: tuple[int, str], tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    steps, drafter = draft
    job = mtp_job(tiny_models, mode, steps, drafter)
    result = run_backend(job)
    assert result.tokens == texts(reference, job)
    assert_no_slot_lost(result)
    assert {rows for step in result.rounds for rows in step.rows} == {1 + steps}
    if drafter == "half":
        lengths = [length for step in result.rounds for length in step.accepted]
        assert {1, 1 + steps} <= set(lengths), "drafts must be right at times and wrong at times"


@pytest.mark.parametrize("mode", ["eagle_no_att", "vanilla_with_att"])
def test_accepting_every_draft_changes_the_text(
    mode: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = mtp_job(tiny_models, mode, 3, "half", setup=("tests.adapters.lightllm.harness.controls:accept_all",))
    result = run_backend(job)
    assert result.ranks[0].notes["overruled"] > 0
    assert all(said != right for said, right in zip(result.tokens, texts(reference, job), strict=True))


@pytest.mark.parametrize("mode", ["vanilla_no_att", "vanilla_with_att"])
def test_a_drafter_that_knows_the_target_is_accepted_whole(
    mode: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    steps = 7
    result = run_backend(mtp_job(tiny_models, mode, steps, "always", "cycle", requests=requests(40)))
    assert result.tokens == [cycle_text(prompt[-1], 40) for prompt in PROMPTS]
    for request in range(len(PROMPTS)):
        # LightLLM verifies whatever an entry's last owner left there in the first round after a prefill.
        assert set(result.accept_lengths(request)[1:]) == {1 + steps}


def test_a_drafter_that_is_always_wrong_costs_only_rows(tiny_models: Models, run_backend: RunBackend) -> None:
    result = run_backend(mtp_job(tiny_models, "eagle_no_att", 2, "never", "cycle"))
    assert result.tokens == [cycle_text(prompt[-1], 24) for prompt in PROMPTS]
    assert {length for step in result.rounds for length in step.accepted} == {1}


def test_chunks_cached_prefixes_stops_and_aborts_reach_the_backend(
    tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    """The harness's own ways to disturb a run, each with its effect seen."""
    long = tuple(range(10, 60))
    stop = texts(reference, plain_job(tiny_models, "mistral", requests=(Request(PROMPTS[0]),)))[0][9]
    job = mtp_job(
        tiny_models,
        "eagle_no_att",
        3,
        "half",
        requests=(
            Request(long),
            Request(long, after=(0, FINISHED)),
            Request(PROMPTS[0], sampling={"stop_sequences": [[stop]]}),
            Request(PROMPTS[1], max_new_tokens=60, abort_after=8),
        ),
        batch_max_tokens=32,
        chunked_prefill_size=16,
    )
    result = run_backend(job)
    again, stopped, aborted = result.outcomes[1:]
    right = texts(reference, job)
    assert result.tokens[:2] == right[:2]
    assert len(result.forwards(prefill=True)) >= -(-len(long) // job.chunked_prefill_size)
    assert again.cached_tokens >= len(long) - 1
    assert stopped.finish_reason == "stop"
    assert list(stopped.tokens) == right[2][: right[2].index(stop) + 1]
    assert aborted.finish_reason == "abort"
    assert 8 <= len(aborted.tokens) < 60
    assert list(aborted.tokens) == right[3][: len(aborted.tokens)]
    assert_no_slot_lost(result)


@pytest.mark.parametrize("mode", ["eagle_no_att", "eagle_with_att"])
def test_a_small_pool_pauses_requests_and_they_resume(
    mode: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = mtp_job(
        tiny_models,
        mode,
        3,
        "half",
        max_total_token_num=72,
        max_req_total_len=56,
        batch_max_tokens=64,
        chunked_prefill_size=64,
    )
    result = run_backend(job)
    assert result.ranks[0].pauses > 0
    assert result.tokens == texts(reference, job)
    assert_no_slot_lost(result)


@pytest.mark.parametrize("mode", ["eagle_no_att", "eagle_with_att"])
def test_two_ranks_say_the_same_in_the_same_rounds(
    mode: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = mtp_job(tiny_models, mode, 3, "half", tp=2)
    result = run_backend(job)
    assert result.tokens == texts(reference, job)
    assert len(result.rounds) > 0
    assert result.ranks[0].rounds == result.ranks[1].rounds
    assert_no_slot_lost(result)


@pytest.mark.parametrize(("mode", "steps", "spoilt"), [("eagle_with_att", 1, False), ("eagle_with_att", 3, True)])
def test_a_chain_of_several_steps_spoils_the_drafters_kv_of_accepted_tokens(
    mode: str, steps: int, spoilt: bool, tiny_models: Models, run_backend: RunBackend
) -> None:
    """Each step of LightLLM's chain writes KV one position on, made of drafted hidden states; nothing repairs it."""
    job = mtp_job(tiny_models, mode, steps, "always", "cycle", requests=requests(20)[:1])
    apart = difference_from_scratch(run_backend, job, 0, target_layers=2, prompt_tokens=len(PROMPTS[0]))
    assert apart.target.max() < KV_TOLERANCE
    assert len(apart.drafters) == 1
    assert (apart.drafters.max() > 100 * KV_TOLERANCE) == spoilt


def test_a_seed_repeats_its_text_and_another_gives_another(tiny_models: Models, run_backend: RunBackend) -> None:
    def run(seed: int) -> list[list[int]]:
        sampling = {"do_sample": True, "temperature": 0.8, "seed": seed}
        return run_backend(plain_job(tiny_models, "mistral", requests=requests(sampling=sampling))).tokens

    assert run(5) == run(5) != run(6)
