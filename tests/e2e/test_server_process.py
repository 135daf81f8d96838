"""The real server in a process of its own, over real sockets, with a fake engine in a second process.

The official openai client talks to it; processes are killed and signalled.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

FAKES = Path(__file__).resolve().parents[1] / "unit"
SCRIPT = """
import os
import socket
import sys
from server_fakes import FakeTokenizer, fake_config
from paceline.arguments import Resolved
from paceline.logs import LogOptions, set_up_logging
from paceline.server.options import ServerOptions
from paceline.server.serve import open_port, serve
class Tokenizer(FakeTokenizer):
    def token_table(self):
        return {"longest": 0}
resolved = Resolved(fake_config(sys.argv[1]), Tokenizer())
logs = LogOptions(level=os.environ["LOG_LEVEL"])
set_up_logging(logs)
options = ServerOptions(shutdown_grace_seconds=float(sys.argv[2]), stall_seconds=2.0, logs=logs)
announce = lambda table, url: print(url, flush=True)
listener = socket.socket(fileno=int(sys.argv[3])) if sys.argv[3:] else open_port("127.0.0.1", 0)
sys.exit(serve(resolved, listener, announce, options, factory="server_fakes:make_fake"))
"""


class RunningServer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self.engines = psutil.Process(process.pid).children()
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"paceline:{name}{{"))

    def wait_for(self, name: str, value: float) -> None:
        deadline = time.monotonic() + 10
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.05)

    def ended(self, status: int, within: float) -> None:
        assert self.process.wait(within) == status
        for engine in self.engines:
            engine.wait(15)


@contextmanager
def start(
    name: str = "fake",
    grace: int = 10,
    log: Path | None = None,
    listener: socket.socket | None = None,
    log_level: str = "error",
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, name, str(grace), *([str(listener.fileno())] if listener else [])],
        pass_fds=[listener.fileno()] if listener else [],
        stdout=subprocess.PIPE,
        stderr=log.open("w") if log else None,
        text=True,
        env=os.environ
        | {"LOG_LEVEL": log_level, "PYTHONPATH": os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with start() as process:
        yield RunningServer(process)


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    with start() as process:
        yield RunningServer(process)


def chat(server: RunningServer, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hello"}]
    return server.client.chat.completions.create(**{"model": "fake", "messages": messages, **fields})


def test_openai_client_chat(shared: RunningServer) -> None:
    assert [model.id for model in shared.client.models.list()] == ["fake"]
    answer = chat(shared, max_completion_tokens=6, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in answer.choices] == [" w2 w3 w4 w5 w6 w7"] * 2
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].logprobs.content[0].top_logprobs[1].token == " w3"
    assert answer.metrics["speculative_decoding"]["mean_acceptance_length"] == 2.0


def test_openai_client_stream(shared: RunningServer) -> None:
    chunks = list(chat(shared, max_tokens=6, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == " w2 w3 w4 w5 w6 w7"
    assert chunks[-1].usage.completion_tokens == 6
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_openai_client_completions(shared: RunningServer) -> None:
    answer = shared.client.completions.create(model="fake", prompt=["a", "b"], max_tokens=2, extra_body={"top_k": 5})
    assert [choice.text for choice in answer.choices] == [" w2 w3", " w2 w3"]
    stream = shared.client.completions.create(model="fake", prompt=[4, 5], max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == " w2 w3 w4"


def test_openai_client_errors(shared: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        chat(shared, model="other")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        chat(shared, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        chat(shared, messages=[{"role": "user", "content": "w " * 99}], stream=True)
    assert long.value.code == "context_length_exceeded"


def test_p43_a_client_that_hangs_up_frees_its_sequences(shared: RunningServer) -> None:
    before = shared.metric("generation_tokens_total")
    stream = chat(shared, max_tokens=1_000_000, stream=True)
    next(iter(stream))
    shared.wait_for("num_requests_running", 1)
    stream.close()
    shared.wait_for("num_requests_running", 0)
    assert shared.metric("generation_tokens_total") - before < 1000
    with pytest.raises(httpx.ReadTimeout):  # a client that only gives up waiting is the same
        httpx.post(
            f"{shared.url}/v1/completions", json={"model": "fake", "prompt": "a", "max_tokens": 10**6}, timeout=1
        )
    shared.wait_for("num_requests_running", 0)


def test_two_servers_side_by_side(shared: RunningServer, server: RunningServer) -> None:
    assert shared.url != server.url
    assert (
        chat(shared, max_tokens=2).choices[0].message.content == chat(server, max_tokens=2).choices[0].message.content
    )


def test_p42_kill_9_on_the_engine(server: RunningServer) -> None:
    stream = iter(chat(server, max_tokens=1_000_000, stream=True))
    next(stream)
    began = time.monotonic()
    server.engines[0].kill()
    with pytest.raises(openai.APIError, match="engine"):
        list(stream)
    assert time.monotonic() - began < 5
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert 'paceline:num_requests_running{model_name="fake"} 0.0' in httpx.get(f"{server.url}/metrics").text
    with pytest.raises(openai.InternalServerError) as late:
        chat(server)
    assert late.value.code == "engine_dead"
    server.ended(status=1, within=20)


def test_p42_an_engine_that_is_stopped_turns_health_503_and_back(server: RunningServer) -> None:
    """SIGSTOP: the process lives and does nothing. Stated time: --stall-after, 2 s in these tests, here 2 s more."""
    paths = [f"{server.url}{path}" for path in ("/health", "/health/live", "/health/ready")]
    assert [httpx.get(path).status_code for path in paths] == [200] * 3
    began = time.monotonic()
    server.engines[0].suspend()
    try:
        while httpx.get(paths[0]).status_code == 200:
            assert time.monotonic() - began < 4
            time.sleep(0.05)
        assert time.monotonic() - began > 1
        assert [httpx.get(path).json()["error"]["code"] for path in paths] == ["engine_stalled"] * 3
        with pytest.raises(openai.InternalServerError) as refused:
            chat(server, timeout=5)
        assert (refused.value.status_code, refused.value.code) == (503, "engine_stalled")
        metrics = httpx.get(f"{server.url}/metrics", timeout=10)  # the counters of the last heartbeat
        assert 'paceline:engine_up{model_name="fake"} 0.0' in metrics.text
    finally:
        server.engines[0].resume()
    while httpx.get(paths[0]).status_code != 200:
        assert time.monotonic() - began < 15
        time.sleep(0.05)
    assert chat(server, max_tokens=2).choices[0].message.content == " w2 w3"


def test_probes_are_answered_while_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading = tmp_path / "loading"
    loading.touch()
    monkeypatch.setenv("LOADING", str(loading))
    with socket.create_server(("127.0.0.1", 0)) as listener, start("slow", listener=listener) as process:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        paths = ("/health/live", "/health/ready", "/health", "/v1/models")
        early = {path: httpx.get(url + path, timeout=60) for path in paths}
        assert [response.status_code for response in early.values()] == [200, 503, 503, 503]
        assert early["/health/live"].json() == {"status": "loading"}
        assert early["/v1/models"].json()["error"]["code"] == "model_loading"
        assert early["/v1/models"].headers["retry-after"] == "5"
        loading.unlink()
        server = RunningServer(process)
        assert httpx.get(f"{url}/health/ready").status_code == 200
        assert chat(server, model="slow", max_tokens=2).choices[0].message.content == " w2 w3"


def test_a_full_disk_for_the_log_costs_log_lines_only() -> None:
    """/dev/full: every write fails with 'no space left on device', in both processes."""
    with start(log=Path("/dev/full"), log_level="info") as process:
        server = RunningServer(process)
        assert chat(server, max_tokens=2).choices[0].message.content == " w2 w3"
        with pytest.raises(openai.InternalServerError):
            server.client.completions.create(model="fake", prompt=[99])  # logged as a warning
        server.wait_for("log_lines_dropped_total", 2)  # a line each
        assert httpx.get(f"{server.url}/health").status_code == 200
        process.terminate()  # 'Stopping.' cannot be said either
        server.ended(status=0, within=15)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.usefixtures("no_signal_is_ignored")
def test_a_signal_ends_every_process(server: RunningServer, number: signal.Signals) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.process.send_signal(number)
    server.ended(status=0, within=15)


def test_a_signal_lets_running_requests_finish(server: RunningServer) -> None:
    stream = iter(chat(server, max_tokens=200, stream=True))
    next(stream)
    for process in (*server.engines, server.process):  # as a service manager does, to the whole group
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 1
    for path in ("/health", "/health/live", "/health/ready", "/v1/models"):  # as docs/operations.md says
        while True:
            try:
                httpx.get(server.url + path)
            except httpx.ConnectError:
                break
            except (httpx.RemoteProtocolError, httpx.ReadError):
                pass  # it was waiting to be accepted when the port closed
            assert time.monotonic() < deadline
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    server.ended(status=0, within=15)


def body_of(server: RunningServer, **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "a", "max_tokens": 10**6, **fields}


def connect(server: RunningServer, rest: bytes = b"") -> socket.socket:
    """A client of bare hands, to leave things half done."""
    url = httpx.URL(server.url)
    client = socket.create_connection((url.host, url.port or 80), timeout=20)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + rest)
    return client


@contextmanager
def unread_stream(server: RunningServer) -> Iterator[None]:
    body = json.dumps(body_of(server, stream=True, n=64)).encode()
    with connect(server, b"Content-Length: %d\r\n\r\n" % len(body) + body):
        yield


@pytest.mark.parametrize("signals", [1, 2])
def test_requests_that_do_not_finish_in_time_get_an_error(tmp_path: Path, signals: int) -> None:
    log = tmp_path / "log"
    with start(grace=2 if signals == 1 else 30, log=log) as process, ThreadPoolExecutor(2) as threads:
        server = RunningServer(process)
        post = partial(httpx.post, f"{server.url}/v1/completions", timeout=20)
        stream, whole = (threads.submit(post, json=body_of(server, stream=stream)) for stream in (True, False))
        with unread_stream(server), connect(server, b"Content-Length: 99\r\n\r\n{"), connect(server):
            server.wait_for("num_requests_running", 3)
            for _ in range(signals):
                process.send_signal(signal.SIGINT)
                time.sleep(0.3)
            *_, fault, done, end = stream.result().text.split("\n\n")
            assert json.loads(fault.removeprefix("data: "))["error"]["code"] == "shutting_down"
            assert (done, end) == ("data: [DONE]", "")
            assert whole.result().status_code == 503
            assert whole.result().json()["error"]["code"] == "shutting_down"
            server.ended(status=0, within=10)
    (line,) = log.read_text().splitlines()
    assert "finishing 4 running requests, at most" in line


def test_a_dead_engine_ends_the_server_whatever_is_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start(log=log) as process:
        server = RunningServer(process)
        with httpx.Client() as idle, unread_stream(server), connect(server, b"Content-Length: 99\r\n\r\n{"):
            idle.get(f"{server.url}/health")
            server.wait_for("num_requests_running", 1)
            server.engines[0].kill()
            time.sleep(0.5)
            assert idle.get(f"{server.url}/health").status_code == 503
            server.ended(status=1, within=8)
    (line,) = log.read_text().splitlines()
    assert "engine process" in line
    assert "signal 9" in line


def test_a_second_signal_does_not_wait(server: RunningServer) -> None:
    stream = chat(server, max_tokens=1_000_000, stream=True)
    next(iter(stream))
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    server.ended(status=0, within=15)


def test_a_signal_while_the_model_loads() -> None:
    with start("loading") as process:
        server = psutil.Process(process.pid)
        deadline = time.monotonic() + 20
        while not server.children() and time.monotonic() < deadline:
            time.sleep(0.05)
        engines = server.children()
        time.sleep(0.5)
        process.terminate()
        assert process.wait(15) == 0
        assert engines
        for engine in engines:
            engine.wait(15)


def test_kill_9_on_the_server_ends_the_engine(server: RunningServer) -> None:
    server.process.kill()
    server.ended(status=-signal.SIGKILL, within=15)


def test_a_port_in_use_is_one_clear_line(shared: RunningServer) -> None:
    port = shared.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "paceline.cli", "serve", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"port {port}: another program is using it" in done.stderr
    assert "Traceback" not in done.stderr
