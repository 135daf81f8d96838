"""Arguments of vLLM's LLM() that Paceline knows and does not have.

Each is accepted at the values under which it asks for nothing, and refused with its reason at any other. A
value is compared with its type, so that 0 is not False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Foreign:
    harmless: tuple[Any, ...]
    reason: str

    def accepts(self, value: object) -> bool:
        return any(type(value) is type(known) and value == known for known in self.harmless)


_TEXT_ONLY = "Paceline serves text-only decoders."
_ALWAYS_CHUNKED = "prefill is always chunked here: a step has no phases."
_ONE_GRAMMAR = "xgrammar is the one backend."
_NO_LORA = "LoRA adapters are not supported; merge the adapter into the weights."
_ONE_NODE = "this version runs on one node, without pipeline or data parallelism."
_LOSSLESS = "acceptance is exact; choose its method with speculative_config.rejection_sample_method."
_ONE_REVISION = "give the directory of the revision that you want as model."
_NO_HF = "the model is read as its files say."
_NO_COMPILE = "there is no compiler to set up; captured graphs need no options."
_NO_OFFLOAD = "weights and KV cache stay in the memory of the device."

FOREIGN: dict[str, Foreign] = {
    "tokenizer_mode": Foreign(("auto", "hf"), "the model's own fast tokenizer is used."),
    "trust_remote_code": Foreign((False,), "code that comes with a model is never run."),
    "tokenizer_revision": Foreign((None,), _ONE_REVISION),
    "revision": Foreign((None,), _ONE_REVISION),
    "code_revision": Foreign((None,), _ONE_REVISION),
    "runner": Foreign(("auto", "generate"), _TEXT_ONLY),
    "task": Foreign(("auto", "generate"), _TEXT_ONLY),
    "convert": Foreign(("auto", "none"), _TEXT_ONLY),
    "hf_token": Foreign((None,), "set the environment variable HF_TOKEN."),
    "hf_overrides": Foreign((None,), _NO_HF),
    "hf_config_path": Foreign((None,), _NO_HF),
    "config_format": Foreign(("auto", "hf"), _NO_HF),
    "rope_scaling": Foreign((None,), _NO_HF),
    "rope_theta": Foreign((None,), _NO_HF),
    "override_generation_config": Foreign((None,), _NO_HF),
    "generation_config": Foreign((None, "auto", "vllm"), _NO_HF),
    "download_dir": Foreign((None,), "set the environment variable PACELINE_HOME."),
    "allowed_local_media_path": Foreign(("", None), _TEXT_ONLY),
    "mm_processor_kwargs": Foreign((None,), _TEXT_ONLY),
    "limit_mm_per_prompt": Foreign((None,), _TEXT_ONLY),
    "disable_mm_preprocessor_cache": Foreign((False,), _TEXT_ONLY),
    "pooler_config": Foreign((None,), _TEXT_ONLY),
    "override_pooler_config": Foreign((None,), _TEXT_ONLY),
    "calculate_kv_scales": Foreign((False,), "an FP8 cache has the checkpoint's scales, or 1."),
    "swap_space": Foreign((0, 0.0, 4, 4.0), "a preempted sequence is computed again, not swapped out."),
    "cpu_offload_gb": Foreign((0, 0.0), _NO_OFFLOAD),
    "kv_offloading_size": Foreign((None,), _NO_OFFLOAD),
    "pipeline_parallel_size": Foreign((1,), _ONE_NODE),
    "data_parallel_size": Foreign((1,), _ONE_NODE),
    "enable_expert_parallel": Foreign((False,), _ONE_NODE),
    "distributed_executor_backend": Foreign((None,), _ONE_NODE),
    "worker_use_ray": Foreign((False,), _ONE_NODE),
    "disable_custom_all_reduce": Foreign((False, True), ""),
    "enable_chunked_prefill": Foreign((None, True), _ALWAYS_CHUNKED),
    "max_num_partial_prefills": Foreign((1,), _ALWAYS_CHUNKED),
    "use_v2_block_manager": Foreign((True,), "there is one block manager."),
    "max_seq_len_to_capture": Foreign((8192, None), "every decode step is captured, whatever the length."),
    "max_context_len_to_capture": Foreign((None,), "every decode step is captured, whatever the length."),
    "compilation_config": Foreign((None,), _NO_COMPILE),
    "cudagraph_capture_sizes": Foreign((None,), _NO_COMPILE),
    "disable_async_output_proc": Foreign((False,), "outputs are processed in the step that made them."),
    "async_scheduling": Foreign((None, False), "outputs are processed in the step that made them."),
    "disable_log_stats": Foreign((True, False), ""),
    "logprobs_mode": Foreign(("raw_logprobs",), "logprobs are taken before temperature and every restriction."),
    "disable_sliding_window": Foreign((False,), _NO_HF),
    "guided_decoding_backend": Foreign(("auto", "xgrammar", None), _ONE_GRAMMAR),
    "structured_outputs_config": Foreign(
        (None, {"backend": "auto"}, {"backend": "xgrammar"}), "xgrammar is the one backend."
    ),
    "logits_processors": Foreign((None,), "code of the user inside the sampler is not supported."),
    "enable_lora": Foreign((False,), _NO_LORA),
    "max_loras": Foreign((1,), _NO_LORA),
    "max_lora_rank": Foreign((16, 64), _NO_LORA),
    "scheduling_policy": Foreign(("fcfs",), "requests are served in the order of their arrival."),
    "model_impl": Foreign(("auto",), "there is one implementation of each model."),
    "attention_backend": Foreign((None,), "there is one attention for each device."),
    "prefix_caching_hash_algo": Foreign(("sha256",), "the choice changes nothing here."),
    "speculative_disable_by_batch_size": Foreign((None,), "K follows load by itself; see docs/adaptive.md."),
    "num_speculative_tokens_per_batch_size": Foreign((None,), "K follows load by itself; see docs/adaptive.md."),
    "speculative_disable_mqa_scorer": Foreign((None, False), "there is one way to verify."),
    "speculative_lookahead_slots": Foreign((None, 0), "slots are reserved by the scheduler."),
    "spec_decoding_acceptance_method": Foreign(("rejection_sampler",), _LOSSLESS),
    "typical_acceptance_sampler_posterior_threshold": Foreign((None,), _LOSSLESS),
    "typical_acceptance_sampler_posterior_alpha": Foreign((None,), _LOSSLESS),
    "disable_logprobs_during_spec_decoding": Foreign((None, False), "logprobs are exact with speculation too."),
}

FOREIGN_SPECULATIVE: dict[str, Foreign] = {
    "revision": Foreign((None,), _ONE_REVISION),
    "code_revision": Foreign((None,), _ONE_REVISION),
    "enforce_eager": Foreign((None, False), "set enforce_eager for both models, outside speculative_config."),
    "disable_by_batch_size": Foreign((None,), "K is not yet chosen by load."),
    "disable_mqa_scorer": Foreign((None, False), "there is one way to verify."),
    "disable_padded_drafter_batch": Foreign((None, False), "draft batches are never padded."),
    "disable_logprobs": Foreign((None, False), "logprobs are exact with speculation too."),
    "parallel_drafting": Foreign((False,), "a draft model proposes one token after the other."),
    "acceptance_method": Foreign(("rejection_sampler",), "it is called rejection_sample_method now."),
    "synthetic_acceptance_length": Foreign((None,), "give synthetic_acceptance_rates."),
    "posterior_threshold": Foreign((None,), _LOSSLESS),
    "posterior_alpha": Foreign((None,), _LOSSLESS),
    "use_local_argmax_reduction": Foreign((False,), "this version drafts on one rank."),
}

OTHER_METHODS = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "deepseek_mtp", "suffix", "draft_tree")
