"""Numbers of the command line are numbers: `nan` and `inf`, which Python reads as floats, are refused everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand


class FiniteCommand(TyperCommand):
    """A command none of whose options can be nan or infinite; such a one is a usage error with status 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        parameters: list[Any] = [*self.params]  # typer's own class, or click's
        for parameter in parameters:
            value = ctx.params.get(parameter.name)
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, float) and not math.isfinite(number):
                    raise typer.BadParameter(f"{number} is not a finite number.", ctx=ctx, param=parameter)
        return rest


class OnceCommand(FiniteCommand):
    """Where an option that takes one value is given twice, the first is not dropped in silence: it is refused."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given: list[Any] = [one for one in order if one.param_type_name == "option" and not one.multiple]
        for parameter in given:
            if given.count(parameter) > 1 and not parameter.is_flag:
                raise typer.BadParameter("given more than once; give one value (a list is 1,2,4).", ctx, parameter)
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """typer.Typer, every command of which is a FiniteCommand."""

    def command(self, *names: Any, **options: Any) -> Callable[[Any], Any]:
        return super().command(*names, **{"cls": FiniteCommand, **options})
