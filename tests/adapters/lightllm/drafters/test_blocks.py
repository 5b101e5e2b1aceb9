"""DFlash and DSpark on LightLLM's real backend: drafts as an independent implementation makes them, the text the
target's."""

from __future__ import annotations

import dataclasses
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
from tests.adapters.lightllm.drafters import reference_process
from tests.adapters.lightllm.drafters.jobs import FAMILIES, OTHERS, drafter_job
from tests.adapters.lightllm.dynamic import FEW_COSTS
from tests.adapters.lightllm.harness.job import Job, JobResult
from tests.adapters.lightllm.harness.models import Models, cycle_text
from tests.adapters.lightllm.harness.reference import Reference
from tests.adapters.lightllm.harness.workload import PROMPTS, requests

pytestmark = pytest.mark.lightllm

TOLERANCE = 1e-4
POINTS = {"dflash": ("deepspec",), "dspark": ("copy", "mostly", "opposite", "random")}
"""Drafters that read what enters the first layer, in place of the second."""

RECORD = ("tests.adapters.lightllm.drafters.block_recording:record",)
ACCEPT_ALL = ("tests.adapters.lightllm.harness.controls:accept_all",)

slow = pytest.mark.slow
MODES = (pytest.param("dflash", marks=slow), "dspark")  # crafted DFlash drafters have fifteen layers


def compare(job: Job, mode: str, drafter: str, result: JobResult) -> list[dict[str, Any]]:
    """Compare logits, tokens and confidences of every draft with the reference's, and return what was compared.

    Not compared is what was drafted for a request that had ended: its last tokens were given to nobody.
    """
    texts = [[*one.prompt, *tokens] for one, tokens in zip(job.requests, result.tokens, strict=True)]
    made = [one for one in result.ranks[0].notes["proposals"] if one["position"] < len(texts[one["request"]])]
    question = {
        "target": job.target,
        "draft": job.drafts[0],
        "points": (0 if drafter in POINTS[mode] else 1, 2, 3),
        "proposals": [{"text": texts[one["request"]][: one["position"] + 1], "drafts": one["tokens"]} for one in made],
    }
    answers = reference_process.ask("tests.adapters.lightllm.drafters.block_reference", question)
    for one, right in zip(made, answers, strict=True):
        assert np.abs(np.array(one["logits"]) - np.array(right["logits"])).max() < TOLERANCE, one
        if "log_odds" in right:
            sure = 1 / (1 + np.exp(-np.array(right["log_odds"])))
            assert np.abs(np.exp(one["log_probs"]) - sure).max() < TOLERANCE, one
    return made


@pytest.mark.skipif(not reference_process.is_there(), reason="LIGHTSPEC_REFERENCE_PYTHON has no speculators")
@pytest.mark.parametrize(
    ("mode", "drafter", "family", "kind", "steps", "options"),
    [
        ("dflash", "random", "qwen3", "mixed", 7, {}),
        ("dflash", "speculators", "llama", "mixed", 7, {}),
        ("dspark", "mostly", "llama", "cycle", 15, {}),
        ("dspark", "rnn", "qwen3", "mixed", 7, {}),
        pytest.param("dflash", "deepspec", "qwen3", "mixed", 7, {}, marks=slow),
        pytest.param("dflash", "mostly", "qwen3", "cycle", 15, {}, marks=slow),
        pytest.param("dspark", "random", "qwen3", "mixed", 7, {}, marks=slow),
        pytest.param("dspark", "vanilla", "llama", "mixed", 7, {}, marks=slow),
        pytest.param("dspark", "gated", "qwen3", "mixed", 6, {}, marks=slow),
        pytest.param("dspark", "mostly", "qwen3", "cycle", 15, CHUNKS, marks=slow),
        pytest.param("dspark", "random", "qwen3", "mixed", 7, PAUSES, marks=slow),
        pytest.param("dflash", "random", "qwen3", "mixed", 7, CHUNKS, marks=slow),
    ],
)
def test_blocks_are_those_of_speculators(
    mode: str,
    drafter: str,
    *,
    family: str,
    kind: str,
    steps: int,
    options: dict[str, Any],
    tiny_models: Models,
    run_backend: RunBackend,
) -> None:
    """At prefill, after rounds whose drafts were accepted in part, and after rounds that verified only some of them;
    requests have different lengths."""
    job = drafter_job(
        tiny_models,
        mode,
        steps,
        drafter,
        family=family,
        kind=kind,
        planner="random_plans",
        setup=RECORD,
        **options,
    )
    result = run_backend(job)
    made = compare(job, mode, drafter, result)
    assert {one["rows"] for one in made} >= {0, 1, 2}
    assert len({one["request"] for one in made}) == len(job.requests)
    if drafter == "mostly":
        partial = [a for step in result.rounds for a, rows in zip(step.accepted, step.rows, strict=True) if a < rows]
        assert max(partial) > 1, "no round whose drafts were accepted in part"
    assert_dynamic(result)


