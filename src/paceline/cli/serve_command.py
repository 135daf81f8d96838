"""How `paceline serve` reads its words: an option that is vLLM's own is told where it goes."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class ServeCommand(TyperCommand):
    """No FiniteCommand: a number that is none is told with everything else."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", None)  # of a NoSuchOption, typer's own or click's
            if isinstance(name, str) and (hint := _hint(name)):
                error.message = f"{str(getattr(error, 'message', '')).rstrip('.')}. {hint}"  # type: ignore[attr-defined]
                error.possibilities = []  # type: ignore[attr-defined]
            raise


def _hint(option: str) -> str | None:
    from paceline.runtimes.vllm import SHORT_OPTIONS, facts_of_any

    name = SHORT_OPTIONS.get(option, option.removeprefix("--").replace("_", "-")).partition(".")[0]
    if name == "help" or not facts_of_any().has_flag(name):
        return None
    whole = f"--{name}" if option in SHORT_OPTIONS else option
    return f"It is one of vLLM's: with --runtime vllm it goes through --vllm-args '{whole} ...'."
