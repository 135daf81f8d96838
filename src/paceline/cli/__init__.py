"""The command line: paceline serve | generate | models | distill | verify | demo.

Commands import what they need when they run, so that --help is quick. An error made on purpose is one message
on standard error and exit status 2, or 1 where the engine died; Ctrl-C ends
with 130.
"""

from __future__ import annotations

import sys

from paceline.errors import EngineDeadError, PacelineError


def main() -> None:
    from rich.console import Console

    from paceline.cli.app import app

    try:
        app()
    except PacelineError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(1 if isinstance(error, EngineDeadError) else 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
