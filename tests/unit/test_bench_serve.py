"""paceline bench serve: what is heard, counted and derived; canned times, no sleeping."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from bench_serve_fakes import (
    HANG_UP,
    canned_server,
    chunk,
    chunked,
    head,
    info,
    plain,
    raw,
    record,
    span,
    speculating,
    two_arms,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.bench.page import renderers
from paceline.bench.page.tables import overview
from paceline.bench.serve import latency
from paceline.bench.serve.ask import Listener, ask, fill, now_ns, speculation_counts
from paceline.bench.serve.compare import break_even, compare
from paceline.bench.serve.connection import StampedConnection, TransportConnection
from paceline.bench.serve.counters import Counters, parse_counters
from paceline.bench.serve.counting import TextTally, make_tally, shared
from paceline.bench.serve.http_stream import StreamClient, StreamError, server_url
from paceline.bench.serve.intervals import Estimate, Slices, estimate, percentile, rate, ratio
from paceline.bench.serve.load import closed_loop, open_loop
from paceline.bench.serve.objectives import parse_objectives
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.prompts import arrivals, order, read_prompts, synthetic_prompts
from paceline.bench.serve.records import Load, RawWriter, read_raw
from paceline.bench.serve.results import Comparison, Passes
from paceline.bench.serve.sse import BadEventError, EventReader, read_chunk
from paceline.bench.serve.summary import summarize
from paceline.bench.serve.wholeness import whole as all_of
from paceline.cli import main
from paceline.errors import ConfigurationError

# What a chunk brings, and how tokens are counted (p40)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=5), st.data())
def test_events_are_the_same_however_the_bytes_are_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b": hello\r\n\r\n" + b"".join(b"event: x\ndata: " + p + b"\r\n\r\n" for p in payloads)
    reader, found = EventReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == [payload.strip() for payload in payloads]


def heard(method: str, *chunks: tuple[int, bytes], count: Callable[[str], int] | None = None) -> list[tuple[int, int]]:
    """Events of an answer whose chunks come at the given milliseconds."""
    listener = Listener(make_tally(method, count), started_ns=5_000_000)
    for millis, data in chunks:
        listener.on_data(5_000_000 + millis * 1_000_000, data)
    listener.on_data(5_000_000 + 999 * 1_000_000, b"data: [DONE]\n\n")
    return fill(record(), listener).events


def test_p40_tokens_are_counted_and_never_chunks() -> None:
    """The role comes first and carries no token; a chunk of four tokens counts as four."""
    usage = (
        (5, chunk(tokens=0)), (10, chunk(" a", tokens=1)), (30, chunk(" b c d e", tokens=5)),
        (30, chunk(" f", tokens=6)), (40, chunk(finish="stop", tokens=7)),
        (41, b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}\n\n'),
    )  # fmt: skip
    assert heard("usage", *usage) == [(10_000, 1), (30_000, 6), (40_000, 7)]
    logprobs = {"content": [{"token": "x"}] * 3}
    with_logprobs = json.dumps({"choices": [{"delta": {"content": "x y z"}, "logprobs": logprobs}]}).encode()
    assert heard("logprobs", (10, b"data: " + with_logprobs + b"\n\n")) == [(10_000, 3)]


def test_text_is_counted_by_a_tokenizer_or_shared_out() -> None:
    chunks = ((10, chunk(" a")), (20, chunk(" b c")), (20, chunk(" d")), (30, chunk(" e f", tokens=9)))
    assert heard("tokenizer", *chunks, count=lambda text: len(text.split())) == [(10_000, 1), (20_000, 4), (30_000, 6)]
    assert heard("share", *chunks)[-1] == (30_000, 9)  # the total is usage's


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=20), st.integers(0, 80))
def test_shares_rise_and_end_at_the_total(sizes: list[int], total: int) -> None:
    counts = shared(sizes, total)
    assert counts == sorted(counts)
    assert len(counts) == len(sizes)
    assert not sizes or counts[-1] == total


def test_a_chunk_is_read_with_what_other_servers_put_in() -> None:
    body = {"choices": [{"delta": {"reasoning_content": "hm", "content": None}, "x": 1}], "usage": None, "y": []}
    assert read_chunk(json.dumps(body).encode()).text == "hm"
    assert read_chunk(b'{"choices": [{"text": "plain"}]}').text == "plain"
    with pytest.raises(BadEventError, match="not a chunk"):
        read_chunk(b'{"choices": 5}')


def test_acceptance_is_read_in_both_forms() -> None:
    histogram = {"acceptance_histogram": [5, 3, 2], "num_spec_steps": 10, "num_draft_tokens": 20}
    counts = speculation_counts(histogram)
    assert counts is not None
    assert (counts.drafts, counts.accepted_tokens, counts.accepted_per_position) == (10, 7, [5, 2])
    by_position = {"num_drafts": 4, "num_draft_tokens": 8, "num_accepted_tokens": 5,
                   "num_accepted_tokens_per_pos": [3, 2]}  # fmt: skip
    assert speculation_counts(by_position) == type(counts)(4, 8, 5, [3, 2])
    assert speculation_counts(None) is None


# HTTP


def exchange(
    reply: Callable[[str, Any], list[bytes] | None],
    work: Callable[[StreamClient], Coroutine[Any, Any, Any]],
    timeout: float = 10,
) -> tuple[Any, list[Any]]:
    with canned_server(reply) as (address, seen):

        async def run() -> Any:
            client = StreamClient(server_url(address + "/v1/"), {"authorization": "Bearer k"}, timeout)
            try:
                return await work(client)
            finally:
                client.close()

        return asyncio.run(run()), seen


async def answer(client: StreamClient) -> Listener:
    return await ask(client, "/v1/chat/completions", {"model": "m"}, make_tally("usage", None), now_ns)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_is_heard_however_it_is_cut(size: int) -> None:
    whole = chunked(chunk(" a", tokens=1), chunk(" b c", tokens=3, finish="stop"), b"data: [DONE]\n\n")
    parts = [whole[place : place + size] for place in range(0, len(whole), size)]
    listener, seen = exchange(lambda path, body: parts, answer)
    assert listener.error is None
    assert [count for _, count in listener.tally.resolve(None)] in ([1, 3], [3])  # parts may arrive at one time
    assert "".join(listener.pieces) == " a b c"
    (path, body, head_text) = seen[0]
    assert (path, body) == ("/v1/chat/completions", {"model": "m"})
    assert "authorization: bearer k" in head_text


@pytest.mark.parametrize("length", [(), ("transfer-encoding: chunked",)])
def test_an_answer_may_end_with_its_connection(length: tuple[str, ...]) -> None:
    """HTTP allows a body without a length, and whatever comes after [DONE] says nothing more."""
    parts = [chunk(" a", tokens=1), chunk(" b", tokens=2, finish="stop"), b"data: [DONE]\n\n"]
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] if length else parts
    listener, _ = exchange(lambda path, body: [head("200 OK", *length), *chunks, HANG_UP], answer)
    assert listener.error is None
    assert "".join(listener.pieces) == " a b"
    cut, _ = exchange(lambda path, body: [head("200 OK", *length), *chunks[:2], HANG_UP], answer)
    assert cut.error is not None
    refused, _ = exchange(lambda path, body: [head("500 No"), b'{"error": {"message": "boom"}}', HANG_UP], answer)
    assert refused.error == "status 500: boom"


def test_connections_are_kept_and_one_closed_meanwhile_is_replaced() -> None:
    async def three(client: StreamClient) -> list[str | None]:
        first = await answer(client)
        second = await answer(client)  # on the same connection
        (kept,) = client._free
        if isinstance(kept, TransportConnection):
            cast(asyncio.Transport, kept._transport).abort()
        else:
            cast(StampedConnection, kept)._socket.shutdown(socket.SHUT_RDWR)
        # as a server does to idle connections; not noticed until the next send
        return [first.error, second.error, (await answer(client)).error]

    errors, _ = exchange(lambda path, body: [chunked(chunk(" a", tokens=1), b"data: [DONE]\n\n")], three)
    assert errors == [None, None, None]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ([plain("400 Bad Request", {"error": {"message": "no such field"}})], "status 400: no such field"),
        ([plain("500 Oops", "text")], "status 500"),
        ([chunked(chunk(" a", tokens=1), b'data: {"error": {"message": "died"}}\n\n', b"data: [DONE]\n\n")], "died"),
        ([chunked(chunk(" a", tokens=1))], r"without \[DONE\]"),
        ([chunked(b"data: {broken\n\n", b"data: [DONE]\n\n")], "not a chunk"),
        ([b"SSH-2.0-x\r\n\r\n"], "not HTTP"),
        (None, "closed before"),
    ],
)
def test_what_goes_wrong_is_the_requests_own_error(reply: list[bytes] | None, said: str) -> None:
    listener, _ = exchange(lambda path, body: reply, answer)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(listener.error)
    assert listener.end_us >= 0


def test_an_answer_that_does_not_end_is_given_up() -> None:
    listener, _ = exchange(lambda path, body: [head("200 OK", "transfer-encoding: chunked")], answer, timeout=0.05)
    assert listener.error == "no end of the answer within --timeout"


def test_nobody_listens() -> None:
    async def run() -> Listener:
        return await answer(StreamClient(server_url("http://127.0.0.1:9"), {}, 5))

    listener = asyncio.run(run())
    assert "no connection" in str(listener.error)
    assert issubclass(StreamError, Exception)


@pytest.mark.parametrize("text", ["", "ftp://x", "127.0.0.1:8000", "http://"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address"):
        server_url(text)


# Figures from canned times


def test_latencies_of_one_answer() -> None:
    one = record()
    assert (latency.ttft(one), latency.e2e(one)) == (100, 160)
    assert latency.tpot(one) == 20  # (160 - 100) / 3
    assert latency.itl(one) == [20, 20, 20]  # two tokens after 40 ms are 20 ms each, never 40 once (p40)
    assert latency.gaps(one) == [40, 20]
    assert latency.tpot(record(events=[(100_000, 1)])) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 8)), min_size=2, max_size=12))
def test_mean_itl_is_tpot_whatever_the_chunks_carry(steps: list[tuple[int, int]]) -> None:
    micros, tokens = steps[0]
    events = [steps[0]]
    for gap, count in steps[1:]:
        micros, tokens = micros + gap, tokens + count
        events.append((micros, tokens))
    one = record(events=events)
    assert np.mean(latency.itl(one)) == pytest.approx(latency.tpot(one))


def test_goodput_counts_requests_within_every_objective() -> None:
    objectives = parse_objectives(["ttft:100", "tpot:20,e2el:160"])
    assert objectives == {"ttft": 100, "tpot": 20, "e2e": 160}
    assert latency.is_good(record(), objectives)
    assert not latency.is_good(record(), {"tpot": 19.9})
    assert not latency.is_good(record(error="x"), {})
    assert latency.is_good(record(events=[(90_000, 1)]), {"ttft": 100, "tpot": 1})  # one token has no pace
    for words in ("tffft:5", "ttft:-1", "ttft:x", "ttft", "ttft:inf"):
        with pytest.raises(ConfigurationError, match="goodput"):
            parse_objectives([words])


def test_throughput_is_counted_while_every_user_is_busy() -> None:
    """Two users, three answers of 1,000 ms: from 1,000 ms on one user has nothing left to ask."""
    events = [(100_000 * (place + 1), place + 1) for place in range(10)]
    starts = (0, 0, 1_000_000)
    records = [record(users=2, number=n, start_us=s, end_us=1_000_000, events=events) for n, s in enumerate(starts)]
    window = latency.window(span(users=2, end_us=2_000_000), records)
    assert window is not None
    assert window.seconds == 2.0  # the third starts at 1,000 ms, and is the first to end after that
    records[1].end_us = 1_500_000
    records[1].events = [(150_000 * (place + 1), place + 1) for place in range(10)]
    window = latency.window(span(users=2, end_us=2_000_000), records)
    assert window is not None
    assert window.seconds == 1.5
    assert window.tokens == 10 + 10 + 5
    assert window.rates.mean() == pytest.approx(25 / 1.5)


def one_user(arm: str, *milliseconds: int) -> tuple[list[Any], list[Any]]:
    """Rounds of one user and one answer of 10 tokens, which takes so long."""
    spans = [span(arm, round=n, end_us=1000 * took) for n, took in enumerate(milliseconds)]
    records = [
        record(arm, round=n, end_us=1000 * took, completion_tokens=10,
               events=[(100 * took * (place + 1), place + 1) for place in range(10)])
        for n, took in enumerate(milliseconds)
    ]  # fmt: skip
    return spans, records


def test_speed_is_all_tokens_over_all_seconds_and_no_mean_of_rates() -> None:
    """10 tokens in 1 s, then 10 in 4 s: 4 a second, not 6.25. Gain and cost follow."""
    spans, records = one_user("on", 1000, 4000)
    other_spans, other_records = one_user("off", 2500, 5000)
    arms = [info("on", price_per_hour=3.6), info("off")]
    results = summarize(raw(arms, spans + other_spans, records + other_records))
    on, off = (results.of(name)[0] for name in ("on", "off"))
    assert on.output_tok_s is not None
    assert off.output_tok_s is not None
    assert on.output_tok_s.value == pytest.approx(20 / 5)
    assert off.output_tok_s.value == pytest.approx(20 / 7.5)
    assert on.output_tok_s.low is None  # of two answers
    (compared,) = results.comparisons
    assert compared.throughput_gain is not None
    assert compared.throughput_gain.value == pytest.approx(1.5)
    assert on.usd_per_million_tokens is not None
    assert on.usd_per_million_tokens.value == pytest.approx(0.001 / 4 * 1e6)
    assert not on.leaves_out_tokens


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 10)), min_size=4, max_size=12))
def test_an_interval_of_a_speed_holds_it(parts: list[tuple[float, float]]) -> None:
    rates, seconds = np.asarray(parts, dtype=float).T
    found = rate(Slices(rates, seconds))
    assert found is not None
    assert found.value == pytest.approx(float(np.sum(rates * seconds) / np.sum(seconds)))
    if found.low is not None and found.high is not None:
        assert rates.min() - 1e-9 <= found.low <= found.high <= rates.max() + 1e-9


def test_intervals_hold_the_value_and_repeat() -> None:
    values = np.random.default_rng(3).exponential(size=200)
    first, again = estimate(values), estimate(values)
    assert first == again
    assert first is not None
    assert first.low is not None
    assert first.high is not None
    assert first.low < first.value < first.high
    assert percentile(values, 50) is not None
    assert estimate(np.empty(0)) is None
    lone = estimate(np.array([3.0]))
    assert lone is not None
    assert (lone.value, lone.low) == (3.0, None)


def test_slices_without_a_token_give_no_astronomic_interval() -> None:
    found = ratio(np.asarray([5.0, 0, 0, 5.0]), np.asarray([0, 0, 0, 9.0]), paired=False)
    assert found is not None
    assert found.high is not None
    assert found.high < 5000


def test_a_paired_ratio_sees_what_the_prompts_hide() -> None:
    """Prompts differ tenfold, arms by 1.5: paired, the interval is narrow."""
    base = np.geomspace(1, 10, 40)
    paired, loose = ratio(base * 1.5, base, paired=True), ratio(base * 1.5, base, paired=False)
    assert paired is not None
    assert loose is not None
    assert paired.value == pytest.approx(1.5)
    assert paired.high == pytest.approx(1.5)
    assert loose.low is not None
    assert loose.low < 1.3


def test_answers_that_took_no_time_are_not_compared_by_their_pace() -> None:
    """All tokens in one piece: a gain of 0 was shown, and the file refused when it was read again."""
    case, base = summarize(two_arms()).cases[:2]
    assert compare(case, base, {}, greedy=False).pace_gain is not None
    base.latency_ms["tpot"]["mean"] = Estimate(0.0)
    assert compare(case, base, {}, greedy=False).pace_gain is None
    assert compare(base, case, {}, greedy=False).pace_gain is None


def test_p33_summary_of_two_arms_and_their_break_even() -> None:
    results = summarize(two_arms())
    gains = {c.load.value: c for c in results.comparisons}
    for users, gain in ((1, 1.5), (8, 0.75)):
        found = gains[users]
        assert found.pace_gain is not None
        assert found.pace_gain.value == pytest.approx(gain, rel=0.01)
        assert found.same_texts == found.num_pairs == 8 * users
    (even,) = results.break_even
    assert even.users is not None
    assert 1 < even.users < 8
    assert "on gains up to about" in even.words
    case = results.of("on")[0]
    assert case.latency("ttft", "p99") == 20.0
    assert case.interactivity_tok_s is not None
    assert case.interactivity_tok_s.value == pytest.approx(150, rel=0.01)
    assert summarize(two_arms()) == results  # derived, and from nothing but the records


def gain_of(users: float, value: float, width: float = 0.05) -> Comparison:
    return Comparison("on", "off", Load("users", users), Estimate(value, value - width, value + width), None, None)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((1.5, 1.2, 1.1), "on gives more tokens a second than off at 1, 4 and 8 users."),
        ((0.9, 0.8, 0.7), "on gives fewer tokens a second than off at 1, 4 and 8 users."),
        ((0.8, 1.2, 1.3), "on gives more tokens a second than off at 4 and 8 users and fewer at 1 user."),
        ((1.5, 1.1, 0.8), "on gains up to about 5.04 users; above that off gives more tokens a second."),
        (
            (1.5, 1.01, 0.8),
            "on gains up to about 4.13 users; above that off gives more tokens a second. At 4 users the 95 % interval "
            "of the gain holds both gain and loss.",
        ),
        (
            (1.5, 1.01, 0.98),
            "on gives more tokens a second than off at 1 user. At 4 and 8 users the 95 % interval of the gain holds "
            "both gain and loss. By the measured values alone, on gains up to about 5.04 users.",
        ),
        ((1.2, 0.9, 1.1), "on gives more tokens a second than off at 1 and 8 users and fewer at 4 users."),
        (
            (0.8, 1.2, 0.8),
            "on gives more tokens a second than off at 4 users and fewer at 1 and 8 users. By the measured values "
            "alone, on gains for the last time up to about 5.66 users.",
        ),
    ],
)
def test_gains_and_break_even_in_words(values: tuple[float, ...], words: str) -> None:
    (even,) = break_even([gain_of(users, value) for users, value in zip((1, 4, 8), values, strict=True)])
    assert even.words == words


def test_failures_are_counted_and_left_out() -> None:
    records = [record(number=0), record(number=1, error="boom", events=[])]
    results = summarize(raw([info("on")], [span()], records, goodput={"ttft": 500}))
    (case,) = results.cases
    assert (case.num_requests, case.num_failed, case.errors) == (2, 1, {"boom": 1})
    assert case.goodput_share is not None
    assert case.goodput_share.value == 0.5
    assert case.latency("ttft", "p99") == 100
    assert "Failed and left out: 1 of 2 requests of on at 1 user: boom" in results.notes
    reasons = ["boom", *(f"boom {number}" for number in range(1, 8)), None]
    several = [
        record(arm, number=number, error=reason, **({"events": []} if reason else {}))
        for arm in ("on", "off")
        for number, reason in enumerate(reasons)
    ]
    notes = summarize(raw([info("on"), info("off")], [span("on"), span("off")], several)).notes
    assert "Failed and left out: 1 of 9 requests of on at 1 user; 1 of 9 requests of off at 1 user: boom" in notes
    assert "Requests failed for 2 other reasons too (bench.json)." in notes


def test_acceptance_comes_from_answers_or_else_from_counters() -> None:
    counts = speculation_counts({"acceptance_histogram": [1, 1, 2], "num_spec_steps": 4, "num_draft_tokens": 8})
    said = summarize(raw([info("on")], [span()], [record(speculation=counts)])).cases[0].acceptance
    assert said is not None
    assert (said.source, said.mean_length, said.rate, said.per_position) == ("answers", 2.25, 5 / 8, [0.75, 0.5])
    counted = span(
        counters={"drafts": 10, "draft_tokens": 20, "accepted_tokens": 5, "step_seconds": 2.0, "draft_seconds": 0.5},
        accepted_per_position=[4, 1],
    )
    case = summarize(raw([info("on")], [counted], [record()])).cases[0]
    assert case.acceptance is not None
    assert (case.acceptance.source, case.acceptance.per_position) == ("counters", [0.4, 0.1])
    assert case.step_seconds["draft"] == 0.5
    assert case.step_seconds["host"] == 1.5
    assert summarize(raw([info("on")], [span()], [record()])).cases[0].acceptance is None


def test_every_decoding_pass_counts_with_drafts_or_without() -> None:
    """Two answers of 11 tokens: one drafted in 2 passes of 6, one in none of 10."""
    events = [(1000 * place, place) for place in range(1, 12)]
    adaptive = speculation_counts(
        {"acceptance_histogram": [0, 0, 2], "num_spec_steps": 2, "num_draft_tokens": 4, "num_passes": 7}
    )
    resting = speculation_counts(
        {"acceptance_histogram": [0, 0, 0], "num_spec_steps": 0, "num_draft_tokens": 0, "num_passes": 11}
    )
    answers = [
        record(number=0, category="qa", events=events, speculation=adaptive),
        record(number=1, category="math", events=events, speculation=resting),
    ]
    case = summarize(raw([info("on")], [span()], answers)).cases[0]
    assert case.passes == Passes(16, 20)
    assert {name: one.tokens_a_pass for name, one in case.passes_by_category.items()} == {"math": 1, "qa": 10 / 6}
    assert case.acceptance is not None
    assert case.acceptance.mean_length == 3  # the drafted ones alone
    table = overview(summarize(raw([info("on")], [span()], answers)))
    row = dict(zip(table.headings, table.rows[0], strict=True))
    assert row["tok/pass"] == "1.25"


def test_passes_come_from_counters_or_from_what_drafts_gave() -> None:
    rises = {"generation_tokens": 44.0, "passes": 24.0, "drafts": 10.0, "accepted_tokens": 20.0}
    told = [record(number=number) for number in range(4)]
    counted = summarize(raw([info("on")], [span(counters=rises)], told)).cases[0]
    assert counted.passes == Passes(20, 40)  # without the four passes of prompts
    vllm = {name: value for name, value in rises.items() if name != "passes"}
    assert summarize(raw([info("on")], [span(counters=vllm)], told)).cases[0].passes == Passes(20, 40)
    cut = speculation_counts({"acceptance_histogram": [0, 0, 1], "num_spec_steps": 1, "num_draft_tokens": 2})
    assert summarize(raw([info("on")], [span()], [record(speculation=cut)])).cases[0].passes == Passes(1, 3)
    assert summarize(raw([info("on")], [span()], told)).cases[0].passes is None


def test_cost_follows_from_price_and_throughput() -> None:
    one = summarize(raw([info("on", price_per_hour=3.6, num_gpus=2)], [span()], [record()])).cases[0]
    assert one.output_tok_s is not None
    assert one.usd_per_million_tokens is not None
    assert one.per_gpu_tok_s is not None
    assert one.usd_per_million_tokens.value == pytest.approx(3.6 / 3600 / one.output_tok_s.value * 1e6)
    assert one.per_gpu_tok_s.value == pytest.approx(one.output_tok_s.value / 2)


@pytest.mark.parametrize("prefix", ["paceline", "vllm"])
def test_counters_of_both_servers(prefix: str) -> None:
    def text(drafts: int, first: int) -> str:
        name = f"{prefix}:spec_decode_num"
        return (
            f'# TYPE {name}_drafts_total counter\n{name}_drafts_total{{engine="0"}} {drafts}\n'
            f'{name}_drafts_total{{engine="1"}} 1\n{name}_drafts_created 1.7e9\n'
            f"# TYPE {name}_accepted_tokens_per_pos_total counter\n"
            f'{name}_accepted_tokens_per_pos_total{{position="1"}} 1\n'
            f'{name}_accepted_tokens_per_pos_total{{position="0"}} {first}\n'
        )

    risen = parse_counters(text(9, 5)).since(parse_counters(text(2, 3)))
    assert risen.values["drafts"] == 7
    assert risen.accepted_per_position == (2.0, 0.0)
    assert parse_counters(text(1, 1)).since(parse_counters(text(9, 1))).values == {}  # it was started anew
    assert parse_counters("other_total 1\n") == Counters()
    assert parse_counters(text(9, 5)).since(Counters()).values == {}  # not all that the server ever did


def test_raw_files_keep_everything_and_leave_out_broken_cases(tmp_path: Path) -> None:
    whole = two_arms(users=(1,), gains=(1.5,))
    path = tmp_path / "requests.jsonl"
    writer = RawWriter(path, whole.header)
    writer.write([*whole.records, *whole.spans, record("on", 64)])  # the last one's case did not end
    writer.close()
    found, said = all_of(read_raw(path))
    for line in (found.header, *found.spans):
        line.digest = None
    assert (found, said) == (
        whole,
        [
            "on, 64 users, round 1: the case is not over in this file; its 1 request is left out.",
            "Figures are those of whole rounds, of which the arms may have different ones.",
        ],
    )
    for text in ("{}\n", "", '{"kind":"case"}\n'):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="bench serve"):
            read_raw(path)


# Prompts and load


def test_prompts_of_every_form(tmp_path: Path) -> None:
    files = {
        "a.jsonl": '{"category": "qa", "turns": ["one", "two"]}\n\n{"prompt": "three"}\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}\n',
        "b.json": json.dumps([{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}]),
        "c.txt": "first\n\nsecond\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (one, two, three), notes = read_prompts(tmp_path / "a.jsonl")
    assert notes == []
    assert one.messages(1, ["an answer"], "[7] ") == [
        {"role": "user", "content": "[7] one"},
        {"role": "assistant", "content": "an answer"},
        {"role": "user", "content": "two"},
    ]
    assert (one.category, two.category, three.before) == ("qa", "all", (("system", "s"),))
    assert [p.turns for p in read_prompts(tmp_path / "b.json")[0]] == [("hi",)]
    assert [p.turns for p in read_prompts(tmp_path / "c.txt")[0]] == [("first",), ("second",)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"turns": ["x"]}\n{"turns": []}\n', "line 2"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.json", "{}", "ShareGPT"),
        ("a.txt", "\n", "no prompt"),
    ],
)
def test_bad_prompts_name_the_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_prompts(tmp_path / name)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(0, 5))
def test_a_seed_decides_the_order_and_larger_loads_go_on_with_it(count: int, seed: int) -> None:
    prompts = synthetic_prompts(7, 3, seed=0)
    whole = order(prompts, 60, seed)
    assert order(prompts, count, seed) == whole[:count]
    assert {p.number for p in whole[:7]} == set(range(7))  # none twice before all came
    times = arrivals(5.0, count, seed)
    assert times == sorted(times)
    assert times[0] == 0


def test_arrivals_come_at_the_rate() -> None:
    assert arrivals(4.0, 4000, 1)[-1] == pytest.approx(1000, rel=0.05)


def test_no_more_than_the_users_are_under_way() -> None:
    busy, most, begun = 0, 0, []

    async def send(job: int) -> None:
        nonlocal busy, most
        begun.append(job)
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        busy -= 1

    asyncio.run(closed_loop(3, 10, send))
    assert (most, begun) == (3, list(range(10)))


def test_arrivals_do_not_wait_for_answers() -> None:
    async def run() -> int:
        release, under_way = asyncio.Event(), 0

        async def send(job: int, late: float) -> None:
            nonlocal under_way
            under_way += 1
            if under_way == 3:
                release.set()
            await release.wait()

        await open_loop([0.0, 0.0, 0.001], send)
        return under_way

    assert asyncio.run(asyncio.wait_for(run(), 10)) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"servers": {"a": "nowhere"}}, "not an address"),
        ({"speculation": ["maybe"]}, "--speculation maybe"),
        ({"loads": [Load("users", 0)]}, "--concurrency must be from 1"),
        ({"loads": [Load("rate", 1e-300)]}, "--rate must be from"),
        ({"seeds": [-1]}, "--seeds must be from 0"),
        ({"input_len": 10**6, "num_prompts": 10**6}, "--input-len 1000000 is too much for so many prompts"),
        ({"loads": []}, "No load"),
        ({"seeds": []}, "--seeds"),
        ({"max_tokens": 0}, "--max-tokens must be from 1"),
        ({"prompts": Path("x"), "input_len": 5}, "give one"),
        ({"counting": "tokenizer"}, "needs --tokenizer"),
        ({"extra_body": {"stream": False}}, "'stream' is set"),
        ({"extra_body": {"temperature": 0.7}}, "option of its own: --temperature"),
        ({"extra_body": {"max_completion_tokens": 9}}, "option of its own: --max-tokens"),
        ({"loads": [Load("users", 8)], "num_prompts": 4}, "--num-prompts 4 is too few for 8 users"),
        ({"gpus": {"b": 1}}, "no server 'b'"),
        ({"endpoint": "completions", "all_turns": True}, "--all-turns"),
    ],
)
def test_options_are_checked_before_anything_is_sent(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ServeOptions(**{"servers": {"a": "http://h:1"}} | fields)


def test_synthetic_prompts_are_said_loudly() -> None:
    options = ServeOptions(servers={"a": "http://h:1"}, input_len=5)
    assert "SYNTHETIC PROMPTS" in options.notes(options.read_prompts()[0])[0]
    assert options.sampling()["ignore_eos"] is True


# The whole, against a server of canned answers


def run_serve(tmp_path: Path, *arguments: str) -> tuple[int, Path]:
    """Exit status and folder."""
    out = tmp_path / "out"
    command = ["paceline", "bench", "serve", "--out", str(out), "--num-prompts", "4", "--warmup", "1", *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        patch.setattr(renderers, "find_spec", lambda name: None)  # drawing is tested in test_bench_report.py
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), out


def test_speculation_on_and_off_on_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret-word")
    with canned_server(speculating) as (address, seen):
        status, out = run_serve(
            tmp_path, "--url", address, "--concurrency", "1,2", "--goodput", "ttft:5000", "tpot:5000",
            "--api-key-env", "KEY", "--hardware", "a test",
        )  # fmt: skip
    assert status == 0
    found = read_raw(out / "requests.jsonl")
    assert [arm.name for arm in found.header.arms] == ["speculation on", "speculation off"]
    assert found.header.baseline == "speculation off"
    order_of_arms = [s.arm.split()[1] for s in sorted(found.spans, key=lambda s: s.place)]
    assert order_of_arms == ["on", "off", "off", "on"] * 2  # in turns
    prompts = {
        (s.arm, s.load.value, s.round): [
            r.prompt for r in found.records if (r.arm, r.load, r.round) == (s.arm, s.load, s.round)
        ]
        for s in found.spans
    }
    assert all(prompts["speculation on", u, n] == prompts["speculation off", u, n] for u in (1, 2) for n in (0, 1))
    assert all(r.num_tokens == r.completion_tokens == 9 for r in found.records)
    assert {len(r.events) for r in found.records if "off" in r.arm} <= set(range(1, 10))
    measured = [body for path, body, _ in seen if path.endswith("completions") and body["max_tokens"] == 256]
    salts = [body["cache_salt"] for body in measured]
    assert len(set(salts)) == len(salts) == 32  # none of them finds another's prefixes
    assert sum(body.get("speculation") == {"num_speculative_tokens": 0} for body in measured) == 16
    results = json.loads((out / "bench.json").read_text())
    assert results["cases"][0]["goodput_share"]["value"] == 1.0
    assert results["cases"][0]["acceptance"]["per_position"] == [1.0, 0.5]
    assert results["cases"][1]["acceptance"] is None
    everything = b"".join(path.read_bytes() for path in out.iterdir())
    assert b"secret-word" not in everything


def without_counts(path: str, asked: dict[str, Any]) -> list[bytes]:
    """A server that refuses what it does not know, as OpenAI's does."""
    if (asked.get("stream_options") or {}).get("continuous_usage_stats") or "speculation" in asked:
        return [plain("400 Bad Request", {"error": {"message": "unknown field"}})]
    return [plain("404 Not Found", {})] if path == "/metrics" else speculating(path, asked | {"speculation": 0})


