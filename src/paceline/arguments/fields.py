"""The arguments that Paceline has, with vLLM's names and defaults, and how they are read from a mapping.

Reading never stops at the first mistake: problems are collected in the list that the caller passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import msgspec

from paceline.arguments.foreign import FOREIGN, FOREIGN_SPECULATIVE, OTHER_METHODS, Foreign
from paceline.errors import did_you_mean
from paceline.json_text import loads

DtypeName = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    model: str
    tokenizer: str | None = None  # must be the model's own
    skip_tokenizer_init: bool = False  # prompts and outputs are token ids only
    dtype: DtypeName = "auto"
    quantization: Literal["fp8"] | None = None
    quantize_lm_head: bool = False
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = "auto"
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    max_model_len: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    max_logprobs: int = 20
    seed: int | None = 0
    block_size: int | None = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool | None = True
    max_num_seqs: int | None = 32
    max_num_batched_tokens: int | None = None
    speculative_config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeArguments:
    method: Literal["draft_model", "ngram"] | None = None
    model: str | None = None
    num_speculative_tokens: int = 5  # the most, if adaptive
    # What drafts for requests that do not say: the draft model, their own text (n-gram), or whichever is surer.
    proposer: Literal["auto", "draft", "ngram"] | None = None
    adaptive: bool | None = None  # K follows load and acceptance; None: yes, unless acceptance is synthetic
    quantization: Literal["fp8"] | None = None  # of the draft; its own checkpoint's if not given
    quantize_lm_head: bool = False
    draft_tensor_parallel_size: int | None = None
    # Tokens that the draft may propose. auto: on a CPU, where its folder has answer_counts.npy, those that make up 98 %
    # of the target's text; else all.
    draft_vocab_size: int | Literal["auto", "all"] = "auto"
    max_model_len: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    rejection_sample_method: Literal["standard", "strict", "block", "synthetic"] = "standard"  # strict: its older name
    synthetic_acceptance_rates: list[float] | None = None  # P(the first i drafts are all kept), i = 1 .. K


# The flat form that vLLM had before speculative_config, and its names there.
LEGACY = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_model_quantization": "quantization",
    "speculative_max_model_len": "max_model_len",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
_NGRAM_NAMES = ("ngram", "[ngram]")

T = TypeVar("T", EngineArguments, SpeculativeArguments)


def read_engine_arguments(arguments: Mapping[str, Any], problems: list[str]) -> EngineArguments:
    given = {name: _plain(value) for name, value in arguments.items() if name not in LEGACY}
    if isinstance(given.get("speculative_config"), str):
        given["speculative_config"] = _parse_json(given["speculative_config"], problems)
    return _read(EngineArguments, given, FOREIGN, problems, extra_names=tuple(LEGACY))


def read_speculative_arguments(arguments: Mapping[str, Any], problems: list[str]) -> SpeculativeArguments | None:
    """None when speculation is off."""
    flat = {LEGACY[name]: _plain(value) for name, value in arguments.items() if name in LEGACY and value is not None}
    nested = _plain(arguments.get("speculative_config"))
    if isinstance(nested, str):
        nested = _parse_json(nested, [])
    if nested is not None and flat:
        problems.append(
            "Give either speculative_config or the flat arguments "
            f"({', '.join(name for name in LEGACY if name in arguments)}), not both."
        )
    given = nested if isinstance(nested, Mapping) else flat
    if not isinstance(nested, Mapping) and not flat:
        return None
    read = _read(
        SpeculativeArguments, _named_method(given, problems), FOREIGN_SPECULATIVE, problems, "speculative_config"
    )
    if read.method is not None or _plain(given.get("method")) is None:  # else a wrong method has been named already
        _check_method(read, problems)
    return read


def _named_method(given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Spell the method out: 'ngram' may stand where the draft's name stands, and a model alone is a draft model."""
    named = {name: _plain(value) for name, value in given.items()}
    if named.get("model") in _NGRAM_NAMES:
        named |= {"model": None, "method": "ngram"}
    if named.get("method") in OTHER_METHODS:
        problems.append(
            f"speculative_config method '{named['method']}' is not offered in this version; use 'draft_model' with a "
            "small model of the target's family, or 'ngram', which needs no model."
        )
        named["method"] = "ngram" if named.get("model") is None else "draft_model"
    if named.get("method") is None and named.get("model") is not None:
        named["method"] = "draft_model"
    return named


