"""Bodies that Python's parser would read, and read wrongly: each is refused with what is wrong with it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from test_server_api import Server, ok

from paceline.arguments.fields import read_engine_arguments
from paceline.errors import InvalidRequestError
from paceline.json_text import loads

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
BODIES: dict[str, dict[str, Any]] = {  # every path that takes one
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "fake", "prompt": "a", "max_tokens": 2},
    "/v1/responses": {"model": "fake", "input": "a"},
    "/tokenize": {"model": "fake", "prompt": "a"},
    "/detokenize": {"model": "fake", "tokens": [1]},
}
JSON = {"content-type": "application/json"}


def refusal(path: str, body: bytes, **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = Server().request("POST", path, content=body, headers=JSON | named)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_the_paths_are_all_that_there_are() -> None:
    paths = Server().app.openapi()["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == set(BODIES)


@pytest.mark.parametrize("path", BODIES)
def test_what_is_wrong_with_a_body_is_told(path: str) -> None:
    text = json.dumps(BODIES[path])
    plain = text.encode()
    twice = refusal(path, (text[:-1] + ', "model": "fake"}').encode())
    assert (twice["param"], twice["code"]) == ("model", "invalid_json")
    assert "more than once" in twice["message"]
    assert "digits" in refusal(path, (text[:-1] + f', "seed": {"9" * 5000}}}').encode())["message"]
    assert "nested" in refusal(path, b'{"a":' * 50_000)["message"]
    assert "UTF-8" in refusal(path, plain[:-1] + b', "user": "\xff"}')["message"]
    assert "UTF-8" in refusal(path, text.encode("utf-16"))["message"]
    assert "charset=utf-16" in refusal(path, plain, content_type="application/json; charset=utf-16")["message"]
    for body in (plain, gzip.compress(plain)):
        assert "Content-Encoding: gzip" in refusal(path, body, content_encoding="gzip")["message"]
    assert "not valid JSON" in refusal(path, b"{")["message"]


@pytest.mark.parametrize(
    "headers", [{}, {"content-encoding": "identity"}, {"content-type": 'application/json; charset="UTF-8"'}]
)
def test_what_is_right_is_taken(headers: dict[str, str]) -> None:
    for body in (json.dumps(CHAT).encode(), b"\xef\xbb\xbf" + json.dumps(CHAT).encode()):
        assert ok(Server().request("POST", "/v1/chat/completions", content=body, headers=JSON | headers))


@pytest.mark.parametrize("keys", ['"01": 5', '"1": -5, "01": 5', '"00": 1', '"+1": 1', '"1": 5, "1": -5'])
def test_a_token_of_logit_bias_is_named_in_one_way(keys: str) -> None:
    text = json.dumps(CHAT)[:-1] + f', "logit_bias": {{{keys}}}}}'
    error = refusal("/v1/chat/completions", text.encode())
    assert error["param"].startswith(("logit_bias", "1"))
    if error["param"] == "logit_bias":
        assert "token ids as decimal strings" in error["message"]
    assert "[1-9]" not in error["message"]


def test_names_may_repeat_in_different_objects() -> None:
    assert loads('{"a": {"a": [{"a": 1}, {"a": 2}]}}') == {"a": {"a": [{"a": 1}, {"a": 2}]}}
    with pytest.raises(InvalidRequestError, match="'a' is given more than once"):
        loads('{"b": [{"a": 1, "a": 1}]}')


def test_a_speculative_config_that_repeats_a_name() -> None:
    problems: list[str] = []
    read_engine_arguments({"model": "m", "speculative_config": '{"method": "ngram", "method": "ngram"}'}, problems)
    assert len(problems) == 1
    assert "more than once" in problems[0]
