"""Run vLLM with Paceline in front, until a signal or vLLM's end.

Contract
- The port is taken and answers before vLLM has loaded: probes see "loading", requests a 503 with Retry-After.
- SIGTERM, SIGINT or SIGHUP: stop accepting, let running requests finish for `grace` seconds, then give them an error;
  vLLM and all its processes are gone before we are; status 0. A second signal does not wait.
- vLLM ends by itself, at any time: requests fail and /health is 503 at once; after DEAD_SECONDS status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable

import httpx
import uvicorn

from paceline.runtimes.vllm.command import VllmCommand
from paceline.runtimes.vllm.probe import Installation
from paceline.runtimes.vllm.process import VllmProcess
from paceline.runtimes.vllm.proxy import create_proxy
from paceline.runtimes.vllm.watch import Watch
from paceline.server.options import ServerOptions
from paceline.server.requests import Requests
from paceline.server.signals import Server, Stop

DEAD_SECONDS = 5.0
VLLM_GRACE_SECONDS = 20.0  # for vLLM to end its own processes
_LAST_WORDS_SECONDS = 1.0
_NEVER_SECONDS = 5  # past the grace: uvicorn's own timeout, which cancels tasks with tracebacks

Say = Callable[[str], None]


def serve(
    command: VllmCommand,
    installation: Installation,
    listener: socket.socket,
    vllm_port: int,
    announce: Callable[[], None],
    say: Say,
    options: ServerOptions,
    *,
    dead_seconds: float = DEAD_SECONDS,
) -> int:
    """Block until the end; the exit status. `command` listens on 127.0.0.1:`vllm_port`."""
    process = VllmProcess(command.argv(installation.launcher), command.environment, port=vllm_port)
    return asyncio.run(_Serving(process, command, listener, announce, say, options, dead_seconds).run())


class _Serving:
    def __init__(
        self,
        process: VllmProcess,
        command: VllmCommand,
        listener: socket.socket,
        announce: Callable[[], None],
        say: Say,
        options: ServerOptions,
        dead_seconds: float,
    ) -> None:
        self._process = process
        self._version = command.version
        self._model = command.value("served-model-name") or command.model
        self._listener = listener
        self._announce = announce
        self._say = say
        self._options = options
        self._dead_seconds = dead_seconds
        self._requests = Requests()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        stop = Stop()
        stop.on_second_request(self._hurry.set)
        try:
            await self._process.start()
            async with self._client() as client:
                return await self._serve(client, stop)
        finally:
            await self._process.stop(VLLM_GRACE_SECONDS, self._hurry)

    async def _serve(self, client: httpx.AsyncClient, stop: Stop) -> int:
        watch = Watch(self._process, client, model=self._model, stall_seconds=self._options.stall_seconds)
        server = Server(
            uvicorn.Config(
                create_proxy(watch, client, self._process.key, self._requests, self._version, self._options.access),
                log_config=None,
                access_log=False,
                lifespan="off",
                **self._options.access.tls(),
                timeout_graceful_shutdown=math.ceil(self._options.shutdown_grace_seconds) + _NEVER_SECONDS,
            )
        )
        watching = asyncio.create_task(watch.run())
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            died = await stop.unless_requested(self._until_dead(watch, serving))
            await self._say_why(died, stop)
            server.should_exit = True
            ending = asyncio.create_task(self._end(server))
            await serving
            ending.cancel()
            return 0 if died is None else 1
        finally:
            for task in (watching, serving):
                task.cancel()
            await asyncio.gather(watching, serving, return_exceptions=True)

    async def _until_dead(self, watch: Watch, serving: asyncio.Task[None]) -> bool:
        """vLLM has ended, or declares its engine dead, or the web server has ended."""
        if await watch.wait_loaded():
            self._announce()
        while watch.state != "dead" and not serving.done():
            await asyncio.sleep(0.1)
        return True

    async def _say_why(self, died: bool | None, stop: Stop) -> None:
        if died is None:
            running = self._requests.num_running
            self._say(f"Stopping: finishing {running} running requests." if running else "Stopping.")
            return
        why = "vLLM's engine is dead." if self._process.is_alive else self._process.explain()
        self._say(f"{why} The server ends in {self._dead_seconds:.0f} seconds.")
        await stop.unless_requested(asyncio.sleep(self._dead_seconds))  # so that clients and probes see the 503
        self._hurry.set()

    async def _end(self, server: Server) -> None:
        """Give the requests their time, then an error, then hang up on those who do not read it."""
        grace = max(0.0, self._options.shutdown_grace_seconds - _LAST_WORDS_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), grace)
        self._requests.end_all()
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        for connection in list(server.server_state.connections):
            connection.transport.abort()

    def _client(self) -> httpx.AsyncClient:
        """No limit of connections or of waiting: vLLM queues, and answers when it can."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        return httpx.AsyncClient(
            base_url=self._process.url,
            timeout=httpx.Timeout(None, connect=10.0),
            limits=limits,
            trust_env=False,
        )
