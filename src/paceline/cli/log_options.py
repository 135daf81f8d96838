"""Options of `paceline serve`: what is logged and traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

import typer


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Logs and traces", **more)


# Texts and not an enumeration: a wrong word is then told together with everything else that is wrong.
def _log_options(
    log_format: Annotated[
        str, _option("text, or json: one object a line, on standard error.", metavar="[text|json]")
    ] = "text",
    log_level: Annotated[
        str, _option("info has one line a request; warning has none.", metavar="[debug|info|warning|error]")
    ] = "info",
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
    """`command(..., logs: dict)` becomes a command with these options; `read_log_options` reads `logs`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "logs"]

    @wraps(command)
    def with_options(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in _PARAMETERS}
        command(**arguments, logs=given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) for p in (*own, *_PARAMETERS.values())]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


def read_log_options(given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Fields of ServerOptions. What is wrong goes to `problems`, and its default stands in its place."""
    from paceline.logs import FORMATS, LEVELS, LogOptions

    words = {"format": (given["log_format"], FORMATS), "level": (given["log_level"], LEVELS)}
    for name, (word, known) in words.items():
        if word not in known:
            problems.append(f"--log-{name} must be {_or(known)}, not '{word}'.")
    right: dict[str, Any] = {name: word for name, (word, known) in words.items() if word in known}
    logs = LogOptions(**right, prompts=given["log_prompts"])
    return {"logs": logs, "otlp_traces_endpoint": given["otlp_traces_endpoint"]}


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
