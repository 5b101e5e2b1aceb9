"""LightLLM's model kernels as plain torch: what attention, norms and copies compute, without an interpreter.

A kernel in the interpreter takes 10 to 200 ms, its twin here less than 0.1 ms, so a run takes seconds instead of
minutes. Only kernels of the model's forward, of its inputs and of the penalties have twins; verification, scattering
of drafts and this package's own kernels run as they are. Parameters have the kernels' names.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.adapters.lightllm.harness.virtual_cuda.attention_twins import (
    decode_attention_blocks,
    decode_attention_merge,
    latent_decode_attention_blocks,
    latent_decode_attention_merge,
    latent_prefill_attention,
    plan_latent_blocks,
    prefill_attention,
)

KERNELS = "lightllm.common.basemodel.triton_kernel."


def embedding(*, weight: Tensor, input_ids: Tensor, out: Tensor, vob_start_id: int, vob_end_id: int, **_: Any) -> None:
    ours = (input_ids >= vob_start_id) & (input_ids < vob_end_id)
    rows = weight[torch.where(ours, input_ids - vob_start_id, 0).long()]
    out.copy_(torch.where(ours[:, None], rows, 0))


def rms_norm(*, X: Tensor, Y: Tensor, W: Tensor | None, N: int, eps: float, **_: Any) -> None:
    x = X[:, :N].float()
    x_hat = x * (1 / torch.sqrt((x * x).sum(-1, keepdim=True) / N + eps))
    Y[:, :N] = x_hat if W is None else x_hat * W


def head_norms(
    *, Q_ptr: Tensor, WQ_ptr: Tensor, K_ptr: Tensor, WK_ptr: Tensor, eps: float, head_dim: int, **_: Any
) -> None:
    for x, weight in ((Q_ptr, WQ_ptr), (K_ptr, WK_ptr)):
        heads = x.view(len(x), -1, head_dim).float()
        x.copy_((heads / torch.sqrt(heads.square().mean(-1, keepdim=True) + eps) * weight).flatten(1))


def silu_and_mul(
    *,
    input_ptr: Tensor,
    output_ptr: Tensor,
    size_n: int,
    layout: str,
    USE_LIMIT_AND_ALPHA: bool,
    USE_TANH_APPROXIMATE_GELU: bool,
    **_: Any,
) -> None:
    assert layout == "blocked", f"the twin of silu_and_mul knows the layout blocked, got {layout}"
    assert not USE_LIMIT_AND_ALPHA, "the twin of silu_and_mul clamps nothing"
    assert not USE_TANH_APPROXIMATE_GELU, "the twin of silu_and_mul computes no GELU"
    gate, up = input_ptr[:, :size_n], input_ptr[:, size_n : 2 * size_n]
    output_ptr.copy_(up * (gate / (1 + torch.exp(-gate))))


def rotate_halves(
    *, Q: Tensor, K: Tensor | None, Cos: Tensor, Sin: Tensor, HAS_K: bool, BLOCK_DMODEL: int, **_: Any
) -> None:
    half = BLOCK_DMODEL // 2
    cos, sin = Cos[:, None, :half], Sin[:, None, :half]
    for x in (Q, K) if HAS_K else (Q,):
        assert x is not None, "HAS_K without K"
        low, high = x[..., :half].clone(), x[..., half:BLOCK_DMODEL].clone()
        x[..., :half] = low * cos - high * sin
        x[..., half:BLOCK_DMODEL] = low * sin + high * cos


def rotate_pairs(*, Q: Tensor, K: Tensor, Cos: Tensor, Sin: Tensor, **_: Any) -> None:
    cos, sin = Cos[:, None], Sin[:, None]
    for x in (Q, K):
        even, odd = x[..., 0::2].clone(), x[..., 1::2].clone()
        x[..., 0::2] = even * cos - odd * sin
        x[..., 1::2] = even * sin + odd * cos


def store_kv(*, K: Tensor, Dest_loc: Tensor, Out: Tensor, **_: Any) -> None:
    Out[Dest_loc.long()] = K


def store_latent_kv(
    *, KV_nope: Tensor, KV_rope: Tensor, Dest_loc: Tensor, O_nope: Tensor, O_rope: Tensor, **_: Any
) -> None:
    O_nope[Dest_loc.long()] = KV_nope
    O_rope[Dest_loc.long()] = KV_rope


def record_slots(
    *, req_to_token_indexs: Tensor, b_req_idx: Tensor, b_seq_len: Tensor, memindex: Tensor, **_: Any
) -> None:
    req_to_token_indexs[b_req_idx.long(), b_seq_len.long() - 1] = memindex.to(req_to_token_indexs.dtype)


def cumulative_lengths(
    *, b_q_seq_len: Tensor, b1_cu_q_seq_len: Tensor, b_kv_seq_len: Tensor, b1_cu_kv_seq_len: Tensor, **_: Any
) -> None:
    for lengths, sums in ((b_q_seq_len, b1_cu_q_seq_len), (b_kv_seq_len, b1_cu_kv_seq_len)):
        sums[0] = 0
        sums[1:] = lengths.cumsum(0)


def penalties(
    *,
    Logits: Tensor,
    b_req_idx: Tensor,
    req_to_presence_penalty: Tensor,
    req_to_frequency_penalty: Tensor,
    req_to_repetition_penalty: Tensor,
    req_to_out_token_id_counter: Tensor,
    vocab_size: int,
    **_: Any,
) -> None:
    requests = b_req_idx.long()
    counts, logits = req_to_out_token_id_counter[requests, :vocab_size], Logits[:, :vocab_size]
    repetition = req_to_repetition_penalty[requests, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    repeated = repeated - counts * req_to_frequency_penalty[requests, None] - req_to_presence_penalty[requests, None]
    logits.copy_(torch.where(counts > 0, repeated, logits))


def choose_experts(
    *,
    topk_weights_ptr: Tensor,
    topk_indices_ptr: Tensor,
    gating_output_ptr: Tensor,
    top_k: int,
    RENORM: bool,
    **_: Any,
) -> None:
    weights, experts = torch.softmax(gating_output_ptr, -1).topk(top_k)
    topk_weights_ptr.copy_(weights / weights.sum(-1, keepdim=True).clamp(min=1e-8) if RENORM else weights)
    topk_indices_ptr.copy_(experts)


def group_by_expert(
    *,
    topk_ids_ptr: Tensor,
    topk_weights_ptr: Tensor,
    expert_to_token_index_ptr: Tensor,
    expert_to_weight_ptr: Tensor,
    expert_token_num_ptr: Tensor,
    **_: Any,
) -> None:
    experts, weights = topk_ids_ptr.flatten(), topk_weights_ptr.flatten()
    for expert in range(len(expert_token_num_ptr)):
        places = (experts == expert).nonzero()[:, 0]
        expert_token_num_ptr[expert] = len(places)
        expert_to_token_index_ptr[expert, : len(places)] = places.to(torch.int32)
        expert_to_weight_ptr[expert, : len(places)] = weights[places]


def plan_expert_blocks(
    *,
    experts_token_num_ptr: Tensor,
    mblocks_to_tuple_info: Tensor,
    BLOCK_M: int,
    **_: Any,
) -> None:
    blocks = -(-experts_token_num_ptr.long() // BLOCK_M)
    used, experts = int(blocks.sum()), torch.arange(len(blocks)).repeat_interleave(blocks)
    place = torch.arange(used) - (blocks.cumsum(0) - blocks)[experts]
    first_row = (experts_token_num_ptr.cumsum(0) - experts_token_num_ptr)[experts]
    mblocks_to_tuple_info[:used] = torch.stack((experts, place, first_row + place * BLOCK_M), dim=1).to(torch.int32)
    mblocks_to_tuple_info[used:, 0] = -1


def experts_matmul(
    *,
    token_ptr: Tensor,
    weights_ptr: Tensor,
    bias_ptr: Tensor | None,
    expert_to_weights_ptr: Tensor,
    expert_to_token_num: Tensor,
    expert_to_token_index: Tensor,
    out_ptr: Tensor,
    topk_num: int,
    compute_type: Any,
    use_fp8_w8a8: bool,
    MUL_ROUTED_WEIGHT: bool,
    OUT_SORTED: bool,
    **_: Any,
) -> None:
    assert bias_ptr is None, "the twin of the experts' matmul adds no bias"
    assert not use_fp8_w8a8, "the twin of the experts' matmul scales nothing"
    assert not OUT_SORTED, "the twin of the experts' matmul keeps the order of its rows"
    rounded = {"fp16": torch.float16, "bf16": torch.bfloat16}[compute_type.name]  # whatever the output's type is
    for expert, count in enumerate(expert_to_token_num.tolist()):
        rows = expert_to_token_index[expert, :count].long()
        product = token_ptr[rows // topk_num].float() @ weights_ptr[expert].float().T
        if MUL_ROUTED_WEIGHT:
            product *= expert_to_weights_ptr[expert, :count, None]
        out_ptr[rows] = product.to(rounded).to(out_ptr.dtype)


def sum_experts(*, input_ptr: Tensor, output_ptr: Tensor, **_: Any) -> None:
    output_ptr.copy_(input_ptr.float().sum(1))


MOE = KERNELS + "fused_moe."
MLA = KERNELS + "mla_att."
GQA_DECODE = KERNELS + "att.decode_att.gqa.flash_decoding."
EXPERTS_MATMUL = MOE + "grouped_fused_moe:grouped_matmul_kernel"
TWINS: dict[str, Callable[..., None]] = {
    KERNELS + "embedding:embedding_kernel": embedding,
    KERNELS + "norm.rmsnorm:_rms_norm_fwd_fused": rms_norm,
    KERNELS + "norm.qk_norm:_qk_rms_norm_fused_kernel": head_norms,
    MOE + "moe_silu_and_mul:_silu_and_mul_kernel_fast": silu_and_mul,
    MOE + "softmax_topk:softmax_topk_kernel": choose_experts,
    MOE + "grouped_fused_moe:moe_align_fused_small_token_kernel": group_by_expert,
    MOE + "grouped_fused_moe:moe_align2_kernel": plan_expert_blocks,
    EXPERTS_MATMUL: experts_matmul,
    MOE + "moe_sum_reduce:_moe_sum_reduce_kernel": sum_experts,
    KERNELS + "destindex_copy_kv:_fwd_kernel_destindex_copy_kv": store_kv,
    KERNELS + "kv_copy.mla_copy_kv:_fwd_kernel_destindex_copy_kv": store_latent_kv,
    KERNELS + "copy_kv_index_to_req:_fwd_kernel_copy_kv_index_to_req": record_slots,
    KERNELS + "gen_prefill_params:_gen_cumsum_pad0_kernel": cumulative_lengths,
    KERNELS + "post_process.apply_penalty_gpu_cache:_fwd_kernel_apply_penalty_cache": penalties,
    KERNELS + "att.prefill_att.context_flashattention_nopad:_fwd_kernel": prefill_attention,
    GQA_DECODE + "gqa_flash_decoding_stage1:_fwd_kernel_flash_decode_stage1": decode_attention_blocks,
    GQA_DECODE + "gqa_flash_decoding_stage2:_fwd_kernel_flash_decode_stage2": decode_attention_merge,
    MLA + "prefill_att.context_flashattention_nopad_with_v:_fwd_kernel_with_v": latent_prefill_attention,
    MLA + "decode_att.gqa_flash_decoding:_fwd_kernel_calcu_index_and_block_seq": plan_latent_blocks,
    MLA
    + "decode_att.gqa_flash_decoding_stage1:_fwd_kernel_flash_decode_stage1_padding": latent_decode_attention_blocks,
    MLA + "decode_att.gqa_flash_decoding_stage2:_fwd_kernel_flash_decode_stage2": latent_decode_attention_merge,
    "lightllm.models.llama.triton_kernel.rotary_emb:_rotary_kernel": rotate_halves,
    "lightllm.models.deepseek2.triton_kernel.rotary_emb:_rotary_kernel": rotate_pairs,
}

COARSE: dict[str, float] = {EXPERTS_MATMUL: 2.0**-10}
"""Tolerances of kernels that round what they write: sums in another order may end one step of float16 apart."""
