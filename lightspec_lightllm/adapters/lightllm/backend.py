"""LightLLM's model backend with dynamic rounds: the same phases and events, other rows and other drafts.

One round (`DynamicMtpMixin.decode_mtp`), in LightLLM's order of phases:

====================  ===  =====================================================================================
plan                  CPU  N requests, their waiting drafts, statistics up to the round before last
reserve               CPU  B slots for the target's rows, and those of the draft chain
select, target        GPU  the B - N best drafts join; forward, sample each row, accept, draft
``_pre_post_handle``  CPU  waits for the accept lengths only, so that the next round can be launched
``_post_handle``      CPU  tokens, stop conditions; rejected and unused slots go back, once
====================  ===  =====================================================================================

The CPU chooses how many rows there are, the device which: a round is launched before its rows are known on the CPU.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightllm.common.basemodel.batch_objs import ModelInput
from lightllm.common.basemodel.triton_kernel.mtp_utils import (
    linear_att_mtp_state_index_update,
    mtp_scatter_next_token_ids,
)
from lightllm.server.router.model_infer.infer_batch import g_infer_context
from lightllm.server.router.model_infer.pin_mem_manager import g_pin_mem_manager

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm import costs
from lightspec_lightllm.adapters.lightllm.attention_backends import own_attention_backends
from lightspec_lightllm.adapters.lightllm.batch import DecodeBatch, RequestTable
from lightspec_lightllm.adapters.lightllm.drafters import Proposal, VerifiedRows, make_mtp_drafter
from lightspec_lightllm.adapters.lightllm.launched import LaunchedRound, probabilities, upload
from lightspec_lightllm.adapters.lightllm.metrics import open_reporter
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig, current
from lightspec_lightllm.adapters.lightllm.planning import (
    PlannedRound,
    RoundPlanner,
    check_digests,
    fixed_planner,
    open_planner,
    plan_digest,
)
from lightspec_lightllm.adapters.lightllm.prefill import DynamicPrefillMixin
from lightspec_lightllm.adapters.lightllm.sampling import Rows, RowSampler
from lightspec_lightllm.errors import HostError, LightspecError
from lightspec_lightllm.planner import Planner
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS

logger = logging.getLogger(__name__)

MAX_ROWS = 1 + MAX_DRAFT_STEPS
"""Rows of one request at most: what LightLLM's verification kernels take."""

FILLED_SKIPS = 8
"""Rounds without drafts in which a drafter's KV is still filled. After so many the drafter rests: no speculation then
costs nothing, and requests that are to be drafted for again are prefilled from where their KV ends."""

NO_IMAGES: dict[str, list[Any]] = {"images": [], "audios": []}
"""What decoding needs to know of a row's pictures: nothing, their tokens are in the KV cache."""


def make_backend(stock: type) -> type:
    """LightLLM's backend class, with dynamic rounds."""
    return type("DynamicMtpBackend", (DynamicMtpMixin, stock), {})


