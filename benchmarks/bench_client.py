"""Can the client of `paceline bench serve` keep up: 256 streams, 10,000 tokens a second, without distorting ITL?

    python benchmarks/bench_client.py            # 40 s; nothing else should run on the two cores
    python benchmarks/bench_client.py --streams 64 --seconds 3 --clients paceline

A server that answers by the clock (fake_server.py) runs in a process of its own and writes into each chunk when it
left. The clocks of both processes are one (CLOCK_MONOTONIC), so what the client adds is known chunk by chunk:

    delay      received - sent: socket, event loop and what else stands before the stamp
    lag        read - sent: when the client got to the chunk; the same as the delay where it has no other clock
    gap error  (gap between two chunks as received) - (as sent): what a client adds to a pause
    ITL        as bench serve reports it; as sent: the gaps between the stamps that the server wrote

Two patterns: `steps`, all streams' chunks at once, as an engine's step sends them; `spread`, every stream on its own
clock. General clients (httpx, and aiohttp where it is installed) are measured beside it, at the same load; they only
note when bytes came, while Paceline's also reads the events and counts their tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from common import record

from paceline.bench.serve import latency
from paceline.bench.serve.ask import Listener, now_ns
from paceline.bench.serve.counting import UsageTally
from paceline.bench.serve.http_stream import StreamClient, server_url
from paceline.bench.serve.load import quiet_collector
from paceline.bench.serve.records import Load, Record

_SENT = re.compile(rb'"sent_ns":(\d+)')
_PATH = "/v1/chat/completions"
Heard = list[tuple[int, int, bytes]]  # received, by the client's stamp; read; and what
Stream = Callable[[dict[str, Any]], Awaitable[tuple[int, Heard]]]  # body -> start, what was heard


@asynccontextmanager
async def paceline_client(url: str) -> AsyncIterator[Stream]:
    client = StreamClient(server_url(url), {}, 600)

    async def stream(body: dict[str, Any]) -> tuple[int, Heard]:
        """What ask() does in a benchmark, and what was heard kept beside it."""
        listener, heard = Listener(UsageTally(), now_ns()), []

        def on_data(now: int, data: bytes) -> None:
            heard.append((now, now_ns(), data))
            listener.on_data(now, data)

        answered = await client.post(_PATH, json.dumps(body).encode(), on_data)
        assert answered.status == 200, answered.error_body
        return listener.started_ns, heard

    yield stream
    client.close()


@asynccontextmanager
async def httpx_client(url: str) -> AsyncIterator[Stream]:
    import httpx

    client = httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None), timeout=600)

    async def stream(body: dict[str, Any]) -> tuple[int, Heard]:
        start, heard = now_ns(), []
        async with client.stream("POST", _PATH, json=body) as response:
            async for data in response.aiter_raw():
                heard.append((now := now_ns(), now, data))
        return start, heard

    async with client:
        yield stream


@asynccontextmanager
async def aiohttp_client(url: str) -> AsyncIterator[Stream]:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def stream(body: dict[str, Any]) -> tuple[int, Heard]:
            start, heard = now_ns(), []
            async with session.post(url + _PATH, json=body) as response:
                async for data in response.content.iter_any():
                    heard.append((now := now_ns(), now, data))
            return start, heard

        yield stream


CLIENTS = {"paceline": paceline_client, "httpx": httpx_client, "aiohttp": aiohttp_client}


async def load(client: str, url: str, streams: int, tokens: int) -> tuple[list[tuple[int, Heard]], float, float]:
    """What each stream heard, wall seconds, and the process's CPU seconds."""
    body = {"model": "by-the-clock", "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens}
    async with CLIENTS[client](url) as stream:
        await asyncio.gather(*(stream(body | {"max_tokens": 1}) for _ in range(streams)))  # connections stand
        async with quiet_collector():  # as bench serve does
            wall, cpu = time.perf_counter(), time.process_time()
            found = await asyncio.gather(*(stream(body) for _ in range(streams)))
            return found, time.perf_counter() - wall, time.process_time() - cpu


def figures(found: list[tuple[int, Heard]], wall: float, cpu: float) -> dict[str, Any]:
    delays, lags, errors, theirs, ours, chunks = [], [], [], [], [], 0
    for _, heard in found:
        times = [(now, read, int(sent)) for now, read, data in heard for sent in _SENT.findall(data)]
        received, read, sent = np.asarray(times, dtype=np.int64).T / 1e6
        chunks += len(times)
        delays.append(received - sent)
        lags.append(read - sent)
        ours.append(_itl(received))
        theirs.append(np.diff(sent))
        errors.append(np.abs(np.diff(received) - theirs[-1]))
    return {
        "tokens": chunks,
        "tokens_per_second": chunks / wall,
        "client_cpu_us_per_token": cpu / chunks * 1e6,
        "client_core_share": cpu / wall,
        "delay_ms": _spread(delays),
        "lag_ms": _spread(lags),
        "itl_ms_as_sent": _spread(theirs),
        "itl_ms_as_received": _spread(ours),
        "gap_error_ms": _spread(errors),
    }


def _itl(received: Any) -> Any:
    """By the benchmark's own arithmetic: tokens that came at one time share the gap before them."""
    times, counts = np.unique((received * 1e3).astype(np.int64), return_counts=True)
    events = list(zip((times - times[0]).tolist(), np.cumsum(counts).tolist(), strict=True))
    heard = Record("paceline", Load("users", 1), 0, 0, 0, "", 0, start_us=0, events=events)
    return np.asarray(latency.itl(heard))


def _spread(parts: list[Any]) -> dict[str, float]:
    values = np.concatenate(parts)
    found = {f"p{q:g}": float(np.percentile(values, q)) for q in (50, 90, 99)}
    return {"mean": float(values.mean()), **found, "max": float(values.max())}


def measure(client: str, clock: str, options: argparse.Namespace) -> dict[str, Any]:
    tokens = int(options.seconds * options.rate / options.streams)
    step_ms = 1e3 * options.streams / options.rate
    script = Path(__file__).with_name("fake_server.py")
    command = [sys.executable, str(script), "--clock", clock, "--step-ms", str(step_ms), "--tokens", str(tokens)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(load(client, url, options.streams, tokens))
    finally:
        server.terminate()
        server.wait(10)
    return {"client": client, "clock": clock, "step_ms": step_ms, **figures(*found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rate", type=float, default=10_000, help="tokens a second, all streams together")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--clients", default="paceline,httpx,aiohttp")
    parser.add_argument("--name", default="bench-client", help="of the file under results/")
    parser.add_argument("--real-time", action="store_true", help="ahead of all other work on the machine (root, Linux)")
    options = parser.parse_args()
    if options.real_time:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))  # the server's process inherits it
    rows = []
    print(f"{'client':10} {'clock':7} {'tok/s':>8} {'µs/tok':>7} {'core':>5} {'delay ms p50':>13} {'p99':>6}  "
          f"{'lag p50':>7} {'p99':>6}  "
          f"{'ITL ms p50 p99, sent':>21} {'received':>13} {'|error| p50':>12} {'p99':>6}")  # fmt: skip
    for client in options.clients.split(","):
        if client not in CLIENTS or find_spec(client) is None:
            print(f"{client}: not installed here, left out")
            continue
        for clock in ("steps", "spread"):
            row = measure(client, clock, options)
            rows.append(row)
            delay, error = row["delay_ms"], row["gap_error_ms"]
            sent, received = row["itl_ms_as_sent"], row["itl_ms_as_received"]
            print(
                f"{client:10} {clock:7} {row['tokens_per_second']:8,.0f} {row['client_cpu_us_per_token']:7.1f} "
                f"{row['client_core_share']:5.0%} {delay['p50']:13.2f} {delay['p99']:6.2f}  "
                f"{row['lag_ms']['p50']:7.2f} {row['lag_ms']['p99']:6.2f}  "
                f"{sent['p50']:14.2f} {sent['p99']:6.2f} {received['p50']:6.2f} {received['p99']:6.2f} "
                f"{error['p50']:12.2f} {error['p99']:6.2f}"
            )
    where = record(options.name, {"streams": options.streams, "asked_tokens_per_second": options.rate, "results": rows})
    print(f"Wrote {where}.")


if __name__ == "__main__":
    main()
