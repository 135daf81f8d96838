"""The resolved configuration in words: one table, printed at start and never again."""

from __future__ import annotations

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.interfaces import Executor


def describe(config: EngineConfig, executor: Executor) -> dict[str, str]:
    """Map of setting to value, in the order in which it should be read."""
    model = config.model
    table = {
        "model": f"{model.name} ({model.path})",
        "dtype": model.dtype,
        "device": config.device,
        "tensor_parallel_size": str(config.tensor_parallel_size),
        "max_model_len": f"{model.max_model_len} positions",
        "speculation": _speculation(config),
    }
    if config.draft is not None:
        table["draft"] = f"{config.draft.name} ({config.draft.path})"
        if config.draft.head_size is not None:
            table["draft head"] = f"{config.draft.head_size} tokens, the ones that the target uses most"
        table["draft max_model_len"] = f"{config.draft.max_model_len} positions; longer requests go on without drafts"
    table["max_num_seqs"] = str(config.scheduler.max_num_seqs)
    table["max_num_batched_tokens"] = str(config.scheduler.max_num_batched_tokens)
    table["prefix cache"] = "on" if config.cache.enable_prefix_caching else "off"
    table["KV blocks"] = f"{executor.num_blocks} of {executor.block_size} positions (one is the null block)"
    return table | executor.describe()


def _speculation(config: EngineConfig) -> str:
    speculative = config.speculative
    if speculative is None:
        return "off"
    k = speculative.num_speculative_tokens
    text = f"{speculative.method}, K " + (
        f"from 0 to {k}, by load and acceptance" if speculative.adaptive else f"= {k}"
    )
    if speculative.ngram_beside_draft:
        text += f"; proposer {speculative.proposer} unless a request says otherwise"
    if "ngram" in speculative.proposers:
        text += f", n-grams of {speculative.prompt_lookup_min} to {speculative.prompt_lookup_max} tokens"
    return f"{text}, {_acceptance(speculative)}"


def _acceptance(speculative: SpeculativeConfig) -> str:
    if speculative.acceptance == "synthetic":
        rates = ", ".join(f"{rate:.3g}" for rate in speculative.synthetic_acceptance_rates)
        return f"SYNTHETIC ACCEPTANCE with rates {rates}: the text is NOT the target's, for benchmarks only"
    return {"rejection": "token-wise rejection", "block": "block verification"}[speculative.acceptance]
