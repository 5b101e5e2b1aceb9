"""What drafters that this package loads rely on in LightLLM; see `lightspec_lightllm.adapters.lightllm.expected`."""

from __future__ import annotations

from lightspec_lightllm.adapters.lightllm.signatures import Expectation

_MODEL = "lightllm.common.basemodel"
_WEIGHTS = f"{_MODEL}.layer_weights.meta_weights"
_KV = "lightllm.common.kv_cache_mem_manager"
_LLAMA = "lightllm.models.llama"

DRAFTERS_EXPECT: tuple[Expectation, ...] = (
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel._init_config", "(self)"),
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel._verify_params", "(self)"),
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel._init_weights", "(self, start_layer_index=0)"),
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel.load_weights", "(self, weight_dict)"),
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel._init_req_manager", "(self)"),
    Expectation(
        f"{_WEIGHTS}.embedding_weight:EmbeddingWeight.__init__",
        "(self, dim, vocab_size, weight_name, data_type)",
    ),
    Expectation(
        f"{_WEIGHTS}.embedding_weight:LMHeadWeight.__init__",
        "(self, dim, vocab_size, weight_name, data_type, embedding_weight=None)",
    ),
    Expectation(
        f"{_WEIGHTS}.mm_weight.rowmm_weight:ROWMMWeight.__init__",
        "(self, in_dim, out_dims, weight_names, data_type, bias_names=None, quant_method=None, tp_rank=None, "
        "tp_world_size=None)",
    ),
    Expectation(
        f"{_WEIGHTS}.mm_weight.rowmm_weight:KVROWNMMWeight.__init__",
        "(self, in_dim, kv_head_num, head_dim, weight_names, data_type, bias_names=None, quant_method=None, "
        "tp_rank=None, tp_world_size=None)",
    ),
    Expectation(
        f"{_WEIGHTS}.mm_weight.mm_weight:MMWeightTpl.mm",
        "(self, input_tensor, out=None, use_custom_tensor_mananger=True)",
    ),
    Expectation(f"{_WEIGHTS}.norm_weight:RMSNormWeight.__init__", "(self, dim, weight_name, data_type)"),
    Expectation(
        f"{_WEIGHTS}.norm_weight:RMSNormWeight.__call__",
        "(self, input, eps, out=None, alloc_func=torch.empty)",
    ),
    Expectation(
        f"{_WEIGHTS}.norm_weight:QKRMSNORMWeight.__init__",
        "(self, dim, q_weight_name, k_weight_name, data_type)",
    ),
    Expectation(f"{_WEIGHTS}.norm_weight:QKRMSNORMWeight.__call__", "(self, q, k, eps)"),
    Expectation(
        f"{_MODEL}.layer_weights.pre_and_post_layer_weight:PreAndPostLayerWeight.__init__",
        "(self, data_type, network_config)",
    ),
    Expectation(
        f"{_MODEL}.layer_weights.pre_and_post_layer_weight:PreAndPostLayerWeight.load_hf_weights",
        "(self, weights)",
    ),
    Expectation(
        f"{_MODEL}.layer_infer.template.transformer_layer_infer_template:TransformerLayerInferTpl.token_forward",
        "(self, input_embdings, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_MODEL}.layer_infer.template.transformer_layer_infer_template:TransformerLayerInferTpl.context_forward",
        "(self, input_embdings, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_MODEL}.layer_infer.template.transformer_layer_infer_template:TransformerLayerInferTpl.token_attention_forward",
        "(self, input_embdings, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_MODEL}.layer_infer.template.transformer_layer_infer_template:TransformerLayerInferTpl.context_attention_forward",
        "(self, input_embdings, infer_state, layer_weight)",
    ),
    Expectation(f"{_MODEL}.triton_kernel.gen_decode_params:gen_decode_params", "(b_seq_len)"),
    Expectation(
        f"{_MODEL}.triton_kernel.gen_prefill_params:gen_prefill_params",
        "(input_token_num, b_ready_cache_len, b_seq_len)",
    ),
    Expectation(f"{_MODEL}.triton_kernel.norm.qk_norm:qk_rmsnorm_forward", "(x, weight, eps)"),
    Expectation(
        f"{_KV}.operator.normal:NormalMemOperator.copy_kv_to_mem_manager",
        "(self, layer_index, mem_index, kv)",
    ),
    Expectation(f"{_KV}.operator.base:BaseMemManagerOperator.__init__", "(self, mem_manager)"),
    Expectation(f"{_KV}.mem_manager:MemoryManager.get_cell_size", "(self)"),
    Expectation(f"{_LLAMA}.infer_struct:LlamaInferStateInfo.init_some_extra_state", "(self, model)"),
    Expectation(
        f"{_LLAMA}.layer_infer.pre_layer_infer:LlamaPreLayerInfer.token_forward",
        "(self, input_ids, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_LLAMA}.layer_infer.pre_layer_infer:LlamaPreLayerInfer.context_forward",
        "(self, input_ids, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_LLAMA}.layer_infer.transformer_layer_infer:LlamaTransformerLayerInfer.__init__",
        "(self, layer_num, network_config)",
    ),
    Expectation(
        f"{_LLAMA}.layer_infer.transformer_layer_infer:LlamaTransformerLayerInfer._get_qkv",
        "(self, input, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_LLAMA}.layer_infer.transformer_layer_infer:LlamaTransformerLayerInfer._att_norm",
        "(self, input, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_LLAMA}.layer_infer.transformer_layer_infer:LlamaTransformerLayerInfer._ffn_norm",
        "(self, input, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_LLAMA}.layer_infer.transformer_layer_infer:LlamaTransformerLayerInfer._ffn",
        "(self, input, infer_state, layer_weight)",
    ),
    Expectation(
        f"{_LLAMA}.layer_weights.transformer_layer_weight:LlamaTransformerLayerWeight._init_weight_names",
        "(self)",
    ),
    Expectation(f"{_LLAMA}.layer_weights.transformer_layer_weight:LlamaTransformerLayerWeight._init_qkv", "(self)"),
    Expectation(f"{_LLAMA}.layer_weights.transformer_layer_weight:LlamaTransformerLayerWeight._init_norm", "(self)"),
    Expectation(f"{_LLAMA}.model:LlamaTpPartModel.__init__", "(self, kvargs)"),
    Expectation(f"{_LLAMA}.model:LlamaTpPartModel._init_mem_manager", "(self)"),
    Expectation(f"{_LLAMA}.triton_kernel.rotary_emb:rotary_emb_fwd", "(q, k, cos, sin, partial_rotary_factor=1.0)"),
    Expectation("lightllm.utils.dist_utils:get_dp_world_size", "()"),
)
