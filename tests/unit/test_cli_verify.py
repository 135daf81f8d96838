"""paceline verify on the command line: what is refused, what reaches the verification, exit status, files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.cli.verify import Choices, make_options, read_prompts
from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.verify.report import DeterminismTest, Report


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", "verify", *words])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def report(*, passed: bool) -> Report:
    seeds = DeterminismTest("mode", "alone", 2, 8, [] if passed else [1], "pass" if passed else "fail")
    findings = [] if passed else ["alone: requests [1] gave another text"]
    return Report({"target": "tiny"}, {}, [], [], [], [seeds], findings, ["the law"])


@pytest.mark.parametrize("passed", [True, False])
def test_the_exit_status_is_the_verdict_and_the_files_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], passed: bool
) -> None:
    seen: list[Any] = []

    def verify(options: Any, progress: Any) -> Report:
        seen.append(options)
        return report(passed=passed)

    monkeypatch.setattr("paceline.cli.verify.verify", verify)
    files = tmp_path / "r.json", tmp_path / "r.html"
    words = ["big", "--speculative-model", "small", "--num-speculative-tokens", "2", "--num-speculative-tokens", "4"]
    more = ["--quick", "--seed", "7", "--dtype", "bfloat16", "--json", str(files[0]), "--html", str(files[1])]
    assert run(monkeypatch, *words, *more) == (0 if passed else 1)
    (options,) = seen
    assert (options.model, options.draft, options.numbers, options.seed) == ("big", "small", (2, 4), 7)
    assert (options.engine, options.quick, options.samples) == ({"dtype": "bfloat16"}, True, 40)
    assert json.loads(files[0].read_text())["passed"] is passed
    assert ("Passed (seeds only)." if passed else "FAILED.") in files[1].read_text()
    shown = capsys.readouterr().err
    assert ("PASSED (seeds only): tiny" if passed else "FAILED: tiny") in shown
    assert ("gave another text" in shown) is not passed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("big",), "with which draft?"),
        (("big", "--speculative-config", "{}"), "in place of --speculative-config"),
        (("--samples", "1"), "proves nothing"),
        (("--num-speculative-tokens", "0"), "nothing to verify"),
        (("--only", "nothing"), "law, parity, seeds"),
        (("--prompts", "/no/such/file"), "cannot be read"),
        (("--html", "/no/such/folder/x.html"), "x.html' cannot be written: No such file"),
        (("--baseline-url", "http://127.0.0.1:1"), "give both"),
        (("--url", "http://127.0.0.1:1", "--max-num-seqs", "3"), "--max-num-seqs cannot change it"),
        (("--url", "http://127.0.0.1:1"), "does not answer"),
        (("/no/such/model", "--speculative-model", "ngram"), "No directory"),
    ],
)
def test_what_cannot_run_is_said_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert run(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err


def test_defaults() -> None:
    options = make_options(None, {}, Choices(), None)
    assert (options.model, options.draft) == ("smollm2-135m-instruct", "smollm2-135m-instruct-draft")
    assert (options.numbers, options.methods, options.parts) == (
        (1, 3),
        ("rejection", "block"),
        ("law", "parity", "seeds"),
    )
    assert make_options("big", {"speculative_model": "ngram"}, Choices(), None).draft is None
    with pytest.raises(ConfigurationError):
        make_options("big", {}, Choices(), None)


def test_prompts_are_text_or_json(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('Hello there\n\n{"prompt": "two\\nlines"}\n{"prompt_token_ids": [1, 2]}\n')
    assert read_prompts(path) == ["Hello there", "two\nlines", [1, 2]]


@pytest.mark.parametrize("line", ['{"text": "x"}', "{oops", '{"prompt": " "}', '{"prompt_token_ids": [true]}'])
def test_a_wrong_line_of_prompts_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(f"fine\n{line}\n")
    with pytest.raises(InvalidRequestError, match="line 2"):
        read_prompts(path)


@pytest.mark.parametrize(
    "words",
    [
        ("--only", "law"), ("--only", "parity"), ("--acceptance", "block"), ("--samples", "5"), ("--quick",),
        ("--oracle", "engine"), ("--num-speculative-tokens", "3"),
        ("--baseline-url", "http://127.0.0.1:2", "--only", "parity"),
    ],
)  # fmt: skip
def test_a_server_takes_no_choices_and_nothing_is_left_out_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(monkeypatch, "--url", "http://127.0.0.1:1", *words) == 2
    assert words[-2 if len(words) > 1 else -1] in capsys.readouterr().err


def test_a_part_that_was_not_tested_is_in_the_verdict() -> None:
    assert report(passed=True).but_only == " (seeds only)"
