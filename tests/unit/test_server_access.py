"""Keys, limits, priorities and timeouts, over a fake engine; and that all that is wrong with them is said at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_fakes import FakeClient, fake_config
from test_server_api import CHAT_PATH, MESSAGES, TEXT_PATH, CountingTokenizer, Server, events, ok, refused
from typer.testing import CliRunner

from paceline.cli.app import app as command_line
from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.sequence import EngineRequest, SequenceDelta
from paceline.server.access.keys import ApiKeys
from paceline.server.access.limits import Limits
from paceline.server.access.options import AccessOptions, read_access_options
from paceline.server.app import create_app
from paceline.server.errors import TooManyRequestsError

KEY, OTHER = "secret-key-of-alice", "secret-key-of-bob"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def guarded(**options: Any) -> Server:
    made = Server()
    made.engine = FakeClient()
    made.app = create_app(made.engine, ["fake"], CountingTokenizer(), fake_config(), access=AccessOptions(**options))  # type: ignore[arg-type]
    return made


def keys() -> ApiKeys:
    found = ApiKeys.load(None, f"{KEY},{OTHER}", "the test")
    assert found is not None
    return found


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# Keys


def test_every_path_but_health_needs_a_key() -> None:
    made = guarded(api_keys=keys())
    paths = [*made.app.openapi()["paths"], "/openapi.json"]
    assert {"/metrics", "/v1/models", "/openapi.json", CHAT_PATH} <= set(paths)
    for path in [*paths, "/nothing"]:
        method = "POST" if path in (CHAT_PATH, TEXT_PATH, "/tokenize", "/detokenize") else "GET"
        for headers in ({}, bearer("x"), bearer(KEY + "x"), bearer(KEY[:-1]), {"authorization": KEY}):
            response = made.request(method, path, headers=headers)
            if path.startswith("/health"):
                assert response.status_code != 401
            else:
                assert refused(response, 401)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
    for key in (KEY, OTHER):
        ok(made.request("GET", "/v1/models", headers=bearer(key)))
        ok(made.request("POST", TEXT_PATH, headers=bearer(key), json={"model": "fake", "prompt": "a"}))
    assert KEY not in refused(made.request("GET", "/v1/models", headers=bearer(KEY + "x")), 401)["message"]


def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text(f"# people\n\nalice {KEY}\n")
    found = ApiKeys.load(file, None, "env", clock=clock)
    assert found is not None
    assert (found.name_of(KEY), found.name_of(OTHER)) == ("alice", None)
    file.write_text(f"bob {OTHER}\n")
    os.utime(file, ns=(1, 1))
    assert found.name_of(OTHER) is None
    clock.now = 6
    assert (found.name_of(KEY), found.name_of(OTHER)) == (None, "bob")
    file.write_text("short\n")
    clock.now = 12
    assert found.name_of(OTHER) == "bob", "a broken file changes nothing"
    file.unlink()
    clock.now = 18
    assert found.name_of(OTHER) == "bob", "a missing file changes nothing"
    for text in ("", "# nobody\n\n"):
        file.write_text(text)
        clock.now += 6
        assert found.name_of(OTHER) is None, "an emptied file revokes"
        file.write_text(f"bob {OTHER}\n")
        clock.now += 6
        assert found.name_of(OTHER) == "bob"


@pytest.mark.parametrize(
    ("text", "words"),
    [("a b c\n", "line 1"), ("short\n", "fewer than 16"), ("# none\n", "no key"), (None, "cannot be read")],
)
def test_a_wrong_key_file_says_what_is_wrong(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        ApiKeys.load(file, None, "env")
    with pytest.raises(ConfigurationError, match="give one"):
        ApiKeys.load(file, KEY, "env")


def test_all_that_is_wrong_in_a_key_file_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"alice short\na b c\n{KEY}\nbob pässword-of-sixteen\n")
    with pytest.raises(ConfigurationError) as caught:
        ApiKeys.load(file, None, "env")
    for words in ("line 2: a line is", "the key 'alice' has fewer than 16", "the key 'bob' has characters"):
        assert words in str(caught.value)
    file.write_text("short\n" * 10_000)
    with pytest.raises(ConfigurationError, match=r"the key 'line20' .*; and 9980 more\.$") as caught:
        ApiKeys.load(file, None, "env")
    assert "'line21'" not in str(caught.value)


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is compared, by hmac.compare_digest, whichever one matches."""
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: (compared.append(len(a)), a == b)[1])
    for key in (KEY, OTHER, "x"):
        compared.clear()
        keys().name_of(key)
        assert compared == [32, 32]


# Limits


