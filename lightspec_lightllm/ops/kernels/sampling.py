"""Per-row noise and masks of the sampler, with no list of rows on the CPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_NOISE_BLOCK = 512  # Philox blocks, of four tokens each, per program
_MASK_BLOCK = 128


def mask_invalid_tokens(logits: torch.Tensor, b_req_idx: torch.Tensor, table: torch.Tensor) -> None:
    _mask_invalid_tokens[(logits.shape[0],)](
        logits,
        logits.stride(0),
        b_req_idx,
        table,
        table.stride(0),
        table.shape[1],
        logits.shape[1],
        BLOCK=_MASK_BLOCK,
        num_warps=1,
    )


def exponential_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int, out: torch.Tensor) -> None:
    grid = (out.shape[0], triton.cdiv(vocab, 4 * _NOISE_BLOCK))
    _exponential_noise[grid](seed, position, out, out.stride(0), vocab, BLOCK=_NOISE_BLOCK, num_warps=4)


@triton.jit(do_not_specialize=["width"])
def _mask_invalid_tokens(
    logits_ptr, logits_stride, b_req_idx_ptr, table_ptr, table_stride, width, vocab, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    request = tl.load(b_req_idx_ptr + row).to(tl.int64)
    for begin in range(0, width, BLOCK):
        entry = begin + tl.arange(0, BLOCK)
        token = tl.load(table_ptr + request * table_stride + entry, mask=entry < width, other=-1)
        is_token = (token >= 0) & (token < vocab)
        tl.store(logits_ptr + row * logits_stride + token, -float("inf"), mask=is_token)


@triton.jit
def _exponential_noise(seed_ptr, position_ptr, out_ptr, out_stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    seed = tl.load(seed_ptr + row)
    if seed >= 0:
        position = tl.load(position_ptr + row)
        block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
        word0, word1, word2, word3 = tl.philox(seed, block.to(tl.uint32), low, high, low * 0)
        first = out_ptr + row * out_stride
        token = block * 4
        tl.store(first + token, _exponential(word0), mask=token < vocab)
        tl.store(first + token + 1, _exponential(word1), mask=token + 1 < vocab)
        tl.store(first + token + 2, _exponential(word2), mask=token + 2 < vocab)
        tl.store(first + token + 3, _exponential(word3), mask=token + 3 < vocab)


@triton.jit
def _exponential(word):
    """-log(u) for u = (upper 23 bits + 1/2) / 2**23, which is exact in float32 and neither 0 nor 1."""
    return -tl.log(((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608.0))