def _check_method(read: SpeculativeArguments, problems: list[str]) -> None:
    if read.method is None:
        problems.append(
            f"num_speculative_tokens={read.num_speculative_tokens} says how many tokens to draft, but not what drafts "
            'them. Add speculative_model="<a small model of the same family>" or '
            'speculative_config={"method": "ngram"}.'
        )
    if read.method == "draft_model" and read.model is None:
        problems.append("speculative_config method 'draft_model' needs a 'model': the draft's name or path.")
    if read.method == "ngram" and read.model is not None:
        problems.append(f"speculative_config method 'ngram' takes no model; leave out model='{read.model}'.")
    if read.method == "ngram" and (read.quantization or read.quantize_lm_head):
        problems.append("quantization and quantize_lm_head belong to a draft model; method 'ngram' has none.")
    if read.method == "ngram" and read.draft_vocab_size != "auto":
        problems.append("draft_vocab_size belongs to a draft model; method 'ngram' has none.")
    if read.method == "ngram" and read.proposer == "draft":
        problems.append("speculative_config.proposer='draft' needs a draft model; method 'ngram' has none.")
    _check_synthetic(read, problems)


def _check_synthetic(read: SpeculativeArguments, problems: list[str]) -> None:
    rates, k = read.synthetic_acceptance_rates, read.num_speculative_tokens
    if (read.rejection_sample_method == "synthetic") != (rates is not None):
        problems.append(
            "speculative_config.rejection_sample_method='synthetic' and speculative_config.synthetic_acceptance_rates "
            "belong together: give both for a benchmark of speed, or neither."
        )
    elif rates is not None and (len(rates) != k or sorted([1.0, *rates, 0.0], reverse=True) != [1.0, *rates, 0.0]):
        problems.append(
            f"speculative_config.synthetic_acceptance_rates={rates} cannot be used: give num_speculative_tokens ({k}) "
            "numbers between 0 and 1, none larger than the one before; number i is the probability that the first i "
            "drafts are all kept."
        )


def _read(
    kind: type[T],
    given: Mapping[str, Any],
    foreign: Mapping[str, Foreign],
    problems: list[str],
    where: str = "",
    extra_names: tuple[str, ...] = (),
) -> T:
    """The arguments of `kind` in `given`; a value of the wrong type is a problem and counts as not given."""
    types: dict[str, Any] = get_type_hints(kind)
    values: dict[str, Any] = {} if where else {"model": ""}
    for name, value in given.items():
        if name in types:
            _convert(name, value, types[name], values, problems, where)
        elif name in foreign:
            if not foreign[name].accepts(value):
                problems.append(f"{_label(name, where)}={value!r} is not supported: {foreign[name].reason}")
        else:
            guess = did_you_mean(name, [*types, *extra_names, *foreign])
            problems.append(f"Unknown argument '{_label(name, where)}'.{guess}")
    return kind(**values)


def _convert(name: str, value: Any, kind: Any, values: dict[str, Any], problems: list[str], where: str) -> None:
    try:
        values[name] = msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        choices = _choices(kind)
        guess = did_you_mean(value, choices) if choices and isinstance(value, str) else ""
        expected = f"expected one of {', '.join(choices)}" if choices else f"{str(error)[:1].lower()}{str(error)[1:]}"
        problems.append(f"{_label(name, where)}={value!r} cannot be used: {expected}.{guess}")


def _choices(kind: Any) -> list[str]:
    """The strings that a Literal, or a union with one, allows."""
    return [choice for part in (kind, *get_args(kind)) for choice in get_args(part) if isinstance(choice, str)]


def _label(name: str, where: str) -> str:
    return f"{where}.{name}" if where else name


def _plain(value: Any) -> Any:
    """Paths and torch dtypes as the strings that name them."""
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value


def _parse_json(text: str, problems: list[str]) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        problems.append(f"speculative_config is not valid JSON: {str(error).rstrip('.')}.")
        return None


def argument_names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(EngineArguments)) + tuple(LEGACY)
