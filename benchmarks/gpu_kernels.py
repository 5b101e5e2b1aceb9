"""The GPU kernels of `lightspec_lightllm.ops` held against their specification, on this machine's GPU.

    python benchmarks/gpu_kernels.py kernels.json

Without a GPU the kernels run in Triton's interpreter, on small batches.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from lightspec_lightllm.ops import reference  # noqa: E402
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REQUESTS = (1, 3, 64, 300, 1024) if DEVICE == "cuda" else (1, 3, 20)
VOCABS = (50, 12345, 151936) if DEVICE == "cuda" else (50, 5000)

MAX_ROWS = 1 + MAX_DRAFT_STEPS
BATCH_ROWS = 2048
"""Rows of a batch at most, where requests have several."""

PAGES = 3000
SCORES = (0.0, -0.0, -1.0, -0.5, -2.5, 1e-42, -1e-42, 3.0, math.inf, -math.inf, math.nan)

TOLERANCE = 1e-5
"""Of floats, absolute and relative: a sum's order and a logarithm are the device's own. Integers must be equal."""

Case = Callable[[Any, torch.Generator], Iterator[torch.Tensor]]
"""What a module's operation of the case's name gives for batches that a generator draws."""


def integers(
    random: torch.Generator, low: int, high: int, *size: int, dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    """Uniform in ``low .. high - 1``."""
    return torch.randint(low, high, size, generator=random, dtype=dtype).to(DEVICE)


def parts(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result of several."""
    return (getattr(result, field.name) for field in dataclasses.fields(result))


def select_rows(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for requests in REQUESTS:
        drawn = torch.randint(len(SCORES), (requests + 3, MAX_ROWS), generator=random)
        scores = torch.tensor(SCORES)[drawn].to(DEVICE)
        req_idx = torch.randperm(requests + 3, generator=random)[:requests].int().to(DEVICE)
        drafts = integers(random, 0, MAX_ROWS, requests)
        seq_len, most = integers(random, 1, 5000, requests), requests + int(drafts.sum())
        for rows in (requests, (requests + most) // 2, most):
            yield from parts(ops.select_rows(req_idx, seq_len, drafts, scores, rows))


def accepted_last_row(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for requests in REQUESTS:
        lengths = integers(random, 1, MAX_ROWS, requests)
        yield ops.accepted_last_row((lengths.cumsum(0) - lengths).int(), lengths)


def segments(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for requests in REQUESTS:
        yield from parts(ops.segments(*marked_rows(requests, random)))


def copy_page_table(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for requests in REQUESTS:
        rows = marked_rows(requests, random)
        slots = integers(random, 0, 1 << 20, requests, PAGES)
        page_table = torch.full((len(rows[0]), PAGES), -1, dtype=torch.int32, device=DEVICE)
        ops.copy_page_table(page_table, slots, reference.segments(*rows))
        yield page_table


def marked_rows(requests: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Marks, lengths and requests of a batch's rows."""
    counts = integers(random, 1, 1 + min(MAX_ROWS, BATCH_ROWS // requests), requests)
    context = integers(random, 1, PAGES - MAX_ROWS, requests)
    request = torch.repeat_interleave(torch.arange(requests, device=DEVICE), counts)
    mark = torch.arange(len(request), device=DEVICE) - (counts.cumsum(0) - counts)[request]
    return mark.int(), (context[request] + mark).int(), request.int()


def mask_invalid_tokens(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for vocab in VOCABS:
        for dtype in (torch.float32, torch.float16):
            logits = torch.randn(40, vocab, generator=random).to(DEVICE, dtype)
            table = integers(random, -1, vocab + 10, 9, 200)
            ops.mask_invalid_tokens(logits, integers(random, 0, 9, 40), table)
            yield logits


def draft_scores(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for vocab in VOCABS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            logits = (4 * torch.randn(5, vocab, generator=random)).to(DEVICE, dtype)
            logits[0], logits[1, ::3] = -math.inf, math.nan
            yield from ops.draft_scores(logits)


def exponential_noise(ops: Any, random: torch.Generator) -> Iterator[torch.Tensor]:
    for vocab in VOCABS:
        seed = integers(random, -(1 << 60), 1 << 62, 7, dtype=torch.int64)
        position = integers(random, 0, 1 << 40, 7, dtype=torch.int64)
        out = torch.full((7, vocab), -1.0, device=DEVICE)
        ops.exponential_noise(seed, position, vocab, out)
        yield out


CASES: tuple[Case, ...] = (
    select_rows,
    accepted_last_row,
    segments,
    copy_page_table,
    mask_invalid_tokens,
    draft_scores,
    exponential_noise,
)


def compare(case: Case, ops: Any) -> str:
    """``ok``, or how the operation of ``ops`` differs from the specification's, or why it cannot be run."""
    found, right = (case(module, torch.Generator().manual_seed(0)) for module in (ops, reference))
    try:
        for place, (mine, theirs) in enumerate(zip(found, right, strict=True)):
            if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                return f"differs: expected {theirs.dtype} {list(theirs.shape)}, got {mine.dtype} {list(mine.shape)}"
            tolerance = TOLERANCE if mine.dtype.is_floating_point else 0.0
            close = torch.isclose(mine, theirs, rtol=tolerance, atol=tolerance)
            if not close.all():
                return f"differs: {int((~close).sum())} of {close.numel()} values in result {place}"
    except Exception as error:  # noqa: BLE001 - whatever a kernel does on a GPU where it has never run
        return f"failed: {type(error).__name__}: {error}"
    return "ok"


def main() -> None:
    if DEVICE == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels are decorated
    from lightspec_lightllm.ops import kernels

    found = {case.__name__: compare(case, kernels) for case in CASES}
    (result,) = sys.argv[1:]
    Path(result).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
