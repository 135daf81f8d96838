"""Arguments that passed the cheap checks, and the models they name, become one EngineConfig."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from paceline.arguments.checks import check_machine, check_names, check_numbers, device_of, notes, runs_eagerly
from paceline.arguments.fields import (
    EngineArguments,
    SpeculativeArguments,
    read_engine_arguments,
    read_speculative_arguments,
)
from paceline.arguments.machine import Machine
from paceline.config import (
    AcceptanceMethod,
    CacheConfig,
    Dtype,
    EngineConfig,
    LoadFormat,
    ModelConfig,
    Quantization,
    SchedulerConfig,
    SpeculativeConfig,
)
from paceline.errors import ConfigurationError, PacelineError
from paceline.hub import check_name
from paceline.hub.catalog import MISTAKEN_REPOS

if TYPE_CHECKING:
    from paceline.models.architecture import Architecture
    from paceline.tokenizer import Tokenizer

CPU_MAX_MODEL_LEN = 4096  # default; attention over more positions is slow on a CPU, and the cache is large
MAX_NUM_BATCHED_TOKENS = {"cuda": 2048, "cpu": 512}  # one step of 2,048 tokens holds everyone up for 20 s on a CPU
_ACCEPTANCE: dict[str, AcceptanceMethod] = {
    "standard": "rejection",
    "strict": "rejection",
    "block": "block",
    "synthetic": "synthetic",
}
# Tokens of the longest n-gram. Beside a draft model the length says how sure a match is, so more of it is of use.
_LONGEST_LOOKUP = {"ngram": 4, "draft_model": 16}
_DTYPES: dict[str, Dtype] = {"float": "float32", "half": "float16"}


@dataclass(frozen=True, slots=True)
class Resolved:
    config: EngineConfig
    tokenizer: Tokenizer | None  # None with skip_tokenizer_init
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A model on disk, before the two of a pair are known to fit."""

    name: str
    path: Path
    architecture: Architecture
    tokenizer: Tokenizer | None

    @property
    def vocab_size(self) -> int:
        """Ids that stand for text: a padded table of embeddings is longer than the tokenizer (p39)."""
        size = self.architecture.vocab_size
        return min(size, self.tokenizer.vocab_size) if self.tokenizer else size


def resolve_arguments(
    arguments: Mapping[str, Any],
    *,
    machine: Machine | None = None,
    progress: Callable[[str], None] | None = None,
    known_problems: Sequence[str] = (),
) -> Resolved:
    """Raises ConfigurationError with all problems, `known_problems` first. `progress` gets one line a stage while a
    model is fetched."""
    problems = list(known_problems)
    engine = read_engine_arguments(arguments, problems)
    speculative = read_speculative_arguments(arguments, problems)
    machine = machine or Machine.detect()
    check_names(engine, speculative, problems)
    check_numbers(engine, speculative, problems)
    check_machine(engine, speculative, machine, problems)
    if problems:  # nothing is fetched, but a model that cannot be there is told as well
        for name in dict.fromkeys((engine.model, (speculative and speculative.model) or "")):
            if name and name.lower() not in MISTAKEN_REPOS:  # told by check_names
                with _collected(problems):
                    check_name(name)
    _raise(problems)
    target = _open(engine.model, problems, progress, has_tokenizer=not engine.skip_tokenizer_init)
    draft = None
    if speculative and speculative.model:
        wanted = None if target and target.tokenizer else False  # compared with the target's, if there are two
        draft = _open(speculative.model, problems, progress, has_tokenizer=wanted)
    _raise(problems)
    assert target is not None
    if target.architecture.draft_vocab_size is not None:
        problems.append(
            f"'{target.name}' has a reduced head: it is a draft, which proposes only some tokens, and cannot be served."
        )
    if draft is not None:
        _check_pair(target, draft, problems)
    _check_split("tensor_parallel_size", target, engine.tensor_parallel_size, problems)
    if draft is not None and speculative is not None:
        _check_split("draft_tensor_parallel_size", draft, speculative.draft_tensor_parallel_size or 1, problems)
    config = _configure(engine, speculative, target, draft, machine, problems)
    if config is not None and not problems:
        from paceline.arguments.cache_room import check_cache_room

        with _collected(problems):
            check_cache_room(config, target.architecture, draft.architecture if draft else None)
    _raise(problems)
    assert config is not None
    given = frozenset(arguments)
    return Resolved(config, target.tokenizer, tuple(notes(given, engine, speculative, machine)))


def check_without_models(arguments: Mapping[str, Any], machine: Machine) -> list[str]:
    """The problems that `resolve_arguments` would find on `machine` before it has read a model, and in the values."""
    problems: list[str] = []
    engine = read_engine_arguments(arguments, problems)
    speculative = read_speculative_arguments(arguments, problems)
    check_names(engine, speculative, problems)
    check_machine(engine, speculative, machine, problems)
    if problems:
        return problems
    device = device_of(engine, machine)
    model = ModelConfig(path=Path(), name="")  # stands for either model
    with _collected(problems):
        replace(model, max_model_len=2 if engine.max_model_len is None else engine.max_model_len)
    with _collected(problems):
        _cache(engine)
    with _collected(problems):
        _scheduler(engine, device)
    with _collected(problems):
        EngineConfig(model=model, max_logprobs=engine.max_logprobs)
    if speculative is not None:
        with _collected(problems):
            eager = runs_eagerly(engine, speculative, machine)
            _speculative(speculative, model if speculative.method == "draft_model" else None, eager)
        with _collected(problems):
            replace(model, max_model_len=2 if speculative.max_model_len is None else speculative.max_model_len)
    return problems


