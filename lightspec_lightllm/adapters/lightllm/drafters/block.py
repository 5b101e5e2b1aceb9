"""Drafters that propose a block of tokens in one pass, conditioned on what the target thought of the context.

A layer's keys and values of a context token are projections of the target's captured hidden states, the same for all
layers; nothing of the drafter is run for such a token. A block is the last committed token, its *anchor*, and mask
tokens behind it. Its rows see the whole context and each other, those behind them too, and each drafts one token.

To LightLLM a row of a block is a decode row of its own: it has its own position, and its context ends where the block
ends. So every attention back end serves blocks as it is, without a causal mask.
"""

from __future__ import annotations

from typing import Any

import torch
from lightllm.common.basemodel.batch_objs import ModelInput, ModelOutput
from lightllm.common.basemodel.layer_weights.meta_weights.norm_weight import RMSNormWeight
from lightllm.common.basemodel.triton_kernel.gen_decode_params import gen_decode_params
from lightllm.common.basemodel.triton_kernel.gen_prefill_params import gen_prefill_params
from lightllm.common.basemodel.triton_kernel.norm.qk_norm import qk_rmsnorm_forward
from lightllm.models.llama.infer_struct import LlamaInferStateInfo
from lightllm.models.llama.triton_kernel.rotary_emb import rotary_emb_fwd

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint
from lightspec_lightllm.adapters.lightllm.drafters.draft_model import DraftLayerInfer, DraftModel, DraftWeights
from lightspec_lightllm.adapters.lightllm.drafters.interface import Proposal, VerifiedRows
from lightspec_lightllm.adapters.lightllm.drafters.layouts import BlockSettings, Layout
from lightspec_lightllm.planner import DrafterKind


class BlockInferState(LlamaInferStateInfo):
    """Rows of blocks: ``b_mtp_index`` comes in as a row's place in its block, ``b_seq_len`` as its own length."""

    b_seq_len: torch.Tensor
    b_mtp_index: torch.Tensor
    position_ids: torch.Tensor

    def init_some_extra_state(self, model: Any) -> None:
        """See LightLLM. Positions are of the rows' own lengths, attention is over those of their blocks.

        Rows are no segments of one sequence, so none has another's ``b_mtp_index``.
        """
        super().init_some_extra_state(model)
        if self.is_prefill:
            return
        positions = self.position_ids
        self.b_seq_len = self.b_seq_len + (model.block_rows - 1 - self.b_mtp_index)
        self.b_mtp_index = torch.zeros_like(self.b_mtp_index)
        self.b_q_seq_len, self.b1_cu_q_seq_len, self.b_kv_seq_len, self.b1_cu_kv_seq_len, _ = gen_decode_params(
            self.b_seq_len
        )
        self.b_kv_start_loc = self.b1_cu_kv_seq_len[:-1]
        self.position_ids = positions


class BlockWeights(DraftWeights):
    """With the norm of the projected states."""

    def __init__(self, data_type: torch.dtype, layout: Layout, checkpoint: DraftCheckpoint, target: Any) -> None:
        super().__init__(data_type, layout, checkpoint, target)
        self.hidden_norm = RMSNormWeight(layout.decoder.hidden_size, "hidden_norm.weight", data_type)


class BlockLayer(DraftLayerInfer):
    """A decoder layer that also takes in context."""

    def fill(self, hidden: torch.Tensor, context: Context, mem_manager: Any, layer_weight: Any) -> None:
        """Write keys and values of projected states float[T, hidden]."""
        heads, width = self.tp_k_head_num_, self.head_dim_
        keys_values = layer_weight.kv_proj.mm(hidden)
        if self.has_qk_norm:
            qk_rmsnorm_forward(keys_values[:, : heads * width], layer_weight.qk_norm_weight_.k_weight, self.eps_)
        keys_values = keys_values.view(-1, heads + self.tp_v_head_num_, width)
        rotary_emb_fwd(keys_values[:, :heads], None, context.cos, context.sin)
        mem_manager.operator.copy_kv_to_mem_manager(
            layer_index=self.layer_num_, mem_index=context.slots, kv=keys_values
        )


class Context:
    """Where T context tokens are: rotations float[T, head_dim / 2] of their positions, and token slots int32[T]."""

    def __init__(self, model: Any, positions: torch.Tensor, slots: torch.Tensor) -> None:
        self.cos = model._cos_cached.index_select(0, positions)  # noqa: SLF001 - where LightLLM's own layers get them
        self.sin = model._sin_cached.index_select(0, positions)  # noqa: SLF001
        self.slots = slots


