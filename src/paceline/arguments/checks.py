"""What is wrong with a set of arguments before any model has been read, and what is merely useless."""

from __future__ import annotations

from collections.abc import Callable

from paceline.arguments.fields import EngineArguments, SpeculativeArguments
from paceline.arguments.machine import Machine
from paceline.config import TENSOR_PARALLEL_SIZES, CacheConfig, SpeculativeConfig
from paceline.errors import ConfigurationError
from paceline.hub.catalog import MISTAKEN_REPOS

SYNTHETIC_NOTE = (
    "SYNTHETIC ACCEPTANCE: drafts are kept with given probabilities, whatever the models say. The text is NOT the "
    "target's; use this for benchmarks of speed and for nothing else."
)


def check_names(arguments: EngineArguments, speculative: SpeculativeArguments | None, problems: list[str]) -> None:
    if not arguments.model:
        problems.append('Which model? Give model="<name, directory or repo id>".')
    if arguments.tokenizer not in (None, arguments.model):
        problems.append(f"tokenizer={arguments.tokenizer!r}: a model is served with its own tokenizer; leave it out.")
    for argument, name in (("model", arguments.model), ("speculative_model", speculative and speculative.model)):
        if name and name.lower() in MISTAKEN_REPOS:
            problems.append(f"{argument}: '{name}' does not exist; it is '{MISTAKEN_REPOS[name.lower()]}'.")


_LEAST = {
    "max_model_len": 2, "max_num_seqs": 1, "max_num_batched_tokens": 1, "num_gpu_blocks_override": 1,
    "kv_cache_memory_bytes": 1, "max_logprobs": -1,
}  # fmt: skip


def check_numbers(arguments: EngineArguments, speculative: SpeculativeArguments | None, problems: list[str]) -> None:
    """Every number that no model could make right, not only the first that a configuration would stumble over."""
    for name, least in _LEAST.items():
        value = getattr(arguments, name)
        if value is not None and value < least:
            problems.append(f"{name} must be at least {least}, not {value}.")
    block_size = 16 if arguments.block_size is None else arguments.block_size
    tries: list[Callable[[], object]] = [
        lambda: CacheConfig(block_size=block_size),
        lambda: CacheConfig(memory_utilization=arguments.gpu_memory_utilization),
    ]
    if speculative is not None:
        drafts = speculative.num_speculative_tokens
        tries.append(lambda: SpeculativeConfig(method="ngram", num_speculative_tokens=drafts))
        if speculative.max_model_len is not None and speculative.max_model_len < 2:
            problems.append(f"speculative_config.max_model_len must be at least 2, not {speculative.max_model_len}.")
    for attempt in tries:
        try:
            attempt()
        except ConfigurationError as error:
            problems.append(str(error))


def check_machine(
    arguments: EngineArguments, speculative: SpeculativeArguments | None, machine: Machine, problems: list[str]
) -> None:
    on_cpu = device_of(arguments, machine) == "cpu"
    if arguments.device == "cuda" and machine.num_gpus == 0:
        problems.append(
            "device='cuda': this machine has no GPU that PyTorch can use; leave device out to run on the CPU."
        )
    if on_cpu:
        _check_needs_no_gpu(arguments, speculative, machine, problems)
    _check_ranks(arguments, speculative, machine, on_cpu, problems)
    if speculative is not None and not runs_eagerly(arguments, speculative, machine):
        _check_no_lookup(speculative, problems)


def runs_eagerly(arguments: EngineArguments, speculative: SpeculativeArguments, machine: Machine) -> bool:
    """As EngineConfig.captures_steps has it, before there is one."""
    gpu = device_of(arguments, machine) == "cuda"
    return not gpu or arguments.enforce_eager or speculative.rejection_sample_method == "block"


def _check_no_lookup(speculative: SpeculativeArguments, problems: list[str]) -> None:
    """Captured steps have the draft model's drafts alone, and are worth more than an n-gram beside it."""
    asked = {
        f"proposer={speculative.proposer!r}": speculative.proposer in ("auto", "ngram"),
        "prompt_lookup_max": speculative.prompt_lookup_max is not None,
        "prompt_lookup_min": speculative.prompt_lookup_min is not None,
    }
    wanted = [f"speculative_config.{name}" for name, is_asked in asked.items() if is_asked]
    if speculative.method == "draft_model" and wanted:
        problems.append(
            f"{', '.join(wanted)}: drafts are looked up in the text beside a draft model only where steps are not "
            "captured, which is on a CPU or with enforce_eager=True. Leave it out: the draft model drafts."
        )


