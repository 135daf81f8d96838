"""paceline serve."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from paceline.arguments import check_runtime, resolve_arguments
from paceline.cli.console import console, say, show_configuration, show_notes
from paceline.cli.options import model_or_default_pair
from paceline.errors import ConfigurationError, EngineDeadError, PacelineError
from paceline.logs import set_up_logging, tell
from paceline.server.options import ServerOptions
from paceline.server.serve import open_port, serve
from paceline.server.telemetry.traces import check_endpoint

logger = logging.getLogger(__name__)


def run_server(
    model: str | None,
    engine: dict[str, Any],
    host: str,
    port: int,
    options: ServerOptions,
    problems: Sequence[str] = (),
) -> int:
    """`problems` that are known already are told together with those of the engine's arguments."""
    problems = list(problems)
    set_up_logging(options.logs)
    if options.logs.format == "json":
        return _run_for_machines(model, engine, host, port, options, problems)
    with _port(host, port, options, problems) as listener:
        resolved = resolve_arguments(model_or_default_pair(model, engine), progress=say, known_problems=problems)
        assert listener is not None  # else there was a problem
        show_notes(resolved.notes)
        say(f"Loading {resolved.config.model.name} …")
        served = options.served_model_names or (resolved.config.model.name,)
        return serve(resolved, listener, lambda table, url: _announce(table, url, served, options), options)


def _run_for_machines(
    model: str | None, engine: dict[str, Any], host: str, port: int, options: ServerOptions, problems: list[str]
) -> int:
    """The same, and everything that is said is a line of the JSON log, what cannot be done as well."""

    def announce(table: dict[str, str], url: str) -> None:
        tell("configuration", {"configuration": table})
        tell("serving", {"url": url, "model": table.get("model", "")})

    try:
        with _port(host, port, options, problems) as listener:
            resolved = resolve_arguments(model_or_default_pair(model, engine), progress=tell, known_problems=problems)
            assert listener is not None
            for note in resolved.notes:
                tell(note)
            return serve(resolved, listener, announce, options)
    except PacelineError as error:
        logger.error("%s", error)
        return 1 if isinstance(error, EngineDeadError) else 2


def _port(
    host: str, port: int, options: ServerOptions, problems: list[str]
) -> contextlib.AbstractContextManager[socket.socket | None]:
    """The port; None if it cannot be had, which is then one of the `problems`, as is a wrong address for traces."""
    try:
        if options.otlp_traces_endpoint is not None:
            check_endpoint(options.otlp_traces_endpoint)
    except PacelineError as error:
        problems.append(str(error))
    try:
        return open_port(host, port)
    except PacelineError as error:
        problems.append(str(error))
        return contextlib.nullcontext()


VllmServer = Callable[[str | None, dict[str, Any], str, int, ServerOptions], int]


def choose_runtime(
    runtime: str, *, python: str | None, arguments: str | None, version: str | None, nodes: int, dry_run: bool
) -> VllmServer | None:
    """What runs vLLM, or None for Paceline's own engine."""
    only_vllm = {"--vllm-python": python, "--vllm-args": arguments, "--vllm-version": version, "--nodes": nodes != 1}
    check_runtime(runtime, **only_vllm, **{"--dry-run": dry_run})
    if runtime == "paceline":
        return None
    from paceline.cli.serve_vllm import print_command, run_vllm
    from paceline.runtimes.vllm.options import RuntimeOptions

    options = RuntimeOptions(python=python, version=version, arguments=arguments or (), nodes=nodes)
    return partial(print_command, runtime=options) if dry_run else partial(run_vllm, runtime=options)


def refuse_with_vllm(access: dict[str, Any], problems: Sequence[str]) -> None:
    """Raise ConfigurationError for what is wrong with the options of access, and for those that need our engine."""
    needs_engine = ("max_queue", "max_request_tokens", "request_timeout")
    foreign = [f"--{name.replace('_', '-')}" for name in needs_engine if name in access]
    told = [*problems, *([f"{', '.join(foreign)}: not with --runtime vllm."] if foreign else [])]
    if told:
        raise ConfigurationError(" ".join(told))


def _announce(description: dict[str, str], url: str, names: Sequence[str], options: ServerOptions) -> None:
    show_configuration(description)
    example = f'{{"model": "{names[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    console.print(f"Serving [bold]{', '.join(names)}[/] on [bold]{url}[/] (Ctrl-C ends it). Try:", soft_wrap=True)
    key = " -H 'Authorization: Bearer YOUR_KEY'" if options.access.api_keys is not None else ""
    trust = f" --cacert {shlex.quote(str(options.access.ssl_certfile))}" if options.access.ssl_certfile else ""
    console.print(
        f"  curl{trust} {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{example}'",
        soft_wrap=True,
        markup=False,
    )
