"""VllmCommand: a command line of vLLM as a value, to run, to print, or to put into a manifest."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # what argparse does not take for an option

Option = tuple[str, tuple[str, ...]]  # name without dashes; its values, none for an option that is on or off
# Sizes that multiply; decode-context-parallel ranks are among the tensor-parallel ones.
GPU_FACTORS = (
    "tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size", "data-parallel-size",
)  # fmt: skip
# Given to a command that is one of several, on as many machines or in as many pods.
OF_SEVERAL = (
    "node-rank", "headless", "data-parallel-rank", "data-parallel-start-rank", "data-parallel-size-local",
    "data-parallel-address", "data-parallel-external-lb", "data-parallel-hybrid-lb",
    "data-parallel-multi-port-external-lb",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launcher:
    """How vLLM is started: a command that takes the model first, or a module that takes it as --model."""

    words: tuple[str, ...] = ("vllm", "serve")
    positional: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCommand:
    """`vllm serve MODEL` with `options`, for one version. `environment` holds what it needs beside the inherited."""

    model: str
    options: tuple[Option, ...]
    version: str
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # for the user: what was left out, renamed or is different there

    def arguments(self) -> tuple[str, ...]:
        """What follows `vllm serve MODEL`, unquoted, an option and its value each a word."""
        return tuple(word for option in self.options for word in _words(option))

    def argv(self, launcher: Launcher | None = None) -> tuple[str, ...]:
        launcher = launcher or Launcher()
        model = (self.model,) if launcher.positional else ("--model", self.model)
        return (*launcher.words, *model, *self.arguments())

    def value(self, name: str) -> str | None:
        """The value of an option, None where it is absent (or takes none)."""
        values = dict(self.options).get(name)
        return values[0] if values else None

    @property
    def num_gpus(self) -> int:
        """That the command uses, over all its nodes: tensor x pipeline x prefill-context x data parallel size.

        On a CPU build the same number counts processes. A `--config` file is not read.
        """
        return math.prod(int(self.value(name) or 1) for name in GPU_FACTORS)

    @property
    def num_nodes(self) -> int:
        """Machines that have to run this command together; Ray's are not told by it."""
        return int(self.value("nnodes") or 1)

    def draft_model(self) -> str | None:
        """The draft, where the method is a draft model."""
        config = json.loads(self.value("speculative-config") or "{}")
        return config.get("model") if config.get("method") == "draft_model" else None

    def shell(self, launcher: Launcher | None = None) -> str:
        """The command as a POSIX shell takes it, an option a line."""
        launcher = launcher or Launcher()
        head = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        head += [shlex.quote(word) for word in launcher.words]
        head += [shlex.quote(self.model)] if launcher.positional else ["--model", shlex.quote(self.model)]
        return " \\\n  ".join([" ".join(head), *(shlex.join(_words(option)) for option in self.options)])


def _words(option: Option) -> tuple[str, ...]:
    """A value that begins with a dash would be read as an option, were it a word of its own."""
    name, values = option
    if len(values) == 1 and values[0].startswith("-") and not NEGATIVE.fullmatch(values[0]):
        return (f"--{name}={values[0]}",)
    return (f"--{name}", *values)
