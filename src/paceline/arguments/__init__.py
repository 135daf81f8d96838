"""From what a user types to an EngineConfig: vLLM-shaped keyword arguments, checked, named, resolved.

    resolve_arguments({"model": ..., ...}) -> Resolved(config, tokenizer, notes)

Contract
- Either a configuration that can be built, or one ConfigurationError that lists every problem found. What can
  be said without reading a model is said before any model is fetched.
- An unknown argument is an error that names the nearest known one; an argument of vLLM that asks for something
  Paceline does not have is an error that says so (foreign.py).
- Advice that stops nobody (an argument without effect here) is returned as notes.
"""

from paceline.arguments.fields import EngineArguments, SpeculativeArguments
from paceline.arguments.machine import Machine
from paceline.arguments.resolve import Resolved, resolve_arguments
from paceline.arguments.runtime import check_runtime

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_DRAFT = "smollm2-135m-instruct-draft"

__all__ = [
    "DEFAULT_DRAFT",
    "DEFAULT_MODEL",
    "EngineArguments",
    "Machine",
    "Resolved",
    "SpeculativeArguments",
    "check_runtime",
    "resolve_arguments",
]
