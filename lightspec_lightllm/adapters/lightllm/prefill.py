"""The prefill of dynamic rounds: LightLLM's own, with this package's sampler, and with drafts that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightllm.common.basemodel.batch_objs import ModelInput, ModelOutput
from lightllm.common.basemodel.triton_kernel.gather_token_id import scatter_token
from lightllm.server.router.model_infer.infer_batch import g_infer_context
from lightllm.server.router.model_infer.pin_mem_manager import g_pin_mem_manager

from lightspec_lightllm.adapters.lightllm.batch import RequestTable
from lightspec_lightllm.adapters.lightllm.calibration import Calibration
from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter, Proposal
from lightspec_lightllm.adapters.lightllm.planning import RoundPlanner
from lightspec_lightllm.adapters.lightllm.sampling import Rows, RowSampler
from lightspec_lightllm.errors import HostError


class DynamicPrefillMixin:
    """Prefill over LightLLM's ``ChunkedPrefillBackend``, whose attributes it uses beside its own.

    Attributes:
        requests: what is known of each request.
        sampler: samples the target's rows.
        drafter: proposes tokens.
        planner: plans rounds.
        log_probs: float32[R, 16], the drafter's log-probability of each waiting draft, given those before it.
        rewarm_tokens: tokens that the next round may send back to prefill, see `_rewarm`.
        calibration: what these log-probabilities mean.
        scores: float32[R, 16], the calibrated ones summed up from the first draft: what rows are selected by.
    """

    requests: RequestTable
    sampler: RowSampler
    drafter: LightLLMDrafter
    planner: RoundPlanner
    log_probs: torch.Tensor
    calibration: Calibration
    scores: torch.Tensor
    rewarm_tokens: int

    # LightLLM's
    model: Any
    draft_models: list[Any]
    chunked_prefill_size: int
    disable_chunked_prefill: bool
    is_master_in_dp: bool
    _get_next_token_ranks: Any
    _async_copy_next_token_infos_to_pin_mem: Any

    def prefill_mtp(self, event_pack: Any, prefill_reqs: list[Any]) -> None:
        """As LightLLM's; what it samples and drafts goes through the overridden parts below."""
        self.planner.interrupt()
        self._prefill_reqs = prefill_reqs
        self._admit(prefill_reqs)
        super().prefill_mtp(event_pack, prefill_reqs)  # type: ignore[misc]

    def _admit(self, reqs: list[Any]) -> None:
        """Take note of requests seen for the first time, before their first forward is on the device's queue."""
        new = self.requests.admit(reqs)
        if new:
            self.planner.interrupt()  # the device may have waited for them
            with torch.cuda.stream(g_infer_context.get_overlap_stream()):
                self.sampler.admit(new)

    def _sample_and_scatter_token(  # noqa: PLR0917 - LightLLM's signature
        self,
        logits: torch.Tensor,
        b_req_idx: torch.Tensor,
        b_mtp_index: torch.Tensor,
        run_reqs: list[Any],
        is_prefill: bool,
        b_prefill_has_output_cpu: list[bool] | None = None,
        mask_func: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """LightLLM's, with the plugin's sampler: a prefill draws as decoding would at the same position."""
        if mask_func is not None:
            raise HostError("output constraints are not supported with --dynamic_mtp; start the server without them")
        lengths = [req.get_cur_total_len() for req in run_reqs]
        seq_len = g_pin_mem_manager.gen_from_list("lightspec_seq_len", lengths, torch.int32).cuda(non_blocking=True)
        requests = np.array([req.req_idx for req in run_reqs], dtype=np.int32)
        sampled = self.sampler.sample(logits, Rows(b_req_idx, seq_len), requests)
        has_output = None
        if is_prefill:
            has_output = g_pin_mem_manager.gen_from_list("b_has_out", b_prefill_has_output_cpu, torch.bool).cuda(
                non_blocking=True
            )
        manager = self.model.req_manager.req_sampling_params_manager
        scatter_token(
            next_token_ids=sampled.token_ids,
            req_to_next_token_ids=manager.req_to_next_token_ids,
            b_req_idx=b_req_idx,
            b_mtp_index=b_mtp_index,
            b_has_out=has_output,
        )
        manager.update_reqs_out_token_counter_gpu(
            b_req_idx=b_req_idx, next_token_ids=sampled.token_ids, mask=has_output
        )
        ranks = self._get_next_token_ranks(logits, sampled.token_ids)
        copies = self._async_copy_next_token_infos_to_pin_mem(sampled.token_ids, sampled.logprobs, ranks)
        return (sampled.token_ids, *copies)

    def _draft_prefill_forward(
        self, model_input: ModelInput, model_output: ModelOutput, next_token_ids: torch.Tensor
    ) -> None:
        """Fill the drafter's KV, and keep what it proposes: the first decode round then has drafts."""
        reqs = self._prefill_reqs
        known = _tokens_after(reqs, len(self.draft_models), whole=self.disable_chunked_prefill)
        known_gpu = g_pin_mem_manager.gen_from_list("lightspec_known", known.ravel(), torch.int64).cuda(
            non_blocking=True
        )
        slots = _borrowed_slots(self.drafter.num_chain_slots(len(reqs), 1))
        proposal = self.drafter.prefill(model_input, model_output, next_token_ids, known_gpu.view(known.shape), slots)
        req_idx = np.array([req.req_idx for req in reqs], dtype=np.int32)
        complete = np.array(model_input.b_prefill_has_output_cpu, dtype=bool)
        self.requests.cold_from[req_idx] = -1
        self.requests.drafts[req_idx] = 0
        if proposal is not None:
            self._keep(proposal, model_input.b_req_idx)
            self.requests.drafts[req_idx[complete]] = proposal.tokens.shape[1]

    def _keep(self, proposal: Proposal, req_idx: torch.Tensor) -> None:
        """Put drafts behind each request's next token, and what the drafter thinks of them where selection looks."""
        at, steps = req_idx.long(), proposal.tokens.shape[1]
        manager = self.model.req_manager.req_sampling_params_manager
        manager.req_to_next_token_ids[at, 1 : 1 + steps] = proposal.tokens
        self.log_probs[at, :steps] = proposal.log_probs
        self.scores[at, :steps] = self.calibration.scores(proposal.log_probs)

    def _rewarm(self, reqs: list[Any]) -> list[Any]:
        """Where drafts are wanted again, send requests that the drafter lost sight of back to prefill.

        Their KV is given up from where the drafter's ends; LightLLM then prefills that part, target and drafter, as it
        does for a request that resumes: the shortest parts first, one chunk of prefill per round. What the prefix tree
        owns is not a request's to give up: a hole that a resumed request shares with the tree stays.

        Returns:
            The requests that decode in this round.
        """
        table, room = self.requests, self.rewarm_tokens
        sent: set[int] = set()
        if not room:
            return reqs
        holes = [(req.cur_kv_len - table.hole_start(req), req) for req in reqs if table.is_cold(req)]
        for hole, req in sorted(holes, key=lambda pair: pair[0]):
            if hole <= 0:
                table.cold_from[req.req_idx] = -1
                continue
            if hole > room and sent:
                break
            room -= hole
            start = req.cur_kv_len - hole
            held = g_infer_context.req_manager.req_to_token_indexs[req.req_idx, start : req.cur_kv_len]
            g_infer_context.req_manager.mem_manager.free(held.cpu())
            req.cur_kv_len = start
            if self.is_master_in_dp:
                req.shm_req.shm_cur_kv_len = start
            table.drafts[req.req_idx] = 0
            sent.add(req.req_id)
        return [req for req in reqs if req.req_id not in sent] if sent else reqs


def _borrowed_slots(count: int) -> torch.Tensor | None:
    """int32[count] token slots on the device; None where none are wanted, or requests have them all.

    They are free again at once: whoever gets them writes to them on the same stream, after what uses them now.
    """
    if not count or g_infer_context.get_can_alloc_token_num() < count:
        return None
    if g_infer_context.radix_cache is not None:
        g_infer_context.radix_cache.free_radix_cache_to_get_enough_token(count)
    allocator = g_infer_context.req_manager.mem_manager
    slots = allocator.alloc(count)
    allocator.free(slots)
    on_device: torch.Tensor = slots.cuda(non_blocking=True)
    return on_device


def _tokens_after(reqs: list[Any], width: int, *, whole: bool) -> npt.NDArray[np.int64]:
    """int64[P, width]: the tokens that follow the part of each prompt that is being prefilled, -1 past its end.

    Args:
        whole: prompts are prefilled at once rather than in chunks.
    """
    known = np.full((len(reqs), width), -1, dtype=np.int64)
    for row, req in enumerate(reqs):
        total = req.get_cur_total_len()
        end = total if whole else req.get_chuncked_input_token_len()
        follows = req.shm_req.shm_prompt_ids.arr[end : min(end + width, total)]
        known[row, : len(follows)] = follows
    return known