def test_rate_limit_of_each_key() -> None:
    made = guarded(api_keys=keys(), requests_per_minute=2)
    for _ in range(2):
        ok(made.request("POST", "/tokenize", headers=bearer(KEY), json={"prompt": "a"}))
    response = made.request("POST", "/tokenize", headers=bearer(KEY), json={"prompt": "a"})
    assert refused(response, 429)["code"] == "rate_limit_exceeded"
    assert 1 <= int(response.headers["retry-after"]) <= 30
    ok(made.request("POST", "/tokenize", headers=bearer(OTHER), json={"prompt": "a"}))
    ok(made.request("GET", "/v1/models", headers=bearer(KEY)))


def test_the_bucket_fills_evenly() -> None:
    clock = Clock()
    limits = Limits(AccessOptions(requests_per_minute=60), 4, clock)
    for _ in range(60):
        limits.enter("a").release()
    with pytest.raises(TooManyRequestsError) as error:
        limits.enter("a")
    assert error.value.retry_after == 1
    clock.now = 2.5
    for _ in range(2):
        limits.enter("a")
    with pytest.raises(TooManyRequestsError):
        limits.enter("a")
    assert limits.num_refused == 2


def test_concurrency_is_given_back_however_a_request_ends() -> None:
    limits = Limits(AccessOptions(max_concurrent_requests=1), 4)
    ticket = limits.enter("a")
    limits.enter("b")
    with pytest.raises(TooManyRequestsError, match="1 request of yours"):
        limits.enter("a")
    ticket.release()
    ticket.release()
    limits.enter("a")
    made = guarded(max_concurrent_requests=1)
    for body in ({"model": "fake", "prompt": [99]}, {"prompt": 3}, {"model": "fake", "prompt": "a", "stream": True}):
        for _ in range(3):
            assert made.request("POST", TEXT_PATH, json=body).status_code in (200, 400, 500)


@pytest.mark.parametrize("most", [0, 1, 6])
@pytest.mark.parametrize("running", [1, 4])
def test_the_queue_is_never_longer_than_it_may_be(most: int, running: int) -> None:
    limits = Limits(AccessOptions(max_queue=most), running)
    for under_way in range(running + most + 1):
        for asked in range(1, running + most + 3):
            held, ticket = limits.enter("a"), limits.enter("a")
            if under_way:
                limits.take(held, under_way)
            if asked > running + most:
                with pytest.raises(InvalidRequestError, match="--max-queue"):
                    limits.take(ticket, asked)
            elif under_way + asked > running + most:
                with pytest.raises(TooManyRequestsError):
                    limits.take(ticket, asked)
            else:
                limits.take(ticket, asked)
            assert limits.num_sequences <= running + most
            held.release()
            ticket.release()
    assert limits.num_sequences == 0


def test_one_request_cannot_be_longer_than_the_queue() -> None:
    made = guarded()
    access = AccessOptions(max_queue=6)
    made.app = create_app(made.engine, ["fake"], CountingTokenizer(), _config(1), access=access)  # type: ignore[arg-type]
    assert refused(made.chat(n=128, max_tokens=2))["param"] == "n"
    assert refused(made.complete(prompt=["a"] * 8, max_tokens=2))["param"] == "n"
    assert len(ok(made.chat(n=7, max_tokens=2))["choices"]) == 7


def test_answers_without_a_length_get_what_the_limit_leaves() -> None:
    made = guarded(max_request_tokens=30)
    for n, length in ((1, 30), (2, 15), (30, 1)):
        answer = ok(made.chat(n=n))
        assert answer["usage"]["completion_tokens"] == n * length
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert refused(made.chat(n=31))["param"] == "max_tokens"
    assert refused(made.chat(max_tokens=31))["param"] == "max_tokens"
    assert (
        ok(made.request("POST", "/v1/responses", json={"model": "fake", "input": "a"}))["usage"]["output_tokens"] == 30
    )


def test_counts_are_written_as_people_write_them() -> None:
    limits = Limits(AccessOptions(max_request_tokens=40, max_queue=1), 1)
    with pytest.raises(InvalidRequestError, match=r"^An answer of up to 41 tokens is too long; .* Lower max_tokens\.$"):
        limits.check_tokens(1, 41, "max_tokens")
    with pytest.raises(InvalidRequestError, match=r"^2 answers of up to 21 tokens are 42 tokens"):
        limits.check_tokens(2, 21, "max_tokens")
    limits.take(limits.enter("a"), 2)
    with pytest.raises(TooManyRequestsError, match=r"1 answer is waiting, and 1 more does not fit"):
        limits.take(limits.enter("a"), 1)


