"""Fakes for the tests of paceline bench serve: records by hand, and a server that answers with canned bytes at once."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner

from paceline.bench.serve.records import ArmInfo, CaseSpan, Load, Raw, Record, RunHeader
from paceline.cli.app import app
from paceline.errors import PacelineError

Json = dict[str, Any]


def record(arm: str = "on", users: float = 1, **fields: Any) -> Record:
    """TTFT 100 ms, then a chunk of 2 tokens after 40 ms and one of 1 token after 20 ms: 4 tokens."""
    given: Json = {
        "round": 0,
        "number": 0,
        "prompt": 0,
        "category": "qa",
        "turn": 0,
        "start_us": 0,
        "end_us": 161_000,
        "events": [(100_000, 1), (140_000, 3), (160_000, 4)],
        "prompt_tokens": 10,
        "completion_tokens": 4,
    }
    return Record(arm=arm, load=Load("users", users), **given | fields)


def span(arm: str = "on", users: float = 1, **fields: Any) -> CaseSpan:
    given: Json = {"round": 0, "seed": 0, "place": 0, "start_us": 0, "end_us": 1_000_000}
    return CaseSpan(arm=arm, load=Load("users", users), **given | fields)


def info(name: str, **fields: Any) -> ArmInfo:
    given: Json = {"url": "http://h", "model": "m", "server": "Paceline 1", "counting": "usage", "fresh_prompts": "tag"}
    return ArmInfo(name=name, **given | fields)


def raw(arms: list[ArmInfo], spans: list[CaseSpan], records: list[Record], **options: Any) -> Raw:
    environment = {
        "command": "paceline bench serve",
        "date": "2026-11-30",
        "commit": "abc",
        "hardware": {"cpu": "X", "cpu_cores": 2},
    }
    baseline = arms[-1].name if len(arms) > 1 else None
    return Raw(RunHeader(1, environment, {"temperature": 0.0} | options, arms, baseline), spans, records)


def two_arms(users: tuple[int, ...] = (1, 8), gains: tuple[float, ...] = (1.5, 0.75), rounds: int = 2) -> Raw:
    """`on` emits `gains[i]` times the tokens a second of `off` at users[i]; one token each 10 ms in `off`."""
    spans, records = [], []
    clock = 0
    for load, gain in zip(users, gains, strict=True):
        for number in range(rounds):
            for arm, pace in (("on", 10_000 / gain), ("off", 10_000.0)):
                first = last = clock
                for job in range(4 * load):
                    length = 20 + 5 * (job % 4)
                    events = [(round(20_000 + place * pace), place + 1) for place in range(length)]
                    start = first + job // load * 1_000_000
                    last = max(last, start + events[-1][0])
                    records.append(
                        record(
                            arm, load, round=number, number=job, prompt=job, category=("qa", "math")[job % 2],
                            start_us=start, end_us=events[-1][0], events=events, completion_tokens=length,
                            text_hash=str(job),
                        )
                    )  # fmt: skip
                spans.append(span(arm, load, round=number, place=len(spans), start_us=first, end_us=last))
                clock = last
    return raw([info("on"), info("off")], spans, records)


def chunk(text: str = "", *, tokens: int | None = None, finish: str | None = None, **more: Any) -> bytes:
    body: Json = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def head(status: str = "200 OK", *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *more, "", ""]).encode()


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head("200 OK", "transfer-encoding: chunked") + body + b"0\r\n\r\n"


def plain(status: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    return head(status, f"content-length: {len(content)}") + content


HANG_UP = b""  # as the last part: the connection ends after those before it
Reply = Callable[[str, Json], list[bytes] | None]  # path and body -> parts to write, each its own; None: hang up


class Canned(asyncio.Protocol):
    def __init__(self, reply: Reply, seen: list[tuple[str, Json, str]]) -> None:
        self._reply = reply
        self._seen = seen
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        top, blank, body = self._data.partition(b"\r\n\r\n")
        lines = top.decode().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
        if not blank or len(body) < length:
            return
        self._data = body[length:]
        path = lines[0].split()[1]
        asked = json.loads(body[:length]) if length else {}
        self._seen.append((path, asked, "\n".join(lines).lower()))
        self._answering = asyncio.ensure_future(self._answer(path, asked))

    async def _answer(self, path: str, asked: Json) -> None:
        parts = self._reply(path, asked)
        for part in parts or ():
            self._transport.write(part)
            await asyncio.sleep(0)
        if parts is None or HANG_UP in parts:
            self._transport.close()


@contextmanager
def canned_server(reply: Reply, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[tuple[str, Json, str]]]]:
    """Its address, and what it was asked; runs in a thread with a loop of its own."""
    loop, seen, ready = asyncio.new_event_loop(), [], threading.Event()
    address: list[str] = []

    async def start() -> None:
        server = await loop.create_server(lambda: Canned(reply, seen), "127.0.0.1", 0, ssl=tls)
        address.append(f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()

    def work() -> None:
        starting = loop.create_task(start())
        loop.run_forever()
        assert starting.done()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0], seen
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def speculating(path: str, asked: Json) -> list[bytes]:
    """A server in Paceline's manner: counts in every chunk, speculation by request, counters, cache salts."""
    if path == "/v1/models":
        return [plain("200 OK", {"data": [{"id": "small"}]})]
    if path == "/metrics":
        text = b"# TYPE paceline:engine_steps counter\npaceline:engine_steps_total 3.0\n"
        return [head("200 OK", f"content-length: {len(text)}") + text]
    if path != "/v1/chat/completions":
        return [plain("404 Not Found", {})]
    counts = (asked.get("stream_options") or {}).get("continuous_usage_stats")
    is_on = asked.get("speculation") is None
    total = min(asked["max_tokens"], 9)
    steps = range(1, total + 1, 4 if is_on else 1)
    parts = [head("200 OK", "transfer-encoding: chunked")]
    for done in [*steps, total] if total not in steps else steps:
        parts.append(_part(chunk(" w", tokens=done if counts else None, finish="length" if done == total else None)))
    said = {"acceptance_histogram": [0, 1, 1], "num_spec_steps": 2, "num_accepted_draft_tokens": 3,
            "num_draft_tokens": 4}  # fmt: skip
    metrics = {"speculative_decoding": said if is_on else None}
    usage = {"prompt_tokens": 7, "completion_tokens": total}
    parts.append(_part(b"data: " + json.dumps({"choices": [], "usage": usage, "metrics": metrics}).encode() + b"\n\n"))
    return [*parts, _part(b"data: [DONE]\n\n"), b"0\r\n\r\n"]


def _part(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def bench_says(*arguments: str) -> str:
    """What `paceline bench` refused, in the words that a user sees."""
    run = CliRunner().invoke(app, ["bench", *arguments])
    assert run.exit_code != 0
    if isinstance(run.exception, PacelineError):
        return str(run.exception)
    assert isinstance(run.exception, SystemExit), run.exception
    return " ".join(run.output.replace("│", " ").split())
