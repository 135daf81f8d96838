"""`paceline bench` with what nobody should type or read: said by name, without a traceback, and nothing left behind."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from bench_serve_fakes import bench_says, canned_server, chunk, chunked, info, record, span, speculating, two_arms
from bench_serve_fakes import raw as run_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_bench_report import VLLM, guidellm

from paceline.bench.environment import processor_in_words
from paceline.bench.page.chart import Chart, Series
from paceline.bench.page.charts import charts
from paceline.bench.page.markdown import markdown
from paceline.bench.page.png import _draw as draw
from paceline.bench.page.png import write_png
from paceline.bench.page.terminal import tables
from paceline.bench.serve.across import combine, refuse_one_run_twice
from paceline.bench.serve.ask import speculation_counts
from paceline.bench.serve.compare import break_even
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.prompts import Prompt, read_prompts
from paceline.bench.serve.reading import read_results
from paceline.bench.serve.records import Load, RawWriter, read_raw
from paceline.bench.serve.results import Comparison, write_results
from paceline.bench.serve.summary import summarize
from paceline.cli.termination import signals_as_ctrl_c
from paceline.cli.writing import OutFolder, claimed_file, write_whole
from paceline.errors import ConfigurationError

NOBODY = "http://127.0.0.1:9"  # discard: no server of any test
ODD = ["0", "-1", "1e300", "1e-300", "nan", "9" * 5000, "", "1,,x=1", "ttft:inf"]


@pytest.mark.parametrize(
    "option",
    ["--concurrency", "--rate", "--num-prompts", "--seeds", "--warmup", "--timeout", "--input-len", "--max-tokens",
     "--temperature", "--gpus", "--price-per-hour", "--goodput", "--speculation", "--extra-body"],
)  # fmt: skip
def test_an_odd_number_is_refused_by_name_or_asked_for(tmp_path: Path, option: str) -> None:
    for value in ODD:
        said = bench_says("serve", "--url", NOBODY, "--out", str(tmp_path / "out"), option, value)
        assert option in said or "127.0.0.1:9" in said, (value, said)
        assert len(said) < 2000 or "usage" in said.lower()
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("url", ["", "http://", "http://[::1", "ftp://h", "http://h:99999999", "a=b=http://h", "=x"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    assert bench_says("serve", "--url", url, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[" * 100_000, b"folder"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "txt"])
def test_prompts_that_are_none(tmp_path: Path, content: bytes | None, suffix: str) -> None:
    path = tmp_path / f"prompts.{suffix}"
    if content == b"folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    if suffix == "txt" and content == b"[" * 100_000:
        return  # a line of text like any other
    said = bench_says("serve", "--url", NOBODY, "--out", str(tmp_path / "out"), "--prompts", str(path))
    assert str(path) in said
    assert "Errno" not in said


# Where results go


def _place(tmp_path: Path, kind: str) -> Path:
    (tmp_path / "file").touch()
    return {
        "a file": tmp_path / "file",
        "under a file": tmp_path / "file" / "deep" / "out",
        "too long": tmp_path / ("x" * 300),
        "in /proc": Path("/proc/none/out"),
    }[kind]


@pytest.mark.parametrize("kind", ["a file", "under a file", "too long", "in /proc"])
def test_a_place_for_results_that_cannot_be_is_said_before_anything_is_sent(tmp_path: Path, kind: str) -> None:
    place = _place(tmp_path, kind)
    with canned_server(speculating) as (address, seen):
        said = bench_says("serve", "--url", address, "--out", str(place))
    assert seen == []
    assert "--out" in said
    assert re.search("is a file|cannot be written", said)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    said = bench_says("report", str(tmp_path / "vllm.json"), "--out", str(place))
    assert re.search("is a file|cannot be written", said)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "vllm.json"}


def test_a_report_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    (tmp_path / "out" / "report.md").mkdir(parents=True)
    said = bench_says("report", str(tmp_path / "vllm.json"), "--out", str(tmp_path / "out"))
    assert "report.md' cannot be written" in said


def test_folders_made_for_nothing_are_taken_away_again(tmp_path: Path) -> None:
    bench_says("serve", "--url", NOBODY, "--out", str(tmp_path / "a" / "b" / "c"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    bench_says("serve", "--url", NOBODY, "--out", str(tmp_path / "there"))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.usefixtures("no_signal_is_ignored")
@pytest.mark.parametrize(
    ("answers", "number", "ignored", "status"),  # 4 requests are a case
    [
        (2, signal.SIGINT, "", 130),
        (6, signal.SIGINT, "", 130),
        (6, signal.SIGTERM, "INT", 143),  # a script's job behind `&`
        (2, signal.SIGHUP, "INT", 129),
        (6, signal.SIGHUP, "HUP", 0),  # nohup
    ],
)
def test_a_signal_says_what_is_kept_and_leaves_no_half_file(
    tmp_path: Path, answers: int, number: int, ignored: str, status: int
) -> None:
    count, running = 0, []

    def reply(path: str, asked: dict[str, Any]) -> list[bytes] | None:
        nonlocal count
        count += asked.get("max_tokens") == 256
        if count > answers and running:
            os.kill(running.pop().pid, number)
        return speculating(path, asked)

    with canned_server(reply) as (address, _):
        shell = ["sh", "-c", f'trap "" {ignored}; exec "$@"', "sh"] if ignored else []
        command = [
            *shell, sys.executable, "-m", "paceline.cli", "bench", "serve", "--url", address, "--concurrency", "1",
            "--num-prompts", "4", "--warmup", "1", "--out", str(tmp_path / "out"),
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            running.append(process)
            _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in said
    if answers < 4:
        assert "nothing to keep, and no file was left" in " ".join(said.split())
        assert list(tmp_path.iterdir()) == []
    else:
        assert ("The run did not end: interrupted" in " ".join(said.split())) is (status > 0)
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert {"requests.jsonl", "bench.json", "report.md"} <= names
        assert not any(name.startswith(".") for name in names)  # neither a half file nor a lock
        assert len(read_results(tmp_path / "out" / "bench.json").cases) == (1 if status else 2)


def test_two_runs_cannot_share_a_folder_and_a_dead_one_holds_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with OutFolder(out):
        with pytest.raises(
            ConfigurationError, match=rf"--out .*another run writes there now \(process {os.getpid()}, "
        ):
            OutFolder(out)
        (lock,) = out.iterdir()
    assert not out.exists()
    code = (
        "import os, sys; from pathlib import Path; from paceline.claim import Claim; Claim(Path(sys.argv[1]), '', '')"
    )
    out.mkdir()
    ended = subprocess.run([sys.executable, "-c", f"{code}; __import__('os')._exit(9)", str(lock)], check=False)
    assert ended.returncode == 9
    assert lock.exists()  # a crash takes no file away
    with OutFolder(out) as folder:
        (folder.path / "requests.jsonl").touch()
    assert [path.name for path in out.iterdir()] == ["requests.jsonl"]


def test_two_runs_cannot_write_one_file_by_whatever_name(tmp_path: Path) -> None:
    """bench offline, verify: nothing is made, nothing is left, and a name that leads to the file is the file."""
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    for first, second in (("a.json", "a.json"), ("a.json", "link.json"), ("link.json", "a.json")):
        with claimed_file(tmp_path / first), claimed_file(tmp_path / "b.json"):
            with pytest.raises(ConfigurationError, match=r"--json .*writes there now .*another file, or wait"):
                claimed_file(tmp_path / second, "--json").__enter__()
            assert not (tmp_path / "a.json").exists()
            write_whole(tmp_path / first, "whole")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "link.json"]
        (tmp_path / "a.json").unlink()
    os.mkfifo(tmp_path / "pipe")
    with claimed_file(tmp_path / "pipe"), claimed_file(tmp_path / "pipe"), claimed_file(None), claimed_file(None):
        pass  # a pipe may have many writers


def test_a_claim_tells_commands_and_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/paceline", "bench", "offline", "--model", "secret"])
    with claimed_file(tmp_path / "a.json"):
        (lock,) = tmp_path.iterdir()
        assert re.fullmatch(rf"process {os.getpid()}, paceline bench offline, since \S+ \S+ UTC\n", lock.read_text())


@pytest.mark.usefixtures("no_signal_is_ignored")
@pytest.mark.parametrize(("ending", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_any_command_ends_by_a_signal_as_by_ctrl_c(ending: int, status: int) -> None:
    def end_by(number: int) -> None:
        with signals_as_ctrl_c():
            os.kill(os.getpid(), number)
            time.sleep(5)

    before = signal.getsignal(ending)
    with pytest.raises(typer.Exit) as ended:
        end_by(ending)
    assert ended.value.exit_code == status
    with pytest.raises(KeyboardInterrupt):
        end_by(signal.SIGINT)
    assert signal.getsignal(ending) == before
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(ending, signal.SIG_IGN)
    try:
        with signals_as_ctrl_c():
            os.kill(os.getpid(), ending)  # ignored when it began
        signal.signal(ending, before)
        with pytest.raises(typer.Exit):
            end_by(ending)
    finally:
        signal.signal(signal.SIGINT, kept)
        signal.signal(ending, before)


@pytest.mark.usefixtures("no_signal_is_ignored")
def test_whatever_is_written_to_a_closed_terminal_is_no_error(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\nfrom paceline.cli.termination import signals_as_ctrl_c\n"
        "with signals_as_ctrl_c():\n    try:\n        print('up', flush=True); time.sleep(30)\n    finally:\n"
        "        print('kept', flush=True); pathlib.Path(sys.argv[1]).touch()"
    )
    primary, terminal = os.openpty()
    command = [sys.executable, "-c", code, str(tmp_path / "kept")]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(terminal)
        assert os.read(primary, 2) == b"up"
        os.close(primary)  # the terminal closes, and the kernel sends SIGHUP
        process.wait(60)
    assert (tmp_path / "kept").exists()


# Files that are read


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"events": []}, "line 2: .*it neither failed nor has events"),
        ({"events": [[10, 5], [20, 3]]}, r"line 2: .*events must rise .* \[20, 3\] comes after \[10, 5\]"),
        ({"events": [[10, 5], [20, 5]]}, "line 2: .*events must rise"),
        ({"events": [[20, 1], [10, 2]]}, "line 2: .*events must rise in time"),
        ({"events": 5}, "is not a requests.jsonl"),
    ],
)
def test_a_request_that_says_nothing_is_refused_by_its_line(
    tmp_path: Path, sources: dict[str, list[Any]], change: dict[str, Any], said: str
) -> None:
    lines = sources["requests.jsonl"]
    lines[1] |= change
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_results(tmp_path / "r.jsonl")
    assert "Error" not in str(refused.value)


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path, sources: dict[str, list[Any]]) -> None:
    whole = (tmp_path / "raw").read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole + b'{"kind":"request","arm":"o')
    found = read_results(tmp_path / "cut.jsonl")
    assert found.cases == summarize(read_raw(tmp_path / "raw")).cases
    assert any("last line of requests.jsonl has no end" in note for note in found.notes)


def _written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))  # with blanks, as others write JSON
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines, lines[1]], r"line \d+: request 0 of on, 1 user, round 1 is there twice \(line 2 too\)"),
        (lambda lines: [*lines, lines[-1]], r"line \d+: the end of the case of off, 2 users, round 1 is there twice"),
        (lambda lines: lines * 2, r"line \d+: a second header; these are two runs"),
        (lambda lines: [lines[0], lines[1] | {"arm": "of"}, *lines[2:]], "line 2: the arm 'of' is not among"),
        (lambda lines: [*lines[:3], {"kind": "request"}, *lines[3:]], "line 4: .*missing required field"),
        (lambda lines: [*lines[:1], lines[1] | {"round": 7}, *lines[2:]], "line 2: round 8 of a run of 1"),
        (
            lambda lines: [*lines[:1], lines[1] | {"load": {"kind": "users", "value": 3}}],
            "line 2: 3 users is not among",
        ),
    ],
)
def test_a_run_with_anything_twice_or_unknown_is_refused_by_its_line(
    tmp_path: Path, sources: dict[str, list[Any]], change: Any, said: str
) -> None:
    lines = sources["requests.jsonl"]
    lines[0]["options"] |= {"seeds": [0], "loads": ["1 user", "2 users"]}
    with pytest.raises(ConfigurationError, match=said):
        read_results(_written(tmp_path / "requests.jsonl", change(lines)))


def test_what_a_run_lacks_is_named_and_its_round_left_out(tmp_path: Path, sources: dict[str, list[Any]]) -> None:
    lines = sources["requests.jsonl"]
    path = tmp_path / "requests.jsonl"
    everything = read_results(_written(path, lines))
    for line in lines:
        line.pop("digest", None)  # an earlier version's
    assert not any("left out." in note or "not there" in note for note in everything.notes)
    last = max(place for place, line in enumerate(lines) if line["kind"] == "request")
    found = read_results(_written(path, lines[:last] + lines[last + 1 :]))  # of an earlier version: not counted
    assert "off, 2 users, round 1: 7 of 8 requests are there. The round is left out." in found.notes
    assert [(case.arm, case.load.value) for case in found.cases] == [("on", 1), ("off", 1), ("on", 2)]
    for line in lines:
        if line["kind"] == "case":
            line["requests"] = 9
    with pytest.raises(ConfigurationError, match="no complete case"):
        read_results(_written(path, lines))
    lines[0]["options"] |= {"seeds": [0, 1], "loads": ["1 user", "2 users"]}
    short = [line for line in lines if line["kind"] != "case" or line["load"]["value"] == 1]
    notes = read_results(
        _written(path, [line | {"requests": 4} if line["kind"] == "case" else line for line in short])
    ).notes
    assert "on, 2 users, round 1: the case is not over in this file; its 8 requests are left out." in notes
    assert any(note.startswith("6 of 8 rounds of the run are not there: on, 1 user, round 2; off,") for note in notes)


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    path = str(tmp_path / "vllm.json")
    assert "is given twice" in bench_says("report", path, path, "--out", str(tmp_path / "out"))
    (tmp_path / "copy.json").write_text(json.dumps(VLLM, indent=2))
    said = bench_says("report", path, str(tmp_path / "copy.json"), "--out", str(tmp_path / "out"))
    assert f"'{path}' and '{tmp_path / 'copy.json'}' hold the same run" in said


def test_a_run_beside_itself_is_refused_however_it_is_named(tmp_path: Path) -> None:
    whole, run = two_arms(), tmp_path / "run"
    run.mkdir()
    writer = RawWriter(run / "requests.jsonl", whole.header)
    writer.write([*whole.records, *whole.spans])
    writer.close()
    write_results(run / "bench.json", summarize(whole))
    for other in ("bench.json", "requests.jsonl"):
        said = bench_says("report", str(run), str(run / other), "--out", str(tmp_path / "out"))
        assert "hold the same run" in said
    other_day = msgspec.structs.replace(summarize(whole), environment={"date": "2026-12-01"})
    refuse_one_run_twice(["a", "b"], [summarize(whole), other_day])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"output_throughput": -5}, "output_throughput is -5, and total_output_tokens over duration 300"),
        ({"request_throughput": 150}, "request_throughput is 150, and completed over duration 1.5"),
        (
            {"completed": 0, "request_throughput": 0, "failed": 0},
            "0 failed of 0 requests, so that nothing was",
        ),
        ({"completed": 0, "request_throughput": 0, "failed": 10}, "10 failed of 10 requests"),
        ({"max_concurrency": 0}, "a max_concurrency of 0"),
        ({"duration": 0}, "a duration of 0 s"),
        ({"mean_ttft_ms": -3}, "value of -3, below 0"),
    ],
)
def test_figures_out_of_all_reason_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM | change))
    with pytest.raises(ConfigurationError, match=said):
        read_results(tmp_path / "vllm.json")


@pytest.mark.parametrize(
    ("tokens", "words"),
    [(tokens, "(?s)an event is not a chunk of an answer.*completion_tokens") for tokens in (10**30, 10**13, -5)]
    + [(tokens, f"the server counts {tokens:,} tokens in an answer of at most 9") for tokens in (10**10, 300, 10)],
)
def test_a_server_that_counts_what_cannot_be_is_refused(tmp_path: Path, tokens: int, words: str) -> None:
    def reply(path: str, asked: dict[str, Any]) -> list[bytes] | None:
        if path != "/v1/chat/completions":
            return speculating(path, asked)
        return [chunked(chunk(" w", tokens=tokens, finish="length"), b"data: [DONE]\n\n")]

    with canned_server(reply) as (address, _):
        said = bench_says("serve", "--url", address, "--out", str(tmp_path / "out"), "--max-tokens", "9")
    assert re.search(words, said)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "\\ud800"}',
        '{"turns": ["a", "b\\udc00c"]}',
        '{"messages": [{"role": "user", "content": "\\ud83d"}]}',
    ],
)
def test_prompts_of_half_characters_are_refused_by_their_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n")
    said = bench_says("serve", "--url", NOBODY, "--prompts", str(path), "--out", str(tmp_path / "out"))
    assert "line 2 holds half of a surrogate pair" in said


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://me:secret@127.0.0.1:9", "holds a user or password"),
        ("http://secret@127.0.0.1:9/v1", "holds a user or password"),
        ("http://127.0.0.1:9?x=1", "behind . or #"),
        ("http://127.0.0.1:9/#a", "behind . or #"),
        ("http://127.0.0.1:99999", "ports go from 1 to 65535"),
    ],
)
def test_addresses_with_more_than_an_address_are_refused_and_no_secret_is_said(
    tmp_path: Path, url: str, words: str
) -> None:
    said = bench_says("serve", "--url", url, "--out", str(tmp_path / "out"))
    assert re.search(words, said)
    assert "secret" not in said
    assert list(tmp_path.iterdir()) == []


def test_metrics_that_are_none_are_left_out() -> None:
    odd = [{"num_spec_steps": "x"}, {"num_accepted_draft_tokens": -1}, {"num_passes": -1}, {"num_draft_tokens": 10**20}]
    for metrics in ({"acceptance_histogram": 5}, *({"acceptance_histogram": [1]} | one for one in odd)):
        assert speculation_counts(metrics) is None


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (["=http://h"], "the name in front of '=' is empty"),
        (["http://h", "http://h/v1"], "this is the server of --url http://h;"),
        (["http://h:1/", "http://h:1"], "this is the server of"),
    ],
)
def test_a_server_beside_itself_needs_names(tmp_path: Path, urls: list[str], said: str) -> None:
    options = [word for url in urls for word in ("--url", url)]
    assert said in bench_says("serve", *options, "--out", str(tmp_path / "out"))


def test_dash_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (
        lambda: write_whole(Path("-"), "x"),
        lambda: OutFolder(Path("-")),
        lambda: claimed_file(Path("-")).__enter__(),
    ):
        with pytest.raises(ConfigurationError, match="Standard output is /dev/stdout"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_prompts_with_a_mark_in_front_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "one"}\n')
    ((prompt,), _) = read_prompts(tmp_path / "p.jsonl")
    assert prompt.turns == ("one",)
    options = ServeOptions(servers={"a": "http://h"}, prompts=tmp_path / "p.jsonl", seeds=[0])
    assert not any("odd number of seeds" in note for note in options.notes([prompt], num_arms=1))
    assert any("odd number of seeds" in note for note in options.notes([prompt], num_arms=2))
    several = Prompt(0, "qa", ("one", "two"))
    assert any(note.startswith("1 prompt has further turns") for note in options.notes([several]))


def test_a_picture_has_room_for_its_labels_and_no_warning_of_an_emoji(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    results = summarize(two_arms())
    results.arms[0].hardware = "\N{ROCKET} box"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_png(results, tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 1000
    axes = Figure().add_subplot()
    draw(axes, Chart("t", "x", "y", [Series("on", [47.6, 47.9], [93.0, 96.0], labels=["1 user", "2 users"])]))
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > 1.1 * 96


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, list[Any]]:
    """Documents by the name of their file; of requests.jsonl the lines."""
    whole = two_arms(users=(1, 2), rounds=1)
    own = msgspec.to_builtins(summarize(whole))
    writer = RawWriter(tmp_path / "raw", whole.header)
    writer.write([*whole.records, *whole.spans])
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "raw").read_text().splitlines()]
    return {"bench.json": [own], "vllm.json": [VLLM], "guide.json": [guidellm({"type_": "synchronous"})],
            "requests.jsonl": lines}  # fmt: skip


WORST: list[Any] = [None, "x", [], {}, -1, 0, 1e300, float("nan"), float("inf"), True, 10**400]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_result_with_anything_in_it_is_shown_or_refused(
    tmp_path: Path, sources: dict[str, list[Any]], data: st.DataObject
) -> None:
    """One value replaced, at any depth, in a file of each kind."""
    name = data.draw(st.sampled_from(sorted(sources)))
    content: Any = copy.deepcopy(sources[name])
    at = content
    while True:
        keys = sorted(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(list(keys)))
        if at is not content and (
            not (isinstance(at[key], dict | list) and at[key]) or data.draw(st.integers(0, 3)) == 0
        ):
            break
        at = at[key]
    at[key] = data.draw(st.sampled_from(WORST))
    path = tmp_path / name
    path.write_text("".join(json.dumps(document, separators=(",", ":")) + "\n" for document in content))
    with suppress(ConfigurationError):
        results = combine([read_results(path)], None)
        assert "nan" not in markdown(results).replace(name, "")
        charts(results)
        tables(results)


def test_a_run_without_a_complete_case_is_refused(tmp_path: Path) -> None:
    writer = RawWriter(tmp_path / "requests.jsonl", two_arms().header)
    writer.close()
    with pytest.raises(ConfigurationError, match="no complete case"):
        read_results(tmp_path / "requests.jsonl")


# Words


@given(
    st.dictionaries(
        st.sampled_from([1.0, 2.0, 4.0, 8.0, 1024.0]),
        st.tuples(st.floats(0.3, 3.0), st.sampled_from([None, 0.01, 0.4])),
        min_size=1,
    )
)
@example({1.0: (0.5, None), 2.0: (2.0, 0.01), 4.0: (0.5, 0.01)})
def test_no_sentence_takes_back_what_another_claims(gains: dict[float, tuple[float, float | None]]) -> None:
    """Each load stands in one sentence, by what its interval says; one user is a user."""
    compared = []
    for users, (value, width) in gains.items():
        edges = (None, None) if width is None else (value - width, value + width)
        compared.append(Comparison("on", "off", Load("users", users), Estimate(value, *edges), None, None))
    (even,) = break_even(compared)
    assert not re.search(r"\b(at|At|about) 1 users", even.words)
    sentences = re.split(r"(?<=\.) ", even.words)
    for one in compared:
        assert one.throughput_gain is not None
        value = one.throughput_gain.value
        low, high = (value if edge is None else edge
                     for edge in (one.throughput_gain.low, one.throughput_gain.high))  # fmt: skip
        naming = [text for text in sentences if re.search(rf"(?<![\d.]){one.load.value:g}(?![\d.]\d)", text)]
        if low <= 1 <= high and low < high:
            assert any("holds both gain and loss" in text for text in naming)
            assert not any("tokens a second than" in text for text in naming)
        elif one.throughput_gain.low is None and value != 1:
            assert any("by the values alone" in text for text in naming)
            assert not any(text.startswith("on gives") for text in naming)
        elif "gains up to" not in even.words:
            words = "give the same" if low == high == 1 else "more tokens a second than" if low > 1 else "fewer"
            assert any(words in text for text in naming)


def test_what_the_speed_leaves_out_is_said_wherever_it_is_shown(tmp_path: Path) -> None:
    results = summarize(two_arms())
    (overview, _) = tables(results)
    assert "is left out" in str(overview.caption)
    assert markdown(results).count("is left out") == 1
    alone = summarize(run_of([info("one")], [span("one")], [record("one")]))
    assert not alone.cases[0].leaves_out_tokens
    assert "left out" not in markdown(alone)
    assert "every user had a request under way" in markdown(alone)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    assert "is left out" not in markdown(read_results(tmp_path / "vllm.json")).replace("ITL is left out", "")


def test_cores_are_no_sockets() -> None:
    assert processor_in_words("AMD EPYC", 2) == "AMD EPYC, 2 cores"
    assert processor_in_words("x", 1) == "x, 1 core"
    results = summarize(run_of([info("one")], [span()], [record()]))
    assert "| client | X, 2 cores |" in markdown(results)
