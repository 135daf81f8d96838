"""translate: Paceline's arguments as a command of one version of vLLM. Pure: nothing is read, fetched or started.

Contract
- Every argument is honoured, left out with a note, or a problem; all problems come in one ConfigurationError.
- Only what the user gave is passed on: for the rest vLLM's own defaults hold, which fit its engine.
- An option that the version does not have is never passed. What Paceline has no name for goes through under vLLM's
  own, checked as that version's parser would: `pipeline_parallel_size=2` in Python, `--vllm-args` on a command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.arguments.fields import EngineArguments
from paceline.errors import ConfigurationError, did_you_mean
from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.command import Option, VllmCommand
from paceline.runtimes.vllm.facts import VllmFacts, known_since
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.kinds import Kinds
from paceline.runtimes.vllm.option_values import sentence, unknown_parser, wrong_value
from paceline.runtimes.vllm.raw import read_raw
from paceline.runtimes.vllm.reading import read_known
from paceline.runtimes.vllm.relations import incomplete, notes_about, open_secrets, too_few_tokens
from paceline.runtimes.vllm.reserved import why_reserved
from paceline.runtimes.vllm.speculation import FLAT, is_flat, speculative_config
from paceline.runtimes.vllm.stages import staged_notes, staged_problem
from paceline.runtimes.vllm.values import PLUGGABLE, check_host, check_port, check_values

Locate = Callable[[str], str]

# Paceline's arguments that are options of vLLM under the same name, in the order in which they are written.
SAME = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "load_format",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enforce_eager",
    "max_logprobs",
    "seed",
    "skip_tokenizer_init",
    "tokenizer",
)
# Those that are written differently, or say something to Paceline alone.
OTHERWISE = ("model", "device", "quantize_lm_head", "speculative_config")
_PACELINES = frozenset(EngineArguments.__dataclass_fields__)
# A second value in --vllm-args would contradict the argument.
SHARED = frozenset(name.replace("_", "-") for name in SAME)


def translate(
    arguments: Mapping[str, Any],
    facts: VllmFacts,
    *,
    served_model_names: Sequence[str] = (),
    host: str | None = None,
    port: int | None = None,
    vllm_args: str | Sequence[str] = (),
    args_label: str = "vllm_args",
    locate: Locate = str,
) -> VllmCommand:
    """`arguments` as `LLM` and `paceline serve` take them; `locate` says where a model's name leads.

    `args_label`: what the user calls `vllm_args`. `host`, `port` None: vLLM's own (all addresses, 8000). Raises
    ConfigurationError with every problem found.
    """
    problems: list[str] = []
    notes: list[str] = []
    given = {name: value for name, value in arguments.items() if value is not None}
    known = read_known({name: value for name, value in given.items() if name in _PACELINES}, problems)
    _check_model_and_machine(known, facts, problems)
    check_values(known, facts, problems)
    check_host(host, problems)
    check_port(port, problems)
    shared = [option for name in SAME if name in known for option in _option(name, known[name], facts.kinds)]
    problems += [_no_option(name, facts) for name in SAME if name in known and not facts.has_flag(_flag(name))]
    speculative = _speculative(given, known, facts, problems, notes)
    both = SHARED - {_flag(name) for name in PLUGGABLE if name not in known}
    raw = read_raw(vllm_args, both, facts, problems, args_label)
    more = _more(given, raw, facts, problems, notes)
    problems += [*unknown_parser(more, facts.kinds), *incomplete(more), *too_few_tokens(known, more)]
    problems += open_secrets(more)
    notes += notes_about(more)
    _check_stages(speculative, more, facts, problems, notes)
    _raise(problems)  # before a model is fetched
    speculation = _option("speculative_config", _located(speculative, locate), facts.kinds) if speculative else []
    options = (*shared, *speculation, *more, *_address(served_model_names, host, port))
    return VllmCommand(model=locate(known["model"]), options=options, version=facts.version, notes=tuple(notes))


def _check_model_and_machine(known: Mapping[str, Any], facts: VllmFacts, problems: list[str]) -> None:
    for name in ("model", "tokenizer"):
        if known.get(name):
            problems += [f"{name}={known[name]!r} {wrong}." for wrong in _wrong_name(known[name])]
    if not known.get("model"):
        problems.append('Which model? Give model="<name, directory or repo id>".')
    wanted = known.get("device", "auto")  # vLLM is built for one kind of device; there is nothing to pass
    if facts.device is not None and wanted not in ("auto", facts.device):
        problems.append(
            f"device={wanted!r}: this vLLM ({facts.distribution} {facts.version}) runs on {facts.device!r}. Leave "
            "device out, or give the Python of another vLLM with --vllm-python."
        )
    if known.get("quantize_lm_head"):
        problems.append(
            "quantize_lm_head is not possible with runtime vllm: vLLM keeps the head in the checkpoint's precision."
        )


def _check_stages(
    speculative: Mapping[str, Any] | None,
    more: Sequence[Option],
    facts: VllmFacts,
    problems: list[str],
    notes: list[str],
) -> None:
    method = (speculative or {}).get("method")
    size = next((values[0] for name, values in more if name == "pipeline-parallel-size" and values), "1")
    stages = int(size) if size.isdecimal() and len(size) < 6 else 1  # anything else is a problem already
    problem = staged_problem(method, stages, facts.minor)
    if problem is not None:
        problems.append(problem)
    else:
        notes += staged_notes(method, stages)


def _wrong_name(name: str) -> Iterator[str]:
    if not (name.strip() and name.isprintable()):
        yield "must be the name or path of a model: not empty, and without line breaks or other control characters"
    elif name.startswith("-"):
        yield "would be read as an option; write a path as ./-name"


def _speculative(
    given: Mapping[str, Any], known: Mapping[str, Any], facts: VllmFacts, problems: list[str], notes: list[str]
) -> dict[str, Any] | None:
    asked = {name: value for name, value in given.items() if is_flat(name)}
    if "speculative_config" in known:
        asked["speculative_config"] = known["speculative_config"]
    config = speculative_config(asked, known.get("tensor_parallel_size", 1), facts, problems, notes)
    if config is not None and isinstance(config.get("model"), str):
        problems += [f"speculative_config.model={config['model']!r} {wrong}." for wrong in _wrong_name(config["model"])]
    if config is not None:
        notes.append("With speculation, vLLM refuses requests with min_p or logit_bias (400).")
    return config


def _more(
    given: Mapping[str, Any], raw: list[Option], facts: VllmFacts, problems: list[str], notes: list[str]
) -> list[Option]:
    """What Paceline has no name for. Words in vLLM's own spelling stand against the same from elsewhere."""
    others = {name: value for name, value in given.items() if name not in _PACELINES and not is_flat(name)}
    written = {name for name, _ in raw}
    return [*(option for option in _foreign(others, facts, problems, notes) if option[0] not in written), *raw]


