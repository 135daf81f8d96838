"""Paceline's speculative arguments as vLLM's --speculative-config, for one version.

What differs: vLLM's draft has the target's tensor parallel size; a schedule of K by batch size exists from 0.24 on;
some of Paceline's arguments have no counterpart and are refused, others ask for nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeGuard

from paceline.arguments.fields import LEGACY
from paceline.errors import did_you_mean
from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.facts import VllmFacts, known_since
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.option_values import sentence, wrong_json
from paceline.runtimes.vllm.values import check_draft_values

SpeculativeConfig = dict[str, Any]

DEFAULT_K = 5
_MOST_K = 256  # of a pass; beyond, memory for logits is what vLLM runs out of
_OWN_NAMES = ("ngram", "[ngram]")
_SCHEDULE = "num_speculative_tokens_per_batch_size"
_ALL_BATCH_SIZES = 1_000_000  # the end of a schedule's last range

_COMMON = {"speculative_model", "num_speculative_tokens"}  # options of paceline serve to this day
# Names of flat arguments from before speculative_config, and what became of them.
FLAT = LEGACY | {
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "spec_decoding_acceptance_method": "acceptance_method",
    "speculative_disable_mqa_scorer": "disable_mqa_scorer",
    "speculative_lookahead_slots": "lookahead_slots",
    "num_lookahead_slots": "lookahead_slots",
    "disable_logprobs_during_spec_decoding": "disable_logprobs",
    "typical_acceptance_sampler_posterior_threshold": "posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha": "posterior_alpha",
}
# Gone from vLLM, and why nobody misses them.
_DROPPED = {
    "disable_mqa_scorer": "there is one way to verify",
    "lookahead_slots": "the scheduler reserves them",
    "disable_logprobs": "log-probabilities are those of the target with speculation too",
    "acceptance_method": "rejection sampling is the default (rejection_sample_method)",
}
_TYPICAL = "vLLM's typical acceptance, which changes the text, no longer exists; every method left is lossless."
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states", "dspark")
# Told in words of their own.
_CHECKED = frozenset({"method", "num_speculative_tokens", "rejection_sample_method", _SCHEDULE})
_LOOKUP = frozenset({"prompt_lookup_max", "prompt_lookup_min"})
# Paceline's own, with the values under which they ask for nothing, and why vLLM has none.
_OWN: dict[str, tuple[tuple[Any, ...], str]] = {
    "draft_vocab_size": (("auto", "all"), "a reduced head of the draft exists only in Paceline's own engine"),
    "quantize_lm_head": ((False,), "vLLM keeps the head in the checkpoint's precision"),
    "proposer": ((None, "draft"), "vLLM has one proposer, the method"),
    "adaptive": ((None, True, False), "vLLM chooses K by a schedule (num_speculative_tokens_per_batch_size)"),
}


def speculative_config(
    arguments: Mapping[str, Any], tensor_parallel_size: int, facts: VllmFacts, problems: list[str], notes: list[str]
) -> SpeculativeConfig | None:
    """None: no speculation. `arguments` are all that the user gave."""
    given = _gather(arguments, problems, notes)
    if given is None:
        return None
    config = _named_method(given)
    if str(config.get("quantization")).lower() == "none":  # as a word, where null cannot be written
        config["quantization"] = None
    _own_arguments(config, problems, notes)
    _old_arguments(config, facts, problems, notes)
    _method(config, facts, problems)
    _acceptance(config, facts, problems, notes)
    _draft_parallelism(config, tensor_parallel_size, facts, problems)
    _schedule(config, facts, problems)
    check_draft_values(config, facts, problems)
    told = _CHECKED | (_LOOKUP if config["method"] == "ngram" else set())
    for name, value in config.items():
        if name not in facts.speculative_fields:
            problems.append(missing_field(name, facts))
        elif name not in told and (wrong := wrong_json(facts.speculative_kinds.get(name, {}), value)):
            problems.append(sentence(f"speculative_config.{name} {wrong}"))
    return {name: value for name, value in config.items() if value is not None}


def removed_option(name: str, facts: VllmFacts) -> str | None:
    """What to do instead of an option that vLLM once had, as the end of a sentence; None for any other.

    `name` without dashes in front.
    """
    argument = name.replace("-", "_")
    if argument in GONE and not facts.has_flag(name):
        return GONE[argument][0]
    return "use --speculative-config '{\"model\": …}'" if argument in FLAT else None


def is_flat(name: str) -> bool:
    return name in FLAT


def _gather(arguments: Mapping[str, Any], problems: list[str], notes: list[str]) -> SpeculativeConfig | None:
    flat = {name: value for name, value in arguments.items() if name in FLAT and value is not None}
    nested = arguments.get("speculative_config")
    if nested is None:
        if flat.keys() - _COMMON:
            notes.append(f"{', '.join(flat)}: vLLM's older form, written as --speculative-config.")
        return {FLAT[name]: value for name, value in flat.items()} or None
    if flat:
        problems.append(f"Give either speculative_config or the flat arguments ({', '.join(flat)}), not both.")
    if not isinstance(nested, Mapping):
        problems.append(f"speculative_config must be a mapping, not {nested!r}.")
        return None
    return dict(nested)


def _named_method(given: Mapping[str, Any]) -> SpeculativeConfig:
    """Method first, K always written: a reader of the command need not know vLLM's defaults."""
    config = dict(given)
    method, model = config.pop("method", None), config.pop("model", None)
    if model in _OWN_NAMES:
        method, model = "ngram", None
    head: SpeculativeConfig = {"method": method or ("draft_model" if model is not None else None), "model": model}
    if head["method"] in ("ngram", "draft_model"):
        k = config.pop("num_speculative_tokens", None)
        head["num_speculative_tokens"] = DEFAULT_K if k is None else k  # 0 is refused below, not replaced
    if head["method"] == "ngram":  # Paceline's defaults, which are not vLLM's
        _complete_lookup(config)
    return head | config


