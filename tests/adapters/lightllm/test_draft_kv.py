"""The drafter's KV of accepted tokens is what a prefill of the same text would have left there.

LightLLM's own eagle steps leave something else, see `test_stock`: the reason for a chain of one row per request.
"""

from __future__ import annotations

import pytest

from tests.adapters.lightllm.conftest import RunBackend
from tests.adapters.lightllm.dynamic import dynamic_job
from tests.adapters.lightllm.harness.job import Request
from tests.adapters.lightllm.harness.kv import difference_from_scratch
from tests.adapters.lightllm.harness.models import Models
from tests.adapters.lightllm.harness.workload import PROMPTS

pytestmark = pytest.mark.lightllm

TOLERANCE = 1e-4
TARGET_LAYERS = 2


@pytest.mark.parametrize(
    ("kind", "drafter", "planner"), [("cycle", "always", "everything"), ("mixed", "half", "random_plans")]
)
def test_one_layer_run_again_and_again_leaves_it_the_same(
    kind: str, drafter: str, planner: str, tiny_models: Models, run_backend: RunBackend
) -> None:
    request = Request(PROMPTS[0], 40)
    job = dynamic_job(tiny_models, "eagle_with_att", 7, drafter, kind=kind, planner=planner, requests=(request,))
    apart = difference_from_scratch(run_backend, job, 0, target_layers=TARGET_LAYERS, prompt_tokens=len(request.prompt))
    assert apart.target.max() < TOLERANCE
    assert apart.drafters.max() < TOLERANCE


def test_layers_of_their_own_leave_it_the_same_where_drafts_are_right(
    tiny_models: Models, run_backend: RunBackend
) -> None:
    """Layer i reads the token i places on; of the last few, what followed was a draft, and a right one."""
    request = Request(PROMPTS[0], 31)
    job = dynamic_job(
        tiny_models, "vanilla_with_att", 4, "always", kind="cycle", planner="everything", requests=(request,)
    )
    apart = difference_from_scratch(run_backend, job, 0, target_layers=TARGET_LAYERS, prompt_tokens=len(request.prompt))
    assert apart.target.max() < TOLERANCE
    assert apart.drafters[0].max() < TOLERANCE