class DynamicMtpMixin(DynamicPrefillMixin):
    """The dynamic part, over LightLLM's ``ChunkedPrefillBackend`` (whose attributes it uses)."""

    config: LightLLMConfig
    max_draft_steps: int

    # LightLLM's
    args: Any
    eos_id: list[int]
    world_size: int
    is_master_in_dp: bool
    is_linear_att_mixed_model: bool
    extra_post_req_handle_func: Any
    _verify_mtp_v2: Any
    _pre_post_handle: Any
    _post_handle: Any

    # ---- start ------------------------------------------------------------------------------------------------

    def init_model(self, kvargs: dict[str, Any]) -> None:
        """As LightLLM's, with room for the longest draft behind the longest request.

        A request that ends in a round is decoded once more before the CPU knows, and its drafts come on top.
        """
        config = current()
        if config is None:
            raise HostError(
                "dynamic MTP: the start arguments carry no configuration; start the server with --dynamic_mtp"
            )
        self.config = config
        self.max_draft_steps = config.planner.max_draft_steps
        kvargs["max_seq_length"] = kvargs.get("max_seq_length", 1024 * 5) + 4 * (1 + self.max_draft_steps)
        super().init_model(kvargs)  # type: ignore[misc] # the stock backend's

    def init_mtp_draft_model(self, main_kvargs: dict[str, Any]) -> None:
        """Load the drafters, measure costs and make the planner: all before the first request is read."""
        with own_attention_backends():
            super().init_mtp_draft_model(main_kvargs)  # type: ignore[misc]
        num_rows = self.model.req_manager.max_request_num + 1
        manager = self.model.req_manager.req_sampling_params_manager
        manager.req_to_next_token_ids = torch.zeros((num_rows, MAX_ROWS), dtype=torch.int64, device="cuda")
        self.drafter = make_mtp_drafter(self.args.mtp_mode, self.draft_models, self.max_draft_steps)
        self.requests = RequestTable(num_rows)
        self.sampler = RowSampler(
            manager,
            num_rows,
            self.eos_id,
            vocab_size=self.model.vocab_size,
            use_flashinfer=self.args.sampling_backend == "flashinfer",
        )
        # Log-probabilities of the waiting drafts, each given those before it, and summed up from the first one.
        self.log_probs = torch.zeros((num_rows, MAX_ROWS), dtype=torch.float32, device="cuda")
        self.scores = torch.zeros((num_rows, MAX_ROWS), dtype=torch.float32, device="cuda")
        self._skips = 0
        self._wants_drafts = False
        self._num_rounds = 0
        self._prefill_reqs: list[Any] = []
        self.planner = self._open_planner()

    def _open_planner(self) -> RoundPlanner:
        reporter = open_reporter(self.config) if self.is_master_in_dp else None
        timed, kind = self.world_size == 1, self.drafter.kind
        try:
            return RoundPlanner(self.make_planner(), reporter, timed=timed)
        except LightspecError as error:
            logger.error("no dynamic plan, serving on with fixed draft steps: %s", error)  # noqa: TRY400
            return RoundPlanner(fixed_planner(self.max_draft_steps, kind), reporter, timed=timed, why_fixed=str(error))

    def make_planner(self) -> Planner:
        """The configured planner on measured costs."""
        kind = self.drafter.kind
        return open_planner(self.config, costs.load_or_measure(self, self.config, kind), kind)

    # ---- decode -----------------------------------------------------------------------------------------------

    def decode_mtp(self, event_pack: Any, decode_reqs: list[Any]) -> None:
        """One round; see the module."""
        self._admit(decode_reqs)
        reqs = self._rewarm(decode_reqs)
        if not reqs:
            self.planner.interrupt()
            event_pack.notify_post_handle_and_wait_pre_post_handle()
            event_pack.notify_forward_and_wait_post_handle()
            event_pack.notify_pre_post_handle()
            return
        launched = self._launch(self.requests.collect(reqs))

        event_pack.notify_post_handle_and_wait_pre_post_handle()
        launched.verified.synchronize()
        committed = self._learn(launched)
        update_packs = self._pre_post_handle(committed, is_chuncked_mode=False)

        event_pack.notify_forward_and_wait_post_handle()
        launched.done.synchronize()
        self._commit(launched, committed, update_packs)
        event_pack.notify_pre_post_handle()

    def _admit(self, reqs: list[Any]) -> None:
        """Requests whose whole prompt was cached come here without a prefill."""
        new = self.requests.admit(reqs)
        if new:
            with torch.cuda.stream(g_infer_context.get_overlap_stream()):
                self.sampler.admit(new)

    def _launch(self, batch: DecodeBatch) -> LaunchedRound:
        planned = self.planner.plan(batch)
        self._check_ranks(planned)
        num_requests, steps = len(batch.reqs), planned.plan.draft_steps
        num_rows = planned.plan.verify_rows
        runs_drafter = self._runs_drafter(steps)
        num_chain = self.drafter.num_chain_slots(num_requests, steps) if runs_drafter else 0
        slots = self._reserve(num_rows + num_chain)
        row_slots, chain_slots = slots[:num_rows], slots[num_rows:]
        max_drafts = int(batch.drafts.max())
        packed = upload(batch)

        with torch.cuda.stream(g_infer_context.get_overlap_stream()):
            planned.started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            planned.started.record()
            self.planner.begin(planned)
            device = packed.cuda(non_blocking=True)
            req_idx, seq_len, drafts, position_delta = device.view(4, num_requests).unbind(0)
            rows = ops.select_rows(req_idx, seq_len, drafts, self.scores, num_rows)
            confidence = self._copy_confidence(req_idx, max_drafts)
            model_input = ModelInput(
                batch_size=num_rows,
                total_token_num=num_rows * (int(batch.seq_len.max()) + max_drafts),
                max_q_seq_len=1,
                max_kv_seq_len=int((batch.seq_len + batch.drafts).max()),
                input_ids=None,
                b_req_idx=rows.req_idx,
                b_mtp_index=rows.mtp_index,
                b_seq_len=rows.seq_len,
                b_position_delta=position_delta[rows.request.long()],
                mem_indexes_cpu=row_slots,
                is_prefill=False,
                multimodal_params=[NO_IMAGES] * num_rows,
            )
            output = self.model.forward(model_input)
            sampled = self.sampler.sample(
                output.logits, Rows(rows.req_idx, rows.seq_len, rows.mtp_index, max_drafts), batch.req_idx
            )
            ranks = self._get_next_token_ranks(output.logits, sampled.token_ids)
            accept_len, accepted = self._verify_mtp_v2(sampled.token_ids, rows.req_idx, rows.start_loc)
            if self.is_linear_att_mixed_model:
                linear_att_mtp_state_index_update(
                    req_to_mtp_state_index=self.model.req_manager.req_to_mtp_state_index,
                    b_req_mtp_start_loc=rows.start_loc,
                    b_req_idx=rows.req_idx,
                    b_mtp_index=rows.mtp_index,
                    accepted_index=accepted,
                    max_mtp_step=1 + self.max_draft_steps,
                )
            copy = g_pin_mem_manager.async_copy_from_gpu_tensor
            copies = (
                copy("lightspec_num_rows", rows.num_rows),
                copy("mtp_accept_len", accept_len),
                copy("accepted_index", accepted),
            )
            verified = torch.cuda.Event()  # type: ignore[no-untyped-call]
            verified.record()
            tokens = self._async_copy_next_token_infos_to_pin_mem(sampled.token_ids, sampled.logprobs, ranks)
            proposal = None
            if runs_drafter:
                proposal = self.drafter.propose(
                    VerifiedRows(
                        model_input=model_input,
                        hidden=output.mtp_main_output_hiddens,
                        token_ids=sampled.token_ids,
                        accept_len=accept_len,
                        start_loc=rows.start_loc,
                        request=rows.request,
                        req_idx=req_idx,
                        last_row=ops.accepted_last_row(rows.start_loc, accept_len),
                        position_delta=position_delta,
                        num_requests=num_requests,
                        chain_slots=chain_slots.cuda(non_blocking=True) if num_chain else None,
                    ),
                    steps,
                )
            self._scatter(proposal, sampled.token_ids, rows, accept_len, req_idx)
            manager = self.model.req_manager.req_sampling_params_manager
            manager.update_reqs_out_token_counter_gpu(
                b_req_idx=rows.req_idx, next_token_ids=sampled.token_ids, mask=accepted == 1
            )
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()

        self.requests.drafts[batch.req_idx] = 0 if proposal is None else proposal.tokens.shape[1]
        if not runs_drafter and self.drafter.has_kv:
            self.requests.mark_cold(batch)
        self._wants_drafts = steps > 0 and not planned.plan.probe
        return LaunchedRound(
            planned, row_slots, chain_slots if num_chain else None, *copies, tokens, confidence, verified, done
        )

    def _runs_drafter(self, steps: int) -> bool:
        """Whether the drafter runs in a round that plans these steps."""
        self._skips = 0 if steps else self._skips + 1
        return steps > 0 or (self.drafter.has_kv and self._skips <= FILLED_SKIPS)

    def _reserve(self, num_slots: int) -> torch.Tensor:
        if g_infer_context.radix_cache is not None:
            g_infer_context.radix_cache.free_radix_cache_to_get_enough_token(num_slots)
        slots: torch.Tensor = g_infer_context.req_manager.mem_manager.alloc(num_slots)
        return slots

    def _copy_confidence(self, req_idx: torch.Tensor, max_drafts: int) -> torch.Tensor | None:
        """float32[N, K]: the drafter's probabilities of the drafts that wait, on their way to the CPU."""
        if max_drafts == 0:
            return None
        probs = self.log_probs[req_idx.long(), : self.max_draft_steps].exp()
        copied: torch.Tensor = g_pin_mem_manager.async_copy_from_gpu_tensor("lightspec_confidence", probs)
        return copied

    def _scatter(
        self,
        proposal: Proposal | None,
        token_ids: torch.Tensor,
        rows: ops.SelectedRows,
        accept_len: torch.Tensor,
        req_idx: torch.Tensor,
    ) -> None:
        """Each request's next token, its last accepted one, and the drafts behind it."""
        manager = self.model.req_manager.req_sampling_params_manager
        mtp_scatter_next_token_ids(
            req_to_next_token_ids=manager.req_to_next_token_ids,
            b_req_mtp_start_loc=rows.start_loc,
            all_next_token_ids=token_ids.view(-1, 1),
            b_req_idx=rows.req_idx,
            mtp_accept_len=accept_len,
        )
        if proposal is not None:
            self._keep(proposal, req_idx)

    def _learn(self, launched: LaunchedRound) -> list[Any]:
        """Tell the planner, and list the requests once per committed token."""
        planned = launched.planned
        accepted = launched.accept_len.numpy().astype(np.int64)
        planned.accepted = accepted
        planned.verified = launched.num_rows.numpy().astype(np.int64) - 1
        if launched.confidence is not None:
            planned.confidence = probabilities(launched.confidence.numpy(), planned.batch)
        self.planner.finish(planned)
        return [req for req, count in zip(planned.batch.reqs, accepted.tolist(), strict=True) for _ in range(count)]

    def _commit(self, launched: LaunchedRound, committed: list[Any], update_packs: list[Any]) -> None:
        accepted = launched.accepted.numpy() == 1
        batch = launched.planned.batch
        if self.is_master_in_dp:
            for req, length in zip(batch.reqs, launched.planned.accepted.tolist(), strict=True):
                req.update_mtp_accepted_token_num(accept_token_num=length - 1)
        token_ids, logprobs, ranks = (tensor.numpy()[accepted].tolist() for tensor in launched.tokens)
        self._post_handle(
            run_reqs=committed,
            next_token_ids=token_ids,
            next_token_logprobs=logprobs,
            next_token_ranks=ranks,
            run_reqs_update_packs=update_packs,
            extra_post_req_handle_func=self.extra_post_req_handle_func,
        )
        unused = launched.slots[torch.from_numpy(~accepted)]
        if launched.chain_slots is not None:
            unused = torch.cat((unused, launched.chain_slots))
        if len(unused):
            g_infer_context.req_manager.mem_manager.free(unused)

    # ---- requests whose drafter rested ------------------------------------------------------------------------

    def _rewarm(self, reqs: list[Any]) -> list[Any]:
        """Where drafts are wanted again, send requests that the drafter lost sight of back to prefill.

        Their KV is given up from where the drafter's ends; LightLLM then prefills that part, target and drafter, as it
        does for a request that resumes. One chunk of prefill per round at most.

        Returns:
            The requests that decode in this round.
        """
        table = self.requests
        if not self._wants_drafts:
            return reqs
        cold = [req for req in reqs if table.cold_from[req.req_idx] >= 0]
        room, sent = int(self.chunked_prefill_size), set()
        for req in cold:
            start = int(table.cold_from[req.req_idx])
            if req.cur_kv_len - start > room:
                continue
            room -= req.cur_kv_len - start
            held = g_infer_context.req_manager.req_to_token_indexs[req.req_idx, start : req.cur_kv_len]
            g_infer_context.req_manager.mem_manager.free(held.cpu())
            req.cur_kv_len = start
            if self.is_master_in_dp:
                req.shm_req.shm_cur_kv_len = start
            table.drafts[req.req_idx] = 0
            sent.add(req.req_id)
        return [req for req in reqs if req.req_id not in sent] if sent else reqs

    # ---- ranks ------------------------------------------------------------------------------------------------

    def _check_ranks(self, planned: PlannedRound) -> None:
        every = self.config.check.plan_hash_every
        self._num_rounds += 1
        if not every or self.world_size == 1 or self._num_rounds % every:
            return
        digest = plan_digest(planned.plan)
        bounds = torch.tensor([digest, -digest], dtype=torch.int64, device="cuda")
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
        highest, lowest = bounds.tolist()
        check_digests(-lowest, highest)
