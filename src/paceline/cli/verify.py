"""paceline verify: arguments in, progress and a verdict out. The exit status is the verdict."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.arguments import DEFAULT_DRAFT, DEFAULT_MODEL
from paceline.cli.console import console
from paceline.cli.termination import signals_as_ctrl_c
from paceline.cli.writing import claimed_file, write_whole
from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.json_text import loads, numbered_lines
from paceline.verify.cases import METHODS
from paceline.verify.page import page
from paceline.verify.remote import RemoteOptions, verify_server
from paceline.verify.report import LawTest, Report
from paceline.verify.runner import PARTS, Options, verify

PASSED, FAILED = 0, 1
_SHOWN = 8
_SAMPLES, _QUICK_SAMPLES = 80, 40


@dataclass(frozen=True, slots=True)
class Files:
    prompts: Path | None
    json: Path | None
    html: Path | None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Before minutes of work: can the report be written, and by nobody else meanwhile?"""
        if self.json is not None and self.html is not None and self.json.resolve() == self.html.resolve():
            raise ConfigurationError(f"--json and --html name one file, {self.json}: give each its own.")
        with signals_as_ctrl_c(), claimed_file(self.json, "--json"), claimed_file(self.html, "--html"):
            yield

    def write(self, report: Report) -> None:
        for option, path, text in (
            ("--json", self.json, report.to_json),
            ("--html", self.html, lambda: page(report)),
        ):
            if path is not None:
                write_whole(path, text(), option)
                console.print(f"Written: {escape(str(path))}", soft_wrap=True)

    def read_prompts(self) -> list[str | list[int]] | None:
        return None if self.prompts is None else read_prompts(self.prompts)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user chose of what is tested; empty: the default."""

    numbers: Sequence[int] = ()
    samples: int | None = None
    quick: bool = False
    adaptive: bool = False
    methods: Sequence[str] = ()
    only: Sequence[str] = ()
    oracle: str | None = None


def run_verify(model: str | None, engine: dict[str, Any], choices: Choices, files: Files) -> int:
    options = make_options(model, engine, choices, files.read_prompts())
    _quiet()
    with files.claimed():
        with Bar() as bar:
            report = verify(options, progress=bar)
        return finish(report, files)


def run_verify_url(
    url: str | None,
    baseline_url: str | None,
    model: str | None,
    engine: dict[str, Any],
    choices: Choices,
    files: Files,
) -> int:
    if url is None:
        raise ConfigurationError("--baseline-url is what --url is compared with; give both.")
    unused = sorted(engine.keys() - {"dtype", "seed"})
    if unused:
        raise ConfigurationError(
            f"--url verifies a server as it runs; {', '.join('--' + name.replace('_', '-') for name in unused)} cannot "
            "change it. Only --dtype (what it runs in) and --seed go with --url."
        )
    _refuse_choices(choices)
    dtype, seed = engine.get("dtype", "float32"), engine.get("seed", 0)
    options = RemoteOptions(url, baseline_url, model, files.read_prompts(), dtype=dtype, seed=seed)
    with files.claimed():
        with Bar() as bar:
            report = verify_server(options, progress=bar)
        return finish(report, files)


def _refuse_choices(choices: Choices) -> None:
    """A server is verified in all that HTTP shows, seeds and parity: there is nothing to choose."""
    given = {
        "--num-speculative-tokens": choices.numbers,
        "--samples": choices.samples,
        "--quick": choices.quick,
        "--adaptive": choices.adaptive,
        "--acceptance": choices.methods,
        "--oracle": choices.oracle != Choices().oracle,
    }
    unused = [name for name, value in given.items() if value]
    if unused:
        raise ConfigurationError(f"{', '.join(unused)} cannot be used with --url: a server is verified as it runs.")
    if choices.only and set(choices.only) != {"seeds", "parity"}:
        raise ConfigurationError(
            f"--only {' '.join(choices.only)}: of a server parity and seeds are tested, together; the law needs the "
            "model itself: paceline verify TARGET."
        )


def make_options(
    model: str | None, engine: dict[str, Any], choices: Choices, prompts: list[str | list[int]] | None
) -> Options:
    engine = dict(engine)
    if "speculative_config" in engine:
        raise ConfigurationError(
            "verify tries several ways to speculate and makes their configuration itself. Give --speculative-model "
            "and --num-speculative-tokens in place of --speculative-config."
        )
    draft = engine.pop("speculative_model", None)
    if draft is None and model is not None:
        raise ConfigurationError(
            f"Verify {model} with which draft? Give --speculative-model NAME, or 'ngram', which needs no model."
        )
    draft = DEFAULT_DRAFT if draft is None else draft
    samples = _QUICK_SAMPLES if choices.quick else _SAMPLES
    return Options(
        model=model or DEFAULT_MODEL,
        draft=None if draft == "ngram" else draft,
        numbers=tuple(choices.numbers) or ((3,) if choices.quick else (1, 3)),
        seed=engine.pop("seed", 0),
        engine=engine,
        prompts=prompts,
        samples=samples if choices.samples is None else choices.samples,
        quick=choices.quick,
        adaptive=choices.adaptive,
        methods=tuple(choices.methods) or METHODS,
        oracle=choices.oracle,
        parts=tuple(choices.only) or PARTS,
    )


def read_prompts(path: Path) -> list[str | list[int]]:
    try:
        lines = numbered_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"--prompts {path} cannot be read: {error}", param="prompts") from None
    if not lines:
        raise InvalidRequestError(f"--prompts {path} has no lines.", param="prompts")
    return [_prompt(line, f"{path}, line {number}") for number, line in lines]


def _prompt(line: str, where: str) -> str | list[int]:
    """Text as it stands, unless the line is a JSON object."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        entry = loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{where} begins like JSON and is not: {error}", param="prompts") from None
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}: {error}", param="prompts") from None
    text, ids = entry.get("prompt"), entry.get("prompt_token_ids")
    if isinstance(text, str) and text.strip():
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InvalidRequestError(
                f'{where}: "prompt" holds half of a surrogate pair, which is no text.', param="prompts"
            )
        return text
    if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        return ids
    raise InvalidRequestError(
        f'{where} has neither "prompt" with a text nor "prompt_token_ids" with token ids.', param="prompts"
    )


