"""When data arrived: the kernel's stamps, what they are worth when a clock is set, and where there are none."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_serve_fakes import canned_server, chunk, chunked, head, info, raw, record, span
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.serve.arrival import ANCILLARY_BYTES, HAS_STAMPS, Arrivals, ask_for_stamps, stamp_in
from paceline.bench.serve.http_exchange import Exchange
from paceline.bench.serve.http_stream import StreamClient, server_url
from paceline.bench.serve.records import Reads
from paceline.bench.serve.summary import summarize

MS = 1_000_000


class Clocks:
    """A clock that only runs, and a wall clock that may be set."""

    def __init__(self) -> None:
        self.time = 5_000 * MS
        self.ahead = 1_700_000_000_000 * MS

    def arrivals(self) -> Arrivals:
        return Arrivals(lambda: self.time, lambda: self.time + self.ahead)


def test_a_stamp_says_when_data_arrived_and_not_when_it_was_read() -> None:
    clocks = Clocks()
    arrivals = clocks.arrivals()
    stamp = clocks.time + clocks.ahead
    clocks.time += 30 * MS
    assert arrivals.of(stamp) == clocks.time - 30 * MS
    assert arrivals.of(None) == clocks.time
    assert arrivals.taken() == Reads(count=2, own_time=1, late=1, longest_lag_us=30_000)
    assert arrivals.taken() == Reads()


@pytest.mark.parametrize("step", [3_600_000 * MS, -3_600_000 * MS, 50 * MS])
def test_a_clock_that_was_set_spoils_no_time(step: int) -> None:
    """Data of two connections lay there when the clock was set; both are read after it, and so is what comes later."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    arrivals.of(clocks.time + clocks.ahead)
    clocks.time += 10 * MS
    before = clocks.time + clocks.ahead
    clocks.time += 20 * MS
    clocks.ahead += step
    for _ in range(2):
        clocks.time += MS
        assert arrivals.of(before) == clocks.time  # its own time: no worse than without stamps
    clocks.time += 10 * MS
    after = clocks.time + clocks.ahead
    clocks.time += 4 * MS
    assert arrivals.of(after) == clocks.time - 4 * MS


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100), st.integers(-200, 200)), max_size=30))
def test_times_of_one_connection_never_fall(events: list[tuple[int, int, int]]) -> None:
    """Milliseconds: until data comes, until it is read, and by how much the wall clock is set in between."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    start = clocks.time
    heard: list[int] = []

    async def run() -> None:
        exchange = Exchange()
        finished = exchange.begin(start, lambda now, _: heard.append(now))
        exchange.feed(arrivals.of(None), head("200 OK", "transfer-encoding: chunked"))
        for wait, lag, step in events:
            clocks.time += wait * MS
            stamp = clocks.time + clocks.ahead
            clocks.time += lag * MS
            clocks.ahead += step * MS
            exchange.feed(arrivals.of(stamp), b"1\r\nx\r\n")
            assert heard[-1] <= clocks.time
        finished.cancel()

    asyncio.run(run())
    assert len(heard) == len(events)
    assert [start, *heard] == sorted([start, *heard])


@pytest.fixture
def _stamps() -> Iterator[None]:
    """The kernel begins to stamp some time after the first socket has asked for it, and some sandboxes' never does."""
    if not HAS_STAMPS:
        pytest.skip("no system whose times of arrival are known")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            try:
                ask_for_stamps(ours)
            except OSError:
                pytest.skip("the kernel has no times of arrival")
            for _ in range(100):
                theirs.sendall(b"x")
                if stamp_in(ours.recvmsg(1, ANCILLARY_BYTES)[1]) is not None:
                    break
                time.sleep(0.01)
            else:
                pytest.skip("the kernel gives no times of arrival for TCP")
            yield


@pytest.mark.usefixtures("_stamps")
def test_a_slow_reader_learns_when_data_arrived() -> None:
    """The reader sleeps while the second part comes: its time lies within the call that sent it."""
    sent: list[int] = []
    sleeps = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(head("200 OK", "transfer-encoding: chunked") + b"1\r\na\r\n")
            assert sleeps.wait(10)
            sent.append(time.perf_counter_ns())
            connection.sendall(b"1\r\nb\r\n0\r\n\r\n")
            sent.append(time.perf_counter_ns())

    heard: list[tuple[int, int]] = []

    def on_data(received: int, data: bytes) -> None:
        heard.append((received, time.perf_counter_ns()))
        if data == b"a":
            sleeps.set()
            while len(sent) < 2:
                time.sleep(0.001)
            time.sleep(0.02)

    async def run(port: int) -> Reads:
        client = StreamClient(server_url(f"http://127.0.0.1:{port}"), {}, 10)
        await client.post("/", b"{}", on_data)
        client.close()
        return client.arrivals.taken()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        reads = asyncio.run(run(server.getsockname()[1]))
        thread.join(10)
    received, read = heard[1]
    assert sent[0] - MS <= received <= sent[1] + MS
    assert read - received >= 19 * MS
    assert (reads.own_time, reads.late) == (0, 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_has_the_clients_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    heard: list[bytes] = []

    async def run(address: str) -> Reads:
        client = StreamClient(server_url(address), {}, 10)
        for _ in range(2):  # the second on the same connection
            answered = await client.post("/v1/chat/completions", b"{}", lambda _, data: heard.append(data))
            assert answered.status == 200
        client.close()
        return client.arrivals.taken()

    with canned_server(lambda path, body: [chunked(chunk(" a", tokens=1))], context) as (address, seen):
        reads = asyncio.run(run(address))
    assert b"".join(heard) == 2 * chunk(" a", tokens=1)
    assert len(seen) == 2
    assert reads.count == reads.own_time > 0


def notes(*reads: Reads | None) -> list[str]:
    arms = [info(name) for name in ("on", "off")[: len(reads)]]
    spans = [span(arm.name, reads=found) for arm, found in zip(arms, reads, strict=True)]
    found = summarize(raw(arms, spans, [record(arm.name) for arm in arms])).notes
    return [note for note in found if not note.startswith(("One round", "Too few answers"))]


def test_a_report_says_whose_clock_it_was() -> None:
    assert notes(None) == []
    assert notes(Reads(10, 0, 0, 2_300), Reads(10, 0, 0, 900)) == [
        "Times of arrival are the kernel's: this client's own delays (at most 2.3 ms) are not within them."
    ]
    kernel, own, late = notes(Reads(10, 0, 0, 900), Reads(1_000, 4, 3, 40_000))
    assert kernel.startswith("on: Times of arrival are the kernel's")
    assert own.startswith("off: times of arrival are this client's own for 4 of 1,000 pieces of data,")
    assert late.startswith("off: 3 of 1,000 times this client read more than 10 ms after")
