"""Options of `paceline serve`: what is logged and traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Logs and traces")


def _log_options(
    log_format: Annotated[Format, _option("text, or json: one object a line, on standard error.")] = Format.TEXT,
    log_level: Annotated[Level, _option("info has one line a request; warning has none.")] = Level.INFO,
    log_prompts: Annotated[
        bool, _option("Prompts in those lines. Without it no log has any of a prompt.", "--log-prompts")
    ] = False,
    otlp_traces_endpoint: Annotated[
        str | None, _option("OpenTelemetry traces over HTTP, to .../v1/traces. Needs the extra paceline[otel].")
    ] = None,
) -> None:
    """Only its signature is used."""


_PARAMETERS = inspect.signature(_log_options, eval_str=True).parameters


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., logs: dict)` becomes a command with these options; `logs` has fields of ServerOptions."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "logs"]

    @wraps(command)
    def with_options(**arguments: Any) -> None:
        from paceline.logs import LogOptions

        given = {name: arguments.pop(name) for name in _PARAMETERS}
        logs = LogOptions(
            format=given["log_format"].value, level=given["log_level"].value, prompts=given["log_prompts"]
        )
        command(**arguments, logs={"logs": logs, "otlp_traces_endpoint": given["otlp_traces_endpoint"]})

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) for p in (*own, *_PARAMETERS.values())]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options
