"""Paceline: lossless speculative decoding, in production.

The names here are loaded when they are first used: `import paceline` imports neither torch nor transformers.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.errors import (
        ConfigurationError,
        EngineDeadError,
        InvalidRequestError,
        PacelineError,
        UnsupportedModelError,
    )
    from paceline.llm import LLM
    from paceline.outputs import CompletionOutput, RequestOutput
    from paceline.sampling_params import SamplingParams
    from paceline.structured.params import StructuredOutputsParams

# OpenMP threads wait for each other by spinning. Where another process wants the same core, that turns a forward of
# 60 ms into one of a second: 13 times slower on two cores, measured. A short spin costs 5 % on a quiet machine.
# Read when torch is loaded, which no import of this module does.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

try:
    __version__ = version("paceline")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.0.0"

_HOMES = {
    "LLM": "llm",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "structured.params",
    "CompletionOutput": "outputs",
    "RequestOutput": "outputs",
    "ConfigurationError": "errors",
    "EngineDeadError": "errors",
    "InvalidRequestError": "errors",
    "PacelineError": "errors",
    "UnsupportedModelError": "errors",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigurationError",
    "EngineDeadError",
    "InvalidRequestError",
    "PacelineError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "UnsupportedModelError",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"paceline.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'paceline' has no attribute '{name}'")
