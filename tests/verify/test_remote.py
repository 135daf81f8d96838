"""paceline verify --url: what is asked of servers and what is made of their answers. The servers are functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from paceline.errors import ConfigurationError, PacelineError
from paceline.verify.remote import RemoteOptions, verify_server

FAST, PLAIN = "http://fast:1", "http://plain:2"
Reply = Callable[[str, dict[str, Any]], tuple[list[str], list[dict[str, float]]]]


def transport(reply: Reply) -> httpx.MockTransport:
    """`reply(host, body)` gives the tokens of an answer and the log-probabilities at each."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        if request.url.path == "/v1/paceline/status":
            return httpx.Response(200 if request.url.host == "paceline" else 404)
        body = json.loads(request.content)
        assert (request.url.path, body["model"]) == ("/v1/completions", "tiny")
        tokens, top = reply(request.url.host, body)
        choice = {"finish_reason": "length", "logprobs": {"tokens": tokens, "top_logprobs": top}}
        return httpx.Response(200, json={"choices": [choice]})

    return httpx.MockTransport(handle)


def sound(host: str, body: dict[str, Any]) -> tuple[list[str], list[dict[str, float]]]:
    text = f"{body['prompt']} {body.get('seed', 'greedy')}"[::-1]  # what tells seeds apart comes first
    tokens = [text[index % len(text)] for index in range(body["max_tokens"])]
    return tokens, [{token: -0.1, "?": -0.1002, "!": -3.0} for token in tokens]


def check(reply: Reply, **changes: Any) -> Any:
    return verify_server(RemoteOptions(**{"url": FAST, "baseline_url": PLAIN} | changes), transport=transport(reply))


def test_a_sound_server_passes() -> None:
    report = check(sound)
    assert report.passed
    assert [test.setting for test in report.parity] == ["greedy", "greedy with penalties"]
    assert len(report.determinism) == 4
    assert any("the law" in gap for gap in report.not_tested)


def test_without_a_baseline_parity_is_not_tested_and_that_is_said() -> None:
    report = check(sound, baseline_url=None)
    assert report.passed
    assert report.parity == []
    assert any("--baseline-url" in gap for gap in report.not_tested)


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_server_of_our_own_is_compared_with_itself_without_drafts(is_sound: bool) -> None:
    salts: dict[bool, set[str]] = {True: set(), False: set()}

    def reply(host: str, body: dict[str, Any]) -> tuple[list[str], list[dict[str, float]]]:
        tokens, top = sound(host, body)
        drafts = body.get("speculation") != {"num_speculative_tokens": 0}
        if body["temperature"] == 0.0:
            salts[drafts].add(body["cache_salt"])
            tokens = tokens if is_sound or not drafts else ["x", *tokens[1:]]
        return tokens, top

    report = check(reply, url="http://paceline:1", baseline_url=None)
    assert report.passed is is_sound
    assert [test.num_identical for test in report.parity] == [report.parity[0].num_texts if is_sound else 0] * 2
    assert report.about["baseline"] == "its own requests without drafts"
    assert salts[True]
    assert salts[True].isdisjoint(salts[False])


def test_a_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen = set()

    def handle(request: httpx.Request) -> httpx.Response:
        seen.add(request.headers.get("Authorization"))
        return httpx.Response(401, text="no")

    with pytest.raises(PacelineError, match="answered 401"):
        verify_server(RemoteOptions(FAST), transport=httpx.MockTransport(handle))
    assert seen == {"Bearer secret"}


@pytest.mark.parametrize(
    ("token", "kind", "passes"), [("?", "near-tie", True), ("!", "fault", False), ("x", "fault", False)]
)
def test_p10_a_different_token_is_judged_by_the_baselines_logprobs(token: str, kind: str, passes: bool) -> None:
    def reply(host: str, body: dict[str, Any]) -> tuple[list[str], list[dict[str, float]]]:
        tokens, top = sound(host, body)
        if host == "fast" and body["temperature"] == 0.0 and "frequency_penalty" not in body:
            tokens = [*tokens[:4], token, *tokens[5:]]
        return tokens, top

    report = check(reply, prompts=["a prompt"])
    (difference,) = report.parity[0].differences
    assert (difference.place, difference.kind, report.passed) == (4, kind, passes)
    assert bool(report.findings) is not passes


def test_p05_a_seed_that_changes_with_what_ran_before_fails() -> None:
    asked: list[int] = []

    def reply(host: str, body: dict[str, Any]) -> tuple[list[str], list[dict[str, float]]]:
        tokens, top = sound(host, body)
        asked.append(1)
        return [str(len(asked)), *tokens[1:]], top

    report = check(reply, baseline_url=None)
    assert not report.passed
    assert "another text with the same seed" in report.findings[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(404, text="no such page"), "answered 404: no such page"),
        (httpx.Response(200, text="<html>"), "answered no JSON"),
        (httpx.Response(200, json={"data": []}), "serves no model"),
    ],
)
def test_a_server_that_is_none_is_named(answer: httpx.Response, message: str) -> None:
    with pytest.raises(PacelineError, match=message):
        verify_server(RemoteOptions(FAST), transport=httpx.MockTransport(lambda _: answer))


def test_nobody_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(PacelineError, match=r"does not answer .*Is a server running there"):
        verify_server(RemoteOptions(FAST), transport=httpx.MockTransport(refuse))


def test_wrong_addresses_and_dtypes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not an address"):
        RemoteOptions("localhost:8000")
    with pytest.raises(ConfigurationError, match="bfloat16"):
        RemoteOptions(FAST, dtype="int4")
