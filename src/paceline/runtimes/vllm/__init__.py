"""Paceline's configuration on vLLM: `paceline serve --runtime vllm` and `LLM(..., runtime="vllm")`.

    translate({"model": ..., "speculative_model": ...}, facts_of("0.32")) -> VllmCommand

`translate` is a pure function: what a user typed, and what a version of vLLM takes, become one command line. The
facts of an installed vLLM come from `probe.ask`; `serve.py` starts, watches and stops it, `proxy.py` stands in front.
See docs/vllm-runtime.md.
"""

from paceline.runtimes.vllm.command import GPU_FACTORS, OF_SEVERAL, Launcher, VllmCommand
from paceline.runtimes.vllm.facts import DEFAULT_VERSION, VllmFacts, facts_of, facts_of_any
from paceline.runtimes.vllm.faults import Faults, faults_of
from paceline.runtimes.vllm.speculation import removed_option
from paceline.runtimes.vllm.tables import FIRST, LAST
from paceline.runtimes.vllm.translate import translate
from paceline.runtimes.vllm.written import SHORT as SHORT_OPTIONS

__all__ = [
    "DEFAULT_VERSION",
    "FIRST",
    "GPU_FACTORS",
    "LAST",
    "OF_SEVERAL",
    "SHORT_OPTIONS",
    "Faults",
    "Launcher",
    "VllmCommand",
    "VllmFacts",
    "facts_of",
    "facts_of_any",
    "faults_of",
    "removed_option",
    "translate",
]  # fmt: skip
