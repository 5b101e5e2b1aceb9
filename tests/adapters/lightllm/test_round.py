"""Dynamic rounds on LightLLM's real backend: the text is the target's own, whatever is planned."""

from __future__ import annotations

import dataclasses

import pytest

from lightspec_lightllm.decode.guard import FALLBACK_STEPS
from tests.adapters.lightllm.checks import DISTURBED, PAUSES, assert_dynamic, check_disturbed, check_pauses, text
from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.dynamic import MODES, dynamic_job
from tests.adapters.lightllm.harness.launcher import JobError
from tests.adapters.lightllm.harness.models import Models, cycle_text
from tests.adapters.lightllm.harness.reference import Reference
from tests.adapters.lightllm.harness.workload import PROMPTS, mtp_job, requests

pytestmark = pytest.mark.lightllm

WITH_EXPERTS = [
    *(("eagle_no_att", None), ("eagle_with_att", None)),
    *(pytest.param(mode, "qwen3_moe", marks=pytest.mark.slow) for mode in ("eagle_no_att", "vanilla_no_att")),
]
"""Modes, each with the harness's own target or with one that has experts."""

ADVERSARIES = ("random_plans", "everything", "nothing_verified", "long_rests")


@pytest.mark.parametrize(
    ("mode", "steps", "family"),
    [
        *((mode, 2, None) for mode in MODES),
        ("eagle_with_att", 15, None),
        ("eagle_no_att", 15, None),
        *(("eagle_no_att", 3, "qwen3_moe"), ("vanilla_no_att", 3, "qwen3_moe")),
    ],
)
def test_random_budgets_and_steps_keep_the_text(
    mode: str, steps: int, family: str | None, *, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = dynamic_job(tiny_models, mode, steps, family=family, planner="random_plans")
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)
    rows = {rows for step in result.rounds for rows in step.rows}
    assert {1, 2} <= rows <= set(range(1, 2 + steps)), "requests of one round must differ in their rows"
    assert max(length for step in result.rounds for length in step.accepted) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "steps", "family"),
    [
        *((mode, steps, None) for mode in MODES for steps in (2, 7, 11, 15)),
        *(("eagle_no_att", 7, "qwen3_moe"), ("vanilla_no_att", 7, "qwen3_moe")),
    ],
)
@pytest.mark.parametrize("drafter", ["random", "half"])
@pytest.mark.parametrize("planner", [*ADVERSARIES, None])
def test_any_planner_with_any_drafter_keeps_the_text(
    mode: str,
    steps: int,
    family: str | None,
    *,
    drafter: str,
    planner: str | None,
    tiny_models: Models,
    run_backend: RunBackend,
    reference: Reference,
) -> None:
    if mode == "vanilla_with_att" and planner == "long_rests":
        planner = "random_plans"
    job = dynamic_job(tiny_models, mode, steps, drafter, family=family, planner=planner)
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)


@pytest.mark.parametrize("mode", MODES)
def test_the_configured_planner_keeps_the_text(
    mode: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = dynamic_job(tiny_models, mode, 7)
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)


@pytest.mark.parametrize(("mode", "family"), WITH_EXPERTS)
def test_dynamic_rounds_say_what_fixed_steps_and_no_speculation_say(
    mode: str, family: str | None, tiny_models: Models, run_backend: RunBackend
) -> None:
    dynamic = dynamic_job(tiny_models, mode, 7, family=family, planner="random_plans")
    fixed = mtp_job(tiny_models, mode, 7, "half", family=family)
    plain = dataclasses.replace(fixed, mtp_mode=None, mtp_step=0, drafts=())
    assert run_backend(dynamic).tokens == run_backend(fixed).tokens == run_backend(plain).tokens


