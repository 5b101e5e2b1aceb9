"""The likeliest token and its log probability in one pass over the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


def draft_scores(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    num_rows, vocab = logits.shape
    token = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    log_prob = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    _draft_scores[(num_rows,)](logits, logits.stride(0), token, log_prob, vocab, BLOCK=_BLOCK, num_warps=8)
    return token, log_prob


@triton.jit
def _draft_scores(logits_ptr, logits_stride, token_ptr, log_prob_ptr, vocab, BLOCK: tl.constexpr):
    """Each lane keeps its own maximum, the first token that had it, and its sum of exponentials relative to it.

    The loop crosses no lanes and takes one exponential per logit; the lanes are joined once, after it.
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    best = lane
    for begin in range(0, vocab, BLOCK):
        token = begin + lane
        value = tl.load(logits_ptr + row * logits_stride + token, mask=token < vocab, other=-float("inf"))
        value = value.to(tl.float32)
        is_value = value > -float("inf")  # false for NaN
        is_higher = is_value & (value > highest)
        factor = tl.exp(-tl.abs(value - highest))
        total = tl.where(is_higher, total * factor + 1.0, tl.where(is_value, total + factor, total))
        best = tl.where(is_higher, token, best)
        highest = tl.where(is_higher, value, highest)

    top = tl.max(highest)
    lanes = tl.where(highest > -float("inf"), total * tl.exp(highest - top), 0.0)
    tl.store(token_ptr + row, tl.min(tl.where(highest == top, best, 2147483647)).to(tl.int64))
    tl.store(log_prob_ptr + row, tl.where(top > -float("inf"), -tl.log(tl.sum(lanes)), top))