def _check_split(argument: str, model: _Checkpoint, size: int, problems: list[str]) -> None:
    from paceline.models.sharding import shard_model

    try:
        for rank in range(size):
            shard_model(model.architecture, rank, size)
    except ConfigurationError as error:
        problems.append(f"{argument}={size} is not possible for '{model.name}': {error}")


def _raise(problems: list[str]) -> None:
    if len(problems) == 1:
        raise ConfigurationError(problems[0])
    if problems:
        lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        raise ConfigurationError(f"{len(problems)} problems with these arguments:{lines}")


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except PacelineError as error:
        problems.append(str(error))


def _open(
    name: str, problems: list[str], progress: Callable[[str], None] | None, *, has_tokenizer: bool | None
) -> _Checkpoint | None:
    """`has_tokenizer` None: as the directory is."""
    from paceline import tokenizer
    from paceline.hub import resolve
    from paceline.models.architecture import read_architecture

    with _collected(problems):
        path = resolve(name, progress)
        architecture = read_architecture(path)
        wanted = tokenizer.has_tokenizer(path) if has_tokenizer is None else has_tokenizer
        return _Checkpoint(name, path, architecture, tokenizer.load_tokenizer(path) if wanted else None)
    return None


def _check_pair(target: _Checkpoint, draft: _Checkpoint, problems: list[str]) -> None:
    """A draft without tokenizer files is taken to have the target's tokens; a wrong one only drafts badly."""
    from paceline.tokenizer import same_tokens

    difference = same_tokens(target.tokenizer, draft.tokenizer) if target.tokenizer and draft.tokenizer else None
    if difference is not None:
        problems.append(f"'{target.name}' and '{draft.name}' cannot work together: {difference}")
    elif draft.architecture.vocab_size < target.vocab_size:
        problems.append(
            f"'{draft.name}' knows {draft.architecture.vocab_size} token ids and '{target.name}' uses "
            f"{target.vocab_size}: the draft could not read all of the target's text. Choose another draft."
        )
    elif target.tokenizer and not draft.tokenizer and draft.architecture.vocab_size != target.architecture.vocab_size:
        problems.append(
            f"'{draft.name}' has no tokenizer files, and its {draft.architecture.vocab_size} token ids are not the "
            f"{target.architecture.vocab_size} of '{target.name}'. Copy its own tokenizer.json into {draft.path}."
        )


def _configure(
    arguments: EngineArguments,
    speculative: SpeculativeArguments | None,
    target: _Checkpoint,
    draft: _Checkpoint | None,
    machine: Machine,
    problems: list[str],
) -> EngineConfig | None:
    device = device_of(arguments, machine)
    dtype = _dtype(arguments, target.architecture, device, machine)
    limit = CPU_MAX_MODEL_LEN if device == "cpu" else target.architecture.max_position_embeddings
    max_model_len = _max_model_len("max_model_len", arguments.max_model_len, target, limit, problems)
    load_format: LoadFormat = "dummy" if arguments.load_format == "dummy" else "auto"

    def model(
        checkpoint: _Checkpoint, length: int, quantization: Quantization | None, quantize_lm_head: bool
    ) -> ModelConfig:
        if quantize_lm_head and quantization is None and checkpoint.architecture.quantization is None:
            problems.append(
                f"quantize_lm_head: '{checkpoint.name}' is not FP8; add quantization='fp8' or leave it out."
            )
        return ModelConfig(
            path=checkpoint.path,
            name=checkpoint.name,
            dtype=dtype,
            max_model_len=length,
            load_format=load_format,
            quantization=quantization,
            quantize_lm_head=quantize_lm_head,
            kv_cache_dtype="auto" if arguments.kv_cache_dtype == "auto" else "fp8",
            vocab_size=target.vocab_size,  # of the pair: a draft proposes nothing that the target cannot emit
            eos_token_ids=_eos_token_ids(target),
        )

    with _collected(problems):
        draft_config = None
        if draft is not None and speculative is not None:
            wanted = speculative.max_model_len
            length = _max_model_len("speculative_config.max_model_len", wanted, draft, max_model_len, problems)
            draft_config = model(
                draft, min(length, max_model_len), speculative.quantization, speculative.quantize_lm_head
            )
            head_size = _head_size(speculative.draft_vocab_size, draft, draft_config, device, problems)
            draft_config = replace(draft_config, head_size=head_size)
        return EngineConfig(
            model=model(target, max_model_len, arguments.quantization, arguments.quantize_lm_head),
            speculative=_speculative(speculative, draft_config, runs_eagerly(arguments, speculative, machine))
            if speculative
            else None,
            cache=_cache(arguments),
            scheduler=_scheduler(arguments, device),
            tensor_parallel_size=arguments.tensor_parallel_size,
            device="cuda" if device == "cuda" else "cpu",
            enforce_eager=arguments.enforce_eager,
            max_logprobs=arguments.max_logprobs,
            seed=arguments.seed or 0,
        )
    return None


