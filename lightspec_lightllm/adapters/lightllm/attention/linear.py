"""Decode state of linear attention: a request's rows continue one recurrence, and leave a state after each row.

Which of a request's 1 + K states the next round continues from is what LightLLM keeps in ``req_to_mtp_state_index``:
the last accepted row's. A round with fewer rows than 1 + K writes fewer states and so leaves the others as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.attention.states import CreateState, creates


def wrap_create_state(original: CreateState) -> CreateState:
    """For `LinearAttBackend.create_att_decode_state`."""
    return creates(original, RecurrentRows)


class RecurrentRows:
    """Over LightLLM's ``LinearAttDecodeAttState``; B rows, of which S sequences are made, the last B - S empty.

    LightLLM's kernels skip an empty sequence: the convolution because its slot is -1, the recurrence because it has no
    rows. Rows that pad a batch are sequences of the request that LightLLM holds for them, so that no output is left
    unwritten.

    Attributes:
        b1_mtp_cu_q_seq_len: int32[B + 1], rows before each sequence.
        b_conv_buffer_idx: int32[B], slot of each sequence's convolution state, -1 where empty.
        b_ssm_buffer_idx: int32[B, 1 + K], slots of each sequence's recurrent states.
        b_num_accepted_tokens: int32[B], 1..1 + K, which of them to continue from, and where the convolution's window
            begins.
    """

    backend: Any
    infer_state: Any
    b1_mtp_cu_q_seq_len: torch.Tensor
    b_conv_buffer_idx: torch.Tensor
    b_ssm_buffer_idx: torch.Tensor
    b_num_accepted_tokens: torch.Tensor

    def init_state(self) -> None:
        info, requests = self.infer_state, self.infer_state.req_manager
        sequences = ops.segments(info.b_mtp_index, info.b_seq_len, info.b_req_idx)
        self.b1_mtp_cu_q_seq_len = sequences.cu_q
        self.b_conv_buffer_idx = sequences.req_idx
        owner = torch.where(sequences.req_idx < 0, requests.HOLD_REQUEST_ID, sequences.req_idx)
        states = 1 + self.backend.mtp_step
        offsets = torch.arange(states, dtype=owner.dtype, device=owner.device)
        self.b_ssm_buffer_idx = owner[:, None] * states + offsets
        self.b_num_accepted_tokens = requests.req_to_mtp_state_index[owner] + 1
