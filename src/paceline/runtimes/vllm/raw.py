"""--vllm-args: options in vLLM's own spelling, checked for existence and number of values, handed on as they are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from paceline.errors import did_you_mean
from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.command import Option
from paceline.runtimes.vllm.facts import VllmFacts, known_since
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.kinds import wrong_value
from paceline.runtimes.vllm.speculation import FLAT


def read_raw(text: str | Sequence[str], ours: frozenset[str], facts: VllmFacts, problems: list[str]) -> list[Option]:
    """`text` is one line as in a shell, or words. `ours` are the options that Paceline writes itself."""
    try:
        words = shlex.split(text) if isinstance(text, str) else list(text)
    except ValueError as error:
        problems.append(f"vllm_args cannot be split into words: {error}.")
        return []
    options: list[Option] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            _check(name.partition(".")[0], ours, facts, problems)
            options.append((name, (value,) if equals else ()))
        elif options and not _is_short_option(word):
            options[-1] = (options[-1][0], (*options[-1][1], word))
        else:
            problems.append(f"vllm_args: '{word}' is not an option; write options in their long form, --name value.")
    problems += [f"vllm_args: --{option[0]} {wrong}." for option in options if (wrong := wrong_value(option))]
    return options


def _is_short_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and word[1].isalpha()


def _check(name: str, ours: frozenset[str], facts: VllmFacts, problems: list[str]) -> None:
    if name.removeprefix("no-") in ours:
        problems.append(f"vllm_args: --{name} is written by Paceline; give it as an argument of its own.")
    elif name.replace("-", "_") in GONE and not facts.has_flag(name):
        problems.append(f"vllm_args: vLLM no longer has --{name}; {GONE[name.replace('-', '_')][0]}.")
    elif name.replace("-", "_") in FLAT:
        problems.append(
            f"vllm_args: --{name} is vLLM's older form of speculation; give it as an argument of its own, or as a key "
            "of --speculative-config."
        )
    elif not facts.has_flag(name):
        since = known_since(tables.FLAGS, name)
        guess = "" if since else did_you_mean(name, facts.flags)
        problems.append(f"vllm_args: vLLM {facts.version} has no option --{name}{since}.{guess}")