def _head_size(
    wanted: int | str, draft: _Checkpoint, config: ModelConfig, device: str, problems: list[str]
) -> int | None:
    """How many tokens the draft's head keeps; None: all that its checkpoint has."""
    from paceline.models.draft_head import COUNTS_FILE, frequent_tokens, read_counts

    label, architecture = "speculative_config.draft_vocab_size", draft.architecture
    if wanted == "all" or (wanted == "auto" and (device != "cpu" or architecture.draft_vocab_size is not None)):
        return None
    if architecture.draft_vocab_size is not None:
        problems.append(
            f"{label}={wanted}: the head of '{draft.name}' has been reduced to {architecture.draft_vocab_size} tokens "
            "already; leave the argument out."
        )
        return None
    counts = read_counts(draft.path, architecture.vocab_size)
    if counts is None:
        if wanted != "auto":
            problems.append(
                f"{label}={wanted} needs to know which tokens the target uses most, and '{draft.name}' has no "
                f"{COUNTS_FILE} beside its weights. Leave the argument out, or put the counts there (an int array with "
                "one number a token)."
            )
        return None
    try:
        return len(frequent_tokens(counts, None if wanted == "auto" else int(wanted), config.eos_token_ids))
    except ValueError as error:
        problems.append(f"{label}={wanted} {error}.")
        return None


def _dtype(arguments: EngineArguments, architecture: Architecture, device: str, machine: Machine) -> Dtype:
    if arguments.dtype != "auto":
        return _DTYPES.get(arguments.dtype) or cast(Dtype, arguments.dtype)
    if device == "cpu":
        return machine.cpu_dtype()
    return "float16" if architecture.dtype == "float16" else "bfloat16"


def _max_model_len(argument: str, wanted: int | None, model: _Checkpoint, limit: int, problems: list[str]) -> int:
    longest = model.architecture.max_position_embeddings
    if wanted is None:
        return min(longest, limit)
    if wanted > longest:
        problems.append(f"{argument}={wanted} is more than the {longest} positions that '{model.name}' was made for.")
    return wanted


def _eos_token_ids(target: _Checkpoint) -> tuple[int, ...]:
    """Those of the checkpoint's configuration, as transformers' generate takes them; else the tokenizer's own."""
    own = target.tokenizer.eos_token_id if target.tokenizer else None
    return target.architecture.eos_token_ids or (() if own is None else (own,))


def _speculative(arguments: SpeculativeArguments, draft: ModelConfig | None, is_eager: bool) -> SpeculativeConfig:
    assert arguments.method is not None
    beside = draft is not None and is_eager
    longest = arguments.prompt_lookup_max or max(_LONGEST_LOOKUP[arguments.method], arguments.prompt_lookup_min or 0)
    is_synthetic = arguments.rejection_sample_method == "synthetic"
    return SpeculativeConfig(
        method=arguments.method,
        num_speculative_tokens=arguments.num_speculative_tokens,
        draft=draft,
        ngram_beside_draft=beside,
        proposer=arguments.proposer or ("draft" if beside and is_synthetic else "auto"),
        adaptive=not is_synthetic if arguments.adaptive is None else arguments.adaptive,
        draft_tensor_parallel_size=arguments.draft_tensor_parallel_size or 1,
        prompt_lookup_max=longest,
        prompt_lookup_min=min(2, longest) if arguments.prompt_lookup_min is None else arguments.prompt_lookup_min,
        acceptance=_ACCEPTANCE[arguments.rejection_sample_method],
        synthetic_acceptance_rates=_conditional(arguments.synthetic_acceptance_rates or []),
    )


def _conditional(rates: list[float]) -> tuple[float, ...]:
    """From P(the first i drafts are kept), which is what users give, to P(draft i is kept | those before it are)."""
    before = [1.0, *rates]
    return tuple(rate / last if last > 0 else 0.0 for last, rate in zip(before, rates, strict=False))


def _cache(arguments: EngineArguments) -> CacheConfig:
    return CacheConfig(
        block_size=arguments.block_size or 16,
        num_blocks=arguments.num_gpu_blocks_override or 0,
        enable_prefix_caching=arguments.enable_prefix_caching is not False,
        memory_utilization=arguments.gpu_memory_utilization,
        kv_cache_memory_bytes=arguments.kv_cache_memory_bytes,
    )


def _scheduler(arguments: EngineArguments, device: str) -> SchedulerConfig:
    max_num_seqs = 32 if arguments.max_num_seqs is None else arguments.max_num_seqs
    budget = arguments.max_num_batched_tokens
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(MAX_NUM_BATCHED_TOKENS[device], max_num_seqs) if budget is None else budget,
    )