def _complete_lookup(config: SpeculativeConfig) -> None:
    """What is no number stays as it is, for `_lookup` to refuse."""
    longest, shortest = config.get("prompt_lookup_max"), config.get("prompt_lookup_min")
    if longest is None:
        longest = config["prompt_lookup_max"] = max(4, shortest) if _is_whole(shortest) else 4
    if shortest is None:
        config["prompt_lookup_min"] = min(2, longest) if _is_whole(longest) else 2


def _own_arguments(config: SpeculativeConfig, problems: list[str], notes: list[str]) -> None:
    for name, (nothing, why) in _OWN.items():
        if name not in config:
            continue
        value = config.pop(name)
        if not any(type(value) is type(known) and value == known for known in nothing):
            problems.append(f"speculative_config.{name}={value!r} is not possible with runtime vllm: {why}.")
        elif value not in (None, "auto", "all", False):
            notes.append(f"speculative_config.{name} is left out: {why}.")


def _old_arguments(config: SpeculativeConfig, facts: VllmFacts, problems: list[str], notes: list[str]) -> None:
    _old_acceptance(config, problems)
    for name, why in _DROPPED.items():
        if config.pop(name, None) is not None:
            notes.append(f"{name} is left out: vLLM no longer has it, {why}.")
    batch_size = config.pop("disable_by_batch_size", None)
    if batch_size is None:
        return
    if _SCHEDULE not in facts.speculative_fields:
        problems.append(
            f"disable_by_batch_size={batch_size}: vLLM {facts.version} can neither switch speculation off by batch "
            "size nor schedule K; 0.24 and later can. Upgrade vLLM, or leave it out."
        )
    elif not _is_whole(batch_size) or batch_size < 2:
        problems.append(f"disable_by_batch_size={batch_size!r} must be a whole number of at least 2.")
    else:
        k = config.get("num_speculative_tokens", DEFAULT_K)
        config.setdefault(_SCHEDULE, [[1, batch_size - 1, k], [batch_size, _ALL_BATCH_SIZES, 0]])
        notes.append(f"disable_by_batch_size={batch_size} is written as {_SCHEDULE}, which replaced it.")


def _old_acceptance(config: SpeculativeConfig, problems: list[str]) -> None:
    thresholds = [config.pop(name, None) for name in ("posterior_threshold", "posterior_alpha")]
    typical = config.get("acceptance_method") == "typical_acceptance_sampler"
    if typical or any(value is not None for value in thresholds):
        config.pop("acceptance_method", None)
        problems.append(f"acceptance_method 'typical_acceptance_sampler': {_TYPICAL} Leave it out.")


def _method(config: SpeculativeConfig, facts: VllmFacts, problems: list[str]) -> None:
    method, model = config["method"], config["model"]
    if method is None:
        problems.append(
            'Speculation is configured, but not what drafts. Add speculative_model="<a small model of the same '
            'family>" or speculative_config={"method": "ngram"}.'
        )
    elif method not in facts.methods:
        since = known_since(tables.METHODS, str(method))
        guess = "" if since else did_you_mean(str(method), facts.methods)
        problems.append(f"speculative_config.method={method!r}: vLLM {facts.version} has no such method{since}.{guess}")
    elif model is None and not _drafts_without_model(method):
        problems.append(f"speculative_config method '{method}' needs a 'model': the draft's name or path.")
    elif method == "ngram" and model is not None:
        problems.append(f"speculative_config method 'ngram' takes no model; leave out model={model!r}.")
    k = config.get("num_speculative_tokens")
    if k is not None and (not _is_whole(k) or not 1 <= k <= _MOST_K):
        problems.append(
            f"num_speculative_tokens={k!r} must be a whole number between 1 and {_MOST_K}. To serve without "
            "speculation, leave the speculative configuration out."
        )
    if method == "ngram":
        _lookup(config, problems)


