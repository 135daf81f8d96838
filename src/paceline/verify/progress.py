"""What a progress bar needs to know."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def stage(self, name: str, total: int) -> None:
        """A new stage of so many pieces begins."""
        ...

    def advance(self, count: int) -> None:
        """So many pieces more of the stage are done."""
        ...


class Silent:
    def stage(self, name: str, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass
