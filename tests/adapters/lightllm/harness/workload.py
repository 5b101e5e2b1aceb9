"""Requests and configurations that several tests run."""

from __future__ import annotations

from typing import Any

from tests.adapters.lightllm.harness.job import Job, Request
from tests.adapters.lightllm.harness.models import Models

PROMPTS = ((5, 9, 33, 77, 120), (101, 3, 44), (17,) * 9 + (90, 91), (64, 65, 66, 70))
FAMILIES = {"no_att": "mistral", "with_att": "deepseek"}


def requests(max_new_tokens: int = 24, **options: Any) -> tuple[Request, ...]:
    return tuple(Request(prompt, max_new_tokens, **options) for prompt in PROMPTS)


def plain_job(models: Models, family: str, kind: str = "mixed", **options: Any) -> Job:
    """Without speculation."""
    return Job(models.target(family, kind), **{"requests": requests(), **options})


def mtp_job(
    models: Models,
    mode: str,
    steps: int,
    drafter: str,
    kind: str = "mixed",
    *,
    family: str | None = None,
    **options: Any,
) -> Job:
    """``mode``: "vanilla_no_att", ...; ``drafter`` and ``kind``: see the models' package; ``family``: another one than
    that of `FAMILIES`."""
    family = family or FAMILIES[mode.partition("_")[2]]
    drafts = (models.drafter(family, drafter),) * (steps if mode.startswith("vanilla") else 1)
    speculation = {"mtp_mode": mode, "mtp_step": steps, "drafts": drafts}
    return plain_job(models, family, kind, **speculation, **options)
