"""SIGTERM and SIGHUP end a command as Ctrl-C does, with what it has kept and said; the exit status tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from paceline.ending import ENDING, Ending, receiving


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """They raise KeyboardInterrupt, or call what ending.interrupted_by names; the status is 143 or 129 at the end."""
    ending = Ending()
    try:
        with receiving(ending.receive, ENDING):
            yield
    except KeyboardInterrupt:
        if ending.status is not None:
            raise typer.Exit(ending.status) from None
        raise
