"""VllmEngine: a `vllm serve` of our own behind the interface of Paceline's engine, for `LLM(runtime="vllm")`.

Contract
- Requests are streams of /v1/completions; `step` waits for what the next of them brings. Token ids come from vLLM.
- vLLM's end, at start or later, is an EngineDeadError with its last lines; requests in flight end with an error.
- One thread of ours runs the event loop; every method is called from the user's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx

from paceline.engine.statistics import EngineStats
from paceline.errors import EngineDeadError, InvalidRequestError
from paceline.runtimes.vllm.body import body_of, cached_tokens_of, check_params, counts_of, delta_of
from paceline.runtimes.vllm.command import VllmCommand
from paceline.runtimes.vllm.metrics import stats_of
from paceline.runtimes.vllm.probe import Installation
from paceline.runtimes.vllm.process import VllmProcess
from paceline.runtimes.vllm.watch import Watch
from paceline.sequence import EngineRequest, FinishReason, Refusal, SequenceDelta

_STOP_SECONDS = 20.0
_LAST_WORDS_SECONDS = 1.0
T = TypeVar("T")


class VllmEngine:
    def __init__(self, command: VllmCommand, installation: Installation, *, port: int, model: str) -> None:
        """Blocks until vLLM serves. `model` is its name there."""
        self._command = command
        self._installation = installation
        self._model = model
        self._process = VllmProcess(command.argv(installation.launcher), command.environment, port=port, quiet=True)
        self._deltas: queue.SimpleQueue[SequenceDelta | None] = queue.SimpleQueue()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._client: httpx.AsyncClient | None = None
        try:
            self._await(self._start())
        except BaseException:
            self.shutdown()
            raise

    # EngineLike

    def add_request(self, request: EngineRequest) -> None:
        """Raises InvalidRequestError for what vLLM cannot do."""
        for name in ("priority", "cache_salt"):
            if getattr(request, name):
                raise InvalidRequestError(f"{name} is not handed to vLLM; leave it out.", param=name)
        check_params(request.sampling_params, speculates=self._command.value("speculative-config") is not None)
        self._await(self._submit(request))

    def abort(self, request_id: str) -> None:
        task = self._running.pop(request_id, None)
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def step(self) -> list[SequenceDelta]:
        """At least one delta while requests run."""
        found = [self._deltas.get()] if self._running or not self._deltas.empty() else []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._deltas.get_nowait())
        return [delta for delta in found if delta is not None]

    def has_unfinished(self) -> bool:
        return bool(self._running)

    def stats(self) -> EngineStats:
        return stats_of(self._await(self._watch.metrics()))

    def describe(self) -> dict[str, str]:
        return {
            "runtime": f"vLLM {self._command.version} ({self._installation.facts.distribution})",
            "command": " ".join(self._command.argv(self._installation.launcher)),
        }

    def shutdown(self) -> None:
        if self._loop.is_closed():
            return
        self._await(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the loop

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        await self._process.start()
        self._client = httpx.AsyncClient(
            base_url=self._process.url,
            headers={"authorization": f"Bearer {self._process.key}"},
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        self._watch = Watch(self._process, self._client)
        self._watching = asyncio.create_task(self._watch.run())
        if not await self._watch.wait_loaded():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait_ended(), _LAST_WORDS_SECONDS)
            raise EngineDeadError(self._process.explain())

    async def _stop(self) -> None:
        tasks = [*self._running.values(), *([self._watching] if self._client else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
        await self._process.stop(_STOP_SECONDS)

    async def _submit(self, request: EngineRequest) -> None:
        self._running[request.request_id] = asyncio.create_task(self._answer(request))

    async def _answer(self, request: EngineRequest) -> None:
        unfinished = set(range(request.sampling_params.n))
        try:
            await self._stream(request, unfinished)
            if unfinished:
                raise EngineDeadError("vLLM ended the stream before the answer was finished.")
        except _RefusedError as error:
            self._fail(request, unfinished, str(error), Refusal(param=error.param))
        except (httpx.HTTPError, EngineDeadError, ValueError, KeyError) as error:
            self._fail(request, unfinished, await self._cause(error), None)
        finally:
            self._running.pop(request.request_id, None)
            self._deltas.put(None)  # so that nobody waits for more

    async def _cause(self, error: Exception) -> str:
        """A broken connection is often the first sign of a death, whose cause vLLM has printed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait_ended(), _LAST_WORDS_SECONDS)
            return self._process.explain()
        return str(error) or type(error).__name__

    async def _stream(self, request: EngineRequest, unfinished: set[int]) -> None:
        """The last delta of each answer is held back: its counts come behind it, with the usage."""
        assert self._client is not None
        last: list[SequenceDelta] = []
        body = body_of(request, self._model)
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise _refusal(await response.aread(), response.status_code)
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise EngineDeadError(str(event["error"].get("message", event["error"])))
                for choice in event["choices"]:
                    delta = delta_of(request.request_id, choice)
                    last.append(delta) if delta.finish_reason else self._deltas.put(delta)
                if event.get("usage"):
                    for delta in last:
                        delta.num_cached_tokens = cached_tokens_of(event)
                counts = counts_of(event)
                if counts and last:
                    last[0].speculation = counts
        for delta in last:
            delta.num_prompt_tokens = len(request.prompt_token_ids)
            unfinished.discard(delta.index)
            self._deltas.put(delta)

    def _fail(self, request: EngineRequest, unfinished: set[int], why: str, refusal: Refusal | None) -> None:
        for index in sorted(unfinished):
            self._deltas.put(
                SequenceDelta(
                    request_id=request.request_id,
                    index=index,
                    finish_reason=FinishReason.ERROR,
                    error=why,
                    refusal=refusal,
                )
            )


class _RefusedError(Exception):
    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


def _refusal(content: bytes, status: int) -> Exception:
    try:
        error = json.loads(content)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = f"vLLM answered with status {status}.", None
    return _RefusedError(message, param) if 400 <= status < 500 else EngineDeadError(message)
