"""Eagle3: one decoder layer that reads a token's embedding beside what the target thought when it chose that token.

Row t reads token t + 1 and the target's captured states at t, projected to one hidden state; it drafts token t + 2.
Later steps read their own draft and their own hidden state instead, one row per request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from lightllm.common.basemodel.batch_objs import ModelInput, ModelOutput
from lightllm.common.basemodel.layer_weights.meta_weights.norm_weight import RMSNormWeight
from lightllm.models.llama.layer_infer.pre_layer_infer import LlamaPreLayerInfer
from lightllm.server.router.model_infer.mode_backend.mtp_pre_process import prepare_mtp_prefill_inputs

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint, expected_tensors
from lightspec_lightllm.adapters.lightllm.drafters.draft_model import (
    DraftLayerInfer,
    DraftLayerWeight,
    DraftModel,
    DraftWeights,
)
from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter, Proposal, VerifiedRows
from lightspec_lightllm.adapters.lightllm.drafters.layouts import Eagle3Settings, Layout
from lightspec_lightllm.planner import DrafterKind

Attend = Callable[[torch.Tensor, Any, Any], torch.Tensor]


def load(kvargs: dict[str, Any], max_draft_steps: int) -> tuple[list[Any], LightLLMDrafter]:
    """The model, as LightLLM keeps it, and the drafter. ``kvargs``: of `DraftModel`."""
    model = Eagle3Model(kvargs)
    return [model], Eagle3Drafter(model, max_draft_steps)


class Eagle3Weights(DraftWeights):
    """With norms of the captured states, if any."""

    def __init__(self, data_type: torch.dtype, layout: Layout, checkpoint: DraftCheckpoint, target: Any) -> None:
        super().__init__(data_type, layout, checkpoint, target)
        self.norms = [name for name in expected_tensors(layout) if name.startswith(("input_norm.", "fc_norm."))]
        for name in self.norms:
            width = expected_tensors(layout)[name][0]
            setattr(self, f"norm_{name}", RMSNormWeight(width, name, data_type))

    def normed(self, captured: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Captured states as ``fc`` wants them, all at once or each by itself."""
        if not self.norms:
            return captured
        parts = captured.chunk(len(self.norms), dim=1)
        normed = [
            getattr(self, f"norm_{name}")(input=part.contiguous(), eps=epsilon)
            for name, part in zip(self.norms, parts, strict=True)
        ]
        return torch.cat(normed, dim=1)


class Eagle3LayerWeight(DraftLayerWeight):
    """With a norm of the hidden state beside that of the embedding."""

    def _init_norm(self) -> None:
        super()._init_norm()
        self.hidden_norm_weight_ = RMSNormWeight(
            self.n_embed, f"model.layers.{self.layer_num_}.hidden_norm.weight", self.data_type_
        )


class Eagle3PreLayer(LlamaPreLayerInfer):
    """Embeddings and hidden states side by side: float[rows, 2 * hidden]."""

    def context_forward(self, input_ids: torch.Tensor, infer_state: Any, layer_weight: Any) -> torch.Tensor:
        """See LightLLM."""
        embedded = super().context_forward(input_ids, infer_state, layer_weight)
        return torch.cat((embedded, infer_state.mtp_draft_input_hiddens), dim=1)

    def token_forward(self, input_ids: torch.Tensor, infer_state: Any, layer_weight: Any) -> torch.Tensor:
        """See LightLLM."""
        embedded = super().token_forward(input_ids, infer_state, layer_weight)
        return torch.cat((embedded, infer_state.mtp_draft_input_hiddens), dim=1)


class Eagle3Layer(DraftLayerInfer):
    """Attention reads both halves; the residual stream is that of the hidden state."""

    def __init__(self, layer_num: int, network_config: dict[str, Any]) -> None:
        super().__init__(layer_num, network_config)
        settings = network_config["layout"].settings
        self.norm_before_residual: bool = settings.norm_before_residual

    def context_forward(self, input_embdings: torch.Tensor, infer_state: Any, layer_weight: Any) -> torch.Tensor:
        """See LightLLM."""
        return self._layer(input_embdings, infer_state, layer_weight, self.context_attention_forward)

    def token_forward(self, input_embdings: torch.Tensor, infer_state: Any, layer_weight: Any) -> torch.Tensor:
        """See LightLLM."""
        return self._layer(input_embdings, infer_state, layer_weight, self.token_attention_forward)

    def _layer(self, joined: torch.Tensor, infer_state: Any, layer_weight: Any, attend: Attend) -> torch.Tensor:
        embedded, hidden = (half.contiguous() for half in joined.chunk(2, dim=1))
        normed = layer_weight.hidden_norm_weight_(input=hidden, eps=self.eps_, alloc_func=self.alloc_tensor)
        read = torch.cat((self._att_norm(embedded, infer_state, layer_weight), normed), dim=1)
        attended = attend(read, infer_state, layer_weight).view(-1, self.embed_dim_)
        residual: torch.Tensor = normed if self.norm_before_residual else hidden
        residual.add_(attended)
        feed = self._ffn(self._ffn_norm(residual, infer_state, layer_weight), infer_state, layer_weight)
        residual.add_(feed.view(-1, self.embed_dim_))
        return residual


