"""Runtime vllm around a fake vLLM: what stands in front, how it starts, is watched and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.errors import EngineDeadError
from paceline.runtimes.vllm.process import VllmProcess, free_port
from paceline.runtimes.vllm.proxy import create_proxy
from paceline.runtimes.vllm.watch import Watch
from paceline.server.requests import Requests

FAKE = Path(__file__).parent / "fake_vllm.py"


@contextmanager
def serving(*fake_arguments: str, grace: float = 2.0) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """The whole of `serve` in a process of its own, as a user runs it, around the fake."""
    port = free_port()
    script = f"""
        import sys
        from paceline.runtimes.vllm.command import Launcher, VllmCommand
        from paceline.runtimes.vllm.facts import facts_of
        from paceline.runtimes.vllm.probe import Installation
        from paceline.runtimes.vllm.process import free_port
        from paceline.runtimes.vllm.serve import serve
        from paceline.server.options import ServerOptions
        from paceline.server.serve import open_port

        class Fake(Installation):
            launcher = Launcher((sys.executable, {str(FAKE)!r}), positional=False)

        port = free_port()
        words = [word.partition("=") for word in {list(fake_arguments)!r}]
        options = (("port", (str(port),)), *((name, (value,) if value else ()) for name, _, value in words))
        command = VllmCommand(model="m", options=options, version="0.32.0")
        with open_port("127.0.0.1", {port}) as listener:
            say = lambda line="announced": print(line, flush=True)
            front = ServerOptions(shutdown_grace_seconds={grace})
            vllm = Fake(sys.executable, facts_of("0.32"))
            sys.exit(serve(command, vllm, listener, port, say, say, front, dead_seconds=1.0))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.03)


def status_of(client: httpx.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_life_and_end_of_a_server() -> None:
    with serving("load-seconds=0.7") as (process, client):
        until(lambda: status_of(client, "/health/live") == 200)
        early = client.post("/v1/completions", json={})
        assert (early.status_code, early.json()["error"]["code"]) == (503, "model_loading")
        assert early.headers["retry-after"]
        assert status_of(client, "/health/ready") == 503
        until(lambda: status_of(client, "/health/ready") == 200)
        assert client.get("/version").json()["vllm_version"] == "0.32.0"
        metrics = client.get("/metrics").text
        for line in (
            'paceline:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0',
            'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 6.0',
            "# TYPE paceline:generation_tokens_total counter",
            'paceline:engine_up{model_name="m"} 1.0',
            'http_requests_total{handler="/v1/completions"} 1.0',
        ):
            assert line in metrics.splitlines()
        check_that_hanging_up_ends_a_request(client)
        vllm = children_of(process.pid)
        assert vllm
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in vllm))
        assert "announced" in process.stdout.read()


def check_that_hanging_up_ends_a_request(client: httpx.Client) -> None:
    """Over a raw socket: the end of a connection is what vLLM has to notice (p43)."""
    body = b'{"stream": true, "seed": 13, "n": 1, "prompt": []}'
    with socket.create_connection((client.base_url.host, client.base_url.port)) as raw:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        assert b"200" in raw.recv(1000)
    until(lambda: 'finished_reason="abort",model_name="m"} 1' in client.get("/metrics").text, 10)


def test_a_running_stream_may_finish_and_then_gets_an_error() -> None:
    with serving(grace=1.5) as (process, client):
        until(lambda: status_of(client, "/health") == 200)
        with client.stream(
            "POST", "/v1/completions", json={"stream": True, "seed": 13, "n": 1, "prompt": []}
        ) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert len(rest) > 5
        assert "shutting_down" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert process.wait(20) == 0


def test_vllm_dies_in_the_middle() -> None:
    with serving() as (process, client):
        until(lambda: status_of(client, "/health") == 200)
        died = client.post("/v1/completions", json={"max_tokens": 0})
        assert (died.status_code, died.json()["error"]["code"]) == (503, "engine_dead")
        until(lambda: status_of(client, "/health/live") == 503, 3)
        last = client.get("/metrics").text.splitlines()
        assert 'paceline:engine_up{model_name="m"} 0.0' in last
        assert 'paceline:spec_decode_num_drafts_total{engine="0",model_name="m"} 6.0' in last
        assert process.wait(20) == 1
        assert "vLLM ended (status 3)" in process.stdout.read()


def test_vllm_dies_while_loading() -> None:
    with serving("die-while-loading") as (process, _client):
        assert process.wait(20) == 1
        told = process.stdout.read()
        assert "vLLM ended (status 1)" in told
        assert "announced" not in told


def test_a_vllm_that_does_not_listen_to_signals_is_killed_at_the_second() -> None:
    with serving("deaf") as (process, client):
        until(lambda: status_of(client, "/health") == 200)
        vllm = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in vllm))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal to orphans is Linux's")
def test_vllm_does_not_outlive_a_killed_paceline() -> None:
    with serving() as (process, client):
        until(lambda: status_of(client, "/health") == 200)
        vllm = children_of(process.pid)
        process.kill()
        until(lambda: not any(_runs(pid) for pid in vllm))


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


