"""The engine process: start and its errors, streams, abort, death of either side."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest
from server_fakes import fake_config

from paceline.engine.async_engine import AsyncEngine
from paceline.errors import (
    ConfigurationError,
    EngineDeadError,
    EngineStalledError,
    InvalidRequestError,
    UnsupportedModelError,
)
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta

FACTORY = "server_fakes:make_fake"


@pytest.fixture(autouse=True)
def _child_finds_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def ask(request_id: str = "a", prompt: list[int] | None = None, **sampling: object) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[4, 5] if prompt is None else prompt,
        sampling_params=SamplingParams(**sampling),
    )


async def collect(engine: AsyncEngine, request: EngineRequest) -> list[SequenceDelta]:
    return [delta async for delta in engine.generate(request)]


def with_engine(body: Callable[[AsyncEngine], Awaitable[None]], name: str = "fake", **options: float) -> None:
    async def run() -> None:
        engine = await AsyncEngine.start(fake_config(name), factory=FACTORY, **options)
        home = engine._home
        try:
            async with asyncio.timeout(20):
                await body(engine)
        finally:
            await engine.shutdown()
        assert not psutil.pid_exists(engine.pid)
        assert not home.exists()

    asyncio.run(run())


def test_streams_of_several_requests_are_complete_and_not_mixed() -> None:
    async def body(engine: AsyncEngine) -> None:
        both = await asyncio.gather(
            collect(engine, ask("a", max_tokens=7, n=2)), collect(engine, ask("b", max_tokens=20))
        )
        for request_id, deltas, tokens in zip("ab", both, (14, 20), strict=True):
            assert {d.request_id for d in deltas} == {request_id}
            assert sum(len(d.token_ids) for d in deltas) == tokens
            assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert (await engine.stats()).generation_tokens == 34
        assert await engine.describe() == {"model": "fake"}
        assert engine.is_healthy

    with_engine(body)


def test_a_refused_request_raises_the_engines_error_and_harms_no_other() -> None:
    async def body(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidRequestError, match="empty") as caught:
            await collect(engine, ask(prompt=[]))
        assert caught.value.param == "prompt"
        assert await collect(engine, ask("b"))

    with_engine(body)


def test_p43_leaving_a_stream_aborts_the_request() -> None:
    async def body(engine: AsyncEngine) -> None:
        async with aclosing(engine.generate(ask(max_tokens=100_000))) as stream:
            await anext(stream)
            assert (await engine.stats()).num_running == 1
        stats = await engine.stats()
        assert (stats.num_running, stats.finished_abort) == (0, 1)

    with_engine(body)


def test_p43_cancelling_the_task_aborts_the_request() -> None:
    async def body(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine, ask(max_tokens=100_000)))
        while (await engine.stats()).num_running == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await engine.stats()).num_running == 0

    with_engine(body)


def test_p42_a_killed_engine_fails_every_request_at_once_and_health() -> None:
    async def body(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(collect(engine, ask(str(i), max_tokens=100_000))) for i in range(3)]
        while (await engine.stats()).num_running < 3:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        os.kill(engine.pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - began < 5
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert "signal 9" in str(results[0])
        assert not engine.is_healthy
        await engine.wait_dead()
        with pytest.raises(EngineDeadError):
            await collect(engine, ask("later"))
        with pytest.raises(EngineDeadError):
            await engine.stats()

    with_engine(body)


def test_p42_an_engine_that_makes_no_progress_is_unhealthy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paceline.engine.async_engine._WATCH_SECONDS", 0.05)
    monkeypatch.setattr("paceline.engine.async_engine.STOP_SECONDS", 0.1)
    monkeypatch.setattr("paceline.engine.async_engine.STUCK_SECONDS", 0.1)

    async def body(engine: AsyncEngine) -> None:
        assert engine.is_healthy
        task = asyncio.create_task(collect(engine, ask()))
        async with asyncio.timeout(10):
            while engine.is_healthy:
                await asyncio.sleep(0.05)
        assert engine.is_stalled
        await asyncio.sleep(0.3)
        assert [record.getMessage()[:10] for record in caplog.records].count("The engine") == 1, "said once"
        for name in ("new", "newer"):
            with pytest.raises(EngineStalledError, match=r"no step for \d+ s"):
                await asyncio.wait_for(collect(engine, ask(name)), 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with_engine(body, "stuck", stall_seconds=1.2)


@pytest.mark.parametrize("stuck_before", [False, True])
def test_an_engine_that_is_stuck_when_it_is_to_end_is_killed_soon_and_the_log_says_so(
    stuck_before: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop, stuck = (1.0, 0.2) if stuck_before else (0.4, 0.1)
    monkeypatch.setattr("paceline.engine.async_engine.STOP_SECONDS", stop)
    monkeypatch.setattr("paceline.engine.async_engine.STUCK_SECONDS", stuck)

    async def body(engine: AsyncEngine) -> None:
        os.kill(engine.pid, signal.SIGSTOP)
        if stuck_before:
            await asyncio.sleep(1.2)
        began = time.monotonic()
        await engine.shutdown()
        assert stuck <= time.monotonic() - began < 5  # the process was not left to go on

    with_engine(body)
    (line,) = [record.getMessage() for record in caplog.records if "was killed" in record.getMessage()]
    assert f"did not end within {stuck if stuck_before else stop:g} s" in line


def test_an_engine_that_ends_when_asked_is_not_said_to_be_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def body(engine: AsyncEngine) -> None:
        assert len(await collect(engine, ask(max_tokens=2))) > 0

    with_engine(body)
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("unsupported", UnsupportedModelError, "Mamba"),
        ("wrong", ConfigurationError, "num_blocks"),
        ("crash", EngineDeadError, "ZeroDivisionError: oops"),
    ],
)
def test_an_error_at_start_comes_back_as_itself(name: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        with_engine(lambda engine: asyncio.sleep(0), name)


def engine_processes() -> set[psutil.Process]:
    """Children of this process that run an engine."""
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of those
            if "core_process" in " ".join(child.cmdline()):
                found.add(child)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_an_engine_that_is_killed_while_it_loads_says_how(number: signal.Signals) -> None:
    async def run() -> None:
        before = engine_processes()  # whatever earlier tests of this process have left
        start = asyncio.create_task(AsyncEngine.start(fake_config("loading"), factory=FACTORY))
        while not (children := engine_processes() - before):
            await asyncio.sleep(0.02)
        for child in children:
            child.send_signal(number)
        with pytest.raises(EngineDeadError, match=f"signal {number.value}") as error:
            await asyncio.wait_for(start, 10)
        assert ("want of memory" in str(error.value)) == (number == signal.SIGKILL)

    asyncio.run(run())


def test_the_engine_process_does_not_inherit_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_API_KEYS", "a-key-of-16-characters")

    async def body(engine: AsyncEngine) -> None:
        environment = psutil.Process(engine.pid).environ()
        assert "PACELINE_API_KEYS" not in environment
        assert "PATH" in environment

    with_engine(body)


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncEngine.start(fake_config("loading"), factory=FACTORY), 1.0)

    before = engine_processes()
    asyncio.run(run())
    assert engine_processes() <= before


def test_the_engine_process_ends_when_its_parent_is_killed() -> None:
    script = (
        "import asyncio\n"
        "from server_fakes import fake_config\n"
        "from paceline.engine.async_engine import AsyncEngine\n"
        "async def run():\n"
        f"    engine = await AsyncEngine.start(fake_config(), factory={FACTORY!r})\n"
        "    print(engine.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(run())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    child.wait(timeout=15)