def _drafts_without_model(method: str) -> bool:
    """From the prompt, or with layers of the target's own checkpoint."""
    return method in _WITHOUT_MODEL or method.endswith("mtp")


def _lookup(config: SpeculativeConfig, problems: list[str]) -> None:
    """The lengths of n-grams, longest and shortest."""
    longest, shortest = config["prompt_lookup_max"], config["prompt_lookup_min"]
    wrong = [
        f"{name}={value!r} must be a whole number of at least 1."
        for name, value in (("prompt_lookup_max", longest), ("prompt_lookup_min", shortest))
        if not _is_whole(value) or value < 1
    ]
    problems += wrong
    if not wrong and shortest > longest:
        problems.append(f"prompt_lookup_min={shortest} must not be more than prompt_lookup_max={longest}.")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _acceptance(config: SpeculativeConfig, facts: VllmFacts, problems: list[str], notes: list[str]) -> None:
    method = config.pop("rejection_sample_method", None)
    if method in (None, "standard", "strict"):  # each version's default
        return
    config["rejection_sample_method"] = method
    if method not in facts.acceptance_methods:
        since = known_since(tables.ACCEPTANCE_METHODS, str(method))
        guess = "" if since else did_you_mean(str(method), facts.acceptance_methods)
        problems.append(f"rejection_sample_method={method!r}: vLLM {facts.version} has no such method{since}.{guess}")
    elif method == "block":
        notes.append(
            "rejection_sample_method 'block' works only in vLLM's model runner V2, which needs a GPU; where its log "
            "says V1, tokens are verified one by one, which is as lossless."
        )
    elif method == "synthetic":
        notes.append("SYNTHETIC ACCEPTANCE: the text is NOT the target's; use this for benchmarks of speed only.")
    elif method == "fly":
        notes.append("rejection_sample_method 'fly' is lossy: the text no longer follows the target's law.")


def _draft_parallelism(
    config: SpeculativeConfig, tensor_parallel_size: int, facts: VllmFacts, problems: list[str]
) -> None:
    size = config.get("draft_tensor_parallel_size")
    if config["method"] != "draft_model" or size in (None, tensor_parallel_size):
        return
    problems.append(
        f"draft_tensor_parallel_size={size} with tensor_parallel_size={tensor_parallel_size}: vLLM {facts.version} "
        "runs a draft model on as many GPUs as the target and refuses anything else. Leave draft_tensor_parallel_size "
        f"out, or use runtime paceline, whose draft may run on {size}."
    )


def _schedule(config: SpeculativeConfig, facts: VllmFacts, problems: list[str]) -> None:
    """The rules of vLLM's own check, so that a wrong schedule is told before a model is loaded."""
    schedule = config.get(_SCHEDULE)
    if schedule is None or _SCHEDULE not in facts.speculative_fields:
        return
    label = f"speculative_config.{_SCHEDULE}"
    if not isinstance(schedule, list | tuple) or not schedule or not all(_is_range(entry) for entry in schedule):
        problems.append(f"{label}={schedule!r} must be a list of [first batch size, last batch size, K].")
        return
    ordered = sorted([list(entry) for entry in schedule])
    config[_SCHEDULE] = ordered
    gaps = [(one, two) for one, two in pairwise(ordered) if two[0] <= one[1]]
    if ordered[0][0] != 1 or any(first > last or k < 0 for first, last, k in ordered) or gaps:
        problems.append(f"{label}={schedule!r}: ranges must begin at batch size 1, not overlap, and K not be negative.")
    largest, k = max(entry[2] for entry in ordered), config.get("num_speculative_tokens")
    if isinstance(k, int) and largest > k:
        problems.append(f"{label} asks for K={largest}, but num_speculative_tokens={k} is the most; raise it.")


def _is_range(entry: object) -> bool:
    return isinstance(entry, list | tuple) and len(entry) == 3 and all(_is_whole(number) for number in entry)


def missing_field(name: str, facts: VllmFacts) -> str:
    """A sentence about a key that this version does not have."""
    since = known_since(tables.SPECULATIVE_FIELDS, name)
    guess = "" if since else did_you_mean(name, [*facts.speculative_fields, *(_OWN.keys() - {name})])
    return f"speculative_config.{name}: vLLM {facts.version} has no such setting{since}.{guess}"
