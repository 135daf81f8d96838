"""A server under abuse: does every answer stay whole and right, and does everything come back?

    python benchmarks/load_test.py                       # the default pair, 64 clients, two minutes
    python benchmarks/load_test.py --clients 16 --seconds 10 --model DIR --draft DIR

Clients stream, hang up at random, send malformed and over-long requests; one of them, a process of its own, is killed
in the middle of its stream. Afterwards the engine is killed under load. Shown at the end, as one JSON document:

- no answer of 500 or above, and none of our errors in a stream
- every finished greedy stream is the text of the same request alone (the server runs in float32)
- no request, no KV block is left; the memory that both processes keep has not grown
- the engine's death: requests in flight get an error, /health 503, the server ends with status 1

Exit status 0 when all of it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from common import BUILTIN_PROMPTS, record

VICTIM = """
import socket, sys
host, port, body = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
client = socket.create_connection((host, port))
head = b"POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\n"
client.sendall(head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
while client.recv(4096):
    print("data", flush=True)
"""


class Server:
    """`paceline serve` in a process of its own, logging to a file."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process, self.url = process, url
        self.api = psutil.Process(process.pid)
        self.engine = next(child for child in self.api.children() if "core_process" in " ".join(child.cmdline()))

    def rss(self) -> list[float]:
        """MiB of the API process and of the engine's."""
        return [process.memory_info().rss / 2**20 for process in (self.api, self.engine)]

    def metrics(self) -> dict[str, float]:
        """Sums over all labels but `kind` and `status`, which stay in the name."""
        found: Counter[str] = Counter()
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith("paceline:"):
                name, value = line.rsplit(" ", 1)
                head, _, labels = name.removeprefix("paceline:").partition("{")
                kept = [label for label in labels.strip("}").split(",") if label.startswith(("kind=", "status="))]
                found[head + "".join(f"[{label}]" for label in kept)] += float(value)
        return found


@contextmanager
def running(options: argparse.Namespace) -> Iterator[Server]:
    command = [sys.executable, "-m", "paceline.cli", "serve", options.model, "--port", "0", "--dtype", "float32"]
    command += ["--speculative-model", options.draft, "--served-model-name", "model", *options.serve_arguments]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "300"}
        process = subprocess.Popen(command, stderr=log.open("wb"), env=environment)
        try:
            while " on http://" not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.2)
            yield Server(process, log.read_text().split(" on ")[-1].split()[0])
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def requests(longest: int) -> list[dict[str, Any]]:
    """Greedy ones are compared with their solo runs; a sampled one may change with K, and K with the load."""
    made = []
    for number, prompt in enumerate(BUILTIN_PROMPTS):
        asked: dict[str, Any] = {"model": "model", "prompt": prompt, "max_tokens": 8 + 7 * number % longest}
        made.append(asked | {"temperature": 0})
        made.append(asked | {"temperature": 0, "stop": ["e"]})
        made.append(asked | {"temperature": 0.8, "seed": number, "n": 2})
    return made


def malformed(longest: int) -> list[tuple[bytes, set[int]]]:
    """Bodies, and the statuses that they may be answered with."""
    good = {"model": "model", "prompt": "x", "max_tokens": 4}
    wrong: list[tuple[Any, set[int]]] = [
        (good | {"temperature": -1}, {400}),
        (good | {"max_tokens": "many"}, {400}),
        (good | {"prompt": ""}, {200, 400}),
        (good | {"prompt": []}, {400}),
        (good | {"no_such_field": 1}, {400}),
        (good | {"model": "other"}, {404}),
        (good | {"stop": ["x"] * 1000}, {200, 400}),
        (good | {"prompt": "long " * 200_000}, {400}),
        (good | {"prompt": "a b " * longest * 50}, {400}),
        (good | {"prompt": [10**9]}, {400}),
    ]
    return [(json.dumps(body).encode(), statuses) for body, statuses in wrong] + [
        (b"{", {400}), (b"", {400}), (b"\xff\xfe", {400}), (b"[1]", {400}), (b"[" * 100_000, {400})
    ]  # fmt: skip


