"""What the server's container runs: the values' engine options as the arguments of `paceline serve` or of vLLM."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.arguments import Machine
from paceline.arguments.resolve import check_without_models
from paceline.deploy.target import DRAFT_MOUNT, MODEL_MOUNT, PORT, Target
from paceline.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from paceline.runtimes.vllm import VllmCommand

# Engine options that `paceline serve` takes on its command line, beside the model and speculative_config.
SERVE_OPTIONS = (
    "dtype", "quantization", "quantize_lm_head", "kv_cache_dtype", "max_model_len", "device", "tensor_parallel_size",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "block_size", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "enforce_eager", "max_logprobs", "seed", "load_format",
)  # fmt: skip
_SET_ELSEWHERE = {
    "model": "model.source",
    "tokenizer": "model.source",
    "speculative_model": "draft.source",
    "num_speculative_tokens": "engine.speculative_config.num_speculative_tokens",
    "served_model_name": "model.served_name",
    "request_timeout": "rollout.longest_request_seconds",
    "shutdown_grace": "rollout.longest_request_seconds",
    "shutdown_timeout": "rollout.longest_request_seconds",
    "api_key": "secrets.api_key",
    "api_keys": "secrets.api_key",
    "api_key_file": "secrets.api_key",
    "hf_token": "secrets.hub_token",
}
# Said by the manifests themselves; the probes, the Service and the route would not follow another value.
_FIXED = {
    "host": "the pod listens on all its addresses",
    "port": f"the pod listens on {PORT} and the Service on 80",
    "uds": "the pod is reached over TCP",
    "ssl_certfile": "TLS ends at the gateway",
    "ssl_keyfile": "TLS ends at the gateway",
    "ssl_ca_certs": "TLS ends at the gateway",
}
# Options of `paceline serve` that say how requests are taken and logged, and not how the model runs.
OF_THE_SERVER = (
    "allowed_origin", "body_timeout", "log_format", "log_level", "log_prompts", "max_body_bytes",
    "max_concurrent_requests", "max_queue", "max_request_tokens", "otlp_traces_endpoint", "requests_per_minute",
    "stall_after",
)  # fmt: skip
NO_DRAFT_METHODS = ("ngram", "[ngram]", "ngram_gpu", "suffix")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """`arguments` follow `paceline serve MODEL` or `vllm serve MODEL`; each is one word, unquoted."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    num_gpus: int = 1  # that it uses, in one pod

    def as_additional_args(self) -> str:
        """For KServe's template, which passes VLLM_ADDITIONAL_ARGS through a shell's eval: every word is quoted."""
        return " ".join(shlex.quote(word) for word in self.arguments)


def server_command(target: Target) -> ServerCommand:
    """Raises ConfigurationError with every problem of the engine options."""
    _raise(list(_misplaced(target)))
    return _vllm(target) if target.runtime == "vllm" else _paceline(target)


def engine_arguments(target: Target) -> dict[str, Any]:
    """As `LLM(...)` would take them, with the models where they are mounted."""
    arguments = dict(target.values.engine)
    speculative = arguments.pop("speculative_config", None)
    arguments["model"] = MODEL_MOUNT
    if speculative is not None or target.values.draft:
        arguments["speculative_config"] = dict(speculative or {})
        if target.values.draft:
            config = arguments["speculative_config"]
            config |= {"method": config.get("method") or "draft_model", "model": DRAFT_MOUNT}
    return arguments


def _misplaced(target: Target) -> Iterator[str]:
    """What the values say in another place, or twice."""
    for name in target.values.engine:
        if name in _SET_ELSEWHERE:
            yield f"engine.{name}: set {_SET_ELSEWHERE[name]} instead."
        elif name in _FIXED:
            yield f"engine.{name}: {_FIXED[name]}; leave it out."
        elif name in OF_THE_SERVER and target.runtime == "paceline":
            yield (
                f"engine.{name}: an option of the server, for which values have no key: leave it out here, and add "
                f"--{name.replace('_', '-')} to the container's args in an overlay (kustomize)."
            )
    config = target.values.engine.get("speculative_config")
    if config is None:
        return
    if not isinstance(config, Mapping):
        yield (
            f"engine.speculative_config={config!r} cannot be used: give a mapping, such as "
            "{num_speculative_tokens: 5}, or leave it out."
        )
        return
    model, method = config.get("model"), config.get("method")
    if target.values.draft is None and config and not {model, method} & {*NO_DRAFT_METHODS}:
        yield (
            f"engine.speculative_config sets {', '.join(map(str, config))}, and nothing drafts: give draft.source, set "
            "method: ngram, or leave speculative_config out."
        )
        return
    if model is not None and model not in NO_DRAFT_METHODS:
        yield "engine.speculative_config.model: set draft.source instead, so that the draft is downloaded and mounted."
    drafts_itself = next((word for word in (method, model) if word in NO_DRAFT_METHODS), None)
    if target.values.draft is not None and drafts_itself is not None:
        yield (
            f"engine.speculative_config has the method {drafts_itself!r}, which needs no draft model, and the values "
            "have a draft: set draft: null, or leave the method out."
        )


