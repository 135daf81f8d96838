"""Bodies of millions of tiny values are refused before they are parsed; long texts and prompts in token ids are not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_fakes import fake_config
from test_server_api import Server, refused

import paceline.server.json_body
from paceline.config import ModelConfig
from paceline.server.errors import BodyTooLargeError
from paceline.server.json_size import MAX_ENTRIES, MAX_NAMES, check_json_size

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGE = b'{"role":"user","content":"a"}'


def listed(entry: bytes, count: int) -> bytes:
    return b"[" + b",".join([entry] * count) + b"]"


TOO_MANY: list[tuple[str, bytes, str]] = [
    (CHAT, b'{"model":"fake","messages":' + listed(MESSAGE, 200_000) + b"}", "strings"),
    (CHAT, b'{"model":"fake","messages":' + listed(b'{"role":1,"content":1}', 50_000) + b"}", "names in its objects"),
    (CHAT, b'{"model":"fake","messages":[],"x":' + listed(b"{}", 200_000) + b"}", "entries"),
    (TEXT, b'{"model":"fake","prompt":"a","stop_token_ids":' + listed(b"1", 300_000) + b"}", "entries"),
    (RESPONSES, b'{"model":"fake","input":' + listed(MESSAGE, 200_000) + b"}", "strings"),
    ("/tokenize", b'{"model":"fake","messages":' + listed(MESSAGE, 200_000) + b"}", "strings"),
    ("/detokenize", b'{"model":"fake","tokens":' + listed(b"1", 300_000) + b"}", "entries"),
]


@pytest.mark.parametrize(("path", "body", "words"), TOO_MANY, ids=[f"{path} {words}" for path, _, words in TOO_MANY])
def test_millions_of_values_are_never_parsed(
    path: str, body: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(_: str) -> Any:
        raise AssertionError("the body was parsed")

    monkeypatch.setattr(paceline.server.json_body, "loads", parse)
    response = Server().request("POST", path, content=body, headers={"content-type": "application/json"})
    error = refused(response, 413)
    assert error["code"] == "request_too_large"
    assert words in error["message"]


@pytest.mark.parametrize(
    "text",
    ['Well, "this", [it] is: {a, b}. ' * 100_000, '\\",' * 300_000, "\\\\" * 300_000 + ",", json.dumps([{}] * 10**5)],
    ids=["prose", "quotes", "backslashes", "json"],
)
def test_text_is_not_counted_whatever_is_in_it(text: str) -> None:
    for ascii_only in (True, False):
        check_json_size(json.dumps({"prompt": text}, ensure_ascii=ascii_only).encode())


def test_a_prompt_in_token_ids_is_taken_as_long_as_the_model_takes_it() -> None:
    check_json_size(json.dumps({"prompt": [1] * 131_072}).encode())
    long = json.dumps({"prompt": [1] * (MAX_ENTRIES + 1)}).encode()
    with pytest.raises(BodyTooLargeError):
        check_json_size(long)
    config = fake_config()
    model = ModelConfig(path=config.model.path, name="fake", max_model_len=MAX_ENTRIES, vocab_size=100)
    server = Server(dataclasses.replace(config, model=model))
    response = server.request(
        "POST", TEXT, content=long[:-1] + b',"model":"fake"}', headers={"content-type": "application/json"}
    )
    assert "too long" in refused(response)["message"]  # parsed, and refused by the fake engine


def _count(value: Any) -> tuple[int, int]:
    """(entries, names) of parsed JSON, an empty list or object counted as one entry."""
    if isinstance(value, list | dict):
        inside = [_count(part) for part in (value.values() if isinstance(value, dict) else value)]
        names = len(value) if isinstance(value, dict) else 0
        return max(1, len(value)) + sum(e for e, _ in inside), names + sum(n for _, n in inside)
    return 0, 0


_JSON = st.recursive(
    st.none() | st.integers() | st.text('ab\\",:{}[] é\n'),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('a\\",:', max_size=4), inner, max_size=5),
)


@given(_JSON, st.booleans())
def test_the_count_is_exact(value: Any, ascii_only: bool) -> None:
    body = json.dumps({"x": value}, ensure_ascii=ascii_only).encode()
    entries, names = _count({"x": value})
    assert names <= MAX_NAMES
    check_json_size(body, max_entries=entries)
    with pytest.raises(BodyTooLargeError):
        check_json_size(body, max_entries=entries - 1)
