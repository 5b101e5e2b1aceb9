"""What all drafters of this package share: a Llama decoder of LightLLM's classes, with KV and weights of its own.

A subclass names its layers and what lies around them. Embedding and output layer are the target's where the
checkpoint has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightllm.common.basemodel.layer_weights.meta_weights.embedding_weight import EmbeddingWeight, LMHeadWeight
from lightllm.common.basemodel.layer_weights.meta_weights.mm_weight.rowmm_weight import KVROWNMMWeight, ROWMMWeight
from lightllm.common.basemodel.layer_weights.meta_weights.norm_weight import QKRMSNORMWeight, RMSNormWeight
from lightllm.common.basemodel.layer_weights.pre_and_post_layer_weight import PreAndPostLayerWeight
from lightllm.models.llama.layer_infer.transformer_layer_infer import LlamaTransformerLayerInfer
from lightllm.models.llama.layer_weights.transformer_layer_weight import LlamaTransformerLayerWeight
from lightllm.models.llama.model import LlamaTpPartModel
from lightllm.models.llama.triton_kernel.rotary_emb import rotary_emb_fwd

from lightspec_lightllm.adapters.lightllm.drafters.capture import ATTRIBUTE, HiddenCapture
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint, expected_tensors
from lightspec_lightllm.adapters.lightllm.drafters.draft_kv import DraftKv
from lightspec_lightllm.adapters.lightllm.drafters.layouts import Layout
from lightspec_lightllm.adapters.lightllm.drafters.tensor_values import load_tensors
from lightspec_lightllm.adapters.lightllm.drafters.vocabulary import target_offsets


def network_config(layout: Layout) -> dict[str, Any]:
    """A layout's decoder under the names that LightLLM's classes read."""
    decoder = layout.decoder
    query = expected_tensors(layout)["layers.0.self_attn.q_proj.weight"]
    return {
        "hidden_size": decoder.hidden_size,
        "n_embed": decoder.hidden_size,
        "num_hidden_layers": decoder.num_layers,
        "n_layer": decoder.num_layers,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "intermediate_size": decoder.intermediate_size,
        "vocab_size": decoder.vocab_size,
        "rms_norm_eps": decoder.norm_epsilon,
        "max_position_embeddings": decoder.max_positions,
        "rope_theta": decoder.rope_theta,
        "rope_scaling": decoder.rope_scaling,
        "layout": layout,
        "attention_inputs": query[1],
    }


class DraftWeights(PreAndPostLayerWeight):
    """Embedding, output layer with its vocabulary, last norm, and the projection ``fc`` of captured states, which every
    rank has whole."""

    def __init__(self, data_type: torch.dtype, layout: Layout, checkpoint: DraftCheckpoint, target: Any) -> None:
        super().__init__(data_type, network_config(layout))
        decoder, theirs = layout.decoder, target.pre_post_weight
        width, shapes = decoder.hidden_size, expected_tensors(layout)
        self.wte_weight_ = theirs.wte_weight_
        if "embed_tokens.weight" in checkpoint.tensors:
            self.wte_weight_ = EmbeddingWeight(width, decoder.vocab_size, "model.embed_tokens.weight", data_type)
        self.lm_head_weight_ = theirs.lm_head_weight_
        if "lm_head.weight" in checkpoint.tensors:
            self.lm_head_weight_ = LMHeadWeight(width, layout.draft_vocab_size, "lm_head.weight", data_type)
        self.final_norm_weight_ = RMSNormWeight(width, "model.norm.weight", data_type)
        self.fc = ROWMMWeight(
            in_dim=shapes["fc.weight"][1],
            out_dims=[width],
            weight_names="fc.weight",
            data_type=data_type,
            tp_rank=0,
            tp_world_size=1,
        )
        self._vocab_size, self._folder = decoder.vocab_size, checkpoint.folder
        self._offsets: torch.Tensor | None = None

    def load_hf_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """As LightLLM's, and the mapping of the vocabulary."""
        super().load_hf_weights(weights)
        offsets = target_offsets(weights, self._vocab_size, self._folder)
        self._offsets = None if offsets is None else offsets.cuda()

    def in_target(self, tokens: torch.Tensor) -> torch.Tensor:
        """Drafted tokens, int64, as the target numbers them."""
        return tokens if self._offsets is None else tokens + self._offsets[tokens]


class DraftLayerWeight(LlamaTransformerLayerWeight):
    """A decoder layer whose attention may read more than one hidden state, with norms per head and biases if any."""

    def _init_weight_names(self) -> None:
        super()._init_weight_names()
        if self.network_config_["layout"].decoder.has_bias:
            prefix = f"model.layers.{self.layer_num_}.self_attn."
            self._q_bias_name, self._k_bias_name = f"{prefix}q_proj.bias", f"{prefix}k_proj.bias"
            self._v_bias_name, self._o_bias_name = f"{prefix}v_proj.bias", f"{prefix}o_proj.bias"

    def _init_qkv(self) -> None:
        inputs = self.network_config_["attention_inputs"]
        self.q_proj = ROWMMWeight(
            in_dim=inputs,
            out_dims=[self.q_head_num_ * self.head_dim],
            weight_names=self._q_weight_name,
            data_type=self.data_type_,
            bias_names=self._q_bias_name,
            quant_method=self.get_quant_method("q_proj"),
        )
        self.kv_proj = KVROWNMMWeight(
            in_dim=inputs,
            kv_head_num=self.k_head_num_,
            head_dim=self.head_dim,
            weight_names=[self._k_weight_name, self._v_weight_name],
            data_type=self.data_type_,
            bias_names=[self._k_bias_name, self._v_bias_name],
            quant_method=self.get_quant_method("kv_proj"),
        )

    def _init_norm(self) -> None:
        super()._init_norm()
        if self.network_config_["layout"].decoder.has_qk_norm:
            prefix = f"model.layers.{self.layer_num_}.self_attn."
            self.qk_norm_weight_ = QKRMSNORMWeight(
                dim=self.head_dim,
                q_weight_name=f"{prefix}q_norm.weight",
                k_weight_name=f"{prefix}k_norm.weight",
                data_type=self.data_type_,
            )


