"""Eagle3 on LightLLM's real backend: drafts as an independent implementation makes them, the text the target's."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.adapters.lightllm.checks import (
    CHUNKS,
    DISTURBED,
    PAUSES,
    SETUPS,
    SMALL_GPU,
    WRONG_AT_FIRST,
    assert_dynamic,
    check_costs,
    check_disturbed,
    check_pauses,
    check_pool,
    check_wrong_at_first,
    text,
)
from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.drafters import eagle3_reference, reference_process
from tests.adapters.lightllm.drafters.jobs import FAMILIES, OTHERS, drafter_job
from tests.adapters.lightllm.dynamic import FEW_COSTS
from tests.adapters.lightllm.harness.job import Job, JobResult
from tests.adapters.lightllm.harness.models import Models, cycle_text
from tests.adapters.lightllm.harness.reference import Reference
from tests.adapters.lightllm.harness.workload import PROMPTS, requests

pytestmark = pytest.mark.lightllm

TOLERANCE = 1e-4
POINTS = {"deepspec": (1, 3)}


def compare(job: Job, drafter: str, result: JobResult) -> list[dict[str, Any]]:
    """Compare the logits of every draft with those of the reference, and return the proposals that were compared.

    Not compared is what was drafted for a request that had ended: its last tokens were given to nobody.
    """
    texts = [[*one.prompt, *tokens] for one, tokens in zip(job.requests, result.tokens, strict=True)]
    made = [one for one in result.ranks[0].notes["proposals"] if one["position"] + 2 <= len(texts[one["request"]])]
    question = {
        "target": job.target,
        "draft": job.drafts[0],
        "points": POINTS.get(drafter, (1, 2, 3)),
        "proposals": [{"text": texts[one["request"]][: one["position"] + 2], "drafts": one["tokens"]} for one in made],
    }
    for one, right in zip(made, eagle3_reference.logits(question), strict=True):
        assert np.abs(np.array(one["logits"]) - np.array(right)).max() < TOLERANCE, one
    return made


@pytest.mark.skipif(not reference_process.is_there(), reason="LIGHTSPEC_REFERENCE_PYTHON has no speculators")
@pytest.mark.parametrize(
    ("drafter", "family", "kind", "steps", "options"),
    [
        ("mostly", "qwen3", "cycle", 3, {}),
        ("common", "llama", "mixed", 3, {}),
        ("deepspec", "qwen3", "mixed", 7, {}),
        ("normed-each", "llama", "mixed", 3, {}),
        ("normed-all", "qwen3", "mixed", 3, {}),
        pytest.param("random", "qwen3", "mixed", 7, {}, marks=pytest.mark.slow),
        pytest.param("mostly", "llama", "cycle", 7, CHUNKS, marks=pytest.mark.slow),
        pytest.param("mostly", "qwen3", "cycle", 5, PAUSES, marks=pytest.mark.slow),
    ],
)
def test_draft_logits_are_those_of_speculators(
    drafter: str,
    family: str,
    kind: str,
    steps: int,
    options: dict[str, Any],
    *,
    tiny_models: Models,
    run_backend: RunBackend,
) -> None:
    """At prefill, after rounds whose drafts were accepted in part, after rounds that verified only some, and at every
    step of the chain; requests have different lengths."""
    setup = (f"{SETUPS}:record_eagle3",)
    job = drafter_job(
        tiny_models,
        "eagle3",
        steps,
        drafter,
        family=family,
        kind=kind,
        planner="random_plans",
        setup=setup,
        **options,
    )
    result = run_backend(job)
    made = compare(job, drafter, result)
    assert {len(one["tokens"]) for one in made} >= {1, 2, 3}
    assert {one["rows"] for one in made} >= {0, 1, 2}
    assert len({one["request"] for one in made}) == len(job.requests)
    if drafter == "mostly":
        partial = [a for step in result.rounds for a, rows in zip(step.accepted, step.rows, strict=True) if a < rows]
        assert max(partial) > 1, "no round whose drafts were accepted in part"
    assert_dynamic(result)


@pytest.mark.parametrize(
    ("family", "drafter", "steps"),
    [
        ("llama", "common", 3),
        ("mistral4", "half", 3),
        ("qwen2", "half", 3),
        ("qwen3", "half", 7),
        ("qwen3_moe", "half", 7),
    ],
)
def test_random_budgets_and_steps_keep_the_text(
    family: str, drafter: str, steps: int, *, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = drafter_job(tiny_models, "eagle3", steps, drafter, family=family, planner="random_plans")
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)
    rows = {rows for step in result.rounds for rows in step.rows}
    assert {1, 2} <= rows <= set(range(1, 2 + steps))
    if drafter == "half":
        assert max(length for step in result.rounds for length in step.accepted) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "steps"),
    [
        *itertools.product(["llama", "qwen3"], [3, 7, 15]),
        *(("mistral4", 7), ("qwen2", 7), ("qwen3_moe", 7)),
    ],
)
@pytest.mark.parametrize("drafter", ["random", "half"])
@pytest.mark.parametrize("planner", ["random_plans", "everything", "nothing_verified", "long_rests", None])
def test_any_planner_with_any_drafter_keeps_the_text(
    family: str,
    steps: int,
    drafter: str,
    planner: str | None,
    *,
    tiny_models: Models,
    run_backend: RunBackend,
    reference: Reference,
) -> None:
    job = drafter_job(tiny_models, "eagle3", steps, drafter, family=family, planner=planner)
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)


@pytest.mark.parametrize("family", FAMILIES)
def test_dynamic_rounds_say_what_fixed_steps_and_no_speculation_say(
    family: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    dynamic = drafter_job(tiny_models, "eagle3", 7, "half", family=family, planner="random_plans")
    fixed = drafter_job(tiny_models, "eagle3", 7, "half", family=family, planner="everything")
    plain = Job(dynamic.target, dynamic.requests)
    assert run_backend(dynamic).tokens == run_backend(fixed).tokens == run_backend(plain).tokens


def test_seeded_sampling_draws_the_same_with_and_without_drafts(tiny_models: Models, run_backend: RunBackend) -> None:
    seeded = requests(sampling={"do_sample": True, "temperature": 0.7, "top_p": 0.9, "seed": 5})
    drafted = drafter_job(tiny_models, "eagle3", 3, "half", planner="everything", requests=seeded)
    alone = drafter_job(tiny_models, "eagle3", 3, "half", planner="nothing_verified", requests=seeded)
    assert run_backend(drafted).tokens == run_backend(alone).tokens


def test_accepting_every_draft_would_be_noticed(
    tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    control = ("tests.adapters.lightllm.harness.controls:accept_all",)
    job = drafter_job(tiny_models, "eagle3", 3, "half", planner="everything", setup=control)
    result = run_backend(job)
    assert result.ranks[0].notes["overruled"] > 0
    assert result.tokens != text(reference, job)


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_cached_prefixes_stops_and_aborts_keep_the_text(
    family: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = drafter_job(tiny_models, "eagle3", 5, "half", family=family, planner="random_plans", **DISTURBED)
    check_disturbed(run_backend, reference, job)


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_that_pause_for_want_of_slots_resume_with_the_same_text(
    family: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = drafter_job(tiny_models, "eagle3", 5, "half", family=family, planner="random_plans", **PAUSES)
    check_pauses(run_backend, reference, job)


@pytest.mark.parametrize(("family", "steps", "max_rows"), [("qwen3", 3, 64), ("llama", 15, 16)])
def test_a_drafter_that_knows_the_target_is_accepted_whole(
    family: str, steps: int, max_rows: int, tiny_models: Models, run_backend: RunBackend
) -> None:
    """With few captured rows, batches of up to 64 are larger than the buffer of captured graphs."""
    costs = dataclasses.replace(FEW_COSTS, max_verify_rows=max_rows)
    job = drafter_job(
        tiny_models,
        "eagle3",
        steps,
        "always",
        family=family,
        kind="cycle",
        planner="everything",
        costs=costs,
        requests=requests(64),
    )
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 64) for prompt in PROMPTS]
    assert_dynamic(result)
    for request in range(len(PROMPTS)):
        lengths = result.accept_lengths(request)
        whole = (64 - 1 - lengths[0]) // (1 + steps)
        assert lengths[0] == 2, "the prefill's own draft is verified in the first round"
        assert set(lengths[1 : 1 + whole]) == {1 + steps}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", *OTHERS])
def test_two_ranks_draft_the_same(family: str, tiny_models: Models, run_backend: RunBackend) -> None:
    rounds: dict[str, Any] = {"planner": "everything", "requests": requests(32), "tp": 2}
    job = drafter_job(tiny_models, "eagle3", 3, "always", family=family, kind="cycle", **rounds)
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 32) for prompt in PROMPTS]
    assert result.ranks[0].rounds == result.ranks[1].rounds
    assert 4 in result.accept_lengths(0)
    assert_dynamic(result)


def test_a_drafter_that_rested_is_caught_up_by_a_prefill_and_is_right_again(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    job = drafter_job(tiny_models, "eagle3", 3, "always", kind="cycle", planner="long_rests", requests=requests(60))
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 60) for prompt in PROMPTS]
    assert_dynamic(result)
    assert len(result.forwards(prefill=True)) > 1, "nothing was sent back to prefill"
    lengths = result.accept_lengths(0)
    first_rest = lengths.index(1, 1)
    assert 4 in lengths[first_rest:], "the drafts after a rest are right again"


def test_drafting_ends_while_drafts_are_wrong_and_begins_again_once_they_are_right(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    check_wrong_at_first(run_backend, drafter_job(tiny_models, "eagle3", 3, "always", kind="cycle", **WRONG_AT_FIRST))


def test_what_runs_over_verified_rows_is_measured_by_itself(tiny_models: Models, run_backend: RunBackend) -> None:
    check_costs(run_backend, drafter_job(tiny_models, "eagle3", 3, "half", requests=requests(2)))


def test_a_drafter_starts_with_zeroes_for_kv_and_without_what_the_target_tried_out(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    job = drafter_job(tiny_models, "eagle3", 3, "half", requests=requests(2), setup=(f"{SETUPS}:note_memory",))
    notes = run_backend(job).ranks[0].notes
    assert (notes["tried"], notes["held"], notes["numbers"]) == (job.batch_max_tokens, 0, True)


def test_the_pool_is_smaller_by_what_the_drafter_takes(tiny_models: Models, run_backend: RunBackend) -> None:
    layer = 2 * 64 * (8 * 16 + 2 * 4 * 16) + 64 * 128 + 3 * 64 * 96 + 3 * 64 + 2 * 16
    check_pool(
        run_backend,
        drafter_job(tiny_models, "eagle3", 3, "deepspec", **SMALL_GPU),
        slot_bytes=2 * 4 * 16 * 4,  # of the drafter's 4 heads
        weights=layer + 2 * 128 * 64 + 64 + 64 * 2 * 64,
    )
