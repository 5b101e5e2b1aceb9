"""Decode states of FlashAttention 3: a request's rows are the queries of one sequence over its keys.

The rows kept of a request are a prefix of its drafts and the last of them sees all keys, so the causal mask, which is
aligned to the end, shows each row what it is to see.
"""

from __future__ import annotations

from typing import Any

import torch

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.attention.states import CreateState, creates
from lightspec_lightllm.ops import Segments


def wrap_create_state(original: CreateState) -> CreateState:
    """For `Fa3AttBackend.create_att_decode_state`, and for `MlaFa3AttBackend`, whose state has the same fields."""
    return creates(original, GroupedRows)


def wrap_create_fp8_state(original: CreateState) -> CreateState:
    """For `Fp8Fa3AttBackend.create_att_decode_state`."""
    return creates(original, QuantizedRows)


class GroupedRows:
    """Over LightLLM's ``Fa3DecodeAttState`` or ``MlaFa3DecodeAttState``; B rows, of which S sequences are made.

    There are B sequences in every tensor, the last B - S without queries and keys.

    Attributes:
        cu_seqlens_q: int32[B + 1], rows before each sequence.
        cu_seqlens_k: int32[B + 1], keys before each sequence.
        b_att_seq_len: int32[B], keys of each sequence.
        page_table: int32[B, keys], slots of each sequence's keys; undefined beyond them.
        decode_max_q_seq_len: queries of a sequence at most, ``rows_per_request``: the same in all graphs.
    """

    rows_per_request: int
    backend: Any
    infer_state: Any
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    b_att_seq_len: torch.Tensor
    page_table: torch.Tensor
    decode_max_q_seq_len: int

    def init_state(self) -> None:
        sequences = self._sequences()
        self.cu_seqlens_q = sequences.cu_q
        self.cu_seqlens_k = sequences.cu_k
        self.b_att_seq_len = sequences.att_seq_len
        self.page_table = self._empty_page_table()
        ops.copy_page_table(self.page_table, self.backend.model.req_manager.req_to_token_indexs, sequences)
        self.decode_max_q_seq_len = self._max_queries()

    def _sequences(self) -> Segments:
        info = self.infer_state
        return ops.segments(info.b_mtp_index, info.b_seq_len, info.b_req_idx)

    def _max_queries(self) -> int:
        return self.rows_per_request

    def _empty_page_table(self) -> torch.Tensor:
        """Of the buffer that all graphs share where a graph may run, as LightLLM's own state; else of its own."""
        info, model = self.infer_state, self.backend.model
        rows, keys = info.batch_size, model.graph_max_len_in_batch
        if rows <= model.graph_max_batch_size and info.max_kv_seq_len <= keys:
            buffer: torch.Tensor = self.backend.get_page_table_buffer()[info.microbatch_index]
            return buffer[: rows * keys].view(rows, keys)
        return torch.empty((rows, info.max_kv_seq_len), dtype=torch.int32, device=info.b_req_idx.device)


class QuantizedRows(GroupedRows):
    """Over LightLLM's ``Fp8Fa3DecodeAttState``: each row is a sequence.

    Queries are quantised with a scale per row and key head, and FlashAttention takes one scale per sequence and key
    head: a sequence of several rows would be read with the scale of one of them.

    Attributes:
        k_descale: float32[layers, B, key heads], scales of the cached keys.
        v_descale: float32[layers, B, key heads], scales of the cached values.
    """

    k_descale: torch.Tensor
    v_descale: torch.Tensor

    def init_state(self) -> None:
        super().init_state()
        memory = self.backend.model.mem_manager
        layers, heads, rows = memory.scales.shape[0], memory.head_num, self.infer_state.batch_size
        self.k_descale = memory.scales[:, :heads].view(layers, 1, heads).expand(layers, rows, heads)
        self.v_descale = memory.scales[:, heads:].view(layers, 1, heads).expand(layers, rows, heads)

    def _sequences(self) -> Segments:
        info = self.infer_state
        return ops.segments(torch.zeros_like(info.b_mtp_index), info.b_seq_len, info.b_req_idx)

    def _max_queries(self) -> int:
        return 1