def test_two_servers_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with canned_server(without_counts) as (one, seen), canned_server(speculating) as (two, _):
        status, out = run_serve(tmp_path, "--url", f"a={one}", "--url", f"b={two}", "--rate", "500", "--seeds", "0")
    assert status == 0
    header = read_raw(out / "requests.jsonl").header
    assert [(arm.name, arm.counting, arm.fresh_prompts) for arm in header.arms] == [
        ("a", "share", "tag"),
        ("b", "usage", "cache_salt"),
    ]
    assert header.baseline == "b"
    assert any("ITL is an estimate" in note for note in header.notes)
    asked = [body["messages"][0]["content"] for path, body, _ in seen if body.get("max_tokens") == 256]
    assert len({text[:10] for text in asked}) == 4  # a number of their own each
    assert "500 req/s" in capsys.readouterr().out


def test_one_server_under_two_names_is_not_asked_the_same_prompts_twice(tmp_path: Path) -> None:
    """Else the second name's prompts would be in the prefix cache."""
    with canned_server(speculating) as (address, seen):
        status, _ = run_serve(
            tmp_path, "--url", f"a={address}", "--url", f"b={address}/v1", "--speculation", "on", "--concurrency", "2"
        )
    assert status == 0
    salts = [body["cache_salt"] for path, body, _ in seen if body.get("max_tokens") == 256]
    assert len(salts) == len(set(salts)) == 2 * 2 * 4  # arms, seeds, prompts