def finish(report: Report, files: Files) -> int:
    show(report)
    files.write(report)
    return PASSED if report.passed else FAILED


def show(report: Report) -> None:
    for line in report.summary:
        console.print(f"  {escape(line)}", soft_wrap=True)
    if report.findings:
        console.print("[bold]What failed, and where to look[/]")
    for finding in report.findings[:_SHOWN]:
        console.print(f"  [red]•[/] {escape(finding)}", soft_wrap=True)
    if len(report.findings) > _SHOWN:
        console.print(f"  and {len(report.findings) - _SHOWN} more: --json and --html have all.")
    if report.law:
        console.print(_law_table(report))
    if report.not_tested:
        console.print("[bold]Not tested[/]")
    for gap in report.not_tested:
        console.print(f"  [dim]{escape(gap)}[/]", soft_wrap=True)
    verdict = f"[bold green]PASSED[/]{report.but_only}" if report.passed else "[bold red]FAILED[/]"
    console.print(f"{verdict}: {escape(report.about['target'])}", soft_wrap=True)


def _law_table(report: Report) -> Table:
    table = Table("mode", "places", "answers", "drafts accepted", "lowest p", "largest TV", "failed")
    for mode in report.modes:
        tests = [test for test in report.law if test.mode == mode.mode]
        tested: list[LawTest] = [test for test in tests if test.fit.degrees] or tests
        table.add_row(
            escape(mode.mode),
            str(len(tests)),
            str(mode.num_answers),
            f"{mode.acceptance_rate:.0%}",
            f"{min(test.fit.p_value for test in tested):.2g}",
            f"{max(test.fit.variation for test in tested):.3f}",
            str(sum(test.verdict == "fail" for test in tests)),
        )
    return table


class Bar:
    """The stages of a verification, one line each."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console)
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, name: str, total: int) -> None:
        self._task = self._bar.add_task(escape(name), total=total)

    def advance(self, count: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, count)


class _Once(logging.Filter):
    """Every engine of a verification says the same notes; once is enough."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        is_new = line not in self._said
        self._said.add(line)
        return is_new


def _quiet() -> None:
    """What a first run downloads and notes are shown, once; bars of transformers are not."""
    from transformers.utils import logging as transformers_logging

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("paceline").setLevel(logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Once())
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
