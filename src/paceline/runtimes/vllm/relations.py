"""Rules over more than one option: what vLLM refuses without another, or beside it, and what its user should know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.runtimes.vllm.command import Option

_NEEDS = {"enable-auto-tool-choice": "tool-call-parser", "enable-log-outputs": "enable-log-requests"}
_NOTES = {
    "config": "--config: what is in that file is not checked; the options of the command line stand against it.",
    "disable-log-stats": (
        "--disable-log-stats: vLLM counts no steps then: that it is stuck is not noticed, and /metrics has none of its "
        "counters."
    ),
}


def incomplete(options: Sequence[Option]) -> Iterator[str]:
    """Options that vLLM refuses without another."""
    given = {name for name, _ in options}
    for name, needs in _NEEDS.items():
        if name in given and needs not in given:
            yield f"--{name} needs --{needs} as well."


def too_few_tokens(known: Mapping[str, Any], options: Sequence[Option]) -> Iterator[str]:
    """A step has a token for each sequence that runs; without chunks it holds a whole prompt."""
    tokens, seqs, length = (known.get(name) for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"))
    if tokens is not None and seqs is not None and tokens < seqs:
        yield f"max_num_batched_tokens={tokens} must be at least max_num_seqs={seqs}."
    whole = ("no-enable-chunked-prefill", ()) in options
    if whole and tokens is not None and length is not None and tokens < length:
        yield f"max_num_batched_tokens={tokens} must be at least max_model_len={length} without chunked prefill."


def open_secrets(options: Sequence[Option]) -> Iterator[str]:
    """A command is printed, logged, and seen by all who list processes."""
    if any(name == "hf-token" and values for name, values in options):
        yield "--hf-token: a command line is no place for a token; put it into the environment, as HF_TOKEN."


def notes_about(options: Sequence[Option]) -> Iterator[str]:
    given = {name for name, _ in options}
    return (text for name, text in _NOTES.items() if name in given)
