"""What `vllm serve` takes, by version: names only, read from the published packages 0.20.0 to 0.33.0.

A key is the first and the last minor version of 0.x in which a name is there; where the patches of a minor version
differ, a name counts as there only if every patch has it. An installed vLLM is asked itself (`probe.py`): the tables
are for the versions that are not at hand.
"""

from __future__ import annotations

Ranges = dict[tuple[int, int], str]

FIRST, LAST = 20, 33

# Options of `vllm serve`, without their dashes.
FLAGS: Ranges = {
    (20, 24): "log-level",
    (20, 26): "max-long-partial-prefills max-num-partial-prefills",
    (20, 27): "calculate-kv-scales override-attention-dtype",
    (20, 33): (
        "additional-config aggregate-engine-logging all2all-backend allow-credentials "
        "allow-deprecated-quantization allowed-headers allowed-local-media-path allowed-media-domains "
        "allowed-methods allowed-origins api-key api-server-count async-scheduling attention-backend "
        "attention-config block-size chat-template chat-template-content-format code-revision "
        "collect-detailed-traces compilation-config config config-format convert cp-kv-cache-interleave-size "
        "cpu-offload-gb cpu-offload-params cudagraph-capture-sizes cudagraph-metrics data-parallel-address "
        "data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb data-parallel-rank "
        "data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank "
        "dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size "
        "decode-context-parallel-size default-chat-template-kwargs default-mm-loras "
        "disable-access-log-for-endpoints disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce "
        "disable-fastapi-docs disable-hybrid-kv-cache-manager disable-log-stats "
        "disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log "
        "distributed-executor-backend distributed-timeout-seconds download-dir dtype ec-transfer-config "
        "enable-auto-tool-choice enable-chunked-prefill enable-dbo enable-elastic-ep enable-ep-weight-filter "
        "enable-eplb enable-expert-parallel enable-flash-late-interaction enable-flashinfer-autotune "
        "enable-force-include-usage enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs "
        "enable-log-requests enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding "
        "enable-mfu-metrics enable-mm-embeds enable-offline-docs enable-prefix-caching enable-prompt-embeds "
        "enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts "
        "enable-server-load-tracking enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint "
        "enable-tower-connector-lora enforce-eager eplb-config exclude-tools-when-tool-choice-none "
        "expert-placement-strategy fail-on-environ-validation fully-sharded-loras gdn-prefill-backend "
        "generation-config gpu-memory-utilization grpc h11-max-header-count h11-max-incomplete-event-size "
        "headless help hf-config-path hf-overrides hf-token host ignore-patterns interleave-mm-strings "
        "io-processor-plugin ir-op-priority kernel-config kv-cache-dtype kv-cache-dtype-skip-layers "
        "kv-cache-memory-bytes kv-cache-metrics kv-cache-metrics-sample kv-events-config kv-offloading-backend "
        "kv-offloading-size kv-sharing-fast-prefill kv-transfer-config language-model-only limit-mm-per-prompt "
        "load-format log-config-file log-error-stack logits-processors logprobs-mode long-prefill-token-threshold "
        "lora-dtype lora-modules lora-target-modules mamba-backend mamba-block-size mamba-cache-dtype "
        "mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype master-addr master-port max-cpu-loras "
        "max-cudagraph-capture-size max-log-len max-logprobs max-lora-rank max-loras max-model-len "
        "max-num-batched-tokens max-num-seqs max-parallel-loading-workers media-io-kwargs middleware "
        "mm-encoder-attn-backend mm-encoder-only mm-encoder-tp-mode mm-processor-cache-gb mm-processor-cache-type "
        "mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-impl "
        "model-loader-extra-config moe-backend nnodes node-rank num-gpu-blocks-override numa-bind numa-bind-cpus "
        "numa-bind-nodes offload-backend offload-group-size offload-num-in-group offload-params "
        "offload-prefetch-step optimization-level otlp-traces-endpoint override-generation-config "
        "performance-mode pipeline-parallel-size pooler-config port prefill-context-parallel-size "
        "prefix-caching-hash-algo profiler-config pt-load-map-location quantization ray-workers-use-nsight "
        "reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers response-role "
        "return-tokens-as-token-ids revision root-path runner safetensors-load-strategy scheduler-cls "
        "scheduler-reserve-full-isl scheduling-policy seed served-model-name show-hidden-metrics-for-version "
        "shutdown-timeout skip-mm-profiling skip-tokenizer-init specialize-active-lora speculative-config "
        "ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval "
        "structured-outputs-config tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tokens-only "
        "tool-call-parser tool-parser-plugin tool-server trust-remote-code trust-request-chat-template "
        "ubatch-size uds use-tqdm-on-load uvicorn-log-level video-pruning-rate weight-transfer-config worker-cls "
        "worker-extension-cls"
    ),
    (21, 33): (
        "fingerprint-mode fingerprint-value mm-encoder-attn-dtype mm-encoder-fp8-scale-path "
        "mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path safetensors-prefetch-block-size "
        "safetensors-prefetch-num-threads"
    ),
    (22, 33): (
        "cpu-distributed-timeout-seconds data-parallel-multi-port-external-lb data-parallel-supervisor-port "
        "dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s "
        "enable-cumem-allocator enable-mixed-moe-lora-format linear-backend quantization-config spec-method "
        "spec-model spec-tokens use-fp64-gumbel"
    ),
    (24, 33): "device-ids diffusion-config jit-monitor-verbose prefill-schedule-interval watermark",
    (25, 33): "enable-per-request-metrics jit-monitor-mode mm-ipc-gpu-memory-gb model-class-overrides",
    (26, 29): "enable-bf16x3-router-gemm",
    (26, 33): "enable-moe-shared-loras max-num-scheduled-tokens prefix-match-unit",
    (27, 33): (
        "cohere-format cohere-is-reasoning-model enable-fault-tolerance fault-tolerance-config "
        "kda-prefill-backend mamba-ssu-algorithm mm-hasher-algorithm replayssm-buffer-len use-replayssm "
        "video-pruning-method"
    ),
    (28, 33): "ec-manager-config mm-device-do-normalize mm-processor-device return-sampling-mask",
    (29, 33): (
        "dcp-q-replicate enable-batch-sharded-sampling enable-trace-replay max-num-queued-reqs "
        "max-num-queued-tokens per-request-spec-decode-metrics prefix-cache-retention-interval "
        "sse-keep-alive-interval"
    ),
    (30, 30): "enable-mamba-fine-grained-prefix-cache",
    (30, 33): (
        "dp-sync-interval elastic-ep-max-dp-size enable-nccl-comm-suspend enable-scale-out engram-config "
        "kda-decode-backend sparse-indexer-topk-backend watermark-config"
    ),
    (31, 33): (
        "anthropic-disabled-thinking-effort aux-output-config device-memory-utilization "
        "enable-mamba-shared-prefix-checkpoint log-level logging-config long-prefill-token-threshold-adaptive "
        "max-lora-cls-labels max-num-active-seqs sleep-preserve-parameter-names swa-bounded-replay "
        "tool-strict-level trust-request-mm-kwargs"
    ),
    (32, 33): "custom-histogram-buckets enable-hc-sp enable-shm-tensor-arena grpc-port sleep-mode-offload-cudagraph",
    (33, 33): "monokernel reasoning-effort-map sleep-mode-backend watchdog-config",
}

