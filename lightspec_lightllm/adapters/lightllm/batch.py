"""The requests of a decode round, as the CPU knows them before it launches the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.planner import BatchView

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

NO_IMAGES: dict[str, list[Any]] = {"images": [], "audios": []}
"""What decoding needs to know of a row's pictures: nothing, their tokens are in the KV cache."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """N requests that decode; arrays are in request order.

    Attributes:
        reqs: LightLLM's ``InferReq``.
        request_ids: int64[N].
        req_idx: int32[N], each request's row in LightLLM's per-request buffers.
        seq_len: int32[N], tokens so far, the one to be fed included: row j of a request has length ``seq_len + j``.
        drafts: int32[N], valid drafts waiting; none past the last token that a request may still generate.
        position_delta: int32[N], what multimodal positions add to a row's own.
    """

    reqs: Sequence[Any]
    request_ids: Int64Array
    req_idx: Int32Array
    seq_len: Int32Array
    drafts: Int32Array
    position_delta: Int32Array

    @property
    def view(self) -> BatchView:
        """The batch for a planner. What the drafter is sure of is on the device and comes with the feedback."""
        return BatchView(
            num_requests=len(self.reqs),
            proposed=self.drafts.astype(np.int64),
            context_tokens=self.seq_len.astype(np.int64),
            request_ids=self.request_ids,
        )


class RequestTable:
    """What the plugin knows about each request beyond LightLLM, indexed by ``req_idx``.

    LightLLM hands a finished request's ``req_idx`` to the next one; `owner` tells when that happened.

    Attributes:
        owner: int64[R], the request id that a row describes, -1 for none.
        drafts: int32[R], valid drafts in ``req_to_next_token_ids``: those of the last round or prefill, else 0.
        cold_from: int32[R], first position that the drafter's KV cache lacks, -1 where it has all: see `mark_cold`.
    """

    def __init__(self, num_rows: int) -> None:
        self.owner: Int64Array = np.full(num_rows, -1, dtype=np.int64)
        self.drafts: Int32Array = np.zeros(num_rows, dtype=np.int32)
        self.cold_from: Int32Array = np.full(num_rows, -1, dtype=np.int32)
        self._input_len: Int32Array = np.zeros(num_rows, dtype=np.int32)
        self._max_output: Int32Array = np.zeros(num_rows, dtype=np.int32)
        self._position_delta: Int32Array = np.zeros(num_rows, dtype=np.int32)

    def admit(self, reqs: Sequence[Any]) -> list[Any]:
        """Take note of requests seen for the first time, and return them."""
        owner = self.owner
        new = [req for req in reqs if owner[req.req_idx] != req.req_id]
        for req in new:
            row = req.req_idx
            owner[row] = req.req_id
            self.drafts[row] = 0
            self.cold_from[row] = -1
            self._input_len[row] = req.shm_req.input_len
            self._max_output[row] = req.sampling_param.shm_param.max_new_tokens
            self._position_delta[row] = _position_delta(req.multimodal_params)
        return new

    def collect(self, reqs: Sequence[Any]) -> DecodeBatch:
        """The batch of these requests, all of them admitted."""
        num_requests = len(reqs)
        req_idx = np.fromiter((req.req_idx for req in reqs), np.int32, num_requests)
        output_len = np.fromiter((req.cur_output_len for req in reqs), np.int32, num_requests)
        remaining = self._max_output[req_idx] - output_len
        usable = np.where(self.cold_from[req_idx] < 0, self.drafts[req_idx], 0)
        return DecodeBatch(
            reqs=reqs,
            request_ids=self.owner[req_idx],
            req_idx=req_idx,
            seq_len=self._input_len[req_idx] + output_len,
            drafts=np.minimum(usable, np.maximum(remaining - 1, 0)),
            position_delta=self._position_delta[req_idx],
        )

    def is_cold(self, req: Any) -> bool:
        """Whether the drafter's KV of a request has a hole."""
        return bool(self.cold_from[req.req_idx] >= 0)

    def hole_start(self, req: Any) -> int:
        """The first position of a cold request's hole that is its own: what is before is the prefix tree's."""
        return max(int(self.cold_from[req.req_idx]), int(req.get_radix_cache_shared_len()))

    def mark_cold(self, batch: DecodeBatch) -> None:
        """The drafter is not run for this batch: from here on its KV cache has a hole, so what it would propose for
        these requests is worth nothing until they are prefilled again (see `DynamicMtpMixin._rewarm`)."""
        warm = self.cold_from[batch.req_idx] < 0
        self.cold_from[batch.req_idx[warm]] = batch.seq_len[warm] - 1


def _position_delta(multimodal: Any) -> int:
    """What the images of a request add to the positions of its tokens (LightLLM's rule for M-RoPE models)."""
    images = multimodal.get("images", []) if isinstance(multimodal, dict) else []
    grids = (image.get("grid_thwd") for image in images)
    return sum(int(grid[3]) for grid in grids if grid is not None)