@pytest.mark.parametrize(
    ("mode", "drafter", "family", "kind", "steps"),
    [
        ("dflash", "random", "qwen3", "mixed", 3),
        ("dflash", "speculators", "qwen3", "mixed", 7),
        ("dflash", "random", "qwen3_moe", "mixed", 7),
        ("dspark", "mostly", "qwen3", "cycle", 15),
        ("dspark", "mostly", "qwen3_moe", "cycle", 7),
        ("dspark", "gated", "qwen3", "mixed", 6),
        pytest.param("dflash", "mostly", "qwen3", "cycle", 15, marks=slow),
    ],
)
def test_random_budgets_and_steps_keep_the_text(
    mode: str,
    drafter: str,
    family: str,
    *,
    kind: str,
    steps: int,
    tiny_models: Models,
    run_backend: RunBackend,
    reference: Reference,
) -> None:
    job = drafter_job(tiny_models, mode, steps, drafter, family=family, kind=kind, planner="random_plans")
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)
    rows = {rows for step in result.rounds for rows in step.rows}
    assert {1, 2} <= rows <= set(range(1, 2 + steps))


@slow
@pytest.mark.parametrize(
    ("family", "mode", "drafter", "kind", "steps"),
    [
        (family, *drafted)
        for drafted in (
            ("dflash", "random", "mixed", 3),
            ("dflash", "random", "mixed", 7),
            ("dflash", "mostly", "cycle", 15),
            ("dspark", "rnn", "mixed", 3),
            ("dspark", "random", "mixed", 7),
            ("dspark", "mostly", "cycle", 15),
        )
        for family in ("qwen3", *OTHERS)
        if family in {"llama", "qwen3"} or drafted[3] > 3
    ],
)
@pytest.mark.parametrize("planner", ["random_plans", "everything", "nothing_verified", "long_rests", None])
def test_any_planner_with_any_drafter_keeps_the_text(
    family: str,
    mode: str,
    drafter: str,
    *,
    kind: str,
    steps: int,
    planner: str | None,
    tiny_models: Models,
    run_backend: RunBackend,
    reference: Reference,
) -> None:
    job = drafter_job(tiny_models, mode, steps, drafter, family=family, kind=kind, planner=planner)
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)


@pytest.mark.parametrize("strategy", ["lightspec", "dspark"])
def test_strategies_that_use_confidences_run_on_dspark(
    strategy: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    job = drafter_job(
        tiny_models,
        "dspark",
        7,
        "mostly",
        kind="cycle",
        strategy=strategy,
        requests=requests(120),
        setup=(f"{SETUPS}:priced",),
    )
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 120) for prompt in PROMPTS]
    assert_dynamic(result)
    drafted = [rows > 1 for step in result.rounds for rows in step.rows]
    assert np.mean(drafted) > 0.5
    assert np.mean([length for step in result.rounds for length in step.accepted]) > 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_dynamic_rounds_say_what_fixed_steps_and_no_speculation_say(
    mode: str, family: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    dynamic = drafter_job(tiny_models, mode, 7, "mostly", family=family, kind="cycle", planner="random_plans")
    fixed = drafter_job(tiny_models, mode, 7, "mostly", family=family, kind="cycle", planner="everything")
    plain = Job(dynamic.target, dynamic.requests)
    assert run_backend(dynamic).tokens == run_backend(fixed).tokens == run_backend(plain).tokens


def test_seeded_sampling_draws_the_same_with_and_without_drafts(tiny_models: Models, run_backend: RunBackend) -> None:
    seeded = requests(sampling={"do_sample": True, "temperature": 0.7, "top_p": 0.9, "seed": 5})
    drafted = drafter_job(tiny_models, "dspark", 7, "mostly", kind="cycle", planner="everything", requests=seeded)
    alone = drafter_job(tiny_models, "dspark", 7, "mostly", kind="cycle", planner="nothing_verified", requests=seeded)
    assert run_backend(drafted).tokens == run_backend(alone).tokens


@pytest.mark.parametrize("mode", ["dflash", "dspark"])
def test_accepting_every_draft_would_be_noticed(
    mode: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = drafter_job(tiny_models, mode, 3, "random", planner="everything", setup=ACCEPT_ALL)
    result = run_backend(job)
    assert result.ranks[0].notes["overruled"] > 0
    assert result.tokens != text(reference, job)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_chunks_cached_prefixes_stops_and_aborts_keep_the_text(
    mode: str, family: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = drafter_job(tiny_models, mode, 5, "mostly", family=family, kind="cycle", planner="random_plans", **DISTURBED)
    check_disturbed(run_backend, reference, job)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_requests_that_pause_for_want_of_slots_resume_with_the_same_text(
    mode: str, family: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = drafter_job(tiny_models, mode, 5, "mostly", family=family, kind="cycle", planner="random_plans", **PAUSES)
    check_pauses(run_backend, reference, job)


@pytest.mark.parametrize(
    ("mode", "family", "steps", "max_rows"),
    [("dflash", "qwen3", 15, 64), ("dspark", "qwen3", 15, 64), pytest.param("dspark", "llama", 7, 16, marks=slow)],
)
def test_a_drafter_that_knows_the_target_is_accepted_whole(
    mode: str, family: str, steps: int, max_rows: int, *, tiny_models: Models, run_backend: RunBackend
) -> None:
    """From the first round on: the prefill has drafted a block. With few captured rows, batches of up to 64 are larger
    than the buffer of captured graphs."""
    job = drafter_job(
        tiny_models,
        mode,
        steps,
        "always",
        family=family,
        kind="cycle",
        planner="everything",
        costs=dataclasses.replace(FEW_COSTS, max_verify_rows=max_rows),
        requests=requests(64),
    )
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 64) for prompt in PROMPTS]
    assert_dynamic(result)
    for request in range(len(PROMPTS)):
        whole = 63 // (1 + steps)
        assert set(result.accept_lengths(request)[:whole]) == {1 + steps}


@slow
@pytest.mark.parametrize("family", ["qwen3", *OTHERS])
@pytest.mark.parametrize("mode", ["dflash", "dspark"])
def test_two_ranks_draft_the_same(mode: str, family: str, tiny_models: Models, run_backend: RunBackend) -> None:
    rounds: dict[str, Any] = {"planner": "everything", "requests": requests(32), "tp": 2}
    job = drafter_job(tiny_models, mode, 7, "always", family=family, kind="cycle", **rounds)
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 32) for prompt in PROMPTS]
    assert result.ranks[0].rounds == result.ranks[1].rounds
    assert 8 in result.accept_lengths(0)
    assert_dynamic(result)


