"""What the API process counts: latencies per token, errors by kind, live rates; what /metrics calls them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import threading
from typing import Any

import httpx
import pytest
from engine.tagged import TaggedExecutor, make_engine, request
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from server_fakes import FakeClient, FakeTokenizer, fake_config

from paceline.config import SpeculativeConfig
from paceline.engine.statistics import EngineStats
from paceline.errors import EngineDeadError
from paceline.sequence import SpeculationCounts
from paceline.server.app import create_app
from paceline.server.health import Gate
from paceline.server.telemetry.histogram import Histogram
from paceline.server.telemetry.live import WINDOW_SECONDS, LiveStatus
from paceline.server.telemetry.record import RequestRecord
from paceline.server.telemetry.telemetry import Telemetry

# Names that dashboards made for vLLM ask for, under our prefix: docs.vllm.ai, "Production Metrics".
VLLM_NAMES = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total", "cache_config_info"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket", "e2e_request_latency_seconds_bucket"),
    *("request_queue_time_seconds_bucket", "request_time_per_output_token_seconds_bucket"),
    *("request_prompt_tokens_bucket", "request_generation_tokens_bucket"),
    *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    "spec_decode_num_accepted_tokens_per_pos_total",
)


class Tokenizer(FakeTokenizer):
    def token_table(self) -> dict[str, int]:
        return {"longest": 0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Server:
    """The app, its fake engine, and a telemetry whose clock the test moves."""

    def __init__(self) -> None:
        self.engine, self.clock = FakeClient(), Clock()
        self.telemetry = Telemetry(self.clock)
        self.records: list[RequestRecord] = []
        self.telemetry.observers.append(self.records.append)
        self.app = create_app(self.engine, ["fake"], Tokenizer(), fake_config(), telemetry=self.telemetry)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def complete(self, **fields: Any) -> httpx.Response:
        return self.request("POST", "/v1/completions", json={"model": "fake", "prompt": "one two", **fields})

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        families = text_string_to_metric_families(self.request("GET", "/metrics").text)
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def sample(self, name: str, **labels: str) -> float:
        wanted = frozenset({"model_name": "fake", **labels}.items())
        return self.samples()[f"paceline:{name}", wanted]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), max_size=20))
def test_a_histogram_counts_every_value_once(values: list[tuple[float, int]]) -> None:
    histogram = Histogram((1.0, 10.0, 50.0))
    for value, count in values:
        histogram.add(value, count)
    assert dict(histogram.cumulative()) == {
        bound: sum(count for value, count in values if value <= float(bound))
        for bound in ("1.0", "10.0", "50.0", "+Inf")
    }
    assert histogram.sum == pytest.approx(sum(value * count for value, count in values))


def test_every_name_of_vllm_is_there() -> None:
    server = Server()
    server.complete(max_tokens=4)
    names = {name for name, _ in server.samples()}
    assert {f"paceline:{name}" for name in VLLM_NAMES} <= names
    assert all(name.startswith(("paceline:", "process_")) for name in names)


def test_p40_latencies_count_tokens_and_not_chunks() -> None:
    server = Server()
    step = server.engine.engine.step

    def slow_step() -> Any:
        server.clock.now += 0.02
        return step()

    server.engine.engine.step = slow_step  # type: ignore[method-assign]
    assert server.complete(max_tokens=7, stream=True).status_code == 200  # steps of 2, 2, 2 and 1 tokens
    (record,) = server.records
    assert (record.num_prompt_tokens, record.num_completion_tokens, record.finish_reasons) == (3, 7, ["length"])
    assert record.time_to_first_token == pytest.approx(0.02)
    assert record.seconds == pytest.approx(0.08)
    itl = server.telemetry.inter_token_latency
    assert (itl.count, itl.sum) == (5, pytest.approx(0.06))
    assert dict(itl.cumulative())["0.01"] == 4  # two passes of two tokens each, 10 ms a token
    assert server.telemetry.time_per_output_token.sum == pytest.approx(0.06 / 6)
    assert server.telemetry.queue_time.sum == 0.25
    assert server.sample("e2e_request_latency_seconds_count") == 1


def test_answers_side_by_side_each_have_a_first_token() -> None:
    server = Server()
    server.complete(max_tokens=4, n=3)
    assert server.telemetry.time_to_first_token.count == 1
    assert server.telemetry.inter_token_latency.count == 6
    assert server.records[0].finish_reasons == ["length"] * 3
    assert server.records[0].speculation.num_drafts == 6


def test_errors_are_counted_by_kind_wherever_they_happen() -> None:
    server = Server()
    server.complete(temperature=-1)
    server.complete(model="other")
    server.complete(prompt=[99])  # fails in the engine
    server.complete(prompt="w " * 99, stream=True)
    server.request("GET", "/nowhere")
    server.request("PURGE", "/nowhere")
    server.engine.dies_after = 3
    assert server.complete(max_tokens=50, stream=True).status_code == 200  # the fault comes in the stream
    kinds = {"model_not_found": 1, "generation_failed": 1, "context_length_exceeded": 1, "engine_dead": 1}
    assert {kind: server.sample("request_errors_total", kind=kind) for kind in kinds} == kinds
    assert server.sample("request_errors_total", kind="not_found") == 2
    assert server.sample("http_requests_total", method="other", handler="", status="404") == 1
    assert server.sample("http_requests_total", method="POST", handler="/v1/completions", status="200") == 1
    assert server.telemetry.num_in_progress == 0


def test_an_unforeseen_fault_is_counted_as_500() -> None:
    server = Server()

    async def broken() -> None:
        raise ZeroDivisionError

    server.app.add_api_route("/broken", broken)
    assert server.request("GET", "/broken").status_code == 500
    assert (server.records[0].status, server.records[0].error) == (500, "internal_error")


def test_a_client_that_leaves_is_an_aborted_request() -> None:
    server = Server()

    async def leave() -> None:
        body = json.dumps({"model": "fake", "prompt": "a", "max_tokens": 10**6, "stream": True}).encode()
        inbox = [{"type": "http.request", "body": body}]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
            "query_string": b"", "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
        }  # fmt: skip

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            while server.engine.engine.counts.generation_tokens < 20:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:
            await asyncio.sleep(0)

        await server.app(scope, receive, send)

    asyncio.run(leave())
    (record,) = server.records
    assert (record.is_aborted, record.error) == (True, "client_disconnected")
    assert server.sample("requests_aborted_total") == 1
    assert server.telemetry.e2e_latency.count == 0  # of whole answers only


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("a b", False), ("x" * 200, False), ("", False)])
def test_request_ids(given: str, kept: bool) -> None:
    server = Server()
    answered = server.request("GET", "/version", headers={"x-request-id": given}).headers["x-request-id"]
    assert (answered == given) == kept
    assert kept or re.fullmatch("[0-9a-f]{32}", answered)


# Live status


def test_status_has_everything_the_page_shows() -> None:
    server = Server()
    body = server.request("GET", "/v1/paceline/status").json()
    assert (body["state"], body["model"]) == ("ready", "fake")
    assert (body["speculation"]["method"], body["speculation"]["num_speculative_tokens"]) == ("ngram", 1)
    assert (body["speculation"]["acceptance_rate"], body["speculation"]["acceptance_by_position"]) == (None, [])
    server.clock.now += 2
    server.complete(max_tokens=6)
    body = server.request("GET", "/v1/paceline/status").json()
    assert (body["window_seconds"], body["uptime_seconds"]) == (2.0, 2.0)
    assert body["throughput"]["generation_tokens_per_second"] == 3.0
    assert body["requests"] == {"running": 0, "waiting": 0, "max_num_seqs": 32, "http_in_progress": 1}
    assert body["totals"]["generation_tokens"] == 6
    assert body["prefix_cache"]["hit_rate"] is None
    assert (body["speculation"]["mean_acceptance_length"], body["speculation"]["mean_k"]) == (2.0, 1.0)


def test_status_without_speculation_says_so() -> None:
    plain = dataclasses.replace(fake_config(), speculative=None)
    live = LiveStatus(CountingEngine(), plain, ["fake"], Telemetry(Clock()))  # type: ignore[arg-type]
    assert asyncio.run(live.document())["speculation"] is None


class CountingEngine:
    """An engine of counters alone."""

    is_healthy = True
    stalled_seconds = None

    def __init__(self) -> None:
        self.counts = EngineStats()

    async def stats(self) -> EngineStats:
        return self.counts


def test_rates_and_acceptance_are_of_the_window_only() -> None:
    engine, clock = CountingEngine(), Clock()
    config = dataclasses.replace(fake_config(), speculative=SpeculativeConfig(method="ngram", num_speculative_tokens=3))
    live = LiveStatus(engine, config, ["fake"], Telemetry(clock))  # type: ignore[arg-type]

    def after(seconds: float, tokens: int, *passes: tuple[int, int]) -> dict[str, Any]:
        clock.now += seconds
        engine.counts.generation_tokens += tokens
        for drafted, accepted in passes:
            engine.counts.count_pass(drafted)
            engine.counts.speculation.record(drafted, accepted)
        return asyncio.run(live.document())

    after(0, 1000, *[(3, 0)] * 100)  # long ago
    after(30, 0)
    shown = after(5, 50, (3, 3), (3, 1), (1, 1), (0, 0))
    speculation = shown["speculation"]
    assert shown["window_seconds"] == pytest.approx(5)
    assert shown["throughput"]["generation_tokens_per_second"] == 10.0
    assert speculation["passes_by_k"] == [1, 1, 0, 2]
    assert speculation["acceptance_by_position"] == [1.0, 0.5, 0.5]
    assert speculation["acceptance_rate"] == pytest.approx(5 / 7)
    assert speculation["mean_acceptance_length"] == pytest.approx(1 + 5 / 3)
    assert speculation["mean_k"] == 7 / 4
    assert after(3 * WINDOW_SECONDS, 0)["throughput"]["generation_tokens_per_second"] <= 50 / WINDOW_SECONDS
    idle = after(WINDOW_SECONDS, 0)["speculation"]
    assert (idle["acceptance_rate"], idle["acceptance_by_position"]) == (None, [None] * 3)


def test_the_samples_kept_are_few_however_often_it_is_looked_at() -> None:
    clock = Clock()
    live = LiveStatus(CountingEngine(), fake_config(), ["fake"], Telemetry(clock))  # type: ignore[arg-type]
    for _ in range(1000):
        clock.now += 0.5
        asyncio.run(live.stats())
    assert len(live._samples) <= 2 * WINDOW_SECONDS + 2


def test_counts_by_k_and_by_position_agree() -> None:
    """A window over counters whose lists grow."""
    stats = EngineStats()
    for k in (0, 4, 2):
        stats.count_pass(k)
    assert stats.passes_by_num_drafts == [1, 0, 1, 0, 1]
    assert SpeculationCounts().num_accepted_tokens_per_pos == []
    assert EngineStats().passes_by_num_drafts == []  # not shared


def test_the_gate_before_the_model_is_there() -> None:
    gate = Gate()

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://test") as client:
            return await client.get(path)

    assert asyncio.run(ask("/health/live")).status_code == 200
    assert asyncio.run(ask("/health/ready")).json()["error"]["code"] == "model_loading"
    gate.open(Server().app)
    assert asyncio.run(ask("/health/ready")).status_code == 200


def test_a_long_prompt_holds_up_no_other_request() -> None:
    """The tokenizer works in a thread: while it is busy, probes and streams go on."""
    server = Server()
    began, go_on = threading.Event(), threading.Event()

    class Slow(Tokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            if text == "long":
                began.set()
                assert go_on.wait(10)
            return super().encode(text, add_special_tokens=add_special_tokens)

    app = create_app(FakeClient(), ["fake"], Slow(), fake_config())  # type: ignore[arg-type]

    async def both() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            slow = asyncio.create_task(client.post("/v1/completions", json={"model": "fake", "prompt": "long"}))
            while not began.is_set():
                await asyncio.sleep(0.01)
            quick = await client.post("/v1/completions", json={"model": "fake", "prompt": [4, 5], "max_tokens": 3})
            probe = await client.get("/health")
            assert not slow.done()
            go_on.set()
            return [quick.status_code, probe.status_code, (await slow).status_code]

    assert asyncio.run(both()) == [200] * 3
    assert server.telemetry.num_in_progress == 0


def test_the_parts_of_a_step_are_told_apart() -> None:
    """Scheduling is the host's own work: not what the executor takes, in whichever call it takes it."""
    clock = Clock()

    class Executor(TaggedExecutor):
        def submit(self, plan: Any) -> None:
            clock.now += 1.0
            super().submit(plan)

        def collect(self) -> Any:
            clock.now += 0.25
            return super().collect()

    engine = make_engine(Executor())
    engine._clock = clock
    engine.add_request(request("a", [3, 4], max_tokens=1))
    clock.now += 5.0  # it waits
    (delta,) = engine.step()
    clock.now += 100.0  # nothing to do
    stats = engine.stats()
    assert (stats.step_seconds, stats.schedule_seconds, stats.gap_seconds) == (1.25, 0.0, 1.25)
    assert delta.queue_seconds == 5.0
    engine.add_request(request("b", [3, 4, 5], max_tokens=20))
    engine.step()
    clock.now += 0.5  # between two steps, with work at hand
    engine.step()
    assert engine.stats().gap_seconds == pytest.approx(3 * 1.25 + 0.5)


def test_nothing_runs_in_a_dead_engine() -> None:
    engine = CountingEngine()
    live = LiveStatus(engine, fake_config(), ["fake"], Telemetry(Clock()))  # type: ignore[arg-type]
    engine.counts = EngineStats(num_running=2, num_waiting=3, kv_cache_usage=0.5, generation_tokens=7)
    alive = asyncio.run(live.stats())
    assert (alive.num_running, alive.num_waiting, alive.kv_cache_usage) == (2, 3, 0.5)

    async def dead() -> EngineStats:
        raise EngineDeadError("killed by the test")

    engine.stats = dead  # type: ignore[method-assign]
    for _ in range(2):
        last = asyncio.run(live.stats())
        assert (last.num_running, last.num_waiting, last.kv_cache_usage, last.generation_tokens) == (0, 0, 0.0, 7)
