"""What `test_attention` asserts, run in a process of its own where LightLLM is imported on the virtual device.

The states are LightLLM's own objects, built by its backends. FlashAttention's kernel is replaced by plain torch that
reads exactly the tensors it would get; linear attention runs LightLLM's kernels in Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from lightspec_lightllm.adapters.lightllm import hooks
from lightspec_lightllm.adapters.lightllm.attention import states
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from tests.adapters.lightllm.delta_net import DeltaNet

REQUESTS, HOLD, TOKENS = 9, 9, 80  # the row after the last request's is held for rows that pad a batch
HEADS, KEY_HEADS, DIM = 4, 2, 16
RANK, ROPE = 8, 64  # of MLA; LightLLM takes the last 64 of a key as its rotary part


@contextmanager
def serving(max_draft_steps: int, *, dynamic: bool = True) -> Iterator[None]:
    """As in a rank of a server that was started with these arguments."""
    from lightllm.utils.envs_utils import get_env_start_args

    arguments: dict[str, Any] = {"mtp_step": max_draft_steps, "linear_att_ssm_data_type": "float32"}
    if dynamic:
        arguments["lightspec"] = LightLLMConfig().with_draft_steps(max_draft_steps).to_json()
    with mock.patch.dict(os.environ, LIGHTLLM_START_ARGS=json.dumps(arguments), LIGHTLLM_CURRENT_DEVICE_ID="0"):
        for kept in (get_env_start_args, states.rows_per_request):
            kept.cache_clear()
        yield
    for kept in (get_env_start_args, states.rows_per_request):
        kept.cache_clear()


def cached_keys(generator: torch.Generator) -> SimpleNamespace:
    """A model, as far as an attention backend looks at it, whose requests' tokens lie in scattered slots."""
    slots = torch.randperm((REQUESTS + 1) * TOKENS, generator=generator).int().view(REQUESTS + 1, TOKENS)
    return SimpleNamespace(
        graph_max_batch_size=48,
        graph_max_len_in_batch=64,
        req_manager=SimpleNamespace(req_to_token_indexs=slots, HOLD_REQUEST_ID=HOLD),
        mem_manager=SimpleNamespace(
            head_num=KEY_HEADS, scales=torch.rand(3, 2 * KEY_HEADS, generator=generator) + 0.5, kv_buffer=[]
        ),
    )


def round_of(model: SimpleNamespace, counts: list[int], padding: int, generator: torch.Generator) -> Any:
    """LightLLM's state of a decode round in which request n has counts[n] rows, and `padding` rows belong to none."""
    from lightllm.common.basemodel.infer_struct import InferStateInfo

    order = torch.randperm(REQUESTS, generator=generator)[: len(counts)].tolist()
    lengths = torch.randint(1, 40, (len(counts),), generator=generator).tolist()
    rows = [(order[n], j, lengths[n] + j) for n, count in enumerate(counts) for j in range(count)]
    rows += [(HOLD, 0, 2)] * padding
    info = InferStateInfo()
    info.batch_size = len(rows)
    info.b_req_idx, info.b_mtp_index, info.b_seq_len = (
        torch.tensor([row[field] for row in rows], dtype=torch.int32) for field in range(3)
    )
    info.input_ids = torch.zeros(len(rows), dtype=torch.int64)
    info.max_kv_seq_len = int(info.b_seq_len.max())
    info.is_prefill = False
    info.req_manager, info.mem_manager = model.req_manager, model.mem_manager
    info.init_some_extra_state(model)
    return info


def grouped_attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, given: dict[str, Any]) -> Any:
    """Variable-length causal attention, aligned to the end, by what FlashAttention is given; float32 [rows, heads, .].

    Keys and values are [slots, key heads, .]. Rows that no sequence has stay NaN.
    """
    out = torch.full((*queries.shape[:2], values.shape[-1]), float("nan"))
    starts, lengths = given["cu_seqlens_q"].tolist(), given["cache_seqlens"].tolist()
    assert given["causal"]
    assert given["cu_seqlens_k_new"].tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert len(given["page_table"]) == len(lengths) == len(starts) - 1
    per_key = queries.shape[1] // keys.shape[1]
    for sequence, (begin, end, length) in enumerate(zip(starts[:-1], starts[1:], lengths, strict=True)):
        assert end - begin <= given["max_seqlen_q"]
        assert end - begin <= length
        slots = given["page_table"][sequence, :length].long()
        for row in range(begin, end):
            seen = slots[: length - (end - 1 - row)]
            k = keys[seen].repeat_interleave(per_key, dim=1)
            v = values[seen].repeat_interleave(per_key, dim=1)
            weights = (torch.einsum("hd,thd->ht", queries[row], k) * given["softmax_scale"]).softmax(dim=1)
            out[row] = torch.einsum("ht,thd->hd", weights, v)
    return out


