"""HeapTrimmer: what the C heap of this process keeps for nothing goes back to the system, every few seconds.

The steps of an engine on a CPU allocate and free tensors of ever other sizes. glibc keeps what was freed for the next
allocation, and where sizes change the heap ends in pieces: a server under load grows by tens of MiB a minute, though
nothing leaks. `malloc_trim` gives back every whole page that is free, also between pieces that are in use.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

# Between two trims. Under load on a CPU one takes some 10 ms, and the next steps fault up to 160 MiB in again: 100 ms
# more where a fault takes 3 us (a virtual machine inside another), 1 % of this time.
TRIM_SECONDS = 10.0
_MOST_OF_TIME = 0.01  # spent trimming, where a trim takes longer


def malloc_trim() -> Callable[[], object] | None:
    """glibc's; None where the C library has none (musl, macOS)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return lambda: trim(0)


class HeapTrimmer:
    """`maybe_trim` between two steps, or when there is nothing to do: at most once in `seconds`, in at most
    `_MOST_OF_TIME` of all time, and only if there was a step since the last one.
    """

    def __init__(
        self,
        trim: Callable[[], object] | None,
        seconds: float = TRIM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trim = trim
        self._seconds = seconds
        self._clock = clock
        self._next = clock() + seconds
        self._has_stepped = False

    def after_step(self) -> None:
        self._has_stepped = True

    def maybe_trim(self) -> None:
        if self._trim is None or not self._has_stepped:
            return
        began = self._clock()
        if began < self._next:
            return
        self._trim()
        self._has_stepped = False
        now = self._clock()
        self._next = now + max(self._seconds, (now - began) / _MOST_OF_TIME)


NO_TRIMMER = HeapTrimmer(None)
