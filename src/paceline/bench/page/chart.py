"""A chart in words, for whichever library draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# Paul Tol's bright scheme: told apart by colour-blind readers too.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")


@dataclass(frozen=True, slots=True)
class Series:
    """`low`, `high`: 95 % intervals, None where there is none. `labels`: what stands beside a point."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    colour: int = 0
    dashed: bool = False
    labels: Sequence[str] = ()

    @property
    def error_bars(self) -> tuple[list[float], list[float]] | None:
        """Below and above each point; None where no point has an interval."""
        if not any(edge is not None for edge in self.high):
            return None
        below = [0.0 if low is None else max(0.0, y - low) for y, low in zip(self.y, self.low, strict=True)]
        above = [0.0 if high is None else max(0.0, high - y) for y, high in zip(self.y, self.high, strict=True)]
        return below, above


@dataclass(frozen=True, slots=True)
class Chart:
    """`kind`: lines, bars, or stacked. `level`: a horizontal line with its name."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    kind: str = "lines"
    x_log2: bool = False
    level: tuple[float, str] | None = None
    text: str = ""  # how to read it
    from_zero: bool = True
    ticks: Sequence[float] = field(default_factory=tuple)