class DraftLayerInfer(LlamaTransformerLayerInfer):
    """The forward of such a layer's attention; heads are as wide as the checkpoint says."""

    def __init__(self, layer_num: int, network_config: dict[str, Any]) -> None:
        super().__init__(layer_num, network_config)
        self.head_dim_ = network_config["head_dim"]
        self.has_qk_norm = network_config["layout"].decoder.has_qk_norm

    def _get_qkv(self, input: torch.Tensor, infer_state: Any, layer_weight: Any) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002 - LightLLM's
        queries = layer_weight.q_proj.mm(input)
        keys_values = layer_weight.kv_proj.mm(input)
        if self.has_qk_norm:
            layer_weight.qk_norm_weight_(queries, keys_values[:, : self.tp_k_head_num_ * self.head_dim_], eps=self.eps_)
        keys_values = keys_values.view(-1, self.tp_k_head_num_ + self.tp_v_head_num_, self.head_dim_)
        rotary_emb_fwd(
            queries.view(-1, self.tp_q_head_num_, self.head_dim_),
            keys_values[:, : self.tp_k_head_num_],
            infer_state.position_cos,
            infer_state.position_sin,
        )
        return queries, keys_values


class DraftModel(LlamaTpPartModel):
    """A drafter on the requests and the token slots of a target.

    Args:
        kvargs: of LightLLM's models, and ``main_model`` and ``checkpoint``.
    """

    is_mtp_draft_model = True  # as LightLLM calls it: decode batches carry hidden states

    transformer_weight_class = DraftLayerWeight
    transformer_layer_infer_class = DraftLayerInfer

    def __init__(self, kvargs: dict[str, Any]) -> None:
        self.main_model: Any = kvargs.pop("main_model")
        self.checkpoint: DraftCheckpoint = kvargs.pop("checkpoint")
        self.layout = self.checkpoint.layout
        self.capture.take_prefilled()  # of the prefill with which the target tried out its memory
        super().__init__(kvargs)
        # The base class has just given the requests this model's KV; it is the target's that they own.
        self.req_manager.mem_manager = self.main_model.mem_manager

    @property
    def capture(self) -> HiddenCapture:
        """Of the target's hidden states."""
        found: HiddenCapture = getattr(self.main_model, ATTRIBUTE)
        return found

    def project(self, captured: torch.Tensor) -> torch.Tensor:
        """float[B, hidden] from captured states float[B, P * H]."""
        projected: torch.Tensor = self.pre_post_weight.fc.mm(captured)
        return projected

    def make_weights(self) -> PreAndPostLayerWeight:
        """What lies around the layers."""
        return DraftWeights(self.data_type, self.layout, self.checkpoint, self.main_model)

    def _init_config(self) -> None:
        self.config = network_config(self.layout)

    def _verify_params(self) -> None:
        """Heads are checked with the tensors; LightLLM's weights check that ranks can share them."""

    def _init_some_value(self) -> None:
        self.head_dim_ = self.layout.decoder.head_dim
        self.tp_k_head_num_ = max(self.layout.decoder.num_kv_heads // self.tp_world_size_, 1)
        self.tp_v_head_num_ = self.tp_k_head_num_
        self.layers_num = self.layout.decoder.num_layers
        self.vocab_size = self.layout.decoder.vocab_size

    def _init_req_manager(self) -> None:
        self.req_manager = self.main_model.req_manager

    def _init_mem_manager(self) -> None:
        self.mem_manager = DraftKv(
            self.main_model.mem_manager,
            num_layers=self.layout.decoder.num_layers,
            num_heads=max(self.layout.decoder.num_kv_heads // self.tp_world_size_, 1),
            head_dim=self.layout.decoder.head_dim,
            dtype=self.data_type,
        )

    def _init_weights(self, start_layer_index: int = 0) -> None:
        self.pre_post_weight = self.make_weights()
        self.trans_layers_weight = [
            self.transformer_weight_class(index, self.data_type, network_config=self.config, quant_cfg=self.quant_cfg)
            for index in range(start_layer_index, start_layer_index + self.layout.decoder.num_layers)
        ]

    def load_weights(self, weight_dict: dict[str, torch.Tensor] | None) -> None:
        """From the checkpoint, whose layers LightLLM's classes look for below ``model.``."""
        assert weight_dict is None, "a drafter's weights are those of its checkpoint"  # noqa: S101 - nobody gives any
        ours = ("layers.", "norm.", "embed_tokens.")
        values = load_tensors(self.checkpoint)
        super().load_weights({f"model.{name}" if name.startswith(ours) else name: values[name] for name in values})
