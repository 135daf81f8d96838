"""The options that build an engine, once, for every command that does.

`with_engine_options` gives a command all of them and passes those that the user wrote as one dict, under the
names that `resolve_arguments` knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

_SPECULATION, _ENGINE = "Speculation", "Engine"


def _option(text: str, panel: str = _ENGINE, name: str | None = None, **more: Any) -> Any:
    names = () if name is None else (name,)
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def _engine_options(
    speculative_model: Annotated[
        str | None,
        _option("Draft model: a name, directory or repo id; or 'ngram', which needs no model.", _SPECULATION),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, _option("K: tokens drafted for each pass of the model. Default 5.", _SPECULATION)
    ] = None,
    speculative_config: Annotated[
        str | None,
        _option(
            'Everything about speculation as JSON, as in vLLM: \'{"method": "ngram"}\'.', _SPECULATION, metavar="JSON"
        ),
    ] = None,
    dtype: Annotated[str | None, _option("auto, float32, bfloat16 or float16. Default auto.")] = None,
    max_model_len: Annotated[int | None, _option("Longest prompt + answer, in tokens.")] = None,
    max_num_seqs: Annotated[int | None, _option("Most sequences in one step. Default 32.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, _option("Most tokens in one step. Default 2048; on a CPU 512.")
    ] = None,
    kv_cache_memory_bytes: Annotated[int | None, _option("Size of the KV cache, target and draft together.")] = None,
    block_size: Annotated[int | None, _option("Positions in one KV block. Default 16.")] = None,
    no_prefix_caching: Annotated[
        bool, _option("Do not reuse the KV of prompts that begin alike.", name="--no-enable-prefix-caching")
    ] = False,
    device: Annotated[str | None, _option("auto, cpu or cuda. Default auto.")] = None,
    tensor_parallel_size: Annotated[int | None, _option("GPUs that share the model.")] = None,
    gpu_memory_utilization: Annotated[float | None, _option("Share of a GPU's memory to use. Default 0.9.")] = None,
    quantization: Annotated[
        str | None, _option("fp8: quantise a BF16 model's linears while loading. An FP8 checkpoint needs no option.")
    ] = None,
    quantize_lm_head: Annotated[
        bool, _option("The output head in FP8 as well, of an FP8 model.", name="--quantize-lm-head")
    ] = False,
    kv_cache_dtype: Annotated[
        str | None, _option("auto (the model's dtype) or fp8, which halves the KV cache.")
    ] = None,
    enforce_eager: Annotated[bool, _option("Do without captured graphs.", name="--enforce-eager")] = False,
    max_logprobs: Annotated[
        int | None, _option("Most alternatives a token that a request may ask for. Default 20; -1: any number.")
    ] = None,
    load_format: Annotated[str | None, _option("auto, or dummy for random weights.", hidden=True)] = None,
    seed: Annotated[int | None, _option("Seeds of requests that bring none are drawn from this.")] = None,
) -> None:
    """Only its signature is used."""


_PARAMETERS = inspect.signature(_engine_options, eval_str=True).parameters


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., engine: dict)` becomes a command with every engine option in place of `engine`.

    An option that the command declares itself is its own business.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "engine"]
    names = _PARAMETERS.keys() - {p.name for p in own}
    shared = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in _PARAMETERS.values() if p.name in names]

    @wraps(command)
    def with_options(**arguments: Any) -> None:
        engine = {name: arguments.pop(name) for name in _PARAMETERS if name in names}
        given = {name: value for name, value in engine.items() if value is not None and value is not False}
        if given.pop("no_prefix_caching", False):
            given["enable_prefix_caching"] = False
        command(**arguments, engine=given)

    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    with_options.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return with_options


def model_or_default_pair(model: str | None, engine: dict[str, Any]) -> dict[str, Any]:
    """Without a model, the default one, with its draft unless speculation was configured."""
    from paceline.arguments import DEFAULT_DRAFT, DEFAULT_MODEL

    if model is not None:
        return {"model": model, **engine}
    if "speculative_config" in engine or "speculative_model" in engine:
        return {"model": DEFAULT_MODEL, **engine}
    return {"model": DEFAULT_MODEL, "speculative_model": DEFAULT_DRAFT, **engine}
