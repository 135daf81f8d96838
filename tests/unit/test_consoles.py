"""Words of users on the terminal: as they were written, whatever rich makes of colons and brackets elsewhere."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from rich.progress import Progress

import paceline
from paceline.bench.report import make_console as bench_console
from paceline.bench.serve.records import Load
from paceline.cli import bench_progress, console
from paceline.cli.lists import numbers, parts
from paceline.errors import ConfigurationError

SOURCES = Path(paceline.__file__).parent
ODD = ":smile: [bold]x[/] [/] :key: \\\\"


def calls(name: str) -> list[tuple[str, ast.Call]]:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                found.append((f"{path.relative_to(SOURCES)}:{node.lineno}", node))
    return found


def is_off(call: ast.Call, option: str) -> bool:
    return any(k.arg == option and isinstance(k.value, ast.Constant) and k.value.value is False for k in call.keywords)


def test_no_console_reads_emoji_codes_and_no_column_of_a_bar_either() -> None:
    consoles, columns = calls("Console"), calls("TextColumn")
    assert len(consoles) >= 4
    assert [where for where, call in consoles if not is_off(call, "emoji")] == []
    fields = [(where, c) for where, c in columns if "description" in ast.dump(c) or "fields" in ast.dump(c)]
    assert len(fields) >= 4
    own = [where for where, call in fields if not is_off(call, "markup") and not where.startswith("progress.py")]
    assert own == []  # progress.py's shows numbers alone


def test_what_a_user_wrote_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in (console.make_console(), bench_console()):
        made.file = io.StringIO()
        monkeypatch.setattr(console, "console", made)
        console.say(ODD)
        console.show_notes([ODD])
        console.show_configuration({ODD: ODD})
        assert made.file.getvalue().count(":smile: [bold]x[/] [/] :key:") == 4


def test_a_bar_shows_the_name_of_an_arm_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made = console.make_console()
    made.file, made._force_terminal, made.width = io.StringIO(), True, 300
    monkeypatch.setattr(bench_progress, "console", made)
    progress = bench_progress.BenchProgress(1)
    assert isinstance(progress._bar, Progress)
    progress.case(":smile: [red]a", Load("users", 1), 0, 4)
    made.print(progress._bar.get_renderable())
    assert ":smile: [red]a" in made.file.getvalue()


@pytest.mark.parametrize("text", ["1,,2", "1,2,", "", "1,1", "x"])
def test_a_list_has_no_empty_part_and_none_twice(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--option "):
        numbers("--option", text)
    if text != "x":
        with pytest.raises(ConfigurationError, match=r"^--option "):
            parts("--option", text)
    assert numbers("--option", "3, 1,2") == [3, 1, 2]
