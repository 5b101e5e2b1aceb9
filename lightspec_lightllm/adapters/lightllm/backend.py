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

import gc
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
from lightspec_lightllm.adapters.lightllm.batch import NO_IMAGES, DecodeBatch, RequestTable
from lightspec_lightllm.adapters.lightllm.calibration import Calibration
from lightspec_lightllm.adapters.lightllm.drafters.interface import Proposal, VerifiedRows
from lightspec_lightllm.adapters.lightllm.drafters.layouts import BLOCK_KINDS
from lightspec_lightllm.adapters.lightllm.drafters.loading import load_drafter
from lightspec_lightllm.adapters.lightllm.drafters.mtp import make_mtp_drafter
from lightspec_lightllm.adapters.lightllm.launched import (
    DeviceBatch,
    LaunchedRound,
    ReservedSlots,
    TargetRound,
    compile_operations,
    probabilities,
)
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
from lightspec_lightllm.decode.loops_log import log_loops
from lightspec_lightllm.errors import HostError, LightspecError
from lightspec_lightllm.planner import CostModel, Planner
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS

logger = logging.getLogger(__name__)

MAX_ROWS = 1 + MAX_DRAFT_STEPS
"""Rows of one request at most: what LightLLM's verification kernels take."""

FILLED_SKIPS = 8
"""Rounds without drafts in which a drafter's KV is still filled. After so many the drafter rests: no speculation then
costs nothing, and requests that are to be drafted for again are prefilled from where their KV ends."""


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
        with own_attention_backends(share_page_tables=self.config.drafter not in BLOCK_KINDS):
            if self.config.drafter is None:
                super().init_mtp_draft_model(main_kvargs)  # type: ignore[misc]
                self.drafter = make_mtp_drafter(self.args.mtp_mode, self.draft_models, self.max_draft_steps)
            else:
                self.draft_models, self.drafter = load_drafter(self, main_kvargs)
                self.mtp_step = self.args.mtp_step
        num_rows = self.model.req_manager.max_request_num + 1
        manager = self.model.req_manager.req_sampling_params_manager
        manager.req_to_next_token_ids = torch.zeros((num_rows, MAX_ROWS), dtype=torch.int64, device="cuda")
        self.requests = RequestTable(num_rows)
        self.sampler = RowSampler(
            manager,
            num_rows,
            self.eos_id,
            vocab_size=self.model.vocab_size,
            use_flashinfer=self.args.sampling_backend == "flashinfer",
        )
        # Log-probabilities of the waiting drafts, each given those before it, and calibrated ones, summed up.
        self.log_probs = torch.zeros((num_rows, MAX_ROWS), dtype=torch.float32, device="cuda")
        self.scores = torch.zeros((num_rows, MAX_ROWS), dtype=torch.float32, device="cuda")
        self.calibration = Calibration(self.max_draft_steps)
        self._skips = 0
        self.rewarm_tokens = 0
        self._num_rounds = 0
        self._prefill_reqs: list[Any] = []
        compile_operations(self.scores, self.model.vocab_size)
        self.planner = self._open_planner()

    def _open_planner(self) -> RoundPlanner:
        kind, timed = self.drafter.kind, self.world_size == 1
        table = why_fixed = None
        # Tables are refused on all ranks or on none. But RuntimeErrors of torch and CUDA, out of memory among them, may
        # come on one of several, and the others would wait for it for ever: the server has to end then.
        survived = (LightspecError, RuntimeError) if self.world_size == 1 else (LightspecError,)
        try:
            table = costs.load_or_measure(self, self.config, kind)
        except survived as error:
            why_fixed = str(error)
            logger.error("no cost table, serving with fixed draft steps: %s", error)  # noqa: TRY400 - it says all
            torch.cuda.empty_cache()
        max_rows = int(self.model.graph_max_batch_size)
        planner = self.make_planner(table) if table else fixed_planner(self.max_draft_steps, kind, max_rows)
        gc.collect()
        gc.freeze()  # to look through all that is there by now, a compiler too, takes 0.1 s in the midst of a round
        reporter = None
        if self.is_master_in_dp:
            log_loops(logger)
            reporter = open_reporter(self, table)
        return RoundPlanner(planner, reporter, timed=timed, why_fixed=why_fixed)

    def make_planner(self, table: CostModel) -> Planner:
        """The configured planner."""
        return open_planner(self.config, table, self.drafter.kind)

    # ---- decode -----------------------------------------------------------------------------------------------

    def decode_mtp(self, event_pack: Any, decode_reqs: list[Any]) -> None:
        """One round; see the module."""
        self._admit(decode_reqs)  # a request whose whole prompt was cached comes here without a prefill
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

    def _launch(self, batch: DecodeBatch) -> LaunchedRound:
        """Put a whole round on the device's queue."""
        planned = self.planner.plan(batch)
        self._check_ranks(planned)
        reserved = self._reserve(planned)
        with torch.cuda.stream(g_infer_context.get_overlap_stream()):
            self.planner.begin(planned)
            device = DeviceBatch.upload(batch)
            rows = ops.select_rows(device.req_idx, device.seq_len, device.drafts, self.scores, planned.plan.verify_rows)
            confidence = self._copy_confidence(device, batch)
            target = self._run_target(batch, device, rows, reserved.rows)
            launched = self._send_back(planned, reserved, rows, target, confidence)
            proposal = self._draft(planned, device, rows, target, reserved)
            self._scatter(device, rows, target, proposal)
            launched.done.record()
        self._note(planned, reserved, proposal)
        return launched

    def _reserve(self, planned: PlannedRound) -> ReservedSlots:
        """Token slots for the rows of the plan and for the draft chain that follows."""
        plan = planned.plan
        self._skips = 0 if plan.draft_steps else self._skips + 1
        # A linear-attention target cannot be prefilled again from the middle of a text, so its drafter never rests.
        fills = self.drafter.has_kv and (self.is_linear_att_mixed_model or self._skips <= FILLED_SKIPS)
        drafts = plan.draft_steps > 0 or fills
        num_chain = self.drafter.num_chain_slots(plan.num_requests, plan.draft_steps) if drafts else 0
        needed = plan.verify_rows + num_chain
        if g_infer_context.radix_cache is not None:
            g_infer_context.radix_cache.free_radix_cache_to_get_enough_token(needed)
        slots = g_infer_context.req_manager.mem_manager.alloc(needed)
        return ReservedSlots(slots[: plan.verify_rows], slots[plan.verify_rows :], runs_drafter=drafts)

    def _run_target(
        self, batch: DecodeBatch, device: DeviceBatch, rows: ops.SelectedRows, slots: torch.Tensor
    ) -> TargetRound:
        """Forward, sample every row, accept the longest prefix of drafts equal to what was sampled."""
        max_drafts = int(batch.drafts.max())
        longest = int((batch.seq_len + batch.drafts).max())
        model_input = ModelInput(
            batch_size=len(slots),
            total_token_num=len(slots) * longest,
            max_q_seq_len=1,
            max_kv_seq_len=longest,
            input_ids=None,
            b_req_idx=rows.req_idx,
            b_mtp_index=rows.mtp_index,
            b_seq_len=rows.seq_len,
            b_position_delta=device.position_delta[rows.request.long()],
            mem_indexes_cpu=slots,
            is_prefill=False,
            multimodal_params=[NO_IMAGES] * len(slots),
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
        return TargetRound(model_input, output.mtp_main_output_hiddens, sampled, ranks, accept_len, accepted)

    def _copy_confidence(self, device: DeviceBatch, batch: DecodeBatch) -> torch.Tensor | None:
        """float32[N, K]: the drafter's probabilities of the drafts that wait, on their way to the CPU."""
        if not batch.drafts.any():
            return None
        probs = self.log_probs[device.req_idx.long(), : self.max_draft_steps].exp()
        copied: torch.Tensor = g_pin_mem_manager.async_copy_from_gpu_tensor("lightspec_confidence", probs)
        return copied

    def _send_back(
        self,
        planned: PlannedRound,
        reserved: ReservedSlots,
        rows: ops.SelectedRows,
        target: TargetRound,
        confidence: torch.Tensor | None,
    ) -> LaunchedRound:
        """Start the copies that the CPU waits for later: accept lengths first, tokens behind them."""
        copy = g_pin_mem_manager.async_copy_from_gpu_tensor
        num_rows, accept_len = copy("lightspec_num_rows", rows.num_rows), copy("mtp_accept_len", target.accept_len)
        accepted = copy("accepted_index", target.accepted)
        verified, done = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        verified.record()
        tokens = self._async_copy_next_token_infos_to_pin_mem(
            target.sampled.token_ids, target.sampled.logprobs, target.ranks
        )
        return LaunchedRound(planned, reserved, num_rows, accept_len, accepted, tokens, confidence, verified, done)

    def _draft(
        self,
        planned: PlannedRound,
        device: DeviceBatch,
        rows: ops.SelectedRows,
        target: TargetRound,
        reserved: ReservedSlots,
    ) -> Proposal | None:
        """Propose for the next round, or only keep the drafter's KV complete, or neither."""
        if not reserved.runs_drafter:
            return None
        verified = VerifiedRows(
            model_input=target.model_input,
            hidden=target.hidden,
            token_ids=target.sampled.token_ids,
            accept_len=target.accept_len,
            start_loc=rows.start_loc,
            request=rows.request,
            req_idx=device.req_idx,
            last_row=ops.accepted_last_row(rows.start_loc, target.accept_len),
            position_delta=device.position_delta,
            num_requests=planned.plan.num_requests,
            chain_slots=reserved.chain.cuda(non_blocking=True),
        )
        return self.drafter.propose(verified, planned.plan.draft_steps)

    def _scatter(
        self, device: DeviceBatch, rows: ops.SelectedRows, target: TargetRound, proposal: Proposal | None
    ) -> None:
        """Each request's next token, its last accepted one, and the drafts behind it; what penalties count."""
        manager = self.model.req_manager.req_sampling_params_manager
        mtp_scatter_next_token_ids(
            req_to_next_token_ids=manager.req_to_next_token_ids,
            b_req_mtp_start_loc=rows.start_loc,
            all_next_token_ids=target.sampled.token_ids.view(-1, 1),
            b_req_idx=rows.req_idx,
            mtp_accept_len=target.accept_len,
        )
        if proposal is not None:
            self._keep(proposal, device.req_idx)
        manager.update_reqs_out_token_counter_gpu(
            b_req_idx=rows.req_idx, next_token_ids=target.sampled.token_ids, mask=target.accepted == 1
        )

    def _note(self, planned: PlannedRound, reserved: ReservedSlots, proposal: Proposal | None) -> None:
        """What the next round must know before this one is over."""
        batch, plan = planned.batch, planned.plan
        self.requests.drafts[batch.req_idx] = 0 if proposal is None else proposal.tokens.shape[1]
        if not reserved.runs_drafter and self.drafter.has_kv:
            self.requests.mark_cold(batch)
        room = int(self.chunked_prefill_size) if plan.draft_steps else 0
        self.rewarm_tokens = room // 8 if plan.probe else room
        graph = self.model.graph
        if graph is not None and graph.can_run(plan.verify_rows, int((batch.seq_len + batch.drafts).max())):
            planned.padded_rows = graph.find_closest_graph_batch_size(plan.verify_rows) - plan.verify_rows

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
        self._calibrate(launched.planned)
        unused = torch.cat((launched.slots.rows[torch.from_numpy(~accepted)], launched.slots.chain))
        if len(unused):
            g_infer_context.req_manager.mem_manager.free(unused)

    def _calibrate(self, planned: PlannedRound) -> None:
        if planned.confidence is None:
            return
        with torch.cuda.stream(g_infer_context.get_overlap_stream()):
            self.calibration.learn(
                planned.confidence, planned.batch.drafts.astype(np.int64), planned.verified, planned.accepted
            )

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
