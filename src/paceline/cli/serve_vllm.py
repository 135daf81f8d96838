"""paceline serve --runtime vllm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from paceline.cli.console import console, say, show_notes
from paceline.cli.options import model_or_default_pair
from paceline.errors import ConfigurationError
from paceline.logs import LogOptions
from paceline.runtimes.vllm.options import RuntimeOptions, printable_command, runnable_command, served_names
from paceline.runtimes.vllm.process import free_port
from paceline.runtimes.vllm.serve import serve
from paceline.server.access.options import AccessOptions
from paceline.server.options import ServerOptions
from paceline.server.serve import open_port


def print_command(
    model: str | None, engine: dict[str, Any], host: str, port: int, server: ServerOptions, runtime: RuntimeOptions
) -> int:
    """--dry-run: the command on standard output, everything else on standard error."""
    arguments = _arguments(model, engine, server)
    command, text = printable_command(arguments, runtime, server.served_model_names, host, port, say)
    say(f"For vLLM {command.version}:")
    show_notes((*command.notes, *_left_out(server)))
    print(text)
    sys.stdout.flush()
    return 0


def run_vllm(
    model: str | None,
    engine: dict[str, Any],
    host: str,
    port: int,
    server: ServerOptions,
    runtime: RuntimeOptions,
) -> int:
    arguments = _arguments(model, engine, server)
    with open_port(host, port) as listener:
        vllm_port = free_port()
        command, installation = runnable_command(arguments, runtime, server.served_model_names, vllm_port, say)
        show_notes(command.notes)
        shown = command.shell(installation.launcher)
        console.print(f"Starting vLLM {command.version}:\n  {shown}", soft_wrap=True, markup=False)
        url = _url(listener.getsockname(), server.access.scheme)
        names = served_names(arguments, server.served_model_names)

        def announce() -> None:
            console.print(
                f"Serving [bold]{', '.join(names)}[/] with vLLM {command.version} on [bold]{url}[/] (Ctrl-C ends it).",
                soft_wrap=True,
            )

        return serve(command, installation, listener, vllm_port, announce, say, server)


def _left_out(server: ServerOptions) -> tuple[str, ...]:
    """What a command of vLLM alone is without, where it was asked for."""
    if server.access == AccessOptions():
        return ()
    return ("API keys, limits, TLS and CORS are of Paceline's server in front of vLLM: this command has none of them.",)


def _arguments(model: str | None, engine: dict[str, Any], server: ServerOptions) -> dict[str, Any]:
    """With what of the server's options is vLLM's business. Raises ConfigurationError for what nobody would honour."""
    if server.logs != LogOptions():
        raise ConfigurationError(
            "--log-format, --log-level and --log-prompts: not with --runtime vllm, which writes its own log. Give its "
            "options through --vllm-args, such as '--enable-log-requests'."
        )
    arguments = model_or_default_pair(model, engine)
    if server.otlp_traces_endpoint is not None:
        arguments["otlp_traces_endpoint"] = server.otlp_traces_endpoint
    return arguments


def _url(address: Sequence[Any], scheme: str) -> str:
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
