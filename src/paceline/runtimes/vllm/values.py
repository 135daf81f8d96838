"""Values that every version of vLLM refuses at its start, told before: ranges, and names from closed lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import did_you_mean
from paceline.runtimes.vllm.facts import VllmFacts
from paceline.runtimes.vllm.option_values import sentence, wrong_value
from paceline.runtimes.vllm.tables import LAST

_LEAST = {
    "tensor_parallel_size": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "block_size": 1,
    "num_gpu_blocks_override": 1,
    "kv_cache_memory_bytes": 1,
    "max_logprobs": -1,
}
# Names that any of the versions takes. Those of the last two can also come from a plugin of vLLM.
_CHOICES: dict[str, str] = {
    "dtype": "auto bfloat16 float float16 float32 half",
    "kv_cache_dtype": (
        "auto bfloat16 float16 fp8 fp8_ds_mla fp8_e4m3 fp8_e5m2 fp8_inc fp8_per_token_head int4_per_token_head "
        "int8_per_token_head nvfp4 nvfp4_4over6 nvfp4_ds_mla octave_k3v3 octave_k3v3_compact octave_k3v4 "
        "turboquant_3bit_nc turboquant_4bit_nc turboquant_k3v4_nc turboquant_k8v4 ultraquant_4bit"
    ),
    "load_format": (
        "auto bitsandbytes dummy fastsafetensors gguf hf instanttensor ipc_cache mistral modelexpress npcache pt "
        "runai_streamer runai_streamer_sharded safetensors sharded_state tensorizer"
    ),
    "quantization": (
        "auto-round auto_awq auto_gptq awq awq_marlin bitblas bitsandbytes compressed-tensors cpu_awq deepseek_v4_fp8 "
        "experts_int8 fbgemm_fp8 fp8 fp8_per_block fp8_per_channel fp8_per_tensor fp_quant gguf gpt_oss_mxfp4 gptq "
        "gptq_bitblas gptq_marlin gptq_marlin_24 hqq humming inc int8_per_channel_weight_only ipex marlin modelopt "
        "modelopt_fp4 modelopt_mixed modelopt_mxfp8 moe_wna16 mxfp4 mxfp8 nvfp4_per_token online petit_nvfp4 ptpc_fp8 "
        "quark rtn torchao tpu_int8"
    ),
}
PLUGGABLE = ("load_format", "quantization")


def check_values(known: Mapping[str, Any], facts: VllmFacts, problems: list[str]) -> None:
    """`known`: arguments that Paceline and vLLM share, each of its type."""
    told = len(problems)
    _check_ranges(known, problems)
    for name, value in known.items():
        option = (name.replace("_", "-"), (str(value),))
        is_plain = isinstance(value, int | float) and not isinstance(value, bool)
        if is_plain and not _is_told(name, problems[told:]) and (wrong := wrong_value(option, facts.kinds)):
            problems.append(sentence(f"{name} {wrong}"))
    if facts.minor <= LAST:  # a newer one may take more
        problems += [_no_choice(name, known[name]) for name in _CHOICES if _is_unknown(name, known.get(name))]


def check_draft_values(config: Mapping[str, Any], facts: VllmFacts, problems: list[str]) -> None:
    """What the draft has of the same choices."""
    value = config.get("quantization")
    if facts.minor <= LAST and isinstance(value, str) and _is_unknown("quantization", value):
        guess = did_you_mean(value, _CHOICES["quantization"].split())
        problems.append(f"speculative_config.quantization={value!r}: vLLM has no such choice.{guess}")


def _is_told(name: str, problems: list[str]) -> bool:
    return any(problem.startswith(f"{name}=") for problem in problems)


def _check_ranges(known: Mapping[str, Any], problems: list[str]) -> None:
    for name, least in _LEAST.items():
        value = known.get(name)
        if value is not None and value < least:
            problems.append(f"{name}={value} must be at least {least}.")
    length = known.get("max_model_len")
    if length is not None and length < 1 and length != -1:
        problems.append(f"max_model_len={length} must be at least 1, or -1 for as much as fits into memory.")
    share = known.get("gpu_memory_utilization")
    if share is not None and not 0 < share <= 1:
        problems.append(f"gpu_memory_utilization={share} must be above 0 and at most 1.")


def check_port(port: int | None, problems: list[str]) -> None:
    if port is not None and not 1 <= port <= 65535:
        problems.append(f"port={port} must be between 1 and 65535: vLLM's command needs a port of its own.")


def check_host(host: str | None, problems: list[str]) -> None:
    if host is not None and (not host or not host.isprintable() or " " in host):
        problems.append(f"host={host!r} must be an address or a name of this machine; 0.0.0.0 for all its addresses.")


def _is_unknown(name: str, value: str | None) -> bool:
    return value is not None and value not in _CHOICES[name].split()


def _no_choice(name: str, value: str) -> str:
    told = f"{name}={value!r}: vLLM has no such choice.{did_you_mean(value, _CHOICES[name].split())}"
    flag = name.replace("_", "-")
    return told + (f" One that a plugin brings goes through --vllm-args '--{flag} {value}'." * (name in PLUGGABLE))
