"""Watch: is vLLM loading, serving, stuck or dead? From its process, its /health and the counters of its steps.

vLLM's /health knows whether its engine died, not whether it still moves. Here it counts as stuck when requests run
and for `stall_seconds` no step was made (p42).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from typing import Literal, Protocol

import httpx

State = Literal["loading", "ready", "stuck", "dead"]

POLL_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.eE+-]+)")
_RUNNING = "vllm:num_requests_running"
_STEPS = "vllm:iteration_tokens_total_count"


class Alive(Protocol):
    @property
    def is_alive(self) -> bool: ...


class Watch:
    def __init__(
        self,
        process: Alive,
        client: httpx.AsyncClient,
        *,
        model: str = "",
        stall_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` has vLLM's address as its base; `model` is its name there."""
        self.model = model
        self.last_metrics = ""
        self._process = process
        self._client = client
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._loaded = False
        self._healthy = True
        self._steps = -1.0
        self._moved = clock()

    @property
    def state(self) -> State:
        if not self._process.is_alive or (self._loaded and not self._healthy):
            return "dead"
        if not self._loaded:
            return "loading"
        return "stuck" if self._clock() - self._moved > self._stall_seconds else "ready"

    async def run(self) -> None:
        """For ever, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_SECONDS)

    async def wait_loaded(self) -> bool:
        """Until it serves (True) or has ended (False). Needs `run` to run."""
        while self.state == "loading":
            await asyncio.sleep(0.05)
        return self.state != "dead"

    async def look(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            status = (await self._client.get("/health", timeout=_ANSWER_SECONDS)).status_code
            self._healthy = status == 200
            self._loaded = self._loaded or self._healthy
        if self._loaded:
            with contextlib.suppress(httpx.HTTPError):
                self._take(await self.metrics())

    async def metrics(self) -> str:
        """vLLM's own, as text. Raises httpx.HTTPError."""
        answer = await self._client.get("/metrics", timeout=_ANSWER_SECONDS)
        answer.raise_for_status()
        self.last_metrics = answer.text
        return answer.text

    def _take(self, text: str) -> None:
        sums = sums_of(text, (_RUNNING, _STEPS))
        if sums[_STEPS] != self._steps or not sums[_RUNNING]:
            self._steps, self._moved = sums[_STEPS], self._clock()


def sums_of(text: str, names: tuple[str, ...]) -> dict[str, float]:
    """The samples of each name, added over their labels; 0 where there is none."""
    sums = dict.fromkeys(names, 0.0)
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found and found[1] in sums:
            sums[found[1]] += float(found[2])
    return sums
