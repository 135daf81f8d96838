"""Run the API and its engine process until a signal or the engine's death.

Contract
- The port is taken before a model is loaded: a port in use is known at once. While it loads, probes are answered.
- SIGTERM, SIGINT or SIGHUP: stop accepting, let running requests finish, leave no process, status 0. After the grace
  those that still run are ended with an error of their own. A second signal does not wait.
- The engine dies: requests fail and /health turns 503 at once; after DEAD_SECONDS the server ends with status 1,
  whatever connections are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvicorn
import uvloop

from paceline.arguments import Resolved
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.core_process import DEFAULT_FACTORY
from paceline.errors import ConfigurationError, EngineDeadError
from paceline.logs import tell
from paceline.server.app import create_app
from paceline.server.health import Gate
from paceline.server.options import ServerOptions
from paceline.server.requests import Requests
from paceline.server.signals import Server, Stop
from paceline.server.telemetry.request_log import RequestLog
from paceline.server.telemetry.telemetry import Observer
from paceline.server.telemetry.traces import Traces
from paceline.server.text_client import TextClient
from paceline.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEAD_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0  # of the grace: for the errors of the requests that did not finish
_NEVER_SECONDS = 5  # past the grace: uvicorn's own timeout, which cancels tasks with tracebacks

Announce = Callable[[dict[str, str], str], None]  # the engine's description, the URL
T = TypeVar("T")


def open_port(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == 98
        reason = (
            "another program is using it; stop that one or give another --port" if taken else str(error).rstrip(".")
        )
        raise ConfigurationError(f"Cannot listen on {host}, port {port}: {reason}.") from None
    # With the protocol named asyncio sets TCP_NODELAY: else a token may wait 40 ms for the client's late ACK.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())


def serve(
    resolved: Resolved,
    listener: socket.socket,
    announce: Announce,
    options: ServerOptions | None = None,
    *,
    factory: str = DEFAULT_FACTORY,
) -> int:
    """Block until the end; the exit status."""
    if resolved.tokenizer is None:
        raise ConfigurationError("A server needs the model's tokenizer; leave skip_tokenizer_init out.")
    serving = _Serving(resolved, resolved.tokenizer, listener, announce, options or ServerOptions(), factory)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving.run())


class _Serving:
    """One run: the web server from the first moment, the engine, and the application once it is loaded."""

    def __init__(
        self,
        resolved: Resolved,
        tokenizer: Tokenizer,
        listener: socket.socket,
        announce: Announce,
        options: ServerOptions,
        factory: str,
    ) -> None:
        self._config = resolved.config
        self._tokenizer = tokenizer
        self._listener = listener
        self._announce = announce
        self._options = options
        self._factory = factory
        endpoint, names = options.otlp_traces_endpoint, options.served_model_names
        self._traces = Traces(endpoint, (*names, resolved.config.model.name)[0]) if endpoint else None
        self._gate = Gate()
        self._requests = Requests()
        self._hurry = asyncio.Event()  # end without waiting for anybody
        config = uvicorn.Config(
            self._gate,
            http="httptools",
            log_config=None,
            access_log=False,
            lifespan="off",
            **options.access.tls(),
            timeout_graceful_shutdown=math.ceil(options.shutdown_grace_seconds) + _NEVER_SECONDS,
        )
        self._server = Server(config)

    async def run(self) -> int:
        """The exit status."""
        logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)  # lengths are checked here
        stop = Stop()
        web = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            start = AsyncEngine.start(
                self._config,
                factory=self._factory,
                stall_seconds=self._options.stall_seconds,
                logs=self._options.logs,
            )
            engine = await stop.unless_requested(start)
            if engine is None:
                return 0
            try:
                return await self._serve(engine, stop, web)
            finally:
                await engine.shutdown()
        finally:
            self._hurry.set()
            await self._end_web(web)

    async def _serve(self, engine: AsyncEngine, stop: Stop, web: asyncio.Task[None]) -> int:
        """From the loaded engine to the last answer."""
        names = self._options.served_model_names or (self._config.model.name,)
        client, access = TextClient(engine, self._tokenizer), self._options.access
        app = create_app(client, names, self._tokenizer, self._config, self._requests, access=access)
        app.state.live.telemetry.observers += self._observers(names[0])
        self._gate.open(app)
        sampling = asyncio.create_task(app.state.live.run())
        self._announce(await engine.describe(), _url(self._listener, self._options.access.scheme))
        stop.on_second_request(self._hurry.set)
        died = await stop.unless_requested(_finish_first(engine.wait_dead(), web))
        app.state.live.is_stopping = True
        if died is None:
            tell(_farewell(self._requests.num_running, self._options.shutdown_grace_seconds))
        elif not web.done():
            logger.error("%s The server ends in %.0f seconds.", await _cause_of_death(engine), DEAD_SECONDS)
            await stop.unless_requested(asyncio.sleep(DEAD_SECONDS))  # so that clients and probes see the 503
            self._hurry.set()
        await self._end_web(web)
        sampling.cancel()
        if self._traces is not None:
            self._traces.close()
        return 0 if died is None else 1

    def _observers(self, model: str) -> list[Observer]:
        prompts = self._tokenizer if self._options.logs.prompts else None
        traces = [self._traces] if self._traces is not None else []
        return [RequestLog(prompts), *traces]

    async def _end_web(self, web: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        ending = asyncio.create_task(self._hang_up())
        await web
        ending.cancel()

    async def _hang_up(self) -> None:
        """Give the requests their time, then an error, then hang up on those who do not read it."""
        with contextlib.suppress(TimeoutError):
            patience = self._options.shutdown_grace_seconds - _LAST_WORDS_SECONDS
            await asyncio.wait_for(self._hurry.wait(), max(0.0, patience))
        self._requests.end_all()
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


async def _cause_of_death(engine: AsyncEngine) -> str:
    try:
        await engine.stats()
    except EngineDeadError as error:
        return str(error)
    return "The engine has died."


def _farewell(num_running: int, grace_seconds: float) -> str:
    if not num_running:
        return "Stopping."
    requests = "request" if num_running == 1 else "requests"
    return (
        f"Stopping: finishing {num_running} running {requests}, at most {grace_seconds:g} s; "
        "press Ctrl-C again to stop at once."
    )


async def _finish_first(died: Coroutine[Any, Any, None], serving: asyncio.Task[None]) -> bool:
    """Return when the engine has died or the web server has ended by itself."""
    dying = asyncio.create_task(died)
    try:
        await asyncio.wait((dying, serving), return_when=asyncio.FIRST_COMPLETED)
        return True
    finally:
        dying.cancel()


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
