"""Structured output over HTTP: every spelling is one constraint; what is wrong is a 400 that names it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from unit.server_fakes import FakeClient, FakeTokenizer, fake_config

from paceline.sequence import EngineRequest, FinishReason, Refusal, SequenceDelta
from paceline.server.app import create_app
from paceline.structured.params import single

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
PATHS = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]}, "/v1/completions": {"prompt": "hi"}}


class Tokenizer(FakeTokenizer):
    def token_table(self) -> dict[str, int]:
        return {"longest": 0, "x": 1}


class Recording(FakeClient):
    """Keeps what it was asked; refuses late if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[EngineRequest] = []
        self.refusal: SequenceDelta | None = None

    async def generate(self, request: EngineRequest) -> Any:  # type: ignore[override]
        self.asked.append(request)
        if self.refusal is not None:
            yield self.refusal
            return
        async for delta in super().generate(request):
            yield delta


@pytest.fixture
def engine() -> Recording:
    return Recording()


def post(engine: Recording, path: str, **fields: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        app = create_app(engine, ["fake"], Tokenizer(), fake_config())  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json={"model": "fake", "max_tokens": 3, **PATHS[path], **fields})

    return asyncio.run(send())


SPELLINGS: list[tuple[dict[str, Any], str, Any]] = [
    ({"response_format": FORMAT}, "json", SCHEMA),
    ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
    ({"guided_json": SCHEMA}, "json", SCHEMA),
    ({"response_format": {"type": "json_object"}}, "json_object", True),
    ({"structured_outputs": {"json_object": True}, "response_format": {"type": "text"}}, "json_object", True),
    ({"guided_regex": "a+"}, "regex", "a+"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
    ({"guided_choice": ["a", "b"], "guided_decoding_backend": "xgrammar"}, "choice", ["a", "b"]),
    ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "kind", "value"), SPELLINGS, ids=[f"{s[1]}-{i}" for i, s in enumerate(SPELLINGS)])
def test_every_spelling_reaches_the_engine(
    engine: Recording, path: str, fields: dict[str, Any], kind: str, value: Any
) -> None:
    assert post(engine, path, **fields).status_code == 200
    constraint = engine.asked[0].sampling_params.structured_outputs
    assert constraint is not None
    assert constraint.key == single(kind, value, kind).key


@pytest.mark.parametrize("path", PATHS)
def test_text_and_null_ask_for_nothing(engine: Recording, path: str) -> None:
    quiet = {"response_format": {"type": "text"}, "structured_outputs": None, "guided_json": None}
    assert post(engine, path, **quiet).status_code == 200
    assert engine.asked[0].sampling_params.structured_outputs is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": FORMAT, "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
     "response_format.json_schema.schema"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
    ({"guided_regex": 3}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{w[1]}-{i}" for i, w in enumerate(WRONG)])
def test_p28_wrong_constraints_never_reach_the_engine(
    engine: Recording, path: str, fields: dict[str, Any], param: str
) -> None:
    response = post(engine, path, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param.split(".")[-1] in error["message"]
    assert engine.asked == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_is_found_wrong_later_is_a_400_as_well(engine: Recording, path: str, stream: bool) -> None:
    engine.refusal = SequenceDelta(
        request_id="x", index=0, finish_reason=FinishReason.ERROR, error="guided_regex cannot be used: no.",
        refusal=Refusal("guided_regex"),
    )  # fmt: skip
    response = post(engine, path, guided_regex="(a", stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "guided_regex"
    assert response.json()["error"]["message"] == "guided_regex cannot be used: no."