def test_on_and_off_beside_a_server_that_cannot_choose(tmp_path: Path) -> None:
    with canned_server(speculating) as (one, _), canned_server(without_counts) as (two, _):
        status, out = run_serve(
            tmp_path, "--url", f"a={one}", "--url", f"b={two}", "--speculation", "on,off", "--concurrency", "4"
        )
    assert status == 0
    header = read_raw(out / "requests.jsonl").header
    assert [arm.name for arm in header.arms] == ["a, speculation on", "a, speculation off", "b"]
    assert header.baseline == "a, speculation off"
    assert any("measured as it is" in note for note in header.notes)


def drafts_five(path: str, asked: dict[str, Any]) -> list[bytes]:
    """As Paceline refuses more drafts than it was started for; nothing may have been measured by then."""
    assert asked.get("max_tokens", 0) < 256
    if (asked.get("speculation") or {}).get("num_speculative_tokens", 0) > 5:
        return [plain("400 Bad Request", {"error": {"message": "this engine drafts at most 5 tokens a step."}})]
    return speculating(path, asked)


@pytest.mark.parametrize(
    ("reply", "arguments", "said"),
    [
        (lambda path, body: [plain("401 No", {})], (), "--api-key-env"),
        (lambda path, body: [plain("503 Wait", {"error": "loading"})], (), "is not ready"),
        (lambda path, body: [plain("200 OK", {"data": []})], (), "serves no model"),
        (lambda path, body: [plain("200 OK", {})], (), "no list of models"),
        (without_counts, ("--speculation", "on,off"), "does not speculate"),
        (without_counts, ("--count", "usage"), "--count usage"),
        (speculating, ("--baseline", "x"), "--baseline x"),
        (speculating, ("ttft:5",), "not expected here"),
        (speculating, ("--extra-body", "[]"), "--extra-body"),
        (speculating, ("--concurrency", "a"), "--concurrency a"),
        (speculating, ("--concurrency", "1,,2"), "--concurrency 1,,2"),
        (speculating, ("--concurrency", "2,1,2"), "--concurrency 2,1,2: 2 stands there twice"),
        (speculating, ("--rate", "1,1.0"), "--rate 1,1.0: 1.0 stands there twice"),
        (speculating, ("--seeds", "0,0"), "--seeds 0,0: 0 stands there twice"),
        (speculating, ("--speculation", "off,0"), "--speculation off,0: 0 stands there twice"),
        (speculating, ("--speculation", "on,,off"), "--speculation on,,off"),
        (speculating, ("--hardware", "x", "--hardware", "y"), "--hardware is given twice for all servers"),
        (speculating, ("--extra-body", '{"a": 1, "a": 2}'), "is given more than once in one object"),
        (speculating, ("--api-key-env", "NO_SUCH_:key:"), "--api-key-env NO_SUCH_:key:: there is no such variable"),
        (drafts_five, ("--speculation", "0,3,99"), "--speculation 99"),
    ],
)
def test_what_cannot_be_run_says_why_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: Any, arguments: tuple[str, ...], said: str
) -> None:
    with canned_server(reply) as (address, _):
        few = () if {"--concurrency", "--rate"} & set(arguments) else ("--concurrency", "1")
        status, out = run_serve(tmp_path, "--url", address, *few, *arguments)
    assert status != 0
    words = " ".join(capsys.readouterr().err.split())
    assert said in words
    assert ".." not in words.replace("...", "")
    assert not out.exists()


def test_a_server_that_dies_leaves_the_cases_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = 0

    def dying(path: str, asked: dict[str, Any]) -> list[bytes] | None:
        nonlocal calls
        calls += asked.get("max_tokens") == 256
        return speculating(path, asked) if calls <= 8 else None

    with canned_server(dying) as (address, _):
        status, out = run_serve(tmp_path, "--url", address, "--concurrency", "2")
    assert status != 0
    results = json.loads((out / "bench.json").read_text())
    assert [case["num_requests"] for case in results["cases"]] == [4, 4]
    assert any("The run did not end" in note for note in results["notes"])
    assert "every request failed" in " ".join(capsys.readouterr().err.split())


def test_text_tally_without_text_has_no_events() -> None:
    assert TextTally(None).resolve(5) == []


def test_a_gain_that_intervals_do_not_show_is_said_to_be_unsure() -> None:
    (even,) = summarize(two_arms(gains=(1.02, 1.01))).break_even
    assert even.words == (
        "No difference in tokens a second between on and off is shown: at 1 and 8 users the 95 % interval of the gain "
        "holds both gain and loss."
    )
    (one,) = summarize(two_arms(users=(4,), gains=(1.5,))).break_even
    assert "at 4 users" in one.words
