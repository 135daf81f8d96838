"""The command line: paceline serve | generate | models | distill | verify | demo.

Commands import what they need when they run, so that --help is quick. An error made on purpose is one message
on standard error and exit status 2, or 1 where the engine died; Ctrl-C ends
with 130.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from paceline.errors import EngineDeadError, PacelineError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk, or of what the output goes to


def main() -> None:
    from paceline.cli.app import app
    from paceline.cli.console import make_console

    try:
        app()
    except PacelineError as error:
        make_console(stderr=True).print(f"[bold red]Error:[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(1 if isinstance(error, EngineDeadError) else 2)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        make_console(stderr=True).print(
            f"[bold red]Error:[/] Cannot write{_escaped(f' {error.filename}' if error.filename else '')}: "
            f"{error.strerror}.",
            soft_wrap=True,
        )
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _drop_output() -> None:
    """What is left in the buffer would be tried again, and fail again, when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
