"""Options that `vllm serve` once had, for scripts that still give them: hidden, and answered as their Python names are.

Names alone, so that --help imports no engine; tests/unit/test_old_options.py holds them against the tables.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

# On or off.
SWITCHES = (
    "use_v2_block_manager", "worker_use_ray", "multi_step_stream_outputs", "disable_async_output_proc",
    "disable_log_requests", "speculative_disable_mqa_scorer", "disable_logprobs_during_spec_decoding",
)  # fmt: skip
# With a value.
VALUES = (
    "swap_space", "guided_decoding_backend", "max_seq_len_to_capture", "max_context_len_to_capture",
    "num_scheduler_steps", "preemption_mode", "scheduler_delay_factor", "tokenizer_pool_size", "task", "rope_scaling",
    "rope_theta", "override_pooler_config", "cudagraph_sizes", "speculative_draft_tensor_parallel_size",
    "speculative_model_quantization", "speculative_max_model_len", "ngram_prompt_lookup_max",
    "ngram_prompt_lookup_min", "speculative_disable_by_batch_size", "spec_decoding_acceptance_method",
    "speculative_lookahead_slots", "num_lookahead_slots", "typical_acceptance_sampler_posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha",
)  # fmt: skip


def with_old_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., engine: dict)` gets what is given of them inside `engine`."""
    own = [*inspect.signature(command, eval_str=True).parameters.values()]
    old = [_parameter(name, bool) for name in SWITCHES] + [_parameter(name, str) for name in VALUES]

    @wraps(command)
    def with_options(*, engine: dict[str, Any], **arguments: Any) -> None:
        written = {parameter.name: arguments.pop(parameter.name) for parameter in old}
        given = {name: _read(value) for name, value in written.items() if value is not None}
        command(**arguments, engine=engine | given)

    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    with_options.__signature__ = inspect.Signature([*own, *old])  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in (*own, *old)}
    return with_options


def _parameter(name: str, kind: type) -> inspect.Parameter:
    flag = name.replace("_", "-")
    option = typer.Option(f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}", hidden=True)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _read(value: str | bool) -> Any:
    """Numbers and JSON as such; every other text is itself."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
