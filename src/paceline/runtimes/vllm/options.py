"""RuntimeOptions: what runtime vllm takes beside the engine's arguments, and what it is resolved to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paceline.arguments import Machine
from paceline.errors import ConfigurationError
from paceline.runtimes.vllm.command import Option, VllmCommand
from paceline.runtimes.vllm.facts import VllmFacts, facts_of
from paceline.runtimes.vllm.fits import check_fit
from paceline.runtimes.vllm.locate import check_pair, locate
from paceline.runtimes.vllm.nodes import check_nodes, over_nodes, ray_lines
from paceline.runtimes.vllm.probe import Installation, ask
from paceline.runtimes.vllm.translate import translate

_NOT_ONE_SERVER = ("headless", "data-parallel-multi-port-external-lb")
# Paceline asks these every second.
_QUIET: Option = ("disable-access-log-for-endpoints", ("/health,/metrics",))
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    python: str | None = None  # that has vLLM; None: the one behind the `vllm` command on the PATH
    version: str | None = None  # of a vLLM that need not be here; for printing only
    arguments: str | Sequence[str] = ()  # options of vLLM in its own spelling
    arguments_label: str = "--vllm-args"  # what their user calls them
    nodes: int = 1  # machines with tensor_parallel_size GPUs each

    def __post_init__(self) -> None:
        if self.version is not None and self.python is not None:
            raise ConfigurationError("Give --vllm-python or --vllm-version, not both: an installed vLLM says its own.")


def printable_command(
    arguments: Mapping[str, Any], options: RuntimeOptions, names: Sequence[str], host: str, port: int, say: Progress
) -> tuple[VllmCommand, str]:
    """The command, and its text for a shell. Nothing is downloaded or started."""
    installation = None if options.version else _installation(options, say)
    facts = installation.facts if installation else facts_of(str(options.version))
    command = translate(
        _completed(arguments, options, facts),
        facts,
        served_model_names=served_names(arguments, names),
        host=host,
        port=port,
        vllm_args=options.arguments,
        args_label=options.arguments_label,
        locate=partial(locate, fetch=False),
    )
    check_nodes(command, options.nodes)
    check_fit(command)
    command = _reporting(command, facts)
    text = command.shell(installation.launcher if installation else None)
    return command, "\n".join([*ray_lines(options.nodes, port), text])


def runnable_command(
    arguments: Mapping[str, Any],
    options: RuntimeOptions,
    names: Sequence[str],
    port: int,
    say: Progress,
    *,
    local: bool = False,
) -> tuple[VllmCommand, Installation]:
    """The command to run on this machine, its models here, the pair checked. `local` as in `locate`."""
    if options.version is not None:
        raise ConfigurationError(
            "--vllm-version is for --dry-run; to serve, give the Python of a vLLM (--vllm-python)."
        )
    installation = _installation(options, say)
    command = translate(
        _completed(arguments, options, installation.facts),
        installation.facts,
        served_model_names=served_names(arguments, names),
        host="127.0.0.1",
        port=port,
        vllm_args=options.arguments,
        args_label=options.arguments_label,
        locate=partial(locate, progress=say, local=local),
    )
    command = _extended(_reporting(command, installation.facts), _QUIET)
    check_nodes(command, options.nodes)
    check_served(command)
    check_fit(command)
    draft = command.draft_model()
    if draft is not None:
        check_pair(command.model, draft)
    return command, installation


def check_served(command: VllmCommand) -> None:
    """Raises ConfigurationError for a command that has no HTTP server of its own, or several: there is none to ask."""
    name = next((name for name, _ in command.options if name in _NOT_ONE_SERVER), None)
    if name is not None:
        raise ConfigurationError(
            f"--{name}: Paceline could not ask this vLLM for its health. Run the command that --dry-run prints."
        )


def served_names(arguments: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Without names the model's own, as with Paceline's engine: not the directory that it became."""
    return tuple(names) or (str(arguments.get("model", "")),)


def _completed(arguments: Mapping[str, Any], options: RuntimeOptions, facts: VllmFacts) -> Mapping[str, Any]:
    """On a CPU with the dtype of Paceline's own choice, where none was made: vLLM would always take bfloat16."""
    dtype = arguments.get("dtype")
    chosen = {"dtype": Machine().cpu_dtype()} if facts.device == "cpu" and dtype in (None, "auto") else {}
    return over_nodes({**arguments, **chosen}, options.nodes)


def _reporting(command: VllmCommand, facts: VllmFacts) -> VllmCommand:
    """So that answers carry what those of Paceline's own server carry: cached tokens, and acceptance."""
    wanted: list[Option] = [("enable-prompt-tokens-details", ())]
    if command.value("speculative-config") is not None:
        wanted.append(("per-request-spec-decode-metrics", ("summary",)))
    return _extended(command, *(option for option in wanted if facts.has_flag(option[0])))


def _extended(command: VllmCommand, *options: Option) -> VllmCommand:
    """What the user gave stands."""
    given = {name for name, _ in command.options}
    return replace(command, options=(*command.options, *(option for option in options if option[0] not in given)))


def _installation(options: RuntimeOptions, say: Progress) -> Installation:
    installation = ask(options.python, say)
    for note in installation.notes:
        say(note)
    return installation