def test_a_full_queue_is_429() -> None:
    clock = Clock()
    limits = Limits(AccessOptions(max_queue=2), 4, clock)
    first = limits.enter("a")
    limits.take(first, 6)
    with pytest.raises(TooManyRequestsError, match="2 answers are waiting") as error:
        limits.take(limits.enter("b"), 1)
    assert error.value.code == "queue_full"
    assert 1 <= error.value.retry_after <= 60
    clock.now = 3
    first.release()
    assert limits.num_sequences == 0
    limits.take(limits.enter("b"), 1)
    none = Limits(AccessOptions(max_queue=0), 1)
    none.take(none.enter("a"), 1)
    with pytest.raises(TooManyRequestsError):
        none.take(none.enter("a"), 1)


def test_idle_clients_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.server.access.limits._MAX_CLIENTS", 10)
    limits = Limits(AccessOptions(max_concurrent_requests=5), 4)
    held = limits.enter("stays")
    for number in range(100):
        limits.enter(str(number)).release()
    assert len(limits._clients) <= 11
    assert "stays" in limits._clients
    held.release()


class Stuck(FakeClient):
    """An engine that says one thing, and then nothing."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        try:
            yield SequenceDelta(request_id=request.request_id, index=0, token_ids=[2], text=" w2")
            await asyncio.sleep(60)
        finally:
            self.engine.counts.finished_abort += 1


def test_queue_over_http_and_what_a_client_sees() -> None:
    made = guarded(max_queue=0)
    engine = Stuck()
    made.app = create_app(
        engine, ["fake"], CountingTokenizer(), _config(max_num_seqs=1), access=AccessOptions(max_queue=0)
    )  # type: ignore[arg-type]

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(made.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"model": "fake", "prompt": "a"}
            waiting = asyncio.create_task(client.post(TEXT_PATH, json=body))
            await asyncio.sleep(0.05)
            answer = await client.post(TEXT_PATH, json=body)
            waiting.cancel()
            return answer

    response = asyncio.run(run())
    assert refused(response, 429)["code"] == "queue_full"
    assert "Try again in" in response.json()["error"]["message"]
    assert int(response.headers["retry-after"]) >= 1


def _config(max_num_seqs: int) -> Any:
    import dataclasses

    from paceline.config import SchedulerConfig

    return dataclasses.replace(fake_config(), scheduler=SchedulerConfig(max_num_seqs=max_num_seqs))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_out_of_time_is_aborted_and_says_so(stream: bool) -> None:
    made, engine = guarded(), Stuck()
    access = AccessOptions(request_timeout=0.05)
    made.app = create_app(engine, ["fake"], CountingTokenizer(), fake_config(), access=access)  # type: ignore[arg-type]
    response = made.request("POST", TEXT_PATH, json={"model": "fake", "prompt": "a", "stream": stream})
    if stream:
        assert events(response)[-1]["error"]["code"] == "request_timeout"
    else:
        assert refused(response, 504)["code"] == "request_timeout"
        assert "0.05 s" in response.json()["error"]["message"]
    assert engine.engine.counts.finished_abort == 1


def test_a_body_that_does_not_arrive_is_408() -> None:
    made = guarded(body_timeout=0.05)

    async def slowly() -> AsyncGenerator[bytes, None]:
        yield b"{"
        await asyncio.sleep(30)

    response = made.request("POST", TEXT_PATH, content=slowly())
    assert refused(response, 408)["code"] == "body_timeout"


def test_the_largest_body_is_an_option() -> None:
    made = guarded(max_body_bytes=1024)
    error = refused(made.request("POST", TEXT_PATH, json={"model": "fake", "prompt": "x" * 2000}), 413)
    assert "1024 bytes" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "is_allowed"),
    [
        (TEXT_PATH, {"prompt": ["a", "b"], "n": 2, "max_tokens": 10}, True),
        (TEXT_PATH, {"prompt": ["a", "b"], "n": 2, "max_tokens": 11}, False),
        (TEXT_PATH, {"prompt": "a"}, True),
        (CHAT_PATH, {"messages": MESSAGES}, True),  # as much as the limit leaves
        (CHAT_PATH, {"messages": MESSAGES, "max_completion_tokens": 40}, True),
    ],
)
def test_tokens_of_one_request(path: str, fields: dict[str, Any], is_allowed: bool) -> None:
    made = guarded(max_request_tokens=40)
    response = made.request("POST", path, json={"model": "fake", **fields})
    if is_allowed:
        ok(response)
    else:
        assert refused(response)["param"] == "max_tokens"


def test_priority_reaches_the_engine() -> None:
    made = guarded()
    seen = []
    add = made.engine.engine.add_request
    made.engine.engine.add_request = lambda request: (seen.append(request.priority), add(request))  # type: ignore[method-assign,assignment,func-returns-value]
    made.complete(priority=-3)
    made.chat(priority=None)
    assert seen == [-3, 0]
    assert refused(made.complete(priority="high"))["param"] == "priority"


def test_cache_salt_reaches_the_engine() -> None:
    made = guarded()
    seen = []
    add = made.engine.engine.add_request
    made.engine.engine.add_request = lambda request: (seen.append(request.cache_salt), add(request))  # type: ignore[method-assign,assignment,func-returns-value]
    made.complete(cache_salt="tenant 1")
    made.chat(cache_salt="tenant 2")
    made.chat()
    assert seen == ["tenant 1", "tenant 2", ""]
    assert refused(made.chat(cache_salt=""))["param"] == "cache_salt"


# Browsers


def test_cors_is_off_unless_asked_for() -> None:
    origin = {"origin": "https://page.example"}
    preflight = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    closed = guarded()
    assert "access-control-allow-origin" not in closed.request("GET", "/v1/models", headers=origin).headers
    assert closed.request("OPTIONS", CHAT_PATH, headers=preflight).status_code == 405
    made = guarded(allowed_origins=("https://page.example",), api_keys=keys())
    response = made.request("OPTIONS", CHAT_PATH, headers=preflight)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "https://page.example")
    other = made.request("GET", "/v1/models", headers={"origin": "https://evil.example", **bearer(KEY)})
    assert "access-control-allow-origin" not in other.headers
    mine = made.request("GET", "/v1/models", headers=origin)
    assert (mine.status_code, mine.headers["access-control-allow-origin"]) == (401, "https://page.example")


def test_a_page_cannot_post_without_asking_first() -> None:
    """A form or a text body needs no preflight; such bodies are not taken, so a page elsewhere starts no work."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        body = b'{"model": "fake", "prompt": "a"}'
        refused(guarded().request("POST", TEXT_PATH, content=body, headers={"content-type": kind}))


