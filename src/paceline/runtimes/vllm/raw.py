"""--vllm-args: options in vLLM's own spelling, checked as its parser would, and handed on as they are."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from paceline.errors import did_you_mean
from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.command import Option
from paceline.runtimes.vllm.facts import VllmFacts, known_since
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.option_values import sentence, wrong_value
from paceline.runtimes.vllm.reserved import why_reserved
from paceline.runtimes.vllm.speculation import FLAT

_QUOTES = "; words are split as in a shell, which takes quotes away: put single quotes around the JSON"


def read_raw(
    text: str | Sequence[str], shared: frozenset[str], facts: VllmFacts, problems: list[str], label: str
) -> list[Option]:
    """`text` is one line as in a shell, or words; `shared` are the options that are arguments of Paceline as well.

    `label`: what the user calls `text`.
    """
    found: list[str] = []
    options = _options(text, found)
    for name in dict.fromkeys(name.partition(".")[0] for name, _ in options):
        found += _no_such_option(name, shared, facts, label)
    for option in options:
        wrong = wrong_value(option, facts.kinds)
        if wrong is not None and why_reserved(option[0], shared) is None:
            unquoted = isinstance(text, str) and "must be JSON" in wrong
            found.append(sentence(f"--{option[0]} {wrong}{_QUOTES if unquoted else ''}"))
    found += _given_twice(options, facts)
    problems += [f"{label}: {problem}" for problem in found]
    return options


def _options(text: str | Sequence[str], problems: list[str]) -> list[Option]:
    try:
        words = shlex.split(text) if isinstance(text, str) else list(text)
    except ValueError as error:
        problems.append(f"it cannot be split into words: {str(error)[:1].lower()}{str(error)[1:]}.")
        return []
    options: list[Option] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            head, dot, key = name.partition(".")
            options.append((head.replace("_", "-") + dot + key, (value,) if equals else ()))
        elif _is_short_option(word) or not options:
            problems.append(f"'{word}' is not an option; write options in their long form, --name value.")
            options.append(("", ()))  # takes its values
        else:
            options[-1] = (options[-1][0], (*options[-1][1], word))
    return [option for option in options if option[0]]


def _is_short_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and word[1].isalpha()


def _no_such_option(name: str, shared: frozenset[str], facts: VllmFacts, label: str) -> Iterator[str]:
    argument = name.replace("-", "_")
    if (why := why_reserved(name, shared, label)) is not None:
        yield f"--{name} {why}." if why.startswith("is ") else f"--{name}: {why}."
    elif argument in GONE and not facts.has_flag(name):
        yield f"vLLM no longer has --{name}; {GONE[argument][0]}."
    elif argument in FLAT:
        yield (
            f"--{name} is vLLM's older form of speculation; give it as an argument of its own, or as a key of "
            "--speculative-config."
        )
    elif not facts.has_flag(name):
        since = known_since(tables.FLAGS, name)
        guess = "" if since else did_you_mean(name, facts.flags)
        yield f"vLLM {facts.version} has no option --{name}{since}.{guess}"


def _given_twice(options: Sequence[Option], facts: VllmFacts) -> Iterator[str]:
    """vLLM would take the last without a word."""
    names = [name if name in facts.kinds or not name.startswith("no-") else name[3:] for name, _ in options]
    for name, times in Counter(names).items():
        whole = name.partition(".")[0]
        may_repeat = facts.kinds.get(whole, {}).get("repeats") or name.endswith("+")
        if times > 1 and not may_repeat:
            yield f"--{name} is given {times} times; give it once."
        elif whole != name and whole in names:
            yield f"--{whole} is given as a whole and as --{name}; put the key into its JSON."