# The proxy, request by request


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[httpx.AsyncClient, Watch]]:
    port = free_port()
    process = VllmProcess([sys.executable, str(FAKE), "--port", str(port)], {}, port=port, quiet=True)
    await process.start()
    try:
        async with httpx.AsyncClient(base_url=process.url, trust_env=False) as upstream:
            watch = Watch(process, upstream)
            watching = asyncio.create_task(watch.run())
            assert await watch.wait_loaded()
            proxy = create_proxy(watch, upstream, process.key, Requests(), "0.32.0")
            transport = httpx.ASGITransport(proxy)
            async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
                yield client, watch
            watching.cancel()
    finally:
        await process.stop(2.0)


def test_requests_go_through_with_our_key_instead_of_the_clients() -> None:
    async def run() -> None:
        async with proxied() as (client, _):
            got = await client.get(
                "/v1/models?x=1%202&y=%2F", headers={"Authorization": "Bearer of-a-user", "X-A": "b"}
            )
            assert got.status_code == 200
            seen = got.json()
            assert seen["path"] == "/v1/models?x=1%202&y=%2F"
            headers = {name.lower(): value for name, value in seen["headers"].items()}
            assert headers["x-a"] == "b"
            assert "of-a-user" not in headers["authorization"]
            assert (await client.get("/nosuch")).json() == {"detail": "Not Found"}
            text = "é" * 300_000
            echoed = await client.post("/v1/completions", json={"prompt": text})
            assert echoed.json()["echo"]["prompt"] == text
            refused = await client.post("/v1/completions", json={"temperature": 99})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
            for name in ("guided_json", "speculation"):
                ignored = await client.post("/v1/completions", json={name: {"a": 1}})
                assert (ignored.status_code, ignored.json()["error"]["param"]) == (400, name)
                allowed = await client.post("/v1/completions", json={name: None, "prompt": f"what is {name}?"})
                assert allowed.status_code == 200
            origins = {"include_token_origins": True}
            untold = await client.post("/v1/completions", json={"stream": True, "stream_options": origins})
            assert untold.json()["error"]["param"] == "stream_options.include_token_origins"
            huge = await client.post("/v1/completions", content=b" " * (33 * 2**20))
            assert huge.status_code == 413

    asyncio.run(run())


def test_streams_go_through_event_by_event() -> None:
    async def run() -> None:
        async with proxied() as (client, _):
            body = {"stream": True, "prompt": [3, 4, 5], "n": 1}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                text = (await answer.aread()).decode()
            assert text.count("data: ") == 5
            assert text.endswith("data: [DONE]\n\n")

    asyncio.run(run())


# The watch


class FakeProcess:
    is_alive = True


def watched(answers: dict[str, Any], clock: Callable[[], float], process: FakeProcess) -> Watch:
    def answer(request: httpx.Request) -> httpx.Response:
        found = answers[request.url.path]
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found[0], text=found[1])

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://vllm")
    return Watch(process, client, stall_seconds=60, clock=clock)


def test_p42_health_follows_progress() -> None:
    now = [0.0]
    process = FakeProcess()
    answers: dict[str, Any] = {"/health": httpx.ConnectError("not yet"), "/metrics": (200, "")}
    watch = watched(answers, lambda: now[0], process)

    def look(seconds: float, running: int, steps: int) -> str:
        now[0] += seconds
        answers["/metrics"] = (
            200,
            f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:iteration_tokens_total_count {steps}.0\n',
        )
        asyncio.run(watch.look())
        return watch.state

    assert look(500, 0, 0) == "loading"
    answers["/health"] = (200, "")
    assert look(1, 0, 0) == "ready"
    assert look(500, 0, 0) == "ready"  # idle for long is no stall
    assert look(1, 1, 5) == "ready"
    assert look(59, 1, 5) == "ready"
    assert look(2, 1, 5) == "stuck"
    assert look(1, 1, 6) == "ready"  # it moves again
    answers["/health"] = httpx.ReadTimeout("slow")
    assert look(30, 1, 7) == "ready"  # one slow answer is not a death
    answers["/health"] = (503, "")
    assert look(1, 1, 8) == "dead"
    answers["/health"] = (200, "")
    process.is_alive = False
    assert look(1, 1, 9) == "dead"


def test_a_program_that_is_not_there() -> None:
    async def run() -> None:
        with pytest.raises(EngineDeadError, match="could not be started"):
            await VllmProcess(["/nonexistent/python"], {}, port=1).start()

    asyncio.run(run())


def test_the_port_of_a_kubernetes_service_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.runtimes.vllm.probe import environment

    monkeypatch.setenv("VLLM_PORT", "tcp://10.0.0.1:8000")
    assert "VLLM_PORT" not in environment()
    monkeypatch.setenv("VLLM_PORT", "8100")
    assert environment()["VLLM_PORT"] == "8100"
    assert environment()["PATH"] == os.environ["PATH"]