@pytest.mark.parametrize("mode", ["eagle_no_att", "vanilla_with_att"])
def test_accepting_every_draft_would_be_noticed(
    mode: str, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    control = "tests.adapters.lightllm.harness.controls:accept_all"
    job = dynamic_job(tiny_models, mode, 3, planner="everything", setup=(control,))
    result = run_backend(job)
    assert result.ranks[0].notes["overruled"] > 0
    assert result.tokens != text(reference, job)


@pytest.mark.parametrize(("mode", "family"), WITH_EXPERTS)
def test_chunks_cached_prefixes_stops_and_aborts_keep_the_text(
    mode: str, family: str | None, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = dynamic_job(tiny_models, mode, 5, family=family, planner="random_plans", **DISTURBED)
    check_disturbed(run_backend, reference, job)


@pytest.mark.parametrize(("mode", "family"), WITH_EXPERTS)
def test_requests_that_pause_for_want_of_slots_resume_with_the_same_text(
    mode: str, family: str | None, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = dynamic_job(tiny_models, mode, 5, family=family, planner="random_plans", **PAUSES)
    check_pauses(run_backend, reference, job)


def test_a_drafter_that_rested_takes_nothing_back_that_a_paused_request_left_in_the_tree(
    tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    few = {**PAUSES, "max_total_token_num": 110}
    job = dynamic_job(tiny_models, "eagle_with_att", 3, planner="long_rests", **few)
    check_pauses(run_backend, reference, job)


def test_a_drafter_that_rested_is_caught_up_by_a_prefill_and_is_right_again(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    job = dynamic_job(
        tiny_models, "eagle_with_att", 3, "always", kind="cycle", planner="long_rests", requests=requests(60)
    )
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 60) for prompt in PROMPTS]
    assert_dynamic(result)
    assert len(result.forwards(prefill=True)) > 1, "nothing was sent back to prefill"
    lengths = result.accept_lengths(0)
    first_rest = lengths.index(1, 1)
    assert 4 in lengths[first_rest:], "the drafts after a rest are right again"


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("eagle_with_att", 15),
        ("eagle_no_att", 15),
        ("vanilla_with_att", 4),
        pytest.param("vanilla_with_att", 15, marks=pytest.mark.slow),
        pytest.param("vanilla_no_att", 15, marks=pytest.mark.slow),
    ],
)
def test_a_drafter_that_knows_the_target_is_accepted_whole(
    mode: str, steps: int, tiny_models: Models, run_backend: RunBackend
) -> None:
    length = 4 * (1 + steps)
    job = dynamic_job(tiny_models, mode, steps, "always", kind="cycle", planner="everything", requests=requests(length))
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], length) for prompt in PROMPTS]
    assert_dynamic(result)
    for request in range(len(PROMPTS)):
        # The last round but one ends the text; the last was launched before that was known.
        first, *others, _, extra = result.accept_lengths(request)
        assert first > 1, "the prefill's own draft is verified in the first round"
        assert set(others) == {1 + steps}
        assert extra == 1


@pytest.mark.parametrize(
    ("planner", "family"),
    [
        *((None, None), ("random_plans", None)),
        pytest.param("random_plans", "qwen3_moe", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_plan_alike_and_say_the_same(
    planner: str | None, family: str | None, tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = dynamic_job(tiny_models, "eagle_no_att", 5, family=family, planner=planner, tp=2, check_every=1)
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert_dynamic(result)
    assert len(result.ranks) == 2
    assert result.ranks[0].rounds == result.ranks[1].rounds


def test_ranks_that_plan_differently_stop_instead_of_going_on(tiny_models: Models, run_backend: RunBackend) -> None:
    job = dynamic_job(tiny_models, "eagle_no_att", 5, planner="different_on_each_rank", tp=2, check_every=1)
    with pytest.raises(JobError, match="ranks planned different rounds"):
        run_backend(job)


FAILS = ("tests.adapters.lightllm.harness.controls:measuring_fails",)


def test_a_rank_that_cannot_measure_ends_the_server_instead_of_keeping_the_others_waiting(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    job = dynamic_job(tiny_models, "eagle_no_att", 5, tp=2, setup=FAILS, timeout=200.0)
    with pytest.raises(JobError, match=r"rank \d died with exit code"):
        run_backend(job)


def test_a_single_rank_that_cannot_measure_serves_with_fixed_steps(
    tiny_models: Models, run_backend: RunBackend, reference: Reference
) -> None:
    job = dynamic_job(tiny_models, "eagle_no_att", 5, setup=FAILS)
    result = run_backend(job)
    assert result.tokens == text(reference, job)
    assert max(rows for step in result.rounds for rows in step.rows) == 1 + FALLBACK_STEPS
    assert_dynamic(result)


def test_drafts_that_are_always_wrong_end_drafting(tiny_models: Models, run_backend: RunBackend) -> None:
    job = dynamic_job(tiny_models, "eagle_no_att", 7, "never", kind="cycle", requests=requests(80))
    result = run_backend(job)
    assert result.tokens == [cycle_text(prompt[-1], 80) for prompt in PROMPTS]
    late = [rows for step in result.rounds[50:] for rows in step.rows]
    assert late.count(1) > 0.8 * len(late)
