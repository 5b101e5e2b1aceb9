"""What dynamic mode relies on in LightLLM besides the targets of `hooks.HOOKS`, which are compared in every process.

A name that another LightLLM lacks stops the launcher, with the reason, and not a rank in the middle of a round.
"""

from __future__ import annotations

from lightspec_lightllm.adapters.lightllm.drafters.expected import DRAFTERS_EXPECT
from lightspec_lightllm.adapters.lightllm.signatures import Expectation

_ROUTER = "lightllm.server.router"
_MODEL_INFER = f"{_ROUTER}.model_infer"
_MODES = f"{_MODEL_INFER}.mode_backend"
_MODEL = "lightllm.common.basemodel"
_ATTENTION = f"{_MODEL}.attention"

EXPECTED: tuple[Expectation, ...] = (
    Expectation(
        "lightllm.server.core.objs.start_args_type:StartArgs",
        fields=(
            "model_dir", "run_mode", "dp", "nnodes", "tp", "running_max_req_size", "graph_max_batch_size",
            "disable_cudagraph", "llm_decode_att_backend", "llm_kv_type", "mtp_mode", "mtp_draft_model_dir",
            "mtp_step", "enable_ep_moe", "enable_prefill_microbatch_overlap", "enable_decode_microbatch_overlap",
            "enable_tpsp_mix_mode", "enable_prefill_decode_mixed", "output_constraint_mode", "token_healing_mode",
            "first_token_constraint_mode", "diverse_mode", "use_reward_model", "penalty_counter_mode",
            "enable_cpu_cache", "enable_prefill_cudagraph", "disable_flashinfer_allreduce",
        ),
    ),
    Expectation("lightllm.server.api_cli:make_argument_parser", "()"),
    Expectation("lightllm.server.api_server:launch_server", "(args)"),
    Expectation("lightllm.utils.envs_utils:get_env_start_args", "()"),
    Expectation("lightllm.utils.log_utils:init_logger", "(name)"),
    Expectation("lightllm.utils.shm_port_args:get_shm_port_args", "(create=False)"),
    Expectation("lightllm.utils.envs_utils:get_unique_server_name", "()"),
    Expectation(
        f"{_ROUTER}.dynamic_prompt.radix_cache:RadixCache.free_radix_cache_to_get_enough_token",
        "(self, need_token_num)",
    ),
    Expectation(f"{_ROUTER}.dynamic_prompt.shared_arr:SharedArray.__init__", "(self, name, shape, dtype)"),
    Expectation(f"{_MODEL_INFER}.infer_batch:g_infer_context"),
    Expectation(f"{_MODEL_INFER}.infer_batch:InferenceContext.get_overlap_stream", "(self)"),
    Expectation(f"{_MODEL_INFER}.infer_batch:InferenceContext.get_can_alloc_token_num", "(self)"),
    Expectation(f"{_MODEL_INFER}.infer_batch:InferReq.get_cur_total_len", "(self)"),
    Expectation(f"{_MODEL_INFER}.infer_batch:InferReq.get_chuncked_input_token_len", "(self)"),
    Expectation(f"{_MODEL_INFER}.infer_batch:InferReq.update_mtp_accepted_token_num", "(self, accept_token_num)"),
    Expectation(f"{_MODEL_INFER}.pin_mem_manager:g_pin_mem_manager"),
    Expectation(f"{_MODEL_INFER}.pin_mem_manager:PinMemTensorManager.alloc_pin_tensor", "(self, key, size, dtype)"),
    Expectation(f"{_MODEL_INFER}.pin_mem_manager:PinMemTensorManager.gen_from_list", "(self, key, data, dtype)"),
    Expectation(
        f"{_MODEL_INFER}.pin_mem_manager:PinMemTensorManager.async_copy_from_gpu_tensor", "(self, key, gpu_tensor)"
    ),
    Expectation("lightllm.server.metrics.manager:MetricClient.counter_inc_by", "(self, *args, **kwargs)"),
    Expectation("lightllm.server.metrics.manager:MetricServer.exposed_counter_inc_by", "(self, name, amount)"),
    Expectation(f"{_MODES}.base_backend:ModeBackend.init_model", "(self, kvargs)"),
    Expectation(f"{_MODES}.base_backend:ModeBackend.init_mtp_draft_model", "(self, main_kvargs)"),
    Expectation(f"{_MODES}.base_backend:ModeBackend._pre_post_handle", "(self, run_reqs, is_chuncked_mode)"),
    Expectation(
        f"{_MODES}.base_backend:ModeBackend._post_handle",
        "(self, run_reqs, next_token_ids, next_token_logprobs, next_token_ranks, run_reqs_update_packs, "
        "extra_post_req_handle_func=None, pd_prefill_chunked_handle_func=None)",
    ),
    Expectation(
        f"{_MODES}.base_backend:ModeBackend._verify_mtp_v2",
        "(self, new_next_token_ids, b_req_idx, b_req_mtp_start_loc)",
    ),
    Expectation(
        f"{_MODES}.base_backend:ModeBackend._sample_and_scatter_token",
        "(self, logits, b_req_idx, b_mtp_index, run_reqs, is_prefill, b_prefill_has_output_cpu=None, mask_func=None)",
    ),
    Expectation(f"{_MODES}.overlap_events:OverlapEventPack.notify_post_handle_and_wait_pre_post_handle", "(self)"),
    Expectation(f"{_MODES}.overlap_events:OverlapEventPack.notify_forward_and_wait_post_handle", "(self)"),
    Expectation(f"{_MODES}.overlap_events:OverlapEventPack.notify_pre_post_handle", "(self)"),
    Expectation(f"{_MODES}.chunked_prefill.impl:ChunkedPrefillBackend.__init__", "(self)"),
    Expectation(
        f"{_MODES}.chunked_prefill.impl:ChunkedPrefillBackend.prefill_mtp", "(self, event_pack, prefill_reqs)"
    ),
    Expectation(f"{_MODES}.chunked_prefill.impl:ChunkedPrefillBackend.decode_mtp", "(self, event_pack, decode_reqs)"),
    Expectation(
        f"{_MODES}.chunked_prefill.impl:ChunkedPrefillBackend._draft_prefill_forward",
        "(self, model_input, model_output, next_token_ids)",
    ),
    Expectation(
        f"{_MODES}.mtp_pre_process:prepare_mtp_prefill_inputs",
        "(model_input, b_next_token_ids, mtp_draft_input_hiddens)",
    ),
    Expectation(
        f"{_MODEL}.batch_objs:ModelInput",
        fields=(
            "batch_size", "total_token_num", "max_q_seq_len", "max_kv_seq_len", "input_ids", "b_req_idx",
            "b_mtp_index", "b_seq_len", "mem_indexes", "mem_indexes_cpu", "is_prefill", "b_position_delta",
            "multimodal_params", "mtp_draft_input_hiddens", "b_ready_cache_len", "b_prefill_has_output_cpu",
        ),
    ),
    Expectation(f"{_MODEL}.batch_objs:ModelOutput", fields=("logits", "mtp_main_output_hiddens")),
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel.forward", "(self, model_input)"),
    Expectation(f"{_MODEL}.basemodel:TpPartBaseModel._gen_special_model_input", "(self, token_num)"),
    Expectation(f"{_MODEL}.cuda_graph:CudaGraph.can_run", "(self, batch_size, max_len_in_batch)"),
    Expectation(f"{_MODEL}.cuda_graph:CudaGraph.find_closest_graph_batch_size", "(self, batch_size)"),
    Expectation(f"{_ATTENTION}.base_att:BaseAttBackend.__new__", "(cls, *args, **kwargs)"),
    Expectation(f"{_ATTENTION}.base_att:BaseAttBackend._instances"),
    Expectation("lightllm.common.kv_cache_mem_manager.mem_manager:MemoryManager.alloc", "(self, need_size)"),
    Expectation("lightllm.common.kv_cache_mem_manager.mem_manager:MemoryManager.free", "(self, free_index)"),
    Expectation(
        "lightllm.common.req_manager:ReqSamplingParamsManager.update_reqs_out_token_counter_gpu",
        "(self, b_req_idx, next_token_ids, mask=None)",
    ),
    Expectation(
        f"{_MODEL}.triton_kernel.gather_token_id:scatter_token",
        "(next_token_ids, req_to_next_token_ids, b_req_idx, b_mtp_index, b_has_out=None)",
    ),
    Expectation(
        f"{_MODEL}.triton_kernel.post_process.apply_penalty_gpu_cache:apply_penalty_gpu_cache",
        "(Logits, b_req_idx, b_length_penalty_param, b_mask_eos_reqs, eos_ids, sampling_params_manager)",
    ),
    Expectation(
        f"{_MODEL}.triton_kernel.mtp_utils:linear_att_mtp_state_index_update",
        "(req_to_mtp_state_index, b_req_mtp_start_loc, b_req_idx, b_mtp_index, accepted_index, max_mtp_step)",
    ),
    Expectation(
        f"{_MODEL}.triton_kernel.mtp_utils:mtp_verify",
        "(req_to_next_token_ids, b_req_mtp_start_loc, new_next_token_ids, b_req_idx)",
    ),
    Expectation(
        f"{_MODEL}.triton_kernel.mtp_utils:mtp_scatter_next_token_ids",
        "(req_to_next_token_ids, b_req_mtp_start_loc, all_next_token_ids, b_req_idx, mtp_accept_len)",
    ),
    Expectation(
        f"{_ATTENTION}.fa3.fp:Fa3DecodeAttState",
        fields=("cu_seqlens_q", "cu_seqlens_k", "page_table", "b_att_seq_len", "decode_max_q_seq_len"),
    ),
    Expectation(
        f"{_ATTENTION}.fa3.mla:MlaFa3DecodeAttState",
        fields=("cu_seqlens_q", "cu_seqlens_k", "page_table", "b_att_seq_len", "decode_max_q_seq_len"),
    ),
    Expectation(f"{_ATTENTION}.fa3.fp8:Fp8Fa3DecodeAttState", fields=("k_descale", "v_descale")),
    Expectation(f"{_ATTENTION}.fa3.fp:Fa3AttBackend.get_page_table_buffer", "(self)"),
    Expectation(f"{_ATTENTION}.fa3.mla:MlaFa3AttBackend.get_page_table_buffer", "(self)"),
    Expectation(
        f"{_ATTENTION}.linear.gdn:LinearAttDecodeAttState",
        fields=("b_conv_buffer_idx", "b_ssm_buffer_idx", "b1_mtp_cu_q_seq_len", "b_num_accepted_tokens"),
    ),
    *DRAFTERS_EXPECT,
)  # fmt: skip