def row_by_row(
    info: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Each row alone over the keys of its request that it is to see."""
    out = torch.empty(*queries.shape[:2], values.shape[-1])
    per_key = queries.shape[1] // keys.shape[1]
    for row, (request, length) in enumerate(zip(info.b_req_idx.tolist(), info.b_seq_len.tolist(), strict=True)):
        slots = info.req_manager.req_to_token_indexs[request, :length].long()
        k, v = (part[slots].repeat_interleave(per_key, dim=1) for part in (keys, values))
        weights = (torch.einsum("hd,thd->ht", queries[row], k) * scale).softmax(dim=1)
        out[row] = torch.einsum("ht,thd->hd", weights, v)
    return out


ROUNDS = [(2, [3, 1, 2], 0), (2, [1, 1, 1, 1], 4), (7, [8, 1, 5, 2, 2], 6), (15, [16, 1, 9], 3), (1, [1], 0)]
"""K, rows of each request, rows that pad."""


def fa3_sees_for_each_row_what_it_should() -> None:
    from lightllm.common.basemodel.attention.fa3 import fp

    generator = torch.Generator().manual_seed(1)
    for steps, counts, padding in ROUNDS:
        with serving(steps):
            model = cached_keys(generator)
            info = round_of(model, counts, padding, generator)
            keys, values = torch.randn(2, (REQUESTS + 1) * TOKENS, KEY_HEADS, DIM, generator=generator)
            queries = torch.randn(info.batch_size, HEADS, DIM, generator=generator)
            state = fp.Fa3AttBackend(model).create_att_decode_state(info)
            assert isinstance(state, fp.Fa3DecodeAttState)
            state.init_state()
            assert state.decode_max_q_seq_len == 1 + steps
            with mock.patch.object(fp, "flash_attn_with_kvcache_autotune", flash_attention):
                out = state.decode_att(queries, keys, values)
            torch.testing.assert_close(out, row_by_row(info, queries, keys, values, DIM**-0.5))


def flash_attention(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **given: Any) -> torch.Tensor:
    result: torch.Tensor = grouped_attention(q, k_cache[:, 0], v_cache[:, 0], given)
    return result


def mla_sees_for_each_row_what_it_should() -> None:
    from lightllm.common.basemodel.attention.base_att import AttControl
    from lightllm.common.basemodel.attention.fa3 import mla

    def flash_mla(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, qv: torch.Tensor, **given: Any) -> Any:
        keys = torch.cat([v_cache[:, 0], k_cache[:, 0]], dim=-1)
        return grouped_attention(torch.cat([qv, q], dim=-1), keys, v_cache[:, 0], given)

    generator = torch.Generator().manual_seed(2)
    for steps, counts, padding in ROUNDS:
        with serving(steps):
            model = cached_keys(generator)
            info = round_of(model, counts, padding, generator)
            cache = torch.randn((REQUESTS + 1) * TOKENS, 1, RANK + ROPE, generator=generator)
            queries = torch.randn(info.batch_size, HEADS, RANK + ROPE, generator=generator)
            state = mla.MlaFa3AttBackend(model).create_att_decode_state(info)
            assert isinstance(state, mla.MlaFa3DecodeAttState)
            state.init_state()
            control = AttControl(mla_decode=True, mla_decode_dict={"softmax_scale": 0.1})
            with mock.patch.object(mla, "flash_attn_with_kvcache", flash_mla):
                out = state.decode_att((queries[..., :RANK], queries[..., RANK:]), cache, None, control)
            expected = row_by_row(info, queries, cache, cache[:, :, :RANK], 0.1)
            torch.testing.assert_close(out, expected)


def fp8_reads_each_row_with_its_own_scale() -> None:
    from lightllm.common.basemodel.attention.fa3 import fp8

    def quantize(values: torch.Tensor, *, use_per_token_if_dynamic: bool) -> tuple[torch.Tensor, torch.Tensor]:
        assert use_per_token_if_dynamic
        scale = values.abs().amax(dim=1, keepdim=True) / 448
        return (values / scale).to(torch.float8_e4m3fn), scale

    def flash_fp8(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **given: Any) -> torch.Tensor:
        # One scale per sequence and key head is all that FlashAttention takes; a row is a sequence, so it is the row's.
        sequences = len(given["cache_seqlens"])
        for name in ("q_descale", "k_descale", "v_descale"):
            assert given[name].shape == (sequences, KEY_HEADS)
        k_scale, v_scale = (given[name][0][:, None] for name in ("k_descale", "v_descale"))
        queries = q.float() * given["q_descale"].repeat_interleave(HEADS // KEY_HEADS, dim=1)[:, :, None]
        given["softmax_scale"] = DIM**-0.5
        result: torch.Tensor = grouped_attention(
            queries, k_cache[:, 0].float() * k_scale, v_cache[:, 0].float() * v_scale, given
        )
        return result

    generator = torch.Generator().manual_seed(3)
    for steps, counts, padding in ROUNDS:
        with serving(steps):
            model = cached_keys(generator)
            info = round_of(model, counts, padding, generator)
            layers = torch.randn(3, (REQUESTS + 1) * TOKENS, 2 * KEY_HEADS, DIM, generator=generator)
            model.mem_manager.kv_buffer = layers.to(torch.float8_e4m3fn)
            keys, values = model.mem_manager.kv_buffer[1].split(KEY_HEADS, dim=1)
            queries = (
                torch.randn(info.batch_size, HEADS, DIM, generator=generator)
                * torch.tensor([1.0, 1.0, 9.0, 9.0])[:, None]
            )
            state = fp8.Fp8Fa3AttBackend(model).create_att_decode_state(info)
            assert isinstance(state, fp8.Fp8Fa3DecodeAttState)
            state.init_state()
            assert state.decode_max_q_seq_len == 1
            with (
                mock.patch.object(fp8, "scaled_fp8_quant", quantize),
                mock.patch.object(fp8, "flash_attn_with_kvcache", flash_fp8),
                mock.patch.object(state.backend, "_find_layer_index", return_value=1),
            ):
                out = state.decode_att(queries, keys.contiguous(), values.contiguous())
            scales = model.mem_manager.scales[1]
            rounded, scale = quantize(queries.reshape(-1, HEADS // KEY_HEADS * DIM), use_per_token_if_dynamic=True)
            expected = row_by_row(
                info,
                (rounded.float() * scale).view_as(queries),
                keys.float() * scales[:KEY_HEADS, None],
                values.float() * scales[KEY_HEADS:, None],
                DIM**-0.5,
            )
            torch.testing.assert_close(out, expected)


def a_captured_state_replays_any_grouping_of_as_many_rows() -> None:
    from lightllm.common.basemodel.attention.fa3 import fp

    generator = torch.Generator().manual_seed(4)
    with serving(7):
        model = cached_keys(generator)
        backend = fp.Fa3AttBackend(model)
        keys, values = torch.randn(2, (REQUESTS + 1) * TOKENS, KEY_HEADS, DIM, generator=generator)
        captured = backend.create_att_decode_state(round_of(model, [], 12, generator))
        captured.init_state()
        addresses = {name: value.data_ptr() for name, value in vars(captured).items() if torch.is_tensor(value)}
        assert set(addresses) == {"cu_seqlens_q", "cu_seqlens_k", "b_att_seq_len", "page_table"}
        for counts, padding in (([8, 4], 0), ([1] * 9, 3), ([5, 1, 1], 5), ([], 12)):
            info = round_of(model, counts, padding, generator)
            new = backend.create_att_decode_state(info)
            new.init_state()
            captured.copy_for_decode_cuda_graph(new)
            for name, address in addresses.items():
                assert getattr(captured, name).data_ptr() == address
                assert getattr(captured, name).shape == getattr(new, name).shape
            queries = torch.randn(12, HEADS, DIM, generator=generator)
            with mock.patch.object(fp, "flash_attn_with_kvcache_autotune", flash_attention):
                out = captured.decode_att(queries, keys, values)
            torch.testing.assert_close(out, row_by_row(info, queries, keys, values, DIM**-0.5))


def a_batch_too_large_for_a_graph_has_a_page_table_of_its_own() -> None:
    from lightllm.common.basemodel.attention.fa3 import fp

    generator = torch.Generator().manual_seed(5)
    with serving(7):
        model = cached_keys(generator)
        backend = fp.Fa3AttBackend(model)
        shared = {buffer.data_ptr() for buffer in backend.get_page_table_buffer()}
        for rows, longest, is_shared in ((48, 40, True), (49, 40, False), (12, 65, False)):
            info = round_of(model, [1] * 9, rows - 9, generator)
            info.max_kv_seq_len = longest
            state = backend.create_att_decode_state(info)
            state.init_state()
            assert (state.page_table.data_ptr() in shared) == is_shared
            assert state.page_table.shape == (rows, model.graph_max_len_in_batch if is_shared else longest)


def page_tables_are_shared_with_a_drafter_unless_its_batches_are_larger() -> None:
    from lightllm.common.basemodel.attention.fa3 import fp

    from lightspec_lightllm.adapters.lightllm.attention_backends import own_attention_backends

    generator = torch.Generator().manual_seed(7)
    with serving(7):
        target = fp.Fa3AttBackend(cached_keys(generator))
        for shared, rows in ((True, 48), (False, 96)):
            model = cached_keys(generator)
            model.graph_max_batch_size = rows
            with own_attention_backends(share_page_tables=shared):
                backend = fp.Fa3AttBackend(model)
            assert backend is not target
            assert (backend.get_page_table_buffer() is target.get_page_table_buffer()) == shared
            state = backend.create_att_decode_state(round_of(model, [1] * 9, rows - 9, generator))
            state.init_state()
            assert state.page_table.shape == (rows, model.graph_max_len_in_batch)


def linear_attention_continues_from_each_requests_last_accepted_row() -> None:
    from lightllm.common.basemodel.attention.base_att import AttControl
    from lightllm.common.basemodel.attention.linear import gdn, triton

    generator = torch.Generator().manual_seed(6)
    for steps in (2, 7):
        with serving(steps):
            net = DeltaNet(REQUESTS + 1, steps, generator)
            model = cached_keys(generator)
            model.config, model.tp_world_size_ = net.config, 1
            model.req_manager.req_to_mtp_state_index = torch.zeros(REQUESTS + 1, dtype=torch.int32)
            model.req_manager.get_mamba_cache = lambda _layer, net=net: (net.conv_states, net.ssm_states)
            backend = triton.TritonLinearAttBackend(model)
            for most_rows, padding in ((1 + steps, 3), (1 + steps, 0), (1, 5), (1 + steps, 1)):
                counts = torch.randint(1, most_rows + 1, (5,), generator=generator).tolist()
                info = round_of(model, counts, padding, generator)
                state = backend.create_att_decode_state(info)
                assert isinstance(state, gdn.LinearAttDecodeAttState)
                state.init_state()
                inputs = torch.randn(info.batch_size, net.input_size, generator=generator)
                given = {"mixed_qkvzba": inputs.clone(), "layer_weight": net.layer_weight, "layer_num": 0}
                control = AttControl(linear_att_decode=True, linear_att_decode_dict=given)
                out, _ = state.decode_att(None, None, None, control)
                assert out.isfinite().all(), "a row that pads would bring NaN into experts"
                for begin, count in zip(torch.tensor([0, *counts]).cumsum(0).tolist(), counts, strict=False):
                    request = int(info.b_req_idx[begin])
                    accepted = int(torch.randint(1, count + 1, (), generator=generator))
                    expected = net.advance(request, inputs[begin : begin + count], accepted)
                    torch.testing.assert_close(out[0, begin : begin + count], expected, rtol=1e-4, atol=1e-5)
                    model.req_manager.req_to_mtp_state_index[request] = accepted - 1


def without_dynamic_mode_the_states_are_lightllms() -> None:
    from lightllm.common.basemodel.attention.fa3 import fp, fp8, mla
    from lightllm.common.basemodel.attention.linear import gdn

    pairs = (
        (fp.Fa3AttBackend, fp.Fa3DecodeAttState),
        (fp8.Fp8Fa3AttBackend, fp8.Fp8Fa3DecodeAttState),
        (mla.MlaFa3AttBackend, mla.MlaFa3DecodeAttState),
        (gdn.LinearAttBackend, gdn.LinearAttDecodeAttState),
    )
    for backend, state in pairs:
        for dynamic in (False, True):
            with serving(3, dynamic=dynamic):
                made = backend.create_att_decode_state(SimpleNamespace(), infer_state=None)
                assert (type(made) is state) == (not dynamic)
                assert isinstance(made, state)


CHECKS: tuple[Callable[[], None], ...] = (
    fa3_sees_for_each_row_what_it_should,
    mla_sees_for_each_row_what_it_should,
    fp8_reads_each_row_with_its_own_scale,
    a_captured_state_replays_any_grouping_of_as_many_rows,
    a_batch_too_large_for_a_graph_has_a_page_table_of_its_own,
    page_tables_are_shared_with_a_drafter_unless_its_batches_are_larger,
    linear_attention_continues_from_each_requests_last_accepted_row,
    without_dynamic_mode_the_states_are_lightllms,
)


def main() -> None:
    """Run every check and print, in the last line, ``{name: traceback or null}``."""
    from tests.adapters.lightllm.harness import checkout, virtual_cuda

    sys.path.insert(0, str(checkout.path()))
    virtual_cuda.install()
    hooks.install()
    found: dict[str, str | None] = {}
    for check in CHECKS:
        try:
            check()
        except Exception:  # noqa: BLE001 - whatever it was is the result
            found[check.__name__] = traceback.format_exc()
        else:
            found[check.__name__] = None
    print("\n" + json.dumps(found))  # noqa: T201 - the answer to the process that asked


if __name__ == "__main__":
    main()
