"""Run the API and its engine process until a signal or the engine's death.

Contract
- The port is taken before a model is loaded: a port in use is known at once.
- SIGTERM or SIGINT: stop accepting, let running requests finish for GRACE_SECONDS, leave no process, status 0.
  A second signal does not wait.
- The engine dies: requests fail and /health turns 503 at once; after DEAD_SECONDS the server ends with status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import uvicorn

from paceline.arguments import Resolved
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.core_process import DEFAULT_FACTORY
from paceline.errors import ConfigurationError
from paceline.server.app import create_app
from paceline.tokenizer import Tokenizer

GRACE_SECONDS = 10
DEAD_SECONDS = 5.0

Announce = Callable[[dict[str, str], str], None]  # the engine's description, the URL
T = TypeVar("T")


def open_port(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == 98
        reason = "another program is using it; stop that one or give another --port" if taken else str(error)
        raise ConfigurationError(f"Cannot listen on {host}, port {port}: {reason}.") from None


def serve(
    resolved: Resolved,
    listener: socket.socket,
    announce: Announce,
    *,
    served_model_names: Sequence[str] = (),
    factory: str = DEFAULT_FACTORY,
) -> int:
    """Block until the end; the exit status."""
    if resolved.tokenizer is None:
        raise ConfigurationError("A server needs the model's tokenizer; leave skip_tokenizer_init out.")
    names = served_model_names or (resolved.config.model.name,)
    return asyncio.run(_serve(resolved, resolved.tokenizer, listener, announce, names, factory))


async def _serve(
    resolved: Resolved,
    tokenizer: Tokenizer,
    listener: socket.socket,
    announce: Announce,
    names: Sequence[str],
    factory: str,
) -> int:
    stop = _Stop()
    engine = await stop.unless_requested(AsyncEngine.start(resolved.config, factory=factory))
    if engine is None:
        return 0
    try:
        announce(await engine.describe(), _url(listener))
        app = create_app(engine, names, tokenizer, resolved.config)
        options = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE_SECONDS
        )
        return await _run(_Server(options), listener, engine, stop)
    finally:
        await engine.shutdown()


async def _run(server: _Server, listener: socket.socket, engine: AsyncEngine, stop: _Stop) -> int:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stop.on_second_request(lambda: setattr(server, "force_exit", True))
    died = await stop.unless_requested(_finish_first(engine.wait_dead(), serving))
    if died is not None and not serving.done():
        await stop.unless_requested(asyncio.sleep(DEAD_SECONDS))  # so that clients and probes see the 503
    server.should_exit = True
    await serving
    return 0 if died is None else 1


async def _finish_first(died: Coroutine[Any, Any, None], serving: asyncio.Task[None]) -> bool:
    """Return when the engine has died or the web server has ended by itself."""
    dying = asyncio.create_task(died)
    try:
        await asyncio.wait((dying, serving), return_when=asyncio.FIRST_COMPLETED)
        return True
    finally:
        dying.cancel()


class _Server(uvicorn.Server):
    """uvicorn that leaves the signals to us: it would raise them again before the engine is shut down."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stop:
    """SIGTERM and SIGINT as something to wait for."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._again: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._requested.is_set():
            self._again()
        self._requested.set()

    def on_second_request(self, action: Callable[[], None]) -> None:
        self._again = action

    async def unless_requested(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None, with the work cancelled, when a signal comes first."""
        working, waiting = asyncio.create_task(work), asyncio.create_task(self._requested.wait())
        try:
            await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, waiting):
                task.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