class Load:
    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self._server = server
        self._options = options
        self._http = httpx.AsyncClient(
            base_url=server.url, timeout=600, limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._asked = requests(options.max_tokens)
        self._malformed = malformed(options.max_tokens)
        self._alone: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run_alone(self) -> None:
        for number, asked in enumerate(self._asked):
            if asked["temperature"] == 0:
                self._alone[number] = await self._stream(asked)

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        clients = [self._client(random.Random(number), end) for number in range(self._options.clients)]
        await asyncio.gather(*clients, self._victim(seconds / 3))

    async def _client(self, dice: random.Random, end: float) -> None:
        while time.monotonic() < end:
            number, kind = dice.randrange(len(self._asked)), dice.random()
            if kind < 0.2:
                await self._hang_up(self._asked[number], dice)
            elif kind < 0.35:
                await self._send_malformed(*dice.choice(self._malformed))
            else:
                self._compare(number, await self._stream(self._asked[number]))

    def _compare(self, number: int, text: str) -> None:
        self.counts["streams finished"] += 1
        if number in self._alone:
            self.counts["streams compared"] += 1
            if text != self._alone[number]:
                self.problems.append(f"request {number} said {text!r}, alone {self._alone[number]!r}")

    async def _stream(self, asked: dict[str, Any]) -> str:
        """The whole text of a stream that must be complete."""
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        texts, reasons, counted, done = [], [], None, False
        async with self._http.stream("POST", "/v1/completions", json=asked | usage) as response:
            if response.status_code != 200:
                await response.aread()
                self.problems.append(f"a good request got {response.status_code}: {response.text[:200]}")
                return ""
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        self.problems.append(f"a stream ended with {chunk['error']}")
                        return ""
                    texts += [choice["text"] for choice in chunk["choices"]]
                    reasons += [choice["finish_reason"] for choice in chunk["choices"] if choice["finish_reason"]]
                    counted = chunk.get("usage") or counted
        if not done or len(reasons) != asked.get("n", 1) or not counted:
            self.problems.append(f"a stream is not whole: done={done}, reasons={reasons}, usage={counted}")
        return "".join(texts)

    async def _hang_up(self, asked: dict[str, Any], dice: random.Random) -> None:
        self.counts["hang-ups"] += 1
        long = asked | {"stream": True, "max_tokens": self._options.max_tokens, "ignore_eos": True, "stop": None}
        try:
            async with asyncio.timeout(dice.random() * 2), self._http.stream("POST", "/v1/completions", json=long) as r:
                chunks = 0
                async for _ in r.aiter_lines():
                    chunks += 1
                    if chunks > dice.randrange(1, 12):
                        return
        except TimeoutError:
            pass

    async def _send_malformed(self, body: bytes, statuses: set[int]) -> None:
        self.counts["malformed"] += 1
        headers = {"content-type": "application/json"}
        response = await self._http.post("/v1/completions", content=body, headers=headers)
        if response.status_code not in statuses or (response.status_code != 200 and "error" not in response.json()):
            self.problems.append(f"{body[:60]!r} got {response.status_code}: {response.text[:200]}")

    async def _victim(self, after: float) -> None:
        """A client process, killed in the middle of its stream."""
        await asyncio.sleep(after)
        body = {"model": "model", "prompt": "x", "max_tokens": self._options.max_tokens, "stream": True, "n": 4}
        url = httpx.URL(self._server.url)
        victim = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", VICTIM, url.host, str(url.port), json.dumps(body | {"ignore_eos": True})),
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None
        await victim.stdout.readline()
        victim.kill()
        await victim.wait()
        self.counts["clients killed"] += 1

    async def close(self) -> None:
        await self._http.aclose()


async def watch_memory(server: Server, samples: list[list[float]]) -> None:
    while True:
        samples.append(server.rss())
        await asyncio.sleep(0.5)


def growth(samples: list[list[float]], middle: Callable[[Sequence[float]], float] = statistics.median) -> list[float]:
    """MiB from the second quarter to the last: pools and caches fill in the first.

    `middle` of a quarter's samples: the median has in it what steps are holding at the moment and what they freed since
    the heap was last trimmed, up to 160 MiB as the work of the moment has it; the least has not, and shows a leak all
    the same.
    """
    quarter = len(samples) // 4
    parts = samples[quarter : 2 * quarter], samples[-quarter:]
    before, after = ([middle(column) for column in zip(*part, strict=True)] for part in parts)
    return [round(end - start, 2) for start, end in zip(before, after, strict=True)]


async def settled(server: Server) -> dict[str, float]:
    """The gauges once nothing runs, or as they are after 20 s."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    for _ in range(100):
        metrics = await asyncio.to_thread(server.metrics)
        if not any(metrics[name] for name in names):
            break
        await asyncio.sleep(0.2)
    return {name: metrics[name] for name in names}


async def abuse(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    load = Load(server, options)
    await load.run_alone()
    samples: list[list[float]] = []
    watching = asyncio.create_task(watch_memory(server, samples))
    await load.run(options.seconds)
    watching.cancel()
    await load.close()
    left = await settled(server)
    metrics = await asyncio.to_thread(server.metrics)
    ours = {name: n for name, n in metrics.items() if name.startswith('http_requests_total[status="5') and n}
    grown, medians = growth(samples, min), growth(samples)
    allowed = [max(options.memory_mib, 0.03 * size) for size in samples[-1]]
    problems = load.problems[:20]
    problems += [f"{name} is {value} at the end" for name, value in left.items() if value]
    problems += [f"{name}: {value}" for name, value in ours.items()]
    problems += [
        f"the {name} process has grown by {mib} MiB"
        for name, mib, most in zip(("API", "engine"), grown, allowed, strict=True)
        if mib > most
    ]
    for kind in ("streams compared", "hang-ups", "malformed", "clients killed"):
        if not load.counts[kind]:
            problems.append(f"no {kind}: the test has shown nothing")
    return {
        "counts": dict(load.counts),
        "errors_by_kind": {name: n for name, n in metrics.items() if name.startswith("request_errors")},
        "aborted": metrics["requests_aborted_total"],
        "preemptions": metrics["num_preemptions_total"],
        "left": left,
        "memory_growth_mib": {"api": grown[0], "engine": grown[1]},
        "memory_growth_of_medians_mib": {"api": medians[0], "engine": medians[1]},
        "memory_mib": {"api": samples[-1][0], "engine": samples[-1][1]},
        "problems": problems,
    }


async def kill_engine(server: Server) -> dict[str, Any]:
    """kill -9 on the engine with streams in flight."""
    problems: list[str] = []
    body = {"model": "model", "prompt": "x", "max_tokens": 10_000, "stream": True, "ignore_eos": True}

    async def victim(http: httpx.AsyncClient) -> None:
        text = ""
        try:
            async with http.stream("POST", "/v1/completions", json=body) as response:
                async for piece in response.aiter_text():
                    text += piece
                    started.set()
        except httpx.HTTPError as error:
            problems.append(f"a stream was cut off: {error!r}")
        if '"finish_reason":"' not in text and '"code":"engine_dead"' not in text:
            problems.append(f"a stream ended without an error: {text[-200:]!r}")

    started = asyncio.Event()
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
        tasks = [asyncio.create_task(victim(http)) for _ in range(8)]
        await started.wait()
        began = time.monotonic()
        server.engine.send_signal(signal.SIGKILL)
        await asyncio.gather(*tasks)
        told = time.monotonic() - began
        health = (await http.get("/health")).status_code
    status = await asyncio.to_thread(server.process.wait, 30)
    if (health, status) != (503, 1):
        problems.append(f"/health said {health} and the server ended with status {status}; expected 503 and 1")
    return {
        "seconds_until_clients_knew": round(told, 2),
        "seconds_until_exit": round(time.monotonic() - began, 2),
        "health": health,
        "exit_status": status,
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="smollm2-135m-instruct-draft")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--max-tokens", type=int, default=48, help="the longest answer")
    parser.add_argument("--memory-mib", type=float, default=32.0, help="growth allowed, or 3 %% if that is more")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/load-test.json")
    options, options.serve_arguments = parser.parse_known_args()  # what is left goes to `paceline serve`
    if "--kv-cache-memory-bytes" not in options.serve_arguments:  # a pool fills up before its blocks are used again
        options.serve_arguments += ["--kv-cache-memory-bytes", str(64 * 2**20), "--max-model-len", "1024"]
    with running(options) as server:
        shown = asyncio.run(abuse(server, options))
        shown |= {"engine_killed": asyncio.run(kill_engine(server))}
    print(json.dumps(shown, indent=1))
    if options.record:
        print(record("load-test", {"options": vars(options), **shown}))
    return 1 if shown["problems"] or shown["engine_killed"]["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
