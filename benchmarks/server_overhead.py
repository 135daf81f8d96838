"""What the server costs: a fake engine at a GPU's speed behind the real API process, a real HTTP client elsewhere.

    python benchmarks/server_overhead.py --streams 64 --seconds 20

Three processes, as in production: engine, API, client. The engine takes `--step-ms` a step whatever the batch, as a
memory-bound GPU does, and emits `--tokens-per-step` tokens a sequence; the default is 10,000 tokens a second over 256
streams. Lost throughput is against the same engine stepped in a loop without a server. Every answer's first chunk
carries two times, when the API handed its request to the engine and when the engine emitted its first token. TTFT
overhead is what the client waited less what lies between the two: the wait for the step under way, which a request
meets without a server as well, is not the server's.

Times are worth something only while nothing else runs. CPU microseconds a token are printed too; they hold on a
busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT, record

from paceline.config import EngineConfig, ModelConfig
from paceline.engine.statistics import EngineStats
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta, SpeculationCounts

STEP = "OVERHEAD_STEP_SECONDS"
TOKENS = "OVERHEAD_TOKENS_PER_STEP"
_RAMP_SECONDS = 2.0  # over which the streams begin; throughput is counted after it
# Token 5000 of the default tokenizer, and what stands for it near the times: a chunk may hold several where the API is
# behind, so tokens are counted and not chunks.
_WORD = re.compile(rb" properly| x| [ab]\d")
_FIRST = re.compile(rb'"(?:content|text)":" a(\d+) b(\d+)')


def microseconds() -> int:
    return time.time_ns() // 1000 % 2**31


class PacedEngine:
    """Steps at a fixed pace. The first delta of a sequence has one token for each of the two times."""

    def __init__(self, step_seconds: float, tokens_per_step: int) -> None:
        self._step_seconds = step_seconds
        self._tokens = [5000] * tokens_per_step  # _WORD
        self._running: dict[str, tuple[EngineRequest, int]] = {}
        self._due = 0.0
        self._stats = EngineStats()

    def add_request(self, request: EngineRequest) -> None:
        self._running[request.request_id] = (request, 0)

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def has_unfinished(self) -> bool:
        return bool(self._running)

    def step(self) -> list[SequenceDelta]:
        """A host that is late does not lose device time, unless by more than a step: it runs ahead."""
        now = time.monotonic()
        self._due = max(self._due + self._step_seconds, now)
        time.sleep(self._due - now)
        self._stats.num_steps += 1
        return [self._advance(name, *entry) for name, entry in list(self._running.items())]

    def _advance(self, name: str, request: EngineRequest, done: int) -> SequenceDelta:
        token_ids, waited = self._tokens, None
        if not done:
            waited = 0.0  # as the engine marks a sequence's first tokens
            token_ids = [2 * (int(request.arrival_time * 1e6) % 2**31), 2 * microseconds() + 1]
        done += len(token_ids)
        self._stats.generation_tokens += len(token_ids)
        delta = SequenceDelta(request_id=name, index=0, token_ids=token_ids, num_prompt_tokens=3)
        delta.queue_seconds = waited
        if done >= (request.sampling_params.max_tokens or 1):
            delta.finish_reason, delta.speculation = FinishReason.LENGTH, SpeculationCounts()
            del self._running[name]
        else:
            self._running[name] = (request, done)
        return delta

    def stats(self) -> EngineStats:
        self._stats.num_running = len(self._running)
        return self._stats

    def describe(self) -> dict[str, str]:
        return {"model": "paced"}

    def shutdown(self) -> None: ...


def make_engine(_config: EngineConfig) -> PacedEngine:
    """The factory that the engine process calls."""
    return PacedEngine(float(os.environ[STEP]), int(os.environ[TOKENS]))


# -- the API process -------------------------------------------------------------------------------------


def serve() -> int:
    """`--tokenizer`: a real one, so that writing text costs what it costs; times go around it."""
    from paceline.arguments import Resolved, resolve_arguments
    from paceline.server.serve import open_port
    from paceline.server.serve import serve as run
    from paceline.tokenizer import Tokenizer

    real = resolve_arguments({"model": sys.argv[2]}).tokenizer
    assert real is not None

    class Timed(Tokenizer):
        def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
            if any(token >= 1_000_000 for token in ids):
                return "".join(f" {'ab'[t % 2]}{t // 2}" if t >= 1_000_000 else " x" for t in ids)
            return real.decode(ids, skip_special_tokens=skip_special_tokens)

    model = ModelConfig(path=Path("/nowhere"), name="paced", max_model_len=100_000, vocab_size=2**33)
    resolved = Resolved(EngineConfig(model=model), Timed(real.inner))
    factory = "server_overhead:make_engine"
    return run(resolved, open_port("127.0.0.1", 0), lambda table, url: print(url, flush=True), factory=factory)


# -- the client ------------------------------------------------------------------------------------------


class Client:
    """Streams on bare sockets: a client library would take more of a shared machine than the server does."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = host, int(port)
        self._options = options
        self.overheads: list[float] = []  # seconds of TTFT that are not the engine's
        self.num_tokens = 0

    async def run(self, streams: int, seconds: float) -> None:
        """Hangs up when the time is over, wherever the answers are."""
        tasks = [asyncio.create_task(self._stream((number + 1) / streams)) for number in range(streams)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise RuntimeError("a stream ended") from result

    def _request(self, share: float) -> bytes:
        chat, length = self._options.chat, max(2, int(self._options.max_tokens * share))
        body: dict[str, Any] = {"model": "paced", "max_tokens": length, "stream": True}
        body |= {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi there"}
        data = json.dumps(body).encode()
        path = "/v1/chat/completions" if chat else "/v1/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def _stream(self, share: float) -> None:
        """Answers one after another; the first one shorter, so that the streams do not end together."""
        await asyncio.sleep(share * _RAMP_SECONDS)
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            while True:
                await self._answer(reader, writer, self._request(share))
                share = 1.0
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        sent = microseconds()
        writer.write(request)
        rest, seen = b"", False
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            data = await reader.read(1 << 16)
            rest = rest[-400:] + data
            if not data or b" 503 " in rest:
                raise RuntimeError(f"no answer: {rest!r}")
            if not seen and (match := _FIRST.search(rest)):
                seen = True
                handed, emitted = int(match[1]), int(match[2])
                self.overheads.append((microseconds() - sent - (emitted - handed)) / 1e6)
            self.num_tokens += len(_WORD.findall(data))


def offline(streams: int, max_tokens: int, step: float, tokens: int, seconds: float) -> float:
    """Tokens a second of the engine alone, its sequences replaced as they end."""
    engine, params = PacedEngine(step, tokens), SamplingParams(max_tokens=max_tokens)
    for number in range(streams):
        engine.add_request(EngineRequest(request_id=str(number), prompt_token_ids=[1], sampling_params=params))
    began, generated = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for delta in engine.step():
            generated += len(delta.token_ids)
            if delta.finish_reason is not None:
                engine.add_request(
                    EngineRequest(request_id=delta.request_id, prompt_token_ids=[1], sampling_params=params)
                )
    return generated / (time.monotonic() - began)


def measure(options: argparse.Namespace, streams: int) -> dict[str, Any]:
    import psutil

    step = options.step_ms / 1000
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        STEP: str(step), TOKENS: str(options.tokens_per_step), "PYTHONPATH": os.pathsep.join(paths)
    }  # fmt: skip
    command = [sys.executable, __file__, "--serve", options.tokenizer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            api = psutil.Process(process.pid)
            (engine,) = api.children()
            asyncio.run(Client(url, options).run(4, 2.0))  # warm
            client = Client(url, options)
            cpu, seconds = asyncio.run(_steady(client, streams, options.seconds, (api, engine)))
        finally:
            process.terminate()
    generated = client.num_tokens
    alone = offline(streams, options.max_tokens, step, options.tokens_per_step, min(5.0, options.seconds))
    ordered = sorted(client.overheads)
    return {
        "streams": streams,
        "offline_tokens_per_second": alone,
        "server_tokens_per_second": generated / seconds,
        "throughput_lost": 1 - generated / seconds / alone,
        "ttft_overhead_ms": {
            "requests": len(ordered),
            "median": 1000 * statistics.median(ordered),
            "p95": 1000 * ordered[int(len(ordered) * 0.95)],
        },
        "cpu_microseconds_a_token": {"api": 1e6 * cpu[0] / generated, "engine": 1e6 * cpu[1] / generated},
        "cores_used": {"api": cpu[0] / seconds, "engine": cpu[1] / seconds},
        "seconds": seconds,
    }


async def _steady(
    client: Client, streams: int, seconds: float, processes: tuple[Any, Any]
) -> tuple[list[float], float]:
    """Run; CPU seconds of each process and the wall's, once all streams have begun. Tokens count from there on."""
    running = asyncio.create_task(client.run(streams, _RAMP_SECONDS + seconds))
    await asyncio.sleep(_RAMP_SECONDS)
    client.num_tokens, began = 0, time.monotonic()
    before = [sum(process.cpu_times()[:2]) for process in processes]
    await running
    used = [sum(process.cpu_times()[:2]) for process in processes]
    return [end - start for end, start in zip(used, before, strict=True)], time.monotonic() - began


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        return serve()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--max-tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--step-ms", type=float, default=25.6)
    parser.add_argument("--tokens-per-step", type=int, default=1)
    parser.add_argument("--chat", action="store_true", help="chat completions in place of completions")
    parser.add_argument("--tokenizer", default="smollm2-135m-instruct")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/server-overhead.json")
    options = parser.parse_args()
    runs = []
    for streams in options.streams:
        runs.append(measure(options, streams))
        print(json.dumps(runs[-1], indent=1))
    if options.record:
        print(record("server-overhead", {"options": vars(options), "runs": runs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
