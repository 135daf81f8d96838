"""LLM(..., runtime="vllm"): the command, the engine that runs it, and the tokenizer of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.errors import ConfigurationError
from paceline.runtimes.vllm.engine import VllmEngine
from paceline.runtimes.vllm.options import RuntimeOptions, runnable_command, served_names
from paceline.runtimes.vllm.process import free_port
from paceline.tokenizer import Tokenizer, load_tokenizer

Notes = Callable[[str], None]


def start(
    arguments: Mapping[str, Any], python: str | None, vllm_args: str | Sequence[str], say: Notes, note: Notes
) -> tuple[VllmEngine, Tokenizer]:
    """Blocks until vLLM serves. Raises ConfigurationError, or EngineDeadError with vLLM's last lines."""
    if arguments.get("skip_tokenizer_init"):
        raise ConfigurationError("skip_tokenizer_init: not with runtime vllm, whose server needs the tokenizer.")
    port = free_port()
    options = RuntimeOptions(python=python, arguments=vllm_args, arguments_label="vllm_args")
    command, installation = runnable_command(arguments, options, (), port, say, local=True)
    for text in command.notes:
        note(text)
    tokenizer = load_tokenizer(command.model)
    return VllmEngine(command, installation, port=port, model=served_names(arguments, ())[0]), tokenizer
