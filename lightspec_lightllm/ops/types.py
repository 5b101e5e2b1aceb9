"""What the tensor kernels return. All tensors are int32 and on the device of the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class SelectedRows:
    """The rows of a round, request-major; a request's rows are its own and then its first drafts.

    Attributes:
        req_idx: int32[B], the request's row in the host's per-request tables.
        mtp_index: int32[B], 0 for the request's own row, j for its draft j.
        seq_len: int32[B], tokens in the KV cache including this row's.
        request: int32[B], position 0..N-1 of the request in the batch.
        start_loc: int32[N], first row of each request.
        num_rows: int32[N], rows of each request; they sum to B.
    """

    req_idx: torch.Tensor
    mtp_index: torch.Tensor
    seq_len: torch.Tensor
    request: torch.Tensor
    start_loc: torch.Tensor
    num_rows: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Rows grouped into sequences for variable-length attention, in shapes that depend on B alone.

    S segments come first; the B - S entries after them are empty (no query, no key), as a captured graph needs them.

    Attributes:
        cu_q: int32[B + 1], rows before each segment; B from entry S on.
        cu_k: int32[B + 1], keys before each segment; constant from entry S on.
        att_seq_len: int32[B], keys of each segment, 0 where empty.
        req_idx: int32[B], the request of each segment, -1 where empty.
        num_segments: int32[1], S.
    """

    cu_q: torch.Tensor
    cu_k: torch.Tensor
    att_seq_len: torch.Tensor
    req_idx: torch.Tensor
    num_segments: torch.Tensor
