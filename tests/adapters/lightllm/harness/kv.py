"""KV that rounds left behind, beside KV computed from scratch for the same tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.adapters.lightllm.harness.job import Job, JobResult, Request


@dataclass(frozen=True, eq=False)
class Difference:
    """By layer, the largest difference of any value: of the target's layers and of those of drafters with attention."""

    target: npt.NDArray[np.float32]
    drafters: npt.NDArray[np.float32]


def difference_from_scratch(
    run: Callable[[Job], JobResult], job: Job, request: int, *, target_layers: int, prompt_tokens: int
) -> Difference:
    """Run ``job``, then its request's whole text as a prompt, and compare what both left in the cache past the prompt.

    The last token is left out: its drafter's KV depends on the token after it, which was sampled in one run only.
    """
    grown = stored(run(dataclasses.replace(job, keep_kv=True)), request)
    whole = Request(tuple(grown["tokens"].tolist()), max_new_tokens=1)
    fresh = stored(run(dataclasses.replace(job, requests=(whole,), keep_kv=True)), 0)
    shared = len(grown["tokens"]) - 1
    assert shared > prompt_tokens, "the request must have generated something"
    assert (fresh["tokens"][:shared] == grown["tokens"][:shared]).all()
    apart = np.abs(grown["kv"][:, prompt_tokens:shared] - fresh["kv"][:, prompt_tokens:shared])
    layers = apart.reshape(len(apart), -1).max(axis=1)
    return Difference(layers[:target_layers], layers[target_layers:])


def stored(result: JobResult, request: int) -> dict[str, npt.NDArray[Any]]:
    assert result.kv is not None, "the job was to keep its KV"
    with np.load(result.kv) as arrays:
        return {name: arrays[f"{name}{request}"] for name in ("tokens", "kv")}
