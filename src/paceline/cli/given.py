"""Which options were typed: what a command would leave unused is refused, never ignored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paceline.errors import ConfigurationError


def typed(ctx: Any, *, but: Collection[str] = ()) -> list[str]:
    """Parameters of the command line, as a user writes them, in the order of --help; `but`: names of parameters."""
    parameters = [
        parameter
        for parameter in ctx.command.params
        if parameter.name not in but and getattr(ctx.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
    return [
        (parameter.name or "").upper() if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
        for parameter in parameters
    ]


def refuse_unused(ctx: Any, why: str, *, only: Collection[str] = (), but: Collection[str] = ()) -> None:
    """Raises ConfigurationError that names what was typed: of the parameters `only` (none: of all), without `but`."""
    all_names = {parameter.name for parameter in ctx.command.params}
    unused = typed(ctx, but=set(but) | (all_names - set(only) if only else set()))
    if unused:
        raise ConfigurationError(f"{why}: leave {', '.join(unused)} out.")