# Keys of --speculative-config.
SPECULATIVE_FIELDS: Ranges = {
    (20, 20): "speculative_token_tree",
    (20, 33): (
        "code_revision disable_padded_drafter_batch draft_tensor_parallel_size enforce_eager max_model_len method "
        "model moe_backend num_speculative_tokens parallel_drafting prompt_lookup_max prompt_lookup_min "
        "quantization rejection_sample_method revision suffix_decoding_max_cached_requests "
        "suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth suffix_decoding_min_token_prob "
        "synthetic_acceptance_length synthetic_acceptance_rates use_local_argmax_reduction"
    ),
    (21, 33): "attention_backend draft_sample_method",
    (24, 33): "num_speculative_tokens_per_batch_size",
    (25, 33): "use_heterogeneous_vocab",
    (26, 33): "kv_cache_dtype",
    (28, 33): "dspark_draft_topk enable_adaptive_verification",
    (29, 33): "index_share_for_mtp_iteration",
    (30, 33): "disable_eagle_block_drop",
    (33, 33): (
        "disable_lookahead_block_hashes draft_lm_head_quantization fly_entropy_threshold fly_entropy_top_k "
        "fly_window_size xpress_topc"
    ),
}

# Its `method`.
METHODS: Ranges = {
    (20, 32): "medusa mlp_speculator",
    (20, 33): (
        "deepseek_mtp dflash draft_model eagle eagle3 ernie_mtp exaone4_5_mtp exaone_moe_mtp "
        "extract_hidden_states glm4_moe_lite_mtp glm4_moe_mtp glm_ocr_mtp hy_v3_mtp longcat_flash_mtp mimo_mtp "
        "mtp nemotron_h_mtp ngram ngram_gpu pangu_ultra_moe_mtp qwen3_5_mtp qwen3_next_mtp step3p5_mtp suffix"
    ),
    (21, 33): "gemma4_mtp mimo_v2_mtp",
    (22, 33): "custom_class",
    (24, 33): "minimax_m3_mtp",
    (25, 33): "bailing_hybrid_mtp dspark",
    (26, 33): "inkling_mtp",
    (27, 33): "kimi_k3_mtp",
    (28, 33): "bailing_hybrid_v3_mtp dots3_note_mtp",
    (29, 33): "hy_v4_mtp qwen4_exp_mtp",
    (30, 33): "glm5_next_mtp",
    (33, 33): "step5_mtp",
}

# Its `rejection_sample_method`.
ACCEPTANCE_METHODS: Ranges = {
    (20, 20): "probabilistic strict",
    (20, 33): "synthetic",
    (21, 33): "standard",
    (25, 33): "block",
    (33, 33): "fly",
}
