"""Logs never stop the server and never hold prompts; traces reach a collector, and say so where they cannot."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from server_fakes import FakeTokenizer

from paceline.errors import ConfigurationError
from paceline.logs import JsonFormatter, LossyStream, TextFormatter
from paceline.sequence import SpeculationCounts
from paceline.server.telemetry.record import RequestRecord
from paceline.server.telemetry.request_log import RequestLog
from paceline.server.telemetry.traces import Traces


def test_a_full_disk_is_counted_and_not_raised() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = LossyStream(descriptor)
    for _ in range(3):
        print("a line", file=stream, flush=True)
    os.close(descriptor)
    assert stream.num_dropped >= 3


def test_a_reader_that_hangs_does_not_hold_up_the_writer() -> None:
    reader, writer = os.pipe()
    stream = LossyStream(writer)
    written = 0
    while not stream.num_dropped:  # nobody reads: the pipe fills
        stream.write("x" * 1000 + "\n")
        written += 1
        assert written < 10_000
    for _ in range(100):
        stream.write("lost\n")
    dropped = stream.num_dropped
    os.read(reader, 1 << 20)
    stream.write("back\n")
    assert os.read(reader, 1 << 20).decode() == f"({dropped} log lines could not be written)\nback\n"
    os.close(reader)
    stream.write("nobody\n")  # a closed pipe
    os.close(writer)
    assert stream.num_dropped == dropped + 1


def line_of(message: str, **extra: Any) -> dict[str, Any]:
    record = logging.LogRecord("paceline.x", logging.WARNING, "f", 1, message, (), None)
    record.__dict__.update(extra)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_json_lines() -> None:
    line = line_of("two\nlines", fields={"status": 200, "odd": object})
    assert (line["level"], line["logger"], line["message"], line["status"]) == (
        "warning", "paceline.x", "two\nlines", 200
    )  # fmt: skip
    assert line["time"].endswith("Z")
    try:
        raise ValueError("why")
    except ValueError:
        assert "ValueError: why" in line_of("failed", exc_info=sys.exc_info())["exception"]


def record(**fields: Any) -> RequestRecord:
    made = RequestRecord(request_id="r1", method="POST", path="/v1/completions", started=10.0)
    values = {
        "route": "/v1/completions", "status": 200, "ended": 12.0, "engine_ids": ["e"], "prompt_token_ids": [[4, 5]],
        "num_prompt_tokens": 2, "num_completion_tokens": 7, "first_token": 10.5, "finish_reasons": ["length"],
        "speculation": SpeculationCounts(4, 8, 3, [3, 0]), "queue_seconds": 0.25,
    }  # fmt: skip
    for name, value in (values | fields).items():
        setattr(made, name, value)
    return made


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[list[logging.LogRecord]]:
    """What the log of requests says. Through a handler of its own: what others in this process do to the root
    logger, where pytest's stands, does not matter."""
    logger, handler = logging.getLogger("paceline.requests"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    assert not logger.disabled
    assert logging.root.manager.disable < logging.INFO
    yield handler.records
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_request_is_one_line_without_its_prompt(kept: list[logging.LogRecord]) -> None:
    RequestLog()(record())
    RequestLog()(record(engine_ids=[], path="/health"))  # no line
    RequestLog()(record(status=500, error="generation_failed"))
    RequestLog(FakeTokenizer())(record())  # type: ignore[arg-type]
    plain, failed, told = kept
    assert plain.fields["time_to_first_token"] == 0.5  # type: ignore[attr-defined]
    assert "prompt_tokens=2" in plain.getMessage()
    assert "mean_acceptance_length=1.75" in plain.getMessage()
    assert " w4" not in plain.getMessage() + str(plain.__dict__)
    assert (failed.levelname, failed.fields["error"]) == ("WARNING", "generation_failed")  # type: ignore[attr-defined]
    assert told.fields["prompts"] == [" w4 w5"]  # type: ignore[attr-defined]


FORGED = "/x\nWARNING paceline.requests: POST /forged \r\x1b[2J\x85\u2028\u202e\x00\x9b31m"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_client_can_forge_no_log_line(formatter: logging.Formatter, kept: list[logging.LogRecord]) -> None:
    RequestLog()(record(engine_ids=[], path=FORGED, status=401, error="invalid_api_key"))
    RequestLog()(record(engine_ids=[], path="/é" + "y" * 5000, status=404, error="not_found"))
    lines = [formatter.format(each) for each in kept]
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 1200 for line in lines)
    assert "5002 characters" in lines[1]


def test_the_lines_of_a_traceback_are_no_log_lines() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        made = logging.LogRecord("paceline.x", logging.ERROR, "f", 1, "failed: %s", (FORGED,), sys.exc_info())
    first, *rest = TextFormatter().format(made).split("\n")
    assert first.startswith("ERROR paceline.x: failed: /x\\nWARNING")
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


# Traces


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()


def test_a_span_a_request_reaches_the_collector(collector: tuple[str, list[bytes]]) -> None:
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    url, bodies = collector
    traces = Traces(url, "m")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    traces(record(trace_headers={"traceparent": parent}))
    traces(record(engine_ids=[]))  # a probe has no span
    traces(record(error="generation_failed", status=500))
    traces.close()
    (body,) = bodies
    found = trace.ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert len(found) == 2
    attributes = {entry.key: entry.value for entry in found[0].attributes}
    assert found[0].trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert found[0].end_time_unix_nano - found[0].start_time_unix_nano == pytest.approx(2e9, rel=1e-6)
    assert attributes["gen_ai.usage.completion_tokens"].int_value == 7
    assert attributes["paceline.num_accepted_tokens"].int_value == 3
    assert attributes["gen_ai.latency.time_in_queue"].double_value == 0.25
    assert found[1].status.message == "generation_failed"


def test_traces_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no HTTP address"):
        Traces("localhost:4317", "m")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigurationError, match=r"pip install -e '\.\[otel\]'"):
        Traces("http://127.0.0.1:4318/v1/traces", "m")
