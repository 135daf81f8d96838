"""When data arrived, whatever this program was doing at that moment.

A program stamps data when it gets to it; with 256 streams on one core that is milliseconds after the data came, and
those milliseconds would be measured as the server's. Linux notes the time at which a TCP segment enters the machine
and hands it out with the data (SO_TIMESTAMPNS; Documentation/networking/timestamping.rst), so that is what counts.
Two limits: data that lay unread together is one piece to the kernel and has the stamp of its last part; and only a
plain socket hands stamps out, so TLS and other systems have this program's own time. Both are counted, see Reads.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

from paceline.bench.serve.records import Reads

Ancillary = Sequence[tuple[int, int, bytes]]  # as socket.recvmsg gives it
Clock = Callable[[], int]  # nanoseconds

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; not among Python's names. The message bears the same number
_TIMESPEC = struct.Struct("@ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
HAS_STAMPS = sys.platform == "linux" and sys.maxsize > 2**32  # of 32 bits: another number and another struct

_APART_NS = 20_000  # two clocks read further apart were interrupted
_STEP_NS = 100_000  # both clocks run at one speed: further than this, one was set
LATE_NS = 10_000_000


def ask_for_stamps(sock: socket.socket) -> None:
    """Raises OSError where the kernel has none."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def stamp_in(ancillary: Ancillary) -> int | None:
    """Nanoseconds of the wall clock; None: there is none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None


class Arrivals:
    """Wall-clock stamps -> times of time.perf_counter_ns(), and what is to be said of them.

    The kernel stamps by the wall clock, which may be set at any time. So the distance of the two clocks is read anew
    with every piece of data, and where it has changed, stamps from before that moment are not believed.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns, wall: Clock = time.time_ns) -> None:
        self._clock = clock
        self._wall = wall
        self._distance: int | None = None
        self._believed_from = 0
        self.reads = Reads()

    def now(self) -> int:
        return self._clock()

    def of(self, stamp: int | None) -> int:
        """When data arrived that is read now; never later than now."""
        now, distance = self._both()
        if self._distance is not None and abs(distance - self._distance) > _STEP_NS:
            self._believed_from = now
        self._distance = distance
        arrived = now if stamp is None else stamp - distance
        is_believed = stamp is not None and self._believed_from <= arrived <= now + _STEP_NS
        self._count(now - arrived if is_believed else None)
        return min(arrived, now) if is_believed else now

    def _both(self) -> tuple[int, int]:
        """Now, and how far the wall clock is ahead."""
        while True:
            before, wall, after = self._clock(), self._wall(), self._clock()
            if after - before < _APART_NS:
                return after, wall - before

    def _count(self, lag: int | None) -> None:
        reads = self.reads
        reads.count += 1
        if lag is None:
            reads.own_time += 1
            return
        reads.late += lag > LATE_NS
        reads.longest_lag_us = max(reads.longest_lag_us, lag // 1000)

    def taken(self) -> Reads:
        """What was counted since the last call."""
        found, self.reads = self.reads, Reads()
        return found
