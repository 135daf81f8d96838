"""faults_of: what is wrong with a command of `vllm serve` that somebody wrote, for one version.

    faults_of(["/models/m", "--max-num-seqs", "five"], facts_of("0.32")) -> Faults(fatal=(...), loose=())

The same tables and rules as translate.py's, without Paceline's own names: a manifest is vLLM's to read. A value is
left alone where it is not known: `$(NAME)`, which Kubernetes puts in, and templates of KServe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.shapes import SHAPES, shape_in
from paceline.errors import PacelineError
from paceline.json_text import loads
from paceline.runtimes.vllm.command import Option
from paceline.runtimes.vllm.facts import VllmFacts
from paceline.runtimes.vllm.fits import split_problem
from paceline.runtimes.vllm.option_values import sentence, unknown_parser, whole_numbers, wrong_json, wrong_value
from paceline.runtimes.vllm.relations import incomplete, too_few_tokens
from paceline.runtimes.vllm.speculation import missing_field, speculative_config
from paceline.runtimes.vllm.stages import staged_problem
from paceline.runtimes.vllm.written import Written, read_written

_OPEN = ("$(", "{{")  # Kubernetes or KServe put something in
_TOKENS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")


@dataclass(frozen=True, slots=True)
class Faults:
    fatal: tuple[str, ...]  # vLLM would not start
    loose: tuple[str, ...]  # it would, and not as it looks


def faults_of(words: Sequence[str], facts: VllmFacts, names: Mapping[str, str] | None = None) -> Faults:
    """`words` follow `vllm serve`. `names`: of the models that lie at paths, as far as they are known."""
    names = names or {}
    read = read_written(words, facts)
    known = [option for option in read.options if not any(map(_is_open, option[1]))]
    fatal = [*read.unknown, *_extra(read), *_values(known, facts)]
    fatal += [*unknown_parser(known, facts.kinds), *incomplete(read.options), *too_few_tokens(_numbers(known), known)]
    config = _speculative(known)
    fatal += _speculation(config, known, read.options, facts)
    size = _size(known, read.options, "tensor-parallel-size")
    models = read.words[:1]
    if config is not None and config.get("method") in (None, "draft_model") and isinstance(config.get("model"), str):
        models.append(config["model"])
    fatal += [problem for path in models for problem in _heads(names.get(path, path), size)]
    return Faults(tuple(dict.fromkeys(fatal)), tuple(dict.fromkeys((*read.loose, *_twice(read.options, facts)))))


def _extra(read: Written) -> Iterator[str]:
    """One word may stand alone: the model."""
    has_model = any(name == "model" for name, _ in read.options)
    joined = [word for word in read.words if word.startswith("-") and " " in word]
    for word in joined:
        yield f"{_shown(word)} is one word, with the space: make an option and its value two of them."
    alone = [word for word in read.words if word not in joined]
    for word in alone[0 if has_model else 1 :] if not any(map(_is_open, alone)) else []:
        yield f"{_shown(word)} belongs to no option: vLLM takes one word of its own, the model."


def _values(options: Sequence[Option], facts: VllmFacts) -> Iterator[str]:
    for option in options:
        name, wrong = option[0], wrong_value(option, facts.kinds)
        if wrong is not None and name.partition(".")[0] != "speculative-config":  # told in words of its own
            yield sentence(f"--{name} {wrong}")


def _numbers(options: Sequence[Option]) -> Mapping[str, int]:
    values = {name.replace("-", "_"): given[0] for name, given in options if len(given) == 1}
    return {name: int(values[name]) for name in _TOKENS if _is_count(values.get(name))}


def _is_count(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdecimal() and len(text) < 10


def _size(known: Sequence[Option], written: Sequence[Option], name: str) -> int | None:
    """Of the last that is given; None where it is not known."""
    given = [values[0] if values else "" for other, values in written if other == name]
    if not given:
        return 1
    return int(given[-1]) if _is_count(given[-1]) and int(given[-1]) > 0 else None


def _twice(options: Sequence[Option], facts: VllmFacts) -> Iterator[str]:
    for name, times in Counter(name.removeprefix("no-") for name, _ in options).items():
        whole = name.partition(".")[0]
        if times > 1 and not facts.kinds.get(whole, {}).get("repeats") and not name.endswith("+"):
            yield f"--{name} is given {times} times, and vLLM takes the last: give it once."
        elif whole != name and any(other == whole for other, _ in options):
            yield f"--{whole} is given as a whole and as --{name}, of which vLLM takes one: put the key into its JSON."


def _speculative(options: Sequence[Option]) -> dict[str, Any] | None:
    """The object, with the keys that are given one by one; None where there is none that can be read."""
    found: dict[str, Any] | None = None
    for name, values in options:
        head, dot, key = name.partition(".")
        if head != "speculative-config" or len(values) != 1:
            continue
        try:
            value = loads(whole_numbers(values[0]))
        except (ValueError, PacelineError):
            value = values[0]
        if dot:
            found = {**(found or {}), key: value}
        elif isinstance(value, dict):
            found = value
    return found


def _speculation(
    config: Mapping[str, Any] | None, known: Sequence[Option], written: Sequence[Option], facts: VllmFacts
) -> Iterator[str]:
    whole = next((values for name, values in known if name == "speculative-config"), None)
    if whole is not None and (wrong := wrong_value(("speculative-config", whole), {"speculative-config": _OBJECT})):
        yield sentence(f"--speculative-config {wrong}")
    if config is None:
        return
    yield from (missing_field(name, facts) for name in config if name not in facts.speculative_fields)
    fields = {name: value for name, value in config.items() if name in facts.speculative_fields}
    size = _size(known, written, "tensor-parallel-size")
    if fields.get("method") is None:  # vLLM reads the draft's own config to know
        for name, value in fields.items():
            if wrong := wrong_json(facts.speculative_kinds.get(name, {}), value):
                yield sentence(f"speculative_config.{name} {wrong}")
    else:
        problems: list[str] = []
        degree = size or fields.get("draft_tensor_parallel_size")
        speculative_config({"speculative_config": fields}, degree or 1, facts, problems, [])
        yield from problems
    method = fields.get("method") or ("draft_model" if fields.get("model") and facts.minor < 30 else None)
    stages = _size(known, written, "pipeline-parallel-size")
    problem = staged_problem(method, stages or 1, facts.minor) if isinstance(method, str) else None
    if problem is not None:
        yield problem


_OBJECT = {"takes": "one", "value": "object"}


def _heads(model: str, size: int | None) -> Iterator[str]:
    shape = shape_in(model) if model else None
    problem = split_problem(SHAPES[shape], shape, size) if shape and size else None
    if problem is not None:
        yield problem


def _is_open(text: str) -> bool:
    return any(sign in text for sign in _OPEN)


def _shown(word: str) -> str:
    return repr(word if len(word) <= 60 else f"{word[:60]}…")