def _check_ranks(
    arguments: EngineArguments,
    speculative: SpeculativeArguments | None,
    machine: Machine,
    on_cpu: bool,
    problems: list[str],
) -> None:
    """A rank is a GPU; or, where the CPU was asked for by name, a process."""
    size, draft_size = arguments.tensor_parallel_size, speculative.draft_tensor_parallel_size if speculative else None
    possible = ", ".join(map(str, TENSOR_PARALLEL_SIZES))
    if size > 1 and on_cpu and arguments.device != "cpu":
        problems.append(
            f"tensor_parallel_size={size} is not possible: {machine.gpus_in_words}. Set it to 1 or leave it out. "
            "(device='cpu' runs the ranks as processes on this CPU, to try things and not to be faster.)"
        )
    elif size > max(machine.num_gpus, 1) and not on_cpu:
        problems.append(
            f"tensor_parallel_size={size} is not possible: {machine.gpus_in_words}. Paceline splits a model over the "
            "GPUs of one machine; past one machine, serve with vLLM from the same arguments: runtime='vllm'."
        )
    elif size not in TENSOR_PARALLEL_SIZES:
        problems.append(
            f"tensor_parallel_size={size} cannot be used: it must be one of {possible}. Paceline splits a model over "
            "the GPUs of one machine; past one machine, serve with vLLM from the same arguments: runtime='vllm'."
        )
    if draft_size is None:
        return
    if speculative is not None and speculative.method == "ngram":
        if draft_size != 1:
            problems.append(
                f"draft_tensor_parallel_size={draft_size} belongs to a draft model; method 'ngram' has none. Leave it "
                "out."
            )
    elif draft_size < 1 or size % draft_size:
        problems.append(
            f"draft_tensor_parallel_size={draft_size} cannot be used with tensor_parallel_size={size}: it must divide "
            "it. 1 keeps a whole draft on every rank, which is fastest; more ranks a draft leave more room for the "
            "cache."
        )


def _check_needs_no_gpu(
    arguments: EngineArguments, speculative: SpeculativeArguments | None, machine: Machine, problems: list[str]
) -> None:
    """An FP8 checkpoint runs on a CPU, dequantised; to quantise one there would lose precision and gain nothing."""
    asked = {
        f"quantization={arguments.quantization!r}": arguments.quantization,
        f"quantize_lm_head={arguments.quantize_lm_head}": arguments.quantize_lm_head,
        f"kv_cache_dtype={arguments.kv_cache_dtype!r}": arguments.kv_cache_dtype != "auto",
    }
    if speculative is not None:
        asked[f"speculative_config.quantization={speculative.quantization!r}"] = speculative.quantization
        asked[f"speculative_config.quantize_lm_head={speculative.quantize_lm_head}"] = speculative.quantize_lm_head
    why = f"FP8 kernels need a GPU, and {machine.gpus_in_words if not machine.num_gpus else 'device is cpu'}"
    problems += [f"{argument} is not possible: {why}. Leave it out." for argument, wanted in asked.items() if wanted]


def device_of(arguments: EngineArguments, machine: Machine) -> str:
    return machine.default_device if arguments.device == "auto" else arguments.device


def notes(
    given: frozenset[str], arguments: EngineArguments, speculative: SpeculativeArguments | None, machine: Machine
) -> list[str]:
    """Advice; `given` holds the names that the user wrote."""
    found = []
    on_cpu = device_of(arguments, machine) == "cpu"
    if arguments.enforce_eager:
        found.append(
            "enforce_eager=True changes nothing on a CPU."
            if on_cpu
            else "enforce_eager=True switches captured graphs off and costs most of the gain; leave it out."
        )
    if on_cpu and arguments.tensor_parallel_size > 1:
        found.append(
            f"tensor_parallel_size={arguments.tensor_parallel_size} on a CPU: the ranks share its cores and memory, so "
            "nothing is faster."
        )
    if on_cpu and "gpu_memory_utilization" in given:
        found.append(
            "gpu_memory_utilization has no effect on a CPU; kv_cache_memory_bytes sets the size of the KV cache there."
        )
    if speculative is not None and speculative.rejection_sample_method == "synthetic":
        found.append(SYNTHETIC_NOTE)
    if speculative is not None and speculative.model == arguments.model:
        found.append(
            "The draft is the target itself: every draft is accepted, and nothing is faster. "
            "Choose a smaller model of the same family."
        )
    return found
