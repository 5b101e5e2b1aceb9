"""Rows by budget against a search written the slow way: exact, ties and all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.ops import SelectedRows

SCORES = [0.0, -0.0, -1.0, -0.5, -2.5, 1e-42, -1e-42, 3.0, math.inf, -math.inf, math.nan]


@dataclass(frozen=True)
class Batch:
    """N requests with scores in a table of more rows than that."""

    req_idx: torch.Tensor
    seq_len: torch.Tensor
    num_drafts: torch.Tensor
    scores: torch.Tensor

    @property
    def available(self) -> int:
        return int(self.num_drafts.sum())

    def select(self, operations: ModuleType, num_rows: int, device: str) -> SelectedRows:
        tensors = (self.req_idx, self.seq_len, self.num_drafts, self.scores)
        rows: SelectedRows = operations.select_rows(*(tensor.to(device) for tensor in tensors), num_rows)
        return rows


def batch_of(num_requests: int, width: int, seed: int, distinct: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    table = num_requests + 3
    scores = rng.normal(size=(table, width)) if distinct else rng.choice(SCORES, size=(table, width))
    return Batch(
        req_idx=torch.from_numpy(rng.permutation(table)[:num_requests].astype(np.int32)),
        seq_len=torch.from_numpy(rng.integers(1, 5000, num_requests, dtype=np.int32)),
        num_drafts=torch.from_numpy(rng.integers(0, width + 1, num_requests, dtype=np.int32)),
        scores=torch.from_numpy(scores.astype(np.float32)),
    )


def kept_drafts(batch: Batch, num_rows: int) -> list[int]:
    """Drafts kept of each request, by sorting (score, draft, request) tuples."""
    waiting = []
    for n, (row, drafts) in enumerate(zip(batch.req_idx.tolist(), batch.num_drafts.tolist(), strict=True)):
        lowest = math.inf
        for j in range(drafts):
            score = float(batch.scores[row, j])
            lowest = min(lowest, -math.inf if math.isnan(score) else score)
            waiting.append((-lowest, j, n))
    taken = sorted(waiting)[: num_rows - len(batch.req_idx)]
    return [sum(request == n for _, _, request in taken) for n in range(len(batch.req_idx))]


def check(rows: SelectedRows, batch: Batch, num_rows: int) -> None:
    kept = kept_drafts(batch, num_rows)
    expected = [(n, j) for n, drafts in enumerate(kept) for j in range(1 + drafts)]
    assert rows.num_rows.tolist() == [1 + drafts for drafts in kept]
    assert rows.start_loc.tolist() == np.cumsum([0, *(1 + drafts for drafts in kept)])[:-1].tolist()
    assert rows.request.tolist() == [n for n, _ in expected]
    assert rows.mtp_index.tolist() == [j for _, j in expected]
    assert rows.seq_len.tolist() == [int(batch.seq_len[n]) + j for n, j in expected]
    assert rows.req_idx.tolist() == [int(batch.req_idx[n]) for n, _ in expected]
    fields = (rows.req_idx, rows.mtp_index, rows.seq_len, rows.request, rows.start_loc, rows.num_rows)
    assert {field.dtype for field in fields} == {torch.int32}


@st.composite
def selections(draw: st.DrawFn) -> tuple[Batch, int]:
    num_requests, width = draw(st.integers(1, 20)), draw(st.integers(1, 16))
    batch = batch_of(num_requests, width, draw(st.integers(0, 2**32)), draw(st.booleans()))
    return batch, num_requests + draw(st.sampled_from([0, batch.available]) | st.integers(0, batch.available))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(selections())
def test_the_best_drafts_get_the_rows(operations: ModuleType, device: str, selection: tuple[Batch, int]) -> None:
    batch, num_rows = selection
    check(batch.select(operations, num_rows, device), batch, num_rows)


@pytest.mark.parametrize(("num_requests", "width"), [(1024, 16), (1000, 7), (513, 1)])
@pytest.mark.parametrize("distinct", [True, False])
def test_large_batches_are_exact_too(
    operations: ModuleType, device: str, num_requests: int, width: int, distinct: bool
) -> None:
    batch = batch_of(num_requests, width, seed=num_requests, distinct=distinct)
    num_rows = num_requests + batch.available // 3
    check(batch.select(operations, num_rows, device), batch, num_rows)


def test_requests_without_drafts_own_one_row_each(operations: ModuleType, device: str) -> None:
    batch = batch_of(5, 3, seed=1)
    batch.num_drafts.zero_()
    check(batch.select(operations, 5, device), batch, 5)


def test_drafts_that_score_nothing_are_taken_before_no_draft(operations: ModuleType, device: str) -> None:
    batch = batch_of(4, 3, seed=2)
    batch.scores.fill_(math.nan)
    num_rows = 4 + batch.available
    check(batch.select(operations, num_rows, device), batch, num_rows)


def test_a_table_wider_than_the_drafts_and_not_contiguous_is_read_by_its_strides(
    operations: ModuleType, device: str
) -> None:
    batch = batch_of(6, 5, seed=3)
    wide = torch.full((2 * len(batch.scores), 9), math.inf)
    wide[::2, :5] = batch.scores
    strided = Batch(batch.req_idx, batch.seq_len, batch.num_drafts, wide.to(device)[::2, :5])
    check(strided.select(operations, 6 + batch.available // 2, device), batch, 6 + batch.available // 2)


@pytest.mark.parametrize("num_rows", [3, 17])
def test_a_budget_that_no_batch_allows_is_refused(operations: ModuleType, device: str, num_rows: int) -> None:
    batch = batch_of(4, 3, seed=4)
    batch.num_drafts.fill_(3)
    with pytest.raises(PlanError, match=rf"num_rows: expected 4\.\.16.*, got {num_rows}"):
        batch.select(operations, num_rows, device)


def test_the_last_accepted_row_is_ready_for_a_gather(operations: ModuleType, device: str) -> None:
    start_loc, accept_len = torch.tensor([0, 4, 5], dtype=torch.int32), torch.tensor([3, 1, 2], dtype=torch.int32)
    rows = operations.accepted_last_row(start_loc.to(device), accept_len.to(device))
    assert rows.dtype == torch.int64
    assert rows.tolist() == [2, 4, 6]
