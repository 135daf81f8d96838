"""What follows an option of `vllm serve`: nothing, one value or several; read from the parser of 0.32.

A name that 0.32 does not have is not judged: an option has kept its kind over the versions, but no table says so.
"""

from __future__ import annotations

from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.command import Option

_READ_FROM = 32


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


# --x or --no-x, without a value.
SWITCHES = _set(
    "allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model cudagraph-metrics "
    "data-parallel-external-lb data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn "
    "disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager "
    "disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice "
    "enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep "
    "enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance "
    "enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage enable-hc-sp "
    "enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests "
    "enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding "
    "enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds "
    "enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics "
    "enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers "
    "enable-return-routed-experts enable-scale-out enable-server-load-tracking enable-shm-tensor-arena "
    "enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora "
    "enable-trace-replay enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation "
    "fully-sharded-loras help interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill "
    "language-model-only log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize "
    "mm-encoder-only numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids "
    "scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph "
    "specialize-active-lora swa-bounded-replay tokens-only trust-remote-code trust-request-chat-template "
    "trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load"
)

# --x alone; there is no --no-x.
ONLY_ON = _set("aggregate-engine-logging data-parallel-multi-port-external-lb disable-log-stats grpc headless")

# One value or more, each a word.
MANY = _set(
    "allowed-media-domains api-key collect-detailed-traces cpu-offload-params cudagraph-capture-sizes "
    "ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus "
    "numa-bind-nodes offload-params served-model-name sleep-preserve-parameter-names"
)

_PERHAPS_ONE = frozenset({"hf-token"})
_WHOLE_NUMBERS = _set(
    "api-server-count block-size cp-kv-cache-interleave-size data-parallel-rank data-parallel-rpc-port "
    "data-parallel-size data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port "
    "dbo-decode-token-threshold dbo-prefill-token-threshold dcp-kv-cache-interleave-size "
    "decode-context-parallel-size dp-supervisor-probe-failure-threshold dp-sync-interval elastic-ep-max-dp-size "
    "h11-max-header-count h11-max-incomplete-event-size long-prefill-token-threshold mamba-cache-philox-rounds "
    "master-port max-cudagraph-capture-size max-logprobs max-loras max-num-seqs mm-shm-cache-max-object-size-mb "
    "nnodes node-rank offload-group-size offload-num-in-group offload-prefetch-step pipeline-parallel-size port "
    "prefill-context-parallel-size prefill-schedule-interval renderer-num-workers replayssm-buffer-len "
    "safetensors-prefetch-num-threads seed shutdown-timeout spec-tokens sse-keep-alive-interval ssl-cert-reqs "
    "stream-interval tensor-parallel-size ubatch-size"
)
_NUMBERS = _set(
    "cpu-offload-gb device-memory-utilization dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s "
    "gpu-memory-utilization kv-cache-metrics-sample mm-encoder-fp8-scale-save-margin mm-ipc-gpu-memory-gb "
    "mm-processor-cache-gb watermark"
)
_AT_LEAST_ONE = _set(
    "tensor-parallel-size pipeline-parallel-size data-parallel-size prefill-context-parallel-size "
    "decode-context-parallel-size nnodes"
)
_KNOWN = frozenset(
    name for (first, last), names in tables.FLAGS.items() if first <= _READ_FROM <= last for name in names.split()
)


def wrong_value(option: Option) -> str | None:
    """What is wrong with an option's values, as the end of a sentence about it; None if nothing is known to be."""
    name, values = option
    if name.startswith("no-") and name[3:] in _KNOWN:
        if name[3:] not in SWITCHES:
            return "does not exist: only options that are on or off have a form with no-"
        return _no_value(values)
    if name not in _KNOWN:
        return None
    if name in SWITCHES or name in ONLY_ON:
        return _no_value(values)
    if (name in MANY and any(values)) or (name in _PERHAPS_ONE and not values):
        return None
    if len(values) != 1 or not values[0]:
        return f"takes one value, not {len(values)} ({' '.join(values)})" if len(values) > 1 else "needs a value"
    return _wrong_number(name, values[0])


def _no_value(values: tuple[str, ...]) -> str | None:
    return f"is on or off and takes no value, not '{' '.join(values)}'" if values else None


def _wrong_number(name: str, value: str) -> str | None:
    kind = int if name in _WHOLE_NUMBERS else float if name in _NUMBERS else None
    if kind is None:
        return None
    try:
        number = kind(value)
    except ValueError:
        return f"must be a {'whole ' if kind is int else ''}number, not '{value}'"
    return f"must be at least 1, not {number}" if name in _AT_LEAST_ONE and number < 1 else None
