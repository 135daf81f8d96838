"""/tokenize and /detokenize over a fake engine, in vLLM's shape."""

from __future__ import annotations

from typing import Any

import pytest
from server_fakes import MAX_MODEL_LEN, VOCABULARY
from test_server_api import MESSAGES, Server, ok, refused


@pytest.fixture
def server() -> Server:
    return Server()


def tokenize(server: Server, **fields: Any) -> Any:
    return server.request("POST", "/tokenize", json=fields)


def test_a_text_and_back(server: Server) -> None:
    body = ok(tokenize(server, prompt="one two"))
    assert body == {"count": 3, "max_model_len": MAX_MODEL_LEN, "tokens": body["tokens"], "token_strs": None}
    assert body["tokens"] == server.tokenizer.encode("one two")
    text = ok(server.request("POST", "/detokenize", json={"tokens": body["tokens"]}))["prompt"]
    assert text == server.tokenizer.decode(body["tokens"], skip_special_tokens=False)
    assert text.startswith("<bos>")


def test_without_special_tokens_and_with_their_spelling(server: Server) -> None:
    body = ok(tokenize(server, model="fake", prompt="one", add_special_tokens=False, return_token_strs=True))
    assert body["token_strs"] == [VOCABULARY[body["tokens"][0]].replace(" ", "Ġ")]
    assert ok(tokenize(server, prompt=""))["count"] == 1


def test_a_chat(server: Server) -> None:
    body = ok(tokenize(server, messages=MESSAGES))
    assert body["tokens"] == server.tokenizer.apply_chat_template(MESSAGES)
    bare = ok(tokenize(server, messages=MESSAGES, add_generation_prompt=False))
    assert bare["count"] == body["count"] - 1


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({}, "prompt", 400),
        ({"prompt": "a", "messages": MESSAGES}, "prompt", 400),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", 400),
        ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens", 400),
        ({"messages": []}, "messages", 400),
        ({"prompt": "a", "promt": "b"}, "promt", 400),
        ({"prompt": 3}, "prompt", 400),
        ({"prompt": "x" * 1000}, "prompt", 400),
        ({"prompt": "a", "model": "nobody"}, "model", 404),
    ],
)
def test_what_is_wrong_is_named(server: Server, fields: dict[str, Any], param: str, status: int) -> None:
    assert refused(tokenize(server, **fields), status)["param"] == param


@pytest.mark.parametrize(("tokens", "param"), [([len(VOCABULARY)], "tokens[0]"), ([-1], "tokens[0]"), ("a", "tokens")])
def test_tokens_that_do_not_exist(server: Server, tokens: Any, param: str) -> None:
    assert refused(server.request("POST", "/detokenize", json={"tokens": tokens}))["param"] == param
