"""A server that answers by the clock: known times, known tokens, no model. For measuring clients.

    python benchmarks/fake_server.py --port 8765 --ttft-ms 50 --step-ms 25.6 --tokens 400

It speaks as much of the API as clients of streamed chat completions need. Every chunk says when it was meant to leave
and when it left (`due_ns`, `sent_ns`, CLOCK_MONOTONIC), so a client on the same machine can tell its own delay from
the server's. `--clock steps` sends all streams' chunks at once, as an engine's step does; `spread` gives each stream
its own clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence

import uvloop

MODEL = "by-the-clock"
_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1,'
    b'"model":"by-the-clock","due_ns":%d,"sent_ns":%d,"choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,'
    b'"finish_reason":%s}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"cache-control: no-cache\r\n\r\n"
)


class Exchange(asyncio.Protocol):
    """One connection, kept alive; one request at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, blank, body = self._data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        length = lengths[0] if lengths else 0
        if not blank or len(body) < length:
            return
        self._data = body[length:]
        if lines[0].startswith(b"post"):
            self._answer = asyncio.ensure_future(self._stream(json.loads(body[:length])))
        else:
            self._plain(lines[0].split()[1])

    def _plain(self, path: bytes) -> None:
        assert self._transport is not None
        found = path == b"/v1/models"
        body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]} if found else {}).encode()
        status = b"200 OK" if found or path == b"/health" else b"404 Not Found"
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body)) + body)

    async def _stream(self, body: dict[str, object]) -> None:
        assert self._transport is not None
        options = self._options
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or options.tokens
        total = min(int(str(limit)), options.tokens)
        self._transport.write(_HEAD)
        due = time.monotonic() + options.ttft_ms / 1e3
        step = options.step_ms / 1e3
        if options.clock == "steps":
            due = (int(due / step) + 1) * step
        sent = 0
        while sent < total:
            await asyncio.sleep(due - time.monotonic())
            sent = min(sent + options.tokens_a_chunk, total) if sent else 1  # a prompt's pass gives one token
            self._send(due, sent, is_last=sent == total)
            due += step
        self._write(b"data: [DONE]\n\n")
        self._transport.write(b"0\r\n\r\n")

    def _send(self, due: float, sent: int, *, is_last: bool) -> None:
        text = b" word" * min(sent, self._options.tokens_a_chunk)
        reason = b'"length"' if is_last else b"null"
        now = time.monotonic_ns()
        self._write(_EVENT % (int(due * 1e9), now, text, reason, 10, sent, 10 + sent))

    def _write(self, event: bytes) -> None:
        assert self._transport is not None
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Exchange(options), "127.0.0.1", options.port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: a free one; the address is printed")
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--step-ms", type=float, default=25.6)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer, at most")
    parser.add_argument("--tokens-a-chunk", type=int, default=1)
    parser.add_argument("--clock", choices=("steps", "spread"), default="steps")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    uvloop.run(serve(parse()))