class Eagle3Model(DraftModel):
    """The layer between its embedding and its output layer."""

    pre_layer_infer_class = Eagle3PreLayer
    transformer_weight_class = Eagle3LayerWeight
    transformer_layer_infer_class = Eagle3Layer

    def make_weights(self) -> Eagle3Weights:
        """See `DraftModel`."""
        return Eagle3Weights(self.data_type, self.layout, self.checkpoint, self.main_model)

    def project(self, captured: torch.Tensor) -> torch.Tensor:
        """See `DraftModel`."""
        return super().project(self.pre_post_weight.normed(captured, self.layout.decoder.norm_epsilon))

    def filled(self, model_input: ModelInput) -> object:
        """What a round does with its verified rows, for measurements: the first step, captured states projected."""
        hidden = self.project(self.capture.decoded(model_input.batch_size))
        out = self.forward(dataclasses.replace(model_input, mtp_draft_input_hiddens=hidden))
        return ops.draft_scores(out.logits)

    def carried(self, hidden: torch.Tensor) -> torch.Tensor:
        """float[B, hidden]: what the next step reads of this one's last hidden state."""
        settings = self.layout.settings
        assert isinstance(settings, Eagle3Settings)  # noqa: S101 - of an eagle3 checkpoint
        if not settings.norm_output:
            return hidden
        normed: torch.Tensor = self.pre_post_weight.final_norm_weight_(
            input=hidden, eps=self.layout.decoder.norm_epsilon
        )
        return normed


class Eagle3Drafter:
    """Step 1 runs over all verified rows, so that the KV of accepted tokens is that of the target's own states; the
    others over one row per request, on token slots of their own."""

    kind: DrafterKind = "serial"
    has_kv = True

    def __init__(self, model: Eagle3Model, max_draft_steps: int) -> None:
        self.model = model
        self.max_draft_steps = max_draft_steps

    def num_chain_slots(self, num_requests: int, steps: int) -> int:
        """See `LightLLMDrafter`."""
        return num_requests * max(steps - 1, 0)

    def propose(self, verified: VerifiedRows, steps: int) -> Proposal | None:
        """See `LightLLMDrafter`."""
        model, last, count = self.model, verified.last_row, verified.num_requests
        hidden = model.project(model.capture.decoded(len(verified.token_ids)))
        out = model.forward(verified.all_rows(verified.token_ids, hidden))
        if steps == 0:
            return None
        drafts = [self._draft(out.logits[last])]
        hidden = model.carried(out.mtp_main_output_hiddens[last])
        for step in range(1, steps):
            slots = verified.chain_slots[(step - 1) * count : step * count]  # type: ignore[index] # there are some
            out = model.forward(verified.last_rows(drafts[-1][0], hidden, step=step, slots=slots))
            drafts.append(self._draft(out.logits))
            hidden = model.carried(out.mtp_main_output_hiddens)
        return Proposal.stack(drafts)

    def prefill(
        self,
        model_input: ModelInput,
        model_output: ModelOutput,
        next_tokens: torch.Tensor,
        known: torch.Tensor,
        chain_slots: torch.Tensor | None,  # noqa: ARG002 - the first draft needs none
    ) -> Proposal | None:
        """See `LightLLMDrafter`."""
        del model_output  # its last hidden states are not what an Eagle3 layer reads
        follows = known[:, 0]
        out = self.model.forward(
            prepare_mtp_prefill_inputs(
                model_input=model_input,
                b_next_token_ids=torch.where(follows >= 0, follows, next_tokens),
                mtp_draft_input_hiddens=self.model.project(self.model.capture.take_prefilled()),
            )
        )
        return Proposal.stack([self._draft(out.logits)])

    def _draft(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest tokens, int64[N] in the target's vocabulary, and their log-probabilities, float32[N]."""
        tokens, log_probs = ops.draft_scores(logits)
        return self.model.pre_post_weight.in_target(tokens), log_probs
