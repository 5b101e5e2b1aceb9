"""Rows sample what decoding one token at a time would, with every parameter that a request may set."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.dynamic import dynamic_job
from tests.adapters.lightllm.harness.job import Job, Request
from tests.adapters.lightllm.harness.models import Models, cycle_text
from tests.adapters.lightllm.harness.workload import PROMPTS, plain_job

pytestmark = pytest.mark.lightllm

SEEDED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.8, "seed": 2, "top_p": 0.8},
    {"temperature": 1.2, "seed": 3, "top_k": 9},
    {"temperature": 0.8, "seed": 1, "top_k": 20, "top_p": 0.9},
)

PENALISED: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"exponential_decay_length_penalty": (4, 1.3), "ignore_eos": False},
    {"min_new_tokens": 12, "repetition_penalty": 1.2, "input_penalty": True, "ignore_eos": False},
    {"logit_bias": dict.fromkeys(map(str, cycle_text(PROMPTS[0][-1], 10)), -100)},  # to LightLLM, tokens not to come
    {},
)


def seeded(max_new_tokens: int = 24) -> tuple[Request, ...]:
    return tuple(
        Request(prompt, max_new_tokens, sampling={"do_sample": True, **sampling})
        for prompt, sampling in zip(PROMPTS, SEEDED, strict=True)
    )


def test_a_seed_gives_the_same_text_at_any_number_of_steps_in_any_plan_and_any_batch(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    def run(steps: int, **options: Any) -> list[list[int]]:
        job = dynamic_job(tiny_models, "eagle_no_att", steps, **{"requests": seeded(), **options})
        return run_backend(job).tokens

    without = run(3, strategy="off")
    assert len({tuple(tokens) for tokens in without}) == len(without)
    assert run(3, planner="random_plans") == without
    assert run(11, planner="everything") == without
    assert [run(5, planner="random_plans", requests=(request,))[0] for request in seeded()[:2]] == without[:2]


def test_a_seeded_request_that_pauses_goes_on_with_the_same_text(tiny_models: Models, run_backend: RunBackend) -> None:
    def run(**options: Any) -> Any:
        return run_backend(
            dynamic_job(tiny_models, "eagle_no_att", 5, planner="random_plans", requests=seeded(40), **options)
        )

    tight = run(max_total_token_num=120, max_req_total_len=80, batch_max_tokens=64, chunked_prefill_size=64)
    assert tight.ranks[0].pauses > 0
    assert tight.tokens == run().tokens


@pytest.mark.parametrize("drafter", ["half", "always"])
def test_penalties_and_limits_count_the_drafts_before_a_row(
    drafter: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    """Greedy texts with parameters that depend on what was generated, held against LightLLM one token at a time."""
    requests = tuple(
        Request(PROMPTS[number % len(PROMPTS)], 20, sampling=sampling) for number, sampling in enumerate(PENALISED)
    )
    kind = "cycle" if drafter == "always" else "mixed"
    alone = run_backend(plain_job(tiny_models, "mistral", kind, requests=requests))
    job = dynamic_job(tiny_models, "eagle_no_att", 7, drafter, kind=kind, planner="everything", requests=requests)
    result = run_backend(job)
    assert result.tokens == alone.tokens
    assert len({tuple(tokens) for tokens in result.tokens}) > 3, "the parameters must matter"
    assert max(length for step in result.rounds for length in step.accepted) > 2


def test_the_table_of_invalid_tokens_that_is_outgrown_is_kept_until_the_rounds_have_read_it(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    invalid = ({"100": 0, "101": 0, "102": 0}, {"100": 0, "101": 0})
    requests = tuple(Request(PROMPTS[0], 4, sampling={"logit_bias": tokens}) for tokens in invalid)
    job = dynamic_job(
        tiny_models,
        "eagle_no_att",
        3,
        requests=requests,
        setup=("tests.adapters.lightllm.harness.controls:note_outgrown",),
    )
    assert run_backend(job).ranks[0].notes["outgrown"] == [[1 + job.running_max_req_size, 1]]


@pytest.mark.slow
def test_sampling_without_a_seed_keeps_the_distribution_of_the_target(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    """Pearson's chi-square of two samples: with random budgets and steps, and one token at a time."""
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 4}
    requests = tuple(Request(PROMPTS[0], 4, sampling=sampling) for _ in range(400))

    def counts(job: Job) -> Counter[tuple[int, ...]]:
        return Counter(tuple(tokens[1:3]) for tokens in run_backend(job).tokens)

    options: dict[str, Any] = {
        "requests": requests,
        "running_max_req_size": len(requests),
        "max_total_token_num": 16384,
        "timeout": 600.0,
    }
    dynamic = counts(dynamic_job(tiny_models, "eagle_no_att", 3, planner="random_plans", **options))
    plain = counts(plain_job(tiny_models, "mistral", **options))
    kinds = [kind for kind in dynamic | plain if dynamic[kind] + plain[kind] >= 10]
    observed = np.array([[dynamic[kind] for kind in kinds], [plain[kind] for kind in kinds]], dtype=float)
    expected = observed.sum(0) / observed.sum() * observed.sum(1, keepdims=True)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(kinds) - 1
    assert freedom >= 4
    # Wilson and Hilferty's normal approximation of the tail, one in a thousand.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < limit, f"{chi_square:.1f} over {freedom} degrees of freedom"