class BlockModel(DraftModel):
    """A backbone and its output layer. A subclass reads tokens off the output.

    Args:
        kvargs: of `DraftModel`, and ``max_draft_steps``.

    Attributes:
        block_rows: rows of a block, those that K drafts need; at most those it was trained with.
        skipped: rows at the start of a block that draft nothing.
    """

    infer_state_class = BlockInferState
    transformer_layer_infer_class = BlockLayer

    def __init__(self, kvargs: dict[str, Any]) -> None:
        settings = kvargs["checkpoint"].layout.settings
        assert isinstance(settings, BlockSettings)  # noqa: S101 - of a block drafter's checkpoint
        self.settings = settings
        self.skipped = 0 if settings.drafts_from_anchor else 1
        self.block_rows = kvargs.pop("max_draft_steps") + self.skipped
        super().__init__(kvargs)

    def make_weights(self) -> BlockWeights:
        """See `DraftModel`."""
        return BlockWeights(self.data_type, self.layout, self.checkpoint, self.main_model)

    def project(self, captured: torch.Tensor) -> torch.Tensor:
        """See `DraftModel`."""
        normed: torch.Tensor = self.pre_post_weight.hidden_norm(
            input=super().project(captured), eps=self.layout.decoder.norm_epsilon
        )
        return normed

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """float[rows, hidden]: what the output layer reads, of last hidden states."""
        normed: torch.Tensor = self.pre_post_weight.final_norm_weight_(
            input=hidden, eps=self.layout.decoder.norm_epsilon
        )
        return normed

    def fill(self, captured: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Take in T context tokens.

        Args:
            captured: float[T, P * H], the target's hidden states.
            positions, slots: int32[T].
        """
        hidden, context = self.project(captured), Context(self, positions, slots)
        for layer, weight in zip(self.layers_infer, self.trans_layers_weight, strict=True):
            layer.fill(hidden, context, self.mem_manager, weight)

    def block_input(
        self,
        target: ModelInput,
        anchors: torch.Tensor,
        context: torch.Tensor,
        req_idx: torch.Tensor,
        slots: torch.Tensor,
    ) -> ModelInput:
        """One block per request, its rows side by side.

        Args:
            target: what the target has run.
            anchors: int64[N], the token behind the context.
            context, req_idx: int32[N], lengths of the contexts and whose they are.
            slots: int32[N * rows].
        """
        rows, num_requests = self.block_rows, len(anchors)
        place = torch.arange(rows, dtype=torch.int32, device=anchors.device)
        input_ids = anchors.new_full((num_requests, rows), self.settings.mask_token_id)
        input_ids[:, 0] = anchors
        longest = target.max_kv_seq_len + rows
        return ModelInput(
            batch_size=num_requests * rows,
            total_token_num=num_requests * rows * longest,
            max_q_seq_len=1,
            max_kv_seq_len=longest,
            input_ids=input_ids.flatten(),
            b_req_idx=req_idx.repeat_interleave(rows),
            b_mtp_index=place.repeat(num_requests),
            b_seq_len=(context[:, None] + 1 + place).flatten(),
            b_position_delta=torch.zeros_like(slots),
            mem_indexes=slots,
            is_prefill=False,
            multimodal_params=target.multimodal_params[:1] * (num_requests * rows),
        )

    def read(self, output: ModelOutput, anchors: torch.Tensor) -> Proposal:
        """All K drafts of N blocks.

        Args:
            output: of N * rows rows.
            anchors: int64[N].
        """
        raise NotImplementedError

    def scored(self, output: ModelOutput) -> object:
        """What a round does with an output of any number of rows, for measurements. Rows past whole blocks are left
        out, those of less than one count as one row each."""
        num_blocks = len(output.logits) // self.block_rows
        if not num_blocks:
            return ops.draft_scores(output.logits)
        rows = num_blocks * self.block_rows
        blocks = ModelOutput(output.logits[:rows], mtp_main_output_hiddens=output.mtp_main_output_hiddens[:rows])
        return self.read(blocks, torch.zeros(num_blocks, dtype=torch.int64, device=output.logits.device))

    def filled(self, model_input: ModelInput) -> None:
        """What a round does with its verified rows, for measurements: their KV, no forward."""
        captured = self.capture.decoded(model_input.batch_size)
        self.fill(captured, model_input.b_seq_len - 1, model_input.mem_indexes)

    def _gen_special_model_input(self, token_num: int) -> dict[str, Any]:
        """Blocks read token ids alone."""
        del token_num
        return {"mtp_draft_input_hiddens": None}


class BlockDrafter:
    """Takes in what was verified, then drafts whole blocks."""

    kind: DrafterKind = "block"
    has_kv = True

    def __init__(self, model: BlockModel, max_draft_steps: int) -> None:
        self.model = model
        self.max_draft_steps = max_draft_steps

    def num_chain_slots(self, num_requests: int, steps: int) -> int:
        """See `LightLLMDrafter`."""
        return num_requests * self.model.block_rows if steps else 0

    def propose(self, verified: VerifiedRows, steps: int) -> Proposal | None:
        """See `LightLLMDrafter`. A block is drafted whole; of it, ``steps`` are proposed."""
        target, last = verified.model_input, verified.last_row
        captured = self.model.capture.decoded(len(verified.token_ids))
        self.model.fill(captured, target.b_seq_len - 1, target.mem_indexes)
        if steps == 0:
            return None
        assert verified.chain_slots is not None  # noqa: S101 - `num_chain_slots` of them
        proposal = self._draft(
            target, verified.token_ids[last], target.b_seq_len[last], verified.req_idx, verified.chain_slots
        )
        return Proposal(proposal.tokens[:, :steps], proposal.log_probs[:, :steps])

    def prefill(
        self,
        model_input: ModelInput,
        model_output: ModelOutput,
        next_tokens: torch.Tensor,
        known: torch.Tensor,
        chain_slots: torch.Tensor | None,
    ) -> Proposal | None:
        """See `LightLLMDrafter`."""
        del model_output, known  # a token's KV needs neither its successor nor the target's last hidden states
        slots = model_input.mem_indexes
        *_, positions = gen_prefill_params(len(slots), model_input.b_ready_cache_len, model_input.b_seq_len)
        self.model.fill(self.model.capture.take_prefilled()[: len(slots)], positions, slots)
        if chain_slots is None or not any(model_input.b_prefill_has_output_cpu):
            return None
        return self._draft(model_input, next_tokens, model_input.b_seq_len, model_input.b_req_idx, chain_slots)

    def _draft(
        self,
        target: ModelInput,
        anchors: torch.Tensor,
        context: torch.Tensor,
        req_idx: torch.Tensor,
        slots: torch.Tensor,
    ) -> Proposal:
        block = self.model.block_input(target, anchors, context, req_idx, slots)
        return self.model.read(self.model.forward(block), anchors)
