"""The engine's configuration: frozen, composed, validated once, never edited afterwards.

These are the resolved values that the engine runs with. What a user types (vLLM-shaped keyword
arguments, command-line options) becomes an EngineConfig in `arguments.py`; names of models have
become directories by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from paceline.errors import ConfigurationError

Dtype = Literal["float32", "bfloat16", "float16"]
Method = Literal["draft_model", "ngram"]
Proposer = Literal["auto", "draft", "ngram"]  # what drafts for a request; auto: whichever is surer
LoadFormat = Literal["auto", "dummy"]
AcceptanceMethod = Literal["rejection", "block", "synthetic"]
Quantization = Literal["fp8"]
KVCacheDtype = Literal["auto", "fp8"]


TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)  # ranks, on one machine


def _divisors(size: int) -> list[int]:
    return [d for d in range(1, size + 1) if size % d == 0]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model on disk: `path` is a Hugging Face directory (config.json, *.safetensors)."""

    path: Path
    name: str  # what the user called it; served under this name
    dtype: Dtype = "float32"
    max_model_len: int = 2048  # positions, prompt + output
    load_format: LoadFormat = "auto"  # dummy: random weights, for tests and benchmarks
    quantization: Quantization | None = None  # None: as the checkpoint is; fp8: quantised while loading
    quantize_lm_head: bool = False  # the head too, of a model that is FP8
    kv_cache_dtype: KVCacheDtype = "auto"  # of this model's pool; auto: the model's dtype
    vocab_size: int = 0  # ids below this can be fed and emitted
    eos_token_ids: tuple[int, ...] = ()
    head_size: int | None = None  # of a draft: tokens that it may propose, the most frequent ones; None: all

    def __post_init__(self) -> None:
        _require(self.max_model_len >= 2, f"max_model_len must be at least 2, not {self.max_model_len}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """How drafts are proposed and accepted. Absent from EngineConfig when speculation is off."""

    method: Method
    num_speculative_tokens: int = 5
    draft: ModelConfig | None = None  # method draft_model
    draft_tensor_parallel_size: int = 1
    prompt_lookup_max: int = 4  # n-gram lengths tried, longest first
    prompt_lookup_min: int = 2
    acceptance: AcceptanceMethod = "rejection"
    adaptive: bool = False  # K follows load and acceptance, up to num_speculative_tokens
    ngram_beside_draft: bool = False  # drafts may be looked up in the text too; eager steps alone can verify those
    proposer: Proposer = "auto"  # of requests that name none, where there is a choice
    # Method synthetic: P(draft i kept | those before it kept), for i = 1, 2, ...; the last one goes on.
    synthetic_acceptance_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _require(
            1 <= self.num_speculative_tokens <= 32,
            f"num_speculative_tokens must be between 1 and 32, not {self.num_speculative_tokens}. "
            "To serve without speculation, leave the speculative configuration out.",
        )
        _require(
            (self.method == "draft_model") == (self.draft is not None),
            "Method 'draft_model' needs a draft model; the other methods take none.",
        )
        _require(
            not self.ngram_beside_draft or self.method == "draft_model",
            "ngram_beside_draft needs a draft model that the n-gram stands beside.",
        )
        _require(
            1 <= self.prompt_lookup_min <= self.prompt_lookup_max,
            f"prompt_lookup_min ({self.prompt_lookup_min}) must be between 1 and prompt_lookup_max "
            f"({self.prompt_lookup_max}).",
        )
        _require(
            (self.acceptance == "synthetic") == bool(self.synthetic_acceptance_rates),
            "Synthetic acceptance and synthetic_acceptance_rates need each other; without them nothing is synthetic.",
        )
        _require(
            all(0.0 <= rate <= 1.0 for rate in self.synthetic_acceptance_rates),
            f"synthetic_acceptance_rates must lie between 0 and 1, not {list(self.synthetic_acceptance_rates)}.",
        )

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """What a request may name besides auto."""
        if self.method == "ngram":
            return ("ngram",)
        return ("draft", "ngram") if self.ngram_beside_draft else ("draft",)

    @property
    def is_lossless(self) -> bool:
        """Is the text the target's own? Synthetic acceptance measures speed alone."""
        return self.acceptance != "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache. `num_blocks` includes block 0, the null block that padding writes to."""

    block_size: int = 16  # positions
    num_blocks: int = 0  # 0: fixed by the memory plan
    enable_prefix_caching: bool = True
    memory_utilization: float = 0.9  # of the accelerator's memory; on a CPU see kv_cache_memory_bytes
    kv_cache_memory_bytes: int | None = None  # both pools together; None: the memory plan decides

    def __post_init__(self) -> None:
        _require(
            self.block_size in (1, 2, 4, 8, 16, 32, 64, 128),
            f"block_size must be a power of two up to 128, not {self.block_size}.",
        )
        _require(
            0.0 < self.memory_utilization <= 1.0,
            f"gpu_memory_utilization must be above 0 and at most 1, not {self.memory_utilization}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    max_num_seqs: int = 32  # rows in one step
    max_num_batched_tokens: int = 2048  # tokens the target reads in one step, drafts included

    def __post_init__(self) -> None:
        _require(self.max_num_seqs >= 1, f"max_num_seqs must be at least 1, not {self.max_num_seqs}.")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({self.max_num_seqs}), so that every running sequence can advance by one token a step.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model: ModelConfig
    speculative: SpeculativeConfig | None = None
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    tensor_parallel_size: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    enforce_eager: bool = False
    max_logprobs: int = 20  # alternatives a token that a request may ask for; -1: as many as there are tokens
    seed: int = 0  # seeds of requests that bring none are drawn from this

    def __post_init__(self) -> None:
        size, draft_size = self.tensor_parallel_size, self.draft_tensor_parallel_size
        _require(
            size in TENSOR_PARALLEL_SIZES,
            f"tensor_parallel_size must be one of {', '.join(map(str, TENSOR_PARALLEL_SIZES))}, not {size}.",
        )
        _require(
            draft_size >= 1 and size % draft_size == 0,
            f"draft_tensor_parallel_size={draft_size} must divide tensor_parallel_size={size}: a draft is whole on "
            f"every rank (1) or split over groups of ranks of one size ({', '.join(map(str, _divisors(size)))}).",
        )
        fp8_cache = any(model.kv_cache_dtype == "fp8" for model in (self.model, self.draft) if model)
        _require(
            self.device != "cpu" or not fp8_cache,
            "kv_cache_dtype='fp8' needs a GPU: attention on a CPU reads the model's own dtype. Leave it out.",
        )
        _require(
            not (self.captures_steps and self.speculative is not None and self.speculative.ngram_beside_draft),
            "An n-gram beside a draft model needs eager steps: leave ngram_beside_draft out, or set enforce_eager.",
        )
        _require(self.max_logprobs >= -1, f"max_logprobs must be at least 0, or -1 for any, not {self.max_logprobs}.")

    @property
    def captures_steps(self) -> bool:
        """Decoding steps run as captured graphs: on a GPU, where drafts and decision are ones that the kernels know."""
        if self.device != "cuda" or self.enforce_eager:
            return False
        speculative = self.speculative
        return speculative is None or (speculative.method == "draft_model" and speculative.acceptance != "block")

    @property
    def num_speculative_tokens(self) -> int:
        return self.speculative.num_speculative_tokens if self.speculative else 0

    @property
    def draft_tensor_parallel_size(self) -> int:
        """Ranks that share one copy of the draft."""
        return self.speculative.draft_tensor_parallel_size if self.speculative and self.speculative.draft else 1

    @property
    def draft(self) -> ModelConfig | None:
        return self.speculative.draft if self.speculative else None
