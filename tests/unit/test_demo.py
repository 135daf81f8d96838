"""The demo's colours, its table and its verdict, over a scripted LLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import pytest
from unit.test_tokenizer import make

from paceline import demo
from paceline.errors import ConfigurationError
from paceline.sequence import FinishReason, SequenceDelta, SpeculationCounts
from paceline.tokenizer import Tokenizer

TOKENIZER = make()


def deltas(text: str, accepted: int) -> list[SequenceDelta]:
    """`text` in steps of accepted + 1 tokens."""
    ids = TOKENIZER.encode(text)
    steps = [ids[start : start + accepted + 1] for start in range(0, len(ids), accepted + 1)]
    made = [SequenceDelta(request_id="0", index=0, token_ids=step, num_accepted=accepted) for step in steps]
    made[-1].finish_reason = FinishReason.STOP
    made[-1].speculation = SpeculationCounts()
    for step in steps if accepted else []:
        made[-1].speculation.record(accepted, min(accepted, len(step) - 1))
    return made


class ScriptedLLM:
    plain_answer = "a rainbow é"

    def __init__(self, model: str, dtype: str, speculative_config: dict[str, Any] | None) -> None:
        self.speculates = speculative_config is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def generate(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def get_tokenizer(self) -> Tokenizer:
        return TOKENIZER

    def stream(self, *_: Any) -> Iterator[SequenceDelta]:
        yield from deltas("a rainbow é", 3) if self.speculates else deltas(self.plain_answer, 0)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.LLM", ScriptedLLM, raising=False)
    monkeypatch.setattr(demo, "resolve", resolve)


def resolve(name: str, _progress: object) -> None:
    if name == "missing":
        raise ConfigurationError("no such model: [missing]")


def test_painter_colours_accepted_tokens_only() -> None:
    painter = demo.Painter(TOKENIZER)
    pieces = [text for delta in deltas("abcdé", 2) for text in painter.paint(delta)]
    assert [(piece.plain, str(piece.style)) for piece in pieces] == [
        ("a", demo.ACCEPTED_STYLE),
        ("b", demo.ACCEPTED_STYLE),
        ("c", demo.PLAIN_STYLE),
        ("d", demo.ACCEPTED_STYLE),
        ("é", demo.PLAIN_STYLE),
    ]


def test_demo_shows_both_answers_and_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--max-tokens", "32"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("a rainbow é") == 2
    assert "the texts are identical" in shown
    assert "x the speed without speculation" in shown


def test_difference_is_a_failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedLLM, "plain_answer", "a rainbow e")
    assert demo.main([]) == 1
    assert "THE TEXTS DIFFER" in capsys.readouterr().out


def test_missing_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--draft", "missing"]) == 1
    shown = capsys.readouterr().out
    assert "no such model: [missing]" in shown
    assert "speculation off" not in shown
