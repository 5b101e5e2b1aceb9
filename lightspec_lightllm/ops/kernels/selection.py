"""Rows that a budget buys, without sorting.

One program holds the keys of all drafts, W * N of them, in registers, a request's drafts in one thread. The lowest key
that still makes the cut is found bit by bit: 32 times, count the drafts at or above a candidate. What lies above that
key is kept, and of what equals it as much as fits, in the order (draft, request), through prefix sums. Only integers
are compared and summed, so the result does not depend on how the work is spread over threads.

Not timed on a GPU yet. Compiled for sm_90 at N = 1024 and W = 16 it spills no register, and each of the 32 counts is
some 90 instructions and two barriers of 512 threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.ops.types import SelectedRows

_LOWEST = tl.constexpr(-(1 << 31))  # below the key of every float
_MINUS_INF = tl.constexpr(0x007FFFFF - (1 << 31))  # the key of -inf: its bits 0xFF800000, all but the sign flipped
_REQUESTS_PER_WARP = 64
_MAX_WARPS = 16


def select_rows(
    req_idx: torch.Tensor, seq_len: torch.Tensor, num_drafts: torch.Tensor, scores: torch.Tensor, num_rows: int
) -> SelectedRows:
    num_requests, width = len(req_idx), scores.shape[1]
    most = num_requests * (1 + width)
    if not 0 < num_requests <= num_rows <= most:
        raise PlanError(f"num_rows: expected {num_requests}..{most} for {num_requests} requests, got {num_rows}")
    # Buffers of their own: views into one would not be aligned, and for such pointers kernels are compiled anew.
    rows = [torch.empty(num_rows, dtype=torch.int32, device=req_idx.device) for _ in range(4)]
    requests = [torch.empty(num_requests, dtype=torch.int32, device=req_idx.device) for _ in range(2)]
    block_n, block_w = triton.next_power_of_2(num_requests), triton.next_power_of_2(width)
    _select_rows[(1,)](
        req_idx,
        seq_len,
        num_drafts,
        scores,
        scores.stride(0),
        scores.stride(1),
        *rows,
        *requests,
        num_requests,
        num_rows,
        width,
        BLOCK_N=block_n,
        BLOCK_W=block_w,
        num_warps=min(max(block_n // _REQUESTS_PER_WARP, 1), _MAX_WARPS),
    )
    return SelectedRows(*rows, *requests)


def accepted_last_row(start_loc: torch.Tensor, accept_len: torch.Tensor) -> torch.Tensor:
    num_requests = len(start_loc)
    out = torch.empty(num_requests, dtype=torch.int64, device=start_loc.device)
    block = triton.next_power_of_2(num_requests)
    _accepted_last_row[(1,)](start_loc, accept_len, out, num_requests, BLOCK_N=block, num_warps=4)
    return out


@triton.jit
def _ordered(score):
    """int32 keys in the order of the floats: NaN as -inf, and both zeros alike."""
    bits = score.to(tl.int32, bitcast=True)
    key = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    key = tl.where(key == -1, 0, key)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, _MINUS_INF, key)


@triton.jit
def _leading(fails, depth, BLOCK_W: tl.constexpr):
    """int32[BLOCK_N], how many drafts of each request come before the first that fails."""
    return tl.min(tl.where(fails, depth, BLOCK_W), axis=0)


# A stride known to be 1 would make the compiler lay a request's drafts across threads, and every count a shuffle.
@triton.jit(do_not_specialize=["num_requests", "num_rows", "scores_draft_stride"])
def _select_rows(
    req_idx_ptr,
    seq_len_ptr,
    num_drafts_ptr,
    scores_ptr,
    scores_request_stride,
    scores_draft_stride,
    row_req_idx_ptr,
    row_mtp_index_ptr,
    row_seq_len_ptr,
    row_request_ptr,
    start_loc_ptr,
    num_rows_ptr,
    num_requests,
    num_rows,
    width,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    request = tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_W)[:, None]
    is_request = request < num_requests
    req_idx = tl.load(req_idx_ptr + request, mask=is_request, other=0)
    seq_len = tl.load(seq_len_ptr + request, mask=is_request, other=0)
    drafts = tl.minimum(tl.load(num_drafts_ptr + request, mask=is_request, other=0), width)

    is_waiting = depth < drafts[None, :]
    own = req_idx.to(tl.int64)[None, :] * scores_request_stride
    score_ptrs = scores_ptr + own + depth * scores_draft_stride
    keys = tl.where(is_waiting, _ordered(tl.load(score_ptrs, mask=is_waiting, other=0.0)), _LOWEST)

    extra = num_rows - num_requests
    bar = tl.full((), _LOWEST, tl.int64)
    for bit in range(32):
        candidate = bar + (tl.full((), 1 << 31, tl.int64) >> bit)
        reached = tl.sum(_leading(keys < candidate.to(tl.int32), depth, BLOCK_W))
        bar = tl.where(reached >= extra, candidate, bar)

    above = _leading(keys <= bar.to(tl.int32), depth, BLOCK_W)
    upto = tl.minimum(_leading(keys < bar.to(tl.int32), depth, BLOCK_W), drafts)
    tied = ((depth >= above[None, :]) & (depth < upto[None, :])).to(tl.int32)
    tied_at_depth = tl.sum(tied, axis=1)
    rank = tl.cumsum(tied, axis=1) + (tl.cumsum(tied_at_depth) - tied_at_depth)[:, None]
    fits = (rank <= extra - tl.sum(above)).to(tl.int32)
    kept = above + tl.sum(tied * fits, axis=0)

    counts = tl.where(is_request, 1 + kept, 0)
    start = tl.cumsum(counts) - counts
    tl.store(start_loc_ptr + request, start, mask=is_request)
    tl.store(num_rows_ptr + request, counts, mask=is_request)

    for index in range(tl.max(counts)):
        row = start + index
        is_row = index < counts
        tl.store(row_req_idx_ptr + row, req_idx, mask=is_row)
        tl.store(row_mtp_index_ptr + row, tl.zeros_like(row) + index, mask=is_row)
        tl.store(row_seq_len_ptr + row, seq_len + index, mask=is_row)
        tl.store(row_request_ptr + row, request, mask=is_row)


@triton.jit(do_not_specialize=["num_requests"])
def _accepted_last_row(start_loc_ptr, accept_len_ptr, out_ptr, num_requests, BLOCK_N: tl.constexpr):
    request = tl.arange(0, BLOCK_N)
    mask = request < num_requests
    start = tl.load(start_loc_ptr + request, mask=mask, other=0)
    accepted = tl.load(accept_len_ptr + request, mask=mask, other=1)
    tl.store(out_ptr + request, (start + accepted - 1).to(tl.int64), mask=mask)