@pytest.mark.skipif(not reference_process.is_there(), reason="LIGHTSPEC_REFERENCE_PYTHON has no speculators")
@pytest.mark.parametrize(("mode", "drafter"), [("dflash", "random"), ("dspark", "vanilla")])
def test_a_drafter_that_rested_is_caught_up_by_a_prefill_and_drafts_as_if_it_had_not(
    mode: str, drafter: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    job = drafter_job(tiny_models, mode, 7, drafter, planner="long_rests", requests=requests(50), setup=RECORD)
    result = run_backend(job)
    assert len(result.forwards(prefill=True)) > 1, "nothing was sent back to prefill"
    made = compare(job, mode, drafter, result)
    assert max(one["position"] for one in made) > 40
    assert_dynamic(result)


@pytest.mark.parametrize("mode", MODES)
def test_drafting_ends_while_drafts_are_wrong_and_begins_again_once_they_are_right(
    mode: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    check_wrong_at_first(run_backend, drafter_job(tiny_models, mode, 3, "always", kind="cycle", **WRONG_AT_FIRST))


@pytest.mark.parametrize("mode", ["dflash", "dspark"])
def test_what_runs_over_verified_rows_is_measured_by_itself(
    mode: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    check_costs(run_backend, drafter_job(tiny_models, mode, 7, "random", requests=requests(2)))


@pytest.mark.parametrize(("mode", "drafter"), [("dflash", "random"), ("dspark", "random")])
def test_no_block_reaches_beyond_the_length_that_attention_is_told(
    mode: str, drafter: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    """Neither when it is measured nor in a round; DFlash's blocks have a row more than K."""
    job = drafter_job(tiny_models, mode, 7, drafter, planner="random_plans", setup=(f"{SETUPS}:note_lengths",))
    notes = run_backend(job).ranks[0].notes
    assert notes["blocks"] > 3
    assert notes["beyond"] <= 0


def test_the_pool_is_smaller_by_what_the_drafter_takes(tiny_models: Models, run_backend: RunBackend) -> None:
    layer = 64 * (8 * 16 + 2 * 4 * 16) + 64 * 128 + 3 * 64 * 96 + 2 * 64 + 2 * 16
    heads = 2 * 128 * 24 + 64 + 24 + 1
    check_pool(
        run_backend,
        drafter_job(tiny_models, "dspark", 7, "random", **SMALL_GPU),
        slot_bytes=2 * 2 * 4 * 16 * 4,  # of the drafter's 2 layers with 4 heads
        weights=2 * layer + heads + 2 * 128 * 64 + 2 * 64 + 64 * 3 * 64,
    )