def _option(name: str, value: Any, kinds: Kinds) -> list[Option]:
    """In the spelling of vLLM's parser: --x, --no-x, --x VALUE, --x JSON; one that repeats for each of a list."""
    flag = _flag(name)
    kind = kinds.get(flag, {})
    if value is False and kind.get("takes") == "on":
        return []
    if isinstance(value, bool):
        return [(flag if value else f"no-{flag}", ())]
    if isinstance(value, list | tuple) and kind.get("takes") == "many":
        return [(flag, tuple(map(str, value)))]
    if isinstance(value, list | tuple) and kind.get("repeats"):
        return [(flag, (str(one),)) for one in value]
    if isinstance(value, Mapping | list | tuple):
        return [(flag, (json.dumps(value, separators=(",", ":"), default=str),))]
    return [(flag, (str(value),))]


def _no_option(name: str, facts: VllmFacts) -> str:
    return f"{name}: vLLM {facts.version} has no such argument. Leave it out."


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _located(speculative: dict[str, Any], locate: Locate) -> dict[str, Any]:
    return speculative | ({"model": locate(speculative["model"])} if "model" in speculative else {})


def _foreign(others: Mapping[str, Any], facts: VllmFacts, problems: list[str], notes: list[str]) -> list[Option]:
    """Arguments that Paceline has no name for: vLLM's own, those that it no longer has, and mistakes."""
    options: list[Option] = []
    for name, value in others.items():
        flag = _flag(name)
        why = why_reserved(flag, SHARED)
        if why is not None and facts.has_flag(flag):
            problems.append(f"{name} {why}." if why.startswith("is ") else f"{name}: {why}.")
        elif facts.has_flag(flag) and not _is_writable(value):
            problems.append(f"{name}={value!r}: a command line of vLLM cannot carry it; give text, a number or JSON.")
        elif facts.has_flag(flag):
            made = _option(name, value, facts.kinds)
            problems += [
                sentence(f"{name}={value!r}: --{option[0]} {wrong}")
                for option in made
                if (wrong := wrong_value(option, facts.kinds))
            ]
            options += made
        elif name in GONE:
            instead, harmless = GONE[name]
            is_left_out = harmless is None or value in harmless
            (notes if is_left_out else problems).append(f"{name}={value!r}: vLLM no longer has it; {instead}.")
        else:
            since = known_since(tables.FLAGS, flag)
            guess = "" if since else did_you_mean(name, _names(facts))
            problems.append(f"{name}: vLLM {facts.version} has no such argument{since}.{guess}")
    return options


def _is_writable(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_writable(inside) for key, inside in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_writable, value))
    return value is None or isinstance(value, str | int | float | Path)


def _names(facts: VllmFacts) -> list[str]:
    return [*_PACELINES, *FLAT, *(flag.replace("-", "_") for flag in facts.flags)]


def _address(names: Sequence[str], host: str | None, port: int | None) -> list[Option]:
    options: list[Option] = [("served-model-name", tuple(names))] if names else []
    if host is not None:
        options.append(("host", (host,)))
    if port is not None:
        options.append(("port", (str(port),)))
    return options


def _raise(problems: list[str]) -> None:
    if len(problems) == 1:
        raise ConfigurationError(problems[0])
    if problems:
        lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        raise ConfigurationError(f"{len(problems)} problems with these arguments:{lines}")