# Options


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    problems: list[str] = []
    given = {
        "api_key_file": str(tmp_path / "none"), "allowed_origin": ["page.example/x"], "ssl_certfile": "cert.pem",
        "max_body_bytes": 3, "requests_per_minute": 0, "request_timeout": -1.0, "max_queue": -1,
    }  # fmt: skip
    read_access_options(given, problems, {})
    assert len(problems) == 8
    assert "--ssl-certfile cert.pem cannot be used: No such file or directory." in problems
    for words in ("--api-key-file", "--allowed-origin", "--ssl-keyfile", "--max-body-bytes", "--requests-per-minute"):
        assert any(words in problem for problem in problems)
    problems.clear()
    read_access_options({"ssl_certfile": "a", "ssl_keyfile": "b"}, problems, {"PACELINE_API_KEYS": "short"})
    assert ["cannot be used" in problems[1], "fewer than 16" in problems[0]] == [True, True]
    assert [problem[:16] for problem in problems[1:]] == ["--ssl-certfile a", "--ssl-keyfile b "]
    problems.clear()
    for name in ("cert", "key"):
        (tmp_path / name).write_text("not PEM")
    pair = {"ssl_certfile": str(tmp_path / "cert"), "ssl_keyfile": str(tmp_path / "key")}
    read_access_options(pair, problems, {})
    assert [str(tmp_path / name) in problems[0] for name in ("cert", "key")] == [True, True]


def test_problems_of_access_and_of_the_engine_come_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_API_KEYS", raising=False)
    result = CliRunner().invoke(
        command_line, ["serve", "--port", "0", "--requests-per-minute", "0", "--dtype", "float8"], catch_exceptions=True
    )
    message = str(result.exception)
    assert "2 problems" in message
    assert "--requests-per-minute" in message
    assert "float8" in message


def test_vllm_behind_us_is_guarded_too() -> None:
    from paceline.runtimes.vllm.proxy import create_proxy
    from paceline.server.requests import Requests

    made = guarded()
    access = AccessOptions(api_keys=keys(), max_body_bytes=1024)
    made.app = create_proxy(None, None, "k", Requests(), "1", access)  # type: ignore[arg-type,assignment]
    assert refused(made.request("GET", "/v1/models"), 401)["code"] == "invalid_api_key"
    refused(made.request("POST", TEXT_PATH, headers=bearer(KEY), content=b"x" * 2000), 413)
    result = CliRunner().invoke(command_line, ["serve", "m", "--runtime", "vllm", "--max-queue", "3", "--dry-run"])
    assert "--max-queue: not with --runtime vllm" in str(result.exception)


@pytest.mark.parametrize("key", ["pässword-of-sixteen", "key-with-snowman-☃-x", "key-with-a-nul-\0-0000"])
def test_a_key_that_no_header_carries_is_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"alice {key}\n")
    for source in ((file, None), (None, key)):
        with pytest.raises(ConfigurationError, match="visible ASCII") as caught:
            ApiKeys.load(*source, "the test")
        assert key not in str(caught.value)
