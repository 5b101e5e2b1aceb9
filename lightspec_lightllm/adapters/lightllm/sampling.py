"""The target's sampler over rows: parameters lie on the device by request and are gathered by row.

LightLLM's own `sample` wants a Python list with one request per row, and gives every row of a request the same output
length, token counts and generator. Here a row has its own: it samples what decoding one token at a time would sample
at its position, so a text depends neither on how many rows a round has nor on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from lightllm.common.basemodel.triton_kernel.post_process.apply_penalty_gpu_cache import apply_penalty_gpu_cache
from lightllm.server.router.model_infer.pin_mem_manager import g_pin_mem_manager

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.batch import Int32Array

_FLAGS = ("random", "top_k", "top_p", "seeded", "counted", "eos", "banned")

MASKED_EOS = -10000000.0
"""The logit that LightLLM gives the end of text where it must not come yet."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the target; tensors are on the device.

    Attributes:
        req_idx: int32[B].
        seq_len: int32[B], tokens up to and with a row's own; the token that it samples stands at this position.
        mtp_index: int32[B], drafts that precede a row in this batch; None: none does.
        max_drafts: the largest of ``mtp_index`` at most.
    """

    req_idx: torch.Tensor
    seq_len: torch.Tensor
    mtp_index: torch.Tensor | None = None
    max_drafts: int = 0


@dataclass(frozen=True, slots=True)
class SampledRows:
    """``token_ids`` int64[B] and their log-probabilities ``logprobs`` float32[B]."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor


@dataclass(frozen=True, slots=True)
class _EndOfText:
    """What LightLLM does to the logits of the end of text: ``length_penalty`` int32[B], tokens past the start of the
    exponential penalty, and ``masked`` bool[B], rows where the text must go on."""

    length_penalty: torch.Tensor
    masked: torch.Tensor


