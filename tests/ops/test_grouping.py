"""Rows become segments, and segments find their pages."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.ops import Segments


def rows_of(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Marks, lengths and requests of the rows of requests with so many rows each."""
    marks = [index for count in counts for index in range(count)]
    lengths = [100 * n + index + 1 for n, count in enumerate(counts) for index in range(count)]
    requests = [7 * n for n, count in enumerate(counts) for _ in range(count)]
    return tuple(torch.tensor(values, dtype=torch.int32) for values in (marks, lengths, requests))  # type: ignore[return-value]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=12))
def test_a_mark_of_zero_begins_a_segment(operations: ModuleType, device: str, counts: list[int]) -> None:
    marks, lengths, requests = (tensor.to(device) for tensor in rows_of(counts))
    parts: Segments = operations.segments(marks, lengths, requests)
    num_rows, empty = sum(counts), sum(counts) - len(counts)
    keys = [100 * n + count for n, count in enumerate(counts)]
    assert parts.num_segments.tolist() == [len(counts)]
    assert parts.cu_q.tolist() == [*np.cumsum([0, *counts]), *[num_rows] * empty]
    assert parts.att_seq_len.tolist() == keys + [0] * empty
    assert parts.cu_k.tolist() == [*np.cumsum([0, *keys]), *[sum(keys)] * empty]
    assert parts.req_idx.tolist() == [7 * n for n in range(len(counts))] + [-1] * empty
    fields = (parts.cu_q, parts.cu_k, parts.att_seq_len, parts.req_idx, parts.num_segments)
    assert {field.dtype for field in fields} == {torch.int32}


@pytest.mark.parametrize("num_rows", [1, 2, 1023, 1024, 2048])
def test_rows_of_one_token_each_are_segments_of_one_row(operations: ModuleType, device: str, num_rows: int) -> None:
    zeros = torch.zeros(num_rows, dtype=torch.int32, device=device)
    requests = torch.arange(num_rows, dtype=torch.int32, device=device)
    parts = operations.segments(zeros, zeros + 9, requests)
    assert torch.equal(parts.cu_q.cpu(), torch.arange(num_rows + 1, dtype=torch.int32))
    assert torch.equal(parts.req_idx, requests)
    assert parts.num_segments.tolist() == [num_rows]


def test_the_first_row_begins_a_segment_whatever_its_mark(operations: ModuleType, device: str) -> None:
    marks = torch.tensor([2, 3, 0], dtype=torch.int32, device=device)
    parts = operations.segments(marks, marks + 5, marks * 0 + 4)
    assert parts.cu_q.tolist() == [0, 2, 3, 3]
    assert parts.att_seq_len.tolist() == [8, 5, 0]


def test_pages_are_copied_up_to_each_segments_length(operations: ModuleType, device: str) -> None:
    req_to_token = torch.arange(4 * 3000, dtype=torch.int32, device=device).view(4, 3000)
    lengths, requests = [2600, 1, 1024], [3, 0, 2]
    marks = torch.tensor([0, 0, 0, 1], dtype=torch.int32, device=device)
    seq_len = torch.tensor([2600, 1, 1023, 1024], dtype=torch.int32, device=device)
    rows = torch.tensor([3, 0, 2, 2], dtype=torch.int32, device=device)
    parts = operations.segments(marks, seq_len, rows)
    whole = torch.full((6, 2800), -7, dtype=torch.int32, device=device)
    page_table = whole[:4, :2700]
    operations.copy_page_table(page_table, req_to_token, parts)
    for segment, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        assert torch.equal(page_table[segment, :length], req_to_token[request, :length])
        assert (page_table[segment, length:] == -7).all()
    assert (whole[3:] == -7).all()
    assert (whole[:, 2700:] == -7).all()
