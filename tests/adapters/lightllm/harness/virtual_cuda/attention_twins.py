"""The attention of LightLLM's models as plain torch: see `twins`."""

import math
from typing import Any

import torch
from torch import Tensor


def partial_attention(scores: Tensor, values: Tensor, lengths: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Attention over positions [start, stop): output ``[B, H, D]`` and log of the sum of exponentials ``[B, H]``.

    ``scores``: ``[B, H, L]``, ``values``: ``[B, L, H, D]``, ``lengths``: ``[B]``; rows with no position there get NaN.
    """
    inside = torch.arange(start, min(stop, scores.shape[-1])) < lengths[:, None]
    part = scores[..., start:stop].masked_fill(~inside[:, None], -math.inf)
    log_sum = torch.logsumexp(part, -1)
    return torch.einsum("bhl,blhd->bhd", torch.exp(part - log_sum[..., None]), values[:, start:stop]), log_sum


def decode_attention_blocks(
    *,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    sm_scale: float,
    Req_to_tokens: Tensor,
    B_req_idx: Tensor,
    B_Seqlen: Tensor,
    Mid_O: Tensor,
    Mid_O_LogExpSum: Tensor,
    gqa_group_size: int,
    BLOCK_SEQ: int,
    USE_SLIDING_WINDOW: bool,
    **_: Any,
) -> None:
    assert not USE_SLIDING_WINDOW, "the twin of decode attention has no sliding window"
    longest = int(B_Seqlen.max())
    assert longest <= BLOCK_SEQ * Mid_O.shape[2], "the twin of decode attention gives each block one turn"
    slots = Req_to_tokens[B_req_idx.long(), :longest].long()
    slots = slots.masked_fill(torch.arange(longest) >= B_Seqlen[:, None], 0)
    keys, values = (x[slots].repeat_interleave(gqa_group_size, 2) for x in (K, V))
    scores = torch.einsum("bhd,blhd->bhl", Q, keys) * sm_scale
    for block in range(math.ceil(longest / BLOCK_SEQ)):
        out, log_sum = partial_attention(scores, values, B_Seqlen, block * BLOCK_SEQ, (block + 1) * BLOCK_SEQ)
        used = B_Seqlen > block * BLOCK_SEQ
        Mid_O[used, :, block] = out[used]
        Mid_O_LogExpSum[used, :, block] = log_sum[used]


def decode_attention_merge(
    *,
    B_Seqlen: Tensor,
    Mid_O: Tensor,
    Mid_O_LogExpSum: Tensor,
    O: Tensor,  # noqa: E741 - the kernel's name
    BLOCK_SEQ: int,
    **_: Any,
) -> None:
    blocks = math.ceil(int(B_Seqlen.max()) / BLOCK_SEQ)
    used = torch.arange(blocks) * BLOCK_SEQ < B_Seqlen[:, None]
    weights = torch.softmax(Mid_O_LogExpSum[..., :blocks].masked_fill(~used[:, None], -math.inf), -1)
    values = Mid_O[:, :, :blocks].masked_fill(~used[:, None, :, None], 0)
    O.copy_(torch.einsum("bhk,bhkd->bhd", weights, values))


def plan_latent_blocks(
    *,
    b_seq_len_ptr: Tensor,
    mid_o_decode_att_block_seq_ptr: Tensor,
    mid_o_batch_start_index_ptr: Tensor,
    num_sm: int,
    BLOCK_N: int,
    **_: Any,
) -> None:
    least = int(b_seq_len_ptr.sum()) // (num_sm * 4) + 1
    block_size = math.ceil(least / BLOCK_N) * BLOCK_N
    blocks = -(-b_seq_len_ptr // block_size)
    mid_o_decode_att_block_seq_ptr.fill_(block_size)
    mid_o_batch_start_index_ptr.copy_(blocks.cumsum(0) - blocks)


def latent_decode_attention_blocks(
    *,
    Q_nope: Tensor,
    Q_rope: Tensor,
    KV_nope: Tensor,
    KV_rope: Tensor,
    sm_scale: float,
    Req_to_tokens: Tensor,
    B_req_idx: Tensor,
    B_Seqlen: Tensor,
    Mid_O: Tensor,
    Mid_O_LogExpSum: Tensor,
    block_size_ptr: Tensor,
    **_: Any,
) -> None:
    block_size, longest = int(block_size_ptr), int(B_Seqlen.max())
    slots = Req_to_tokens[B_req_idx.long(), :longest].long()
    slots = slots.masked_fill(torch.arange(longest) >= B_Seqlen[:, None], 0)
    latent, rope = KV_nope[slots, 0], KV_rope[slots, 0]
    scores = (torch.einsum("bhd,bld->bhl", Q_nope, latent) + torch.einsum("bhd,bld->bhl", Q_rope, rope)) * sm_scale
    values = latent[:, :, None].expand(-1, -1, Q_nope.shape[1], -1)
    blocks = -(-B_Seqlen // block_size)
    first = blocks.cumsum(0) - blocks
    for block in range(math.ceil(longest / block_size)):
        out, log_sum = partial_attention(scores, values, B_Seqlen, block * block_size, (block + 1) * block_size)
        used = blocks > block
        Mid_O[:, first[used] + block] = out[used].transpose(0, 1)
        Mid_O_LogExpSum[:, first[used] + block] = log_sum[used].T


def latent_decode_attention_merge(
    *,
    block_seq_ptr: Tensor,
    batch_start_index: Tensor,
    B_Seqlen: Tensor,
    Mid_O: Tensor,
    Mid_O_LogExpSum: Tensor,
    Out: Tensor,
    **_: Any,
) -> None:
    blocks = -(-B_Seqlen // int(block_seq_ptr))
    offsets = torch.arange(int(blocks.max()))
    used = offsets < blocks[:, None]
    at = (batch_start_index[:, None] + offsets).masked_fill(~used, 0)
    weights = torch.softmax(Mid_O_LogExpSum[:, at].masked_fill(~used, -math.inf), -1)
    values = Mid_O[:, at].masked_fill(~used[..., None], 0)
    Out.copy_(torch.einsum("hbk,hbkd->bhd", weights, values))


def causal_attention(scores: Tensor, values: Tensor) -> Tensor:
    """``scores``: ``[H, Q, L]`` in powers of two, of the last Q of L positions; ``values``: ``[L, H, D]``."""
    queries, length = scores.shape[1:]
    visible = torch.arange(length) <= torch.arange(length - queries, length)[:, None]
    weights = torch.softmax((scores * math.log(2)).masked_fill(~visible, -math.inf), -1)
    return torch.einsum("hql,lhd->qhd", weights, values)


def prefill_attention(
    *,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    sm_scale: float,
    Out: Tensor,
    B_Start_Loc: Tensor,
    B_Seqlen: Tensor,
    Req_to_tokens: Tensor,
    B_req_idx: Tensor,
    kv_group_num: int,
    b_prompt_cache_len: Tensor,
    USE_SLIDING_WINDOW: bool,
    **_: Any,
) -> None:
    assert not USE_SLIDING_WINDOW, "the twin of prefill attention has no sliding window"
    for start, length, cached, request in zip(
        B_Start_Loc.tolist(), B_Seqlen.tolist(), b_prompt_cache_len.tolist(), B_req_idx.tolist(), strict=True
    ):
        slots = Req_to_tokens[request, :length].long()
        keys, values = (x[slots].repeat_interleave(kv_group_num, 1) for x in (K, V))
        rows = slice(start, start + length - cached)
        Out[rows] = causal_attention(torch.einsum("qhd,lhd->hql", Q[rows], keys) * sm_scale, values)


def latent_prefill_attention(
    *,
    Q_nope: Tensor,
    Q_rope: Tensor,
    K_nope: Tensor,
    K_rope: Tensor,
    V: Tensor,
    sm_scale: float,
    B_Start_Loc: Tensor,
    B_Kv_Start_Loc: Tensor,
    B_Seqlen: Tensor,
    Out: Tensor,
    b_prompt_cache_len: Tensor,
    **_: Any,
) -> None:
    kv_starts = B_Kv_Start_Loc[: len(B_Seqlen)].tolist()  # their end comes with them
    for start, kv_start, length, cached in zip(
        B_Start_Loc.tolist(), kv_starts, B_Seqlen.tolist(), b_prompt_cache_len.tolist(), strict=True
    ):
        rows, kv = slice(start, start + length - cached), slice(kv_start, kv_start + length)
        scores = torch.einsum("qhd,lhd->hql", Q_nope[rows], K_nope[kv])
        scores = scores + torch.einsum("qhd,ld->hql", Q_rope[rows], K_rope[kv, 0])
        Out[rows] = causal_attention(scores * sm_scale, V[kv])
