"""Load on a server: so many users, each with one request under way, or arrivals on their own clock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

Send = Callable[[int], Coroutine[Any, Any, None]]  # number of the job
SendLate = Callable[[int, float], Coroutine[Any, Any, None]]  # and how many seconds late it starts


async def closed_loop(users: int, num_jobs: int, send: Send) -> None:
    """Each user sends the next job as soon as the last one is answered; jobs start in order."""
    jobs = iter(range(num_jobs))

    async def user() -> None:
        for job in jobs:
            await send(job)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(users, num_jobs)):
            group.create_task(user())


async def open_loop(arrivals: Sequence[float], send: SendLate) -> None:
    """Job i starts `arrivals[i]` seconds after the first, whether or not earlier ones are answered."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.TaskGroup() as group:
        for job, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, start + arrival - loop.time()))
            group.create_task(send(job, loop.time() - start - arrival))


@asynccontextmanager
async def quiet_collector() -> AsyncIterator[None]:
    """No garbage collection while streams are timed: a pass over a large heap would stop them all."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