class RowSampler:
    """Samples a token for every row of a batch.

    Args:
        manager: LightLLM's ``ReqSamplingParamsManager``, whose penalties and token counts are used as they are.
        num_rows: R, requests that LightLLM has buffers for.
        eos_ids: tokens that end a text.
        use_flashinfer: take LightLLM's FlashInfer sampler where no request of the batch has a seed.
    """

    def __init__(
        self, manager: Any, num_rows: int, eos_ids: Sequence[int], *, vocab_size: int, use_flashinfer: bool = False
    ) -> None:
        self._manager = manager
        self._vocab_size = vocab_size
        self._use_flashinfer = use_flashinfer
        self._eos_ids = torch.tensor(list(eos_ids), dtype=torch.int32, device="cuda")
        self._temperature = torch.ones(num_rows, dtype=torch.float32, device="cuda")
        self._top_p = torch.ones(num_rows, dtype=torch.float32, device="cuda")
        self._top_k = torch.ones(num_rows, dtype=torch.int32, device="cuda")
        self._input_len = torch.zeros(num_rows, dtype=torch.int32, device="cuda")
        self._min_output = torch.zeros(num_rows, dtype=torch.int32, device="cuda")
        self._penalty_start = torch.zeros(num_rows, dtype=torch.int32, device="cuda")
        self._seed = torch.full((num_rows,), -1, dtype=torch.int64, device="cuda")
        self._banned = torch.full((num_rows, 1), -1, dtype=torch.int32, device="cuda")
        # What the CPU must know to choose its way, by req_idx.
        self._flags = {name: np.zeros(num_rows, dtype=bool) for name in _FLAGS}

    def admit(self, reqs: Sequence[Any]) -> None:
        """Put the parameters of new requests where rows find them. Nothing waits for the device."""
        if not reqs:
            return
        params = [req.sampling_param.shm_param for req in reqs]
        decay = [param.exponential_decay_length_penalty.to_tuple() for param in params]
        banned = [list(req.sampling_param.invalid_token_ids) for req in reqs]

        def send(name: str, values: list[Any], dtype: torch.dtype) -> torch.Tensor:
            pinned = g_pin_mem_manager.gen_from_list(f"lightspec_{name}", values, dtype)
            return cast(torch.Tensor, pinned.cuda(non_blocking=True))

        at = send("req_idx", [req.req_idx for req in reqs], torch.int64)

        def put(name: str, table: torch.Tensor, values: list[Any]) -> None:
            table[at] = send(name, values, table.dtype)

        put("temperature", self._temperature, [param.temperature for param in params])
        put("top_p", self._top_p, [param.top_p for param in params])
        put("top_k", self._top_k, [param.top_k for param in params])
        put("input_len", self._input_len, [req.shm_req.input_len for req in reqs])
        put("min_output", self._min_output, [param.min_new_tokens for param in params])
        put("penalty_start", self._penalty_start, [start for start, _ in decay])
        put("seed", self._seed, [param.seed for param in params])
        width = max(map(len, banned))
        if width > self._banned.shape[1]:
            grown = torch.full((len(self._banned), width), -1, dtype=torch.int32, device="cuda")
            grown[:, : self._banned.shape[1]] = self._banned
            # The first table is of another stream, on which its memory must not be given away while it is read here.
            self._banned.record_stream(torch.cuda.current_stream())
            self._banned = grown
        width = self._banned.shape[1]
        padded = [token for ids in banned for token in (*ids, *[-1] * (width - len(ids)))]
        self._banned[at] = send("banned", padded, torch.int32).view(-1, width)

        for req, param, (_, factor), ids in zip(reqs, params, decay, banned, strict=True):
            told = {
                "random": param.top_k > 1,
                "top_k": param.top_k != self._vocab_size,
                "top_p": param.top_p != 1.0,
                "seeded": param.seed >= 0,
                "counted": bool(req.need_out_token_id_statistics),
                "eos": param.min_new_tokens > 1 or factor != 1.0,
                "banned": bool(ids),
            }
            for name, flag in told.items():
                self._flags[name][req.req_idx] = flag

    def sample(self, logits: torch.Tensor, rows: Rows, requests: Int32Array) -> SampledRows:
        """Sample from ``logits`` float[B, V], which are changed in place.

        Args:
            requests: int32[N], the batch's ``req_idx`` on the CPU.
        """
        flags = {name: bool(flag[requests].any()) for name, flag in self._flags.items()}
        at = rows.req_idx.long()
        if flags["counted"] or flags["eos"]:
            self._penalise(logits, rows, at, counted=flags["counted"])
        if flags["banned"]:
            ops.mask_invalid_tokens(logits, rows.req_idx, self._banned)
        logits.div_(self._temperature[at].view(-1, 1))
        probs = torch.softmax(logits, dim=-1)
        if not flags["random"]:
            token_ids = torch.argmax(logits, dim=-1)
        elif not (flags["top_k"] or flags["top_p"]):
            token_ids = probs.div(self._noise(probs, rows, at, seeded=flags["seeded"])).argmax(dim=-1)
        elif self._use_flashinfer and not flags["seeded"]:
            token_ids = self._sample_with_flashinfer(probs, at)
        else:
            token_ids = self._sample_truncated(probs, at, self._noise(probs, rows, at, seeded=flags["seeded"]))
        return SampledRows(token_ids, probs.gather(1, token_ids.view(-1, 1)).log().view(-1))

    def _penalise(self, logits: torch.Tensor, rows: Rows, at: torch.Tensor, *, counted: bool) -> None:
        """LightLLM's penalties, each row with its own output length and with the drafts before it counted."""
        output_len = rows.seq_len - self._input_len[at]
        eos = _EndOfText(
            length_penalty=(output_len - self._penalty_start[at]).clamp_(min=0),
            masked=output_len < self._min_output[at] - 1,
        )
        drafts = None
        if counted and rows.mtp_index is not None and rows.max_drafts:
            drafts = self._manager.req_to_next_token_ids[at, 1 : 1 + rows.max_drafts]
            raw = logits.gather(1, drafts)
        apply_penalty_gpu_cache(
            Logits=logits,
            b_req_idx=rows.req_idx,
            b_length_penalty_param=eos.length_penalty,
            b_mask_eos_reqs=eos.masked,
            eos_ids=self._eos_ids,
            sampling_params_manager=self._manager,
        )
        if drafts is not None and rows.mtp_index is not None:
            before = torch.arange(drafts.shape[1], device="cuda") < rows.mtp_index.view(-1, 1)
            again = ((drafts.unsqueeze(2) == drafts.unsqueeze(1)) & before.unsqueeze(1)).sum(dim=2)
            logits.scatter_(1, drafts, self._with_drafts(raw, drafts, again, at, eos))

    def _with_drafts(
        self, raw: torch.Tensor, drafts: torch.Tensor, again: torch.Tensor, at: torch.Tensor, eos: _EndOfText
    ) -> torch.Tensor:
        """float[B, K]: the penalised logits of a row's drafts had those before the row been generated, each ``again``
        times. A function of the row and the token alone, so that a token drafted twice gets one value."""
        manager = self._manager
        count = manager.req_to_out_token_id_counter[at.view(-1, 1), drafts].to(raw.device) + again
        repetition = manager.req_to_repetition_penalty[at].view(-1, 1)
        seen = count > 0
        out = torch.where(seen, torch.where(raw > 0, raw / repetition, raw * repetition), raw)
        out = out - count * manager.req_to_frequency_penalty[at].view(-1, 1)
        out = out - seen * manager.req_to_presence_penalty[at].view(-1, 1)
        factor = manager.req_to_exponential_decay_length_penalty[at]
        scale = (torch.exp2(torch.log2(factor) * eos.length_penalty) - 1).view(-1, 1)
        ended = torch.where(eos.masked.view(-1, 1), MASKED_EOS, out + out.abs() * scale)
        return torch.where((drafts.unsqueeze(2) == self._eos_ids).any(dim=2), ended, out)

    def _noise(self, probs: torch.Tensor, rows: Rows, at: torch.Tensor, *, seeded: bool) -> torch.Tensor:
        """float[B, V] of Exp(1) draws: the token with the largest ratio of probability to draw is a sample.

        Rows of seeded requests draw by seed, position and token; the others from the device's generator.
        """
        noise = torch.empty_like(probs).exponential_()
        if seeded:
            ops.exponential_noise(self._seed[at], rows.seq_len.long(), probs.shape[1], noise)
        return noise

    def _sample_truncated(self, probs: torch.Tensor, at: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Top-p and top-k as LightLLM's Triton backend cuts: a token stays while those likelier sum to at most p."""
        ranked, token_ids = probs.sort(dim=-1, descending=True, stable=True)
        likelier = ranked.cumsum(dim=-1) - ranked
        out = likelier > self._top_p[at].view(-1, 1)
        out |= torch.arange(ranked.shape[1], device="cuda") >= self._top_k[at].view(-1, 1)
        best = ranked.masked_fill(out, 0.0).div(noise.gather(1, token_ids)).argmax(dim=-1, keepdim=True)
        return token_ids.gather(1, best).view(-1)

    def _sample_with_flashinfer(self, probs: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        from flashinfer.sampling import top_k_top_p_sampling_from_probs

        token_ids: torch.Tensor = top_k_top_p_sampling_from_probs(
            probs, self._top_k[at], self._top_p[at], filter_apply_order="joint", check_nan=False
        )
        return token_ids.long()
