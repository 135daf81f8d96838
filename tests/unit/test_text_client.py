"""Text written outside of the engine is the text that the engine writes itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from engine.tagged import EOS, TaggedExecutor, make_engine, request

from paceline.engine.engine import Engine
from paceline.sequence import EngineRequest, SequenceDelta
from paceline.server.text_client import TextClient


class Letters:
    """Ids are bytes of a text with two-byte characters, so that characters are split over tokens; EOS is special."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        data = b"".join(
            b"<end>" if token == EOS else "aé€".encode()[token % 6 :][:1]
            for token in token_ids
            if not (skip_special_tokens and token == EOS)
        )
        return data.decode(errors="replace")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [7]


class EngineHere:
    """An engine client over an engine in this process, for one request at a time."""

    is_healthy = True
    stalled_seconds = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, asked: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        self.engine.add_request(asked)
        while self.engine.has_unfinished():
            for delta in self.engine.step():
                yield delta


def texts(emits_text: bool, number: int, **params: object) -> dict[int, list[tuple[list[int], str]]]:
    engine = make_engine(TaggedExecutor(), decoder=Letters())
    engine._admission._emits_text = emits_text
    client = EngineHere(engine)
    found: dict[int, list[tuple[list[int], str]]] = {}

    async def collect() -> None:
        stream = client if emits_text else TextClient(client, Letters())  # type: ignore[arg-type]
        async for delta in stream.generate(request("a", [number, 3, 4], max_tokens=30, **params)):
            found.setdefault(delta.index, []).append((delta.token_ids, delta.text))

    asyncio.run(collect())
    return found


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n": 2},
        {"ignore_eos": True},
        {"skip_special_tokens": False},
        {"include_stop_str_in_output": True, "skip_special_tokens": False},
        {"stop_token_ids": [5, 6, 7]},
        {"stop": ["é", "a€"]},
        {"detokenize": False},
    ],
)
def test_p23_delta_by_delta_the_text_is_the_engines(params: dict[str, object]) -> None:
    for number in range(12):
        assert texts(False, number, **params) == texts(True, number, **params)


def test_the_engine_writes_text_only_where_stop_strings_need_it() -> None:
    engine = make_engine(TaggedExecutor(), decoder=Letters())
    engine._admission._emits_text = False
    for name, params in {"plain": {}, "stops": {"stop": ["€"]}}.items():
        engine.add_request(request(name, [3, 4, 5], **params))
    written = {sequence.request_id: sequence.text is not None for sequence in engine._scheduler._live()}
    assert written == {"plain": False, "stops": True}
