"""Memory that the C heap keeps for nothing goes back while an engine steps."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import psutil
import pytest

from paceline.engine import wire
from paceline.engine.core_process import EngineLoop
from paceline.engine.heap import HeapTrimmer, malloc_trim
from paceline.engine.statistics import EngineStats
from paceline.sequence import SequenceDelta


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_trims_at_most_once_in_its_time() -> None:
    clock, trims = Clock(), []
    trimmer = HeapTrimmer(lambda: trims.append(clock.now), 5.0, clock)
    for now in (100.0, 104.9, 105.0, 105.1, 109.9, 110.0, 130.0, 130.1):
        clock.now = now
        trimmer.after_step()
        trimmer.maybe_trim()
    assert trims == [105.0, 110.0, 130.0]


def test_without_a_step_there_is_nothing_to_give_back() -> None:
    clock, trims = Clock(), []
    trimmer = HeapTrimmer(lambda: trims.append(clock.now), 5.0, clock)
    for now in (110.0, 120.0):
        clock.now = now
        trimmer.maybe_trim()
    trimmer.after_step()
    for now in (121.0, 130.0, 140.0):
        clock.now = now
        trimmer.maybe_trim()
    assert trims == [121.0]


def test_a_trim_that_takes_long_comes_seldom() -> None:
    clock, trims = Clock(), []

    def trim() -> None:
        trims.append(clock.now)
        clock.now += 0.5

    trimmer = HeapTrimmer(trim, 5.0, clock)
    while clock.now < 400:
        trimmer.after_step()
        trimmer.maybe_trim()
        clock.now += 1
    assert len(trims) == 6
    assert [round(later - before) for before, later in pairwise(trims)] == [50] * 5


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    trimmer = HeapTrimmer(None, 1.0, clock)
    clock.now += 10
    trimmer.after_step()
    trimmer.maybe_trim()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert malloc_trim() is None


class ThreeSteps:
    """An engine with work for three steps, and a server that ends it when it has been idle three times."""

    def __init__(self) -> None:
        self.num_steps = self.num_idle = 0

    def has_unfinished(self) -> bool:
        return self.num_steps < 3

    def step(self) -> list[SequenceDelta]:
        self.num_steps += 1
        return []

    def stats(self) -> EngineStats:
        return EngineStats()

    def poll(self, milliseconds: int) -> bool:
        self.num_idle += not self.has_unfinished()
        return self.num_idle > 3

    def recv(self, flags: int) -> bytes:
        return wire.encode(wire.Shutdown())


@pytest.mark.parametrize(("first", "expected"), [(0.0, [1, 2, 3]), (4.0, [3])])
def test_the_engine_process_trims_between_its_steps_and_once_when_it_is_idle(first: float, expected: list[int]) -> None:
    engine, trims = ThreeSteps(), []
    trimmer = HeapTrimmer(lambda: trims.append(engine.num_steps), first, lambda: engine.num_steps + engine.num_idle)
    EngineLoop(engine, engine, lambda report: None, trimmer=trimmer).run()  # type: ignore[arg-type]
    assert trims == expected


def test_free_pages_between_used_ones_go_back() -> None:
    """64 MiB in pieces, every other one of which stays in use: the heap cannot shrink from its end."""
    trim = malloc_trim()
    if trim is None:
        pytest.skip("this C library has no malloc_trim")
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    size, process = 64 * 1024, psutil.Process()  # below the size from which glibc maps each piece by itself
    pieces = [libc.malloc(size) for _ in range(1024)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[::2]:
        libc.free(piece)
    before = process.memory_info().rss
    trim()
    freed = before - process.memory_info().rss
    for piece in pieces[1::2]:
        libc.free(piece)
    assert freed > 16 * 2**20
