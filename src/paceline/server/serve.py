"""Run the API and its engine process until a signal or the engine's death.

Contract
- The port is taken before a model is loaded: a port in use is known at once.
- SIGTERM or SIGINT: stop accepting, let running requests finish, leave no process, status 0. After GRACE_SECONDS
  those that still run are ended with an error of their own. A second signal does not wait.
- The engine dies: requests fail and /health turns 503 at once; after DEAD_SECONDS the server ends with status 1,
  whatever connections are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import uvicorn

from paceline.arguments import Resolved
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.core_process import DEFAULT_FACTORY
from paceline.errors import ConfigurationError, EngineDeadError
from paceline.server.app import create_app
from paceline.server.requests import Requests
from paceline.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10
DEAD_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0  # of the grace: for the errors of the requests that did not finish
_NEVER_SECONDS = 5  # past the grace: uvicorn's own timeout, which cancels tasks with tracebacks

Announce = Callable[[dict[str, str], str], None]  # the engine's description, the URL
T = TypeVar("T")


def open_port(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == 98
        reason = (
            "another program is using it; stop that one or give another --port" if taken else str(error).rstrip(".")
        )
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
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)  # lengths are checked here
    stop = _Stop()
    engine = await stop.unless_requested(AsyncEngine.start(resolved.config, factory=factory))
    if engine is None:
        return 0
    try:
        announce(await engine.describe(), _url(listener))
        requests = Requests()
        app = create_app(engine, names, tokenizer, resolved.config, requests)
        options = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS + _NEVER_SECONDS,
        )
        return await _run(_Server(options), listener, engine, stop, requests)
    finally:
        await engine.shutdown()


async def _run(server: _Server, listener: socket.socket, engine: AsyncEngine, stop: _Stop, requests: Requests) -> int:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    hurry = asyncio.Event()
    stop.on_second_request(hurry.set)
    died = await stop.unless_requested(_finish_first(engine.wait_dead(), serving))
    if died is None:
        say(_farewell(requests.num_running))
    elif not serving.done():
        logger.error("%s The server ends in %.0f seconds.", await _cause_of_death(engine), DEAD_SECONDS)
        await stop.unless_requested(asyncio.sleep(DEAD_SECONDS))  # so that clients and probes see the 503
        hurry.set()
    server.should_exit = True
    ending = asyncio.create_task(_end(server, requests, hurry))
    await serving
    ending.cancel()
    return 0 if died is None else 1


async def _cause_of_death(engine: AsyncEngine) -> str:
    try:
        await engine.stats()
    except EngineDeadError as error:
        return str(error)
    return "The engine has died."


async def _end(server: _Server, requests: Requests, hurry: asyncio.Event) -> None:
    """Give the requests their time, then an error, then hang up on those who do not read it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(hurry.wait(), max(0.0, GRACE_SECONDS - _LAST_WORDS_SECONDS))
    requests.end_all()
    await asyncio.sleep(_LAST_WORDS_SECONDS)
    for connection in list(server.server_state.connections):
        connection.transport.abort()


def _farewell(num_running: int) -> str:
    if not num_running:
        return "Stopping."
    requests = "request" if num_running == 1 else "requests"
    return (
        f"Stopping: finishing {num_running} running {requests}, at most {GRACE_SECONDS} s; "
        "press Ctrl-C again to stop at once."
    )


def say(line: str) -> None:
    """To the person at the console, beside the log."""
    print(line, file=sys.stderr, flush=True)


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
