"""A command of `vllm serve` that somebody wrote, read as vLLM's own parser reads it (argparse, with its liberties).

Names may have underscores, `-tp 2` is short, `--x.key 1` sets a key, and the beginning of a name stands for the whole
where only one option begins so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import did_you_mean
from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.command import NEGATIVE, Option
from paceline.runtimes.vllm.facts import VllmFacts, known_since
from paceline.runtimes.vllm.kinds import READ_FROM, takes_no_value
from paceline.runtimes.vllm.speculation import removed_option

# Of 0.32's parser.
SHORT = {
    "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
    "-dcp": "decode-context-parallel-size", "-pcp": "prefill-context-parallel-size", "-asc": "api-server-count",
    "-q": "quantization", "-n": "nnodes", "-r": "node-rank", "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank", "-dpl": "data-parallel-size-local", "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port", "-dpb": "data-parallel-backend", "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb", "-dpm": "data-parallel-multi-port-external-lb",
    "-ep": "enable-expert-parallel", "-sc": "speculative-config", "-dc": "diffusion-config",
    "-cc": "compilation-config", "-ac": "attention-config", "-O": "optimization-level", "-h": "help",
}  # fmt: skip


@dataclass(slots=True)
class Written:
    options: list[Option] = field(default_factory=list)  # under their whole names
    words: list[str] = field(default_factory=list)  # that belong to no option; the first is the model
    unknown: list[str] = field(default_factory=list)  # sentences about what vLLM would not start with
    loose: list[str] = field(default_factory=list)  # about what it takes, and its reader may not


def read_written(words: Sequence[str], facts: VllmFacts) -> Written:
    """`words` follow `vllm serve`."""
    read = Written()
    room = 0  # values that the last option may still take
    for word in words:
        name, equals, value = word.partition("=")
        if not _is_option(word, name):
            if room > 0 and read.options:
                read.options[-1] = (read.options[-1][0], (*read.options[-1][1], word))
                room -= 1
            else:
                read.words.append(word)
            continue
        whole = _whole_name(name, facts, read)
        if whole is None:
            room = 0 if equals else _MANY
            read.options.append(("", ()))  # takes its values
        else:
            read.options.append((whole, (value,) if equals else ()))
            room = 0 if equals else _room(whole, facts)
    read.options = [option for option in read.options if option[0]]
    return read


_MANY = 10**6


def _is_option(word: str, name: str) -> bool:
    """With a space in its name a word is none for argparse, and a number never is."""
    return len(word) > 1 and word.startswith("-") and " " not in name and not NEGATIVE.fullmatch(word)


def _room(name: str, facts: VllmFacts) -> int:
    kind = facts.kinds.get(name.partition(".")[0])
    if kind is None:
        return 0 if name.startswith("no-") else _MANY
    if takes_no_value(kind) and "." not in name:
        return 0
    return _MANY if kind["takes"] == "many" else 1


def _whole_name(name: str, facts: VllmFacts, read: Written) -> str | None:
    head, dot, key = name.partition(".")
    if not head.startswith("--"):
        return _of_short(head, dot + key, facts, read)
    plain = head[2:].replace("_", "-")
    if plain in ("model", "help") or facts.has_flag(plain):
        return plain + dot + key
    if removed_option(plain, facts) is not None:
        return None  # told by those who know what to do instead
    begun = sorted(flag for flag in (*facts.flags, *_negative(facts)) if flag.startswith(plain) and plain)
    if len(begun) == 1:
        read.loose.append(f"{head} is the beginning of a name, which vLLM takes for --{begun[0]}: write that.")
        return begun[0] + dot + key
    if begun:
        some = ", ".join(f"--{flag}" for flag in begun[:4])
        read.unknown.append(f"{head} is the beginning of several options of vLLM {facts.version}: {some}.")
    else:
        since = known_since(tables.FLAGS, plain)
        guess = "" if since else did_you_mean(plain, facts.flags)
        read.unknown.append(f"vLLM {facts.version} has no option {head}{since}.{guess}")
    return None


def _negative(facts: VllmFacts) -> list[str]:
    return [f"no-{flag}" for flag, kind in facts.kinds.items() if kind.get("takes") == "none" and flag in facts.flags]


def _of_short(head: str, key: str, facts: VllmFacts, read: Written) -> str | None:
    if head in SHORT:
        return SHORT[head] + key
    if head.startswith("-O"):  # -O3
        return None
    known = next((short for short in SHORT if head.startswith(short) and head[len(short) :].isdecimal()), None)
    if known is not None:
        read.unknown.append(f"{head}: vLLM has no such option; the number is a word of its own: {known} "
                            f"{head[len(known):]}.")  # fmt: skip
    elif facts.minor <= READ_FROM:
        read.unknown.append(f"vLLM {facts.version} has no option {head}.")
    return None
