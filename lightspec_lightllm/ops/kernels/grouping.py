"""Rows grouped into sequences, and the page table of those sequences."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lightspec_lightllm.ops.types import Segments

_PAGE_BLOCK = 1024
_PAGE_PROGRAMS = 8  # per segment; each copies every eighth block, so long contexts are copied side by side


def segments(mtp_index: torch.Tensor, seq_len: torch.Tensor, req_idx: torch.Tensor) -> Segments:
    num_rows, device = len(mtp_index), mtp_index.device
    sizes = (num_rows + 1, num_rows + 1, num_rows, num_rows, 1)
    out = [torch.empty(size, dtype=torch.int32, device=device) for size in sizes]
    block = triton.next_power_of_2(num_rows + 1)
    _segments[(1,)](mtp_index, seq_len, req_idx, *out, num_rows, BLOCK_B=block, num_warps=min(max(block // 256, 1), 16))
    return Segments(*out)


def copy_page_table(page_table: torch.Tensor, req_to_token: torch.Tensor, parts: Segments) -> None:
    programs = min(_PAGE_PROGRAMS, triton.cdiv(page_table.shape[1], _PAGE_BLOCK))
    _copy_page_table[(page_table.shape[0], programs)](
        page_table,
        page_table.stride(0),
        req_to_token,
        req_to_token.stride(0),
        parts.req_idx,
        parts.att_seq_len,
        BLOCK=_PAGE_BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _segments(
    mtp_index_ptr,
    seq_len_ptr,
    req_idx_ptr,
    cu_q_ptr,
    cu_k_ptr,
    att_seq_len_ptr,
    segment_req_idx_ptr,
    num_segments_ptr,
    num_rows,
    BLOCK_B: tl.constexpr,
):
    row = tl.arange(0, BLOCK_B)
    is_row = row < num_rows
    mark = tl.load(mtp_index_ptr + row, mask=is_row, other=1)
    next_mark = tl.load(mtp_index_ptr + row + 1, mask=row + 1 < num_rows, other=0)
    is_first = is_row & ((mark == 0) | (row == 0))
    is_last = is_row & (next_mark == 0)
    segment = tl.cumsum(is_first.to(tl.int32)) - 1
    found = tl.sum(is_first.to(tl.int32))
    keys = tl.load(seq_len_ptr + row, mask=is_last, other=0)
    tl.store(num_segments_ptr, found)

    tl.store(cu_q_ptr + segment, row, mask=is_first)
    tl.store(segment_req_idx_ptr + segment, tl.load(req_idx_ptr + row, mask=is_first, other=0), mask=is_first)
    tl.store(att_seq_len_ptr + segment, keys, mask=is_last)
    tl.store(cu_k_ptr + segment + 1, tl.cumsum(keys), mask=is_last)
    tl.store(cu_k_ptr + row, 0, mask=row == 0)

    is_empty = is_row & (row >= found)
    tl.store(cu_q_ptr + row, num_rows, mask=(row >= found) & (row <= num_rows))
    tl.store(cu_k_ptr + row + 1, tl.sum(keys), mask=is_empty)
    tl.store(att_seq_len_ptr + row, 0, mask=is_empty)
    tl.store(segment_req_idx_ptr + row, -1, mask=is_empty)


@triton.jit
def _copy_page_table(
    page_table_ptr,
    page_table_stride,
    req_to_token_ptr,
    req_to_token_stride,
    req_idx_ptr,
    att_seq_len_ptr,
    BLOCK: tl.constexpr,
):
    segment = tl.program_id(0)
    length = tl.load(att_seq_len_ptr + segment)
    request = tl.load(req_idx_ptr + segment).to(tl.int64)
    source = req_to_token_ptr + request * req_to_token_stride
    target = page_table_ptr + segment.to(tl.int64) * page_table_stride
    for begin in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
        token = begin + tl.arange(0, BLOCK)
        mask = token < length
        tl.store(target + token, tl.load(source + token, mask=mask, other=0), mask=mask)