def _paceline(target: Target) -> ServerCommand:
    arguments = engine_arguments(target)
    _raise(check_without_models(arguments, Machine(num_gpus=0 if target.on_cpu else max(target.num_gpus, 1))))
    problems: list[str] = []
    words = ["--host", "0.0.0.0", "--port", str(PORT), "--served-model-name", target.served_name]
    longest = str(target.values.rollout.longest_request_seconds)
    words += ["--request-timeout", longest, "--shutdown-grace", longest]  # so that it is the longest, and is finished
    for name in SERVE_OPTIONS:
        words += _option(name, arguments.pop(name, None))
    if "speculative_config" in arguments:
        words += ["--speculative-config", _json(arguments.pop("speculative_config"))]
    del arguments["model"]
    for name in arguments:
        problems.append(
            f"engine.{name}: `paceline serve` has no such option.{did_you_mean(name, SERVE_OPTIONS)} Leave it out."
        )
    _raise(problems)
    return ServerCommand(tuple(words), {}, num_gpus=target.tensor_parallel_size)


def _vllm(target: Target) -> ServerCommand:
    from paceline.runtimes.vllm import facts_of, translate

    values = target.values
    _raise(list(_misplaced_words(values.vllm.args)))
    by_template = target.platform == "kserve-llm"  # which passes name and address itself
    try:
        command = translate(
            engine_arguments(target),
            facts_of(target.vllm_version),
            served_model_names=() if by_template else (target.served_name,),
            host=None if by_template else "0.0.0.0",
            port=None if by_template else PORT,
            vllm_args=values.vllm.args,
            args_label="vllm.args",
        )
    except ConfigurationError as error:  # in the words of the values
        said = str(error).replace("--vllm-args", "vllm.args")
        said = said.replace(
            "Leave draft_tensor_parallel_size out",
            "Leave engine.speculative_config.draft_tensor_parallel_size out (as in what `paceline deploy values PRESET "
            "--runtime vllm` prints)",
        )
        raise ConfigurationError(f"The engine options cannot be used: {said}") from None
    _raise(list(_over_pods(command)))
    drain = ("--shutdown-timeout", str(values.rollout.longest_request_seconds))
    return ServerCommand((*command.arguments(), *drain), command.environment, command.notes, command.num_gpus)


def _misplaced_words(words: Sequence[str]) -> Iterator[str]:
    """vllm.args that the manifests say themselves."""
    for word in words:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_") if word.startswith("--") else ""
        if name in _SET_ELSEWHERE:
            yield f"vllm.args: --{name.replace('_', '-')}: set {_SET_ELSEWHERE[name]} instead."
        elif name in _FIXED:
            yield f"vllm.args: --{name.replace('_', '-')}: {_FIXED[name]}; leave it out."


def _over_pods(command: VllmCommand) -> Iterator[str]:
    """What makes the command one of several that have to run together: one pod is rendered."""
    from paceline.runtimes.vllm import OF_SEVERAL

    if command.num_nodes > 1:
        yield f"nnodes={command.num_nodes}: one pod holds the whole server; leave it out."
    for name, _ in command.options:
        if name in OF_SEVERAL:
            yield f"{name}: it is for servers over several pods, and one pod holds the whole server; leave it out."


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None or (value is False and name != "enable_prefix_caching"):
        return []
    if name == "enable_prefix_caching":
        return [] if value else [f"--no-{flag[2:]}"]
    return [flag] if value is True else [flag, str(value)]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _raise(problems: list[str]) -> None:
    if problems:
        lines = problems[0] if len(problems) == 1 else "".join(f"\n  {i}. {p}" for i, p in enumerate(problems, 1))
        raise ConfigurationError(f"The engine options cannot be used: {lines}")
