"""Files with a prompt a line, wherever they are read: lines end at their ends, and what is wrong has its number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.serve.prompts import read_prompts as bench_prompts
from paceline.cli.verify import read_prompts
from paceline.distill.transcripts import file_prompts
from paceline.distill.user_text import _lines
from paceline.errors import PacelineError
from paceline.json_text import numbered_lines

ODD = "a\u2028b\x0cc\x85d"  # what str.splitlines would split as well; the last three as JSON may not hold them raw


def verify_texts(path: Path) -> list[str]:
    return [str(prompt) for prompt in read_prompts(path)]


def bench_texts(path: Path) -> list[str]:
    return [prompt.turns[0] for prompt in bench_prompts(path)[0]]


def data_texts(path: Path) -> list[str]:
    return [line["text"] for _, line in _lines(path)]


def report_texts(path: Path) -> list[str]:
    said: list[str] = []
    file_prompts(path, lambda messages: [said.append(messages[0]["content"]) or 1])  # type: ignore[func-returns-value]
    return said


READERS: list[tuple[str, Callable[[Path], list[str]], Callable[[str], dict[str, object]]]] = [
    ("verify and tune", verify_texts, lambda text: {"prompt": text}),
    ("bench serve", bench_texts, lambda text: {"turns": [text]}),
    ("distill --data", data_texts, lambda text: {"text": text}),
    ("distill --report-on", report_texts, lambda text: {"turns": [text]}),
]


@pytest.mark.parametrize(("name", "read", "row"), READERS, ids=[name for name, _, _ in READERS])
class TestEveryReader:
    def test_only_ends_of_lines_end_a_line(
        self, tmp_path: Path, name: str, read: Callable[[Path], list[str]], row: Callable[[str], dict[str, object]]
    ) -> None:
        path = tmp_path / "prompts.jsonl"
        texts = ["first\u2028line", "second\u2029 \x85line", "third"]
        lines = [json.dumps(row(text), ensure_ascii=False) for text in texts]
        path.write_bytes(("\ufeff" + "\r\n\n".join(lines) + "\n").encode())
        assert read(path) == texts

    @pytest.mark.parametrize("wrong", ["{bad", '{"a": ' + "[" * 5000, '{"a": ' + "9" * 5000 + "}"])
    def test_what_is_wrong_has_the_number_of_its_line(
        self, tmp_path: Path, name: str, read: Callable[[Path], list[str]], row: Callable[[str], dict[str, object]],
        wrong: str,
    ) -> None:  # fmt: skip
        path = tmp_path / "prompts.jsonl"
        path.write_text(json.dumps(row("fine")) + "\n\n\n" + wrong + "\n")
        with pytest.raises(PacelineError) as found:
            read(path)
        assert "line 4" in str(found.value)
        assert len(str(found.value)) < 1000


def test_lines_of_a_text() -> None:
    assert numbered_lines(f"\ufeff{ODD}\r\n \n\nlast") == [(1, ODD), (4, "last")]
    assert numbered_lines("") == []
    assert numbered_lines("\ufeff") == []


def test_half_a_surrogate_pair_is_no_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\\ud83d"}\n')
    with pytest.raises(PacelineError, match=r"line 1.*surrogate"):
        read_prompts(path)
