"""Files that were edited after they were written are told by the digests that they carry (digests.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_serve_fakes import two_arms

from paceline.bench.digests import Chain, first_edited, with_digest
from paceline.bench.serve.reading import read_results
from paceline.bench.serve.records import RawWriter, read_raw
from paceline.bench.serve.results import write_results
from paceline.bench.serve.summary import summarize
from paceline.errors import ConfigurationError

Json = dict[str, Any]


@pytest.fixture
def raw_path(tmp_path: Path) -> Path:
    whole = two_arms(users=(1, 8), rounds=2)
    whole.header.arms[0].num_gpus = 2
    writer = RawWriter(tmp_path / "requests.jsonl", whole.header)
    for span in whole.spans:
        key = (span.arm, span.load, span.round)
        writer.write([*(r for r in whole.records if (r.arm, r.load, r.round) == key), span])
    writer.close()
    return tmp_path / "requests.jsonl"


def test_what_was_written_is_read(raw_path: Path) -> None:
    assert len(read_raw(raw_path).spans) == 8
    assert read_results(raw_path).cases


def edited(path: Path, number: int, change: Callable[[Json], object]) -> None:
    """One line, by hand: written as JSON is."""
    lines = path.read_bytes().splitlines()
    line = json.loads(lines[number - 1])
    change(line)
    lines[number - 1] = json.dumps(line, separators=(", ", ": ")).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["arms"][0].update(num_gpus=1),
        lambda header: header.update(baseline="on"),
        lambda header: header["options"].update(timeout=5),
        lambda header: header["environment"].update(date="2027-01-01"),
    ],
)
def test_a_run_line_that_was_edited(raw_path: Path, change: Callable[[Json], object]) -> None:
    edited(raw_path, 1, change)
    with pytest.raises(ConfigurationError, match="line 1: it or a line before it was changed after it was written"):
        read_raw(raw_path)


def test_a_request_that_was_edited_so_that_it_still_fits(raw_path: Path) -> None:
    edited(raw_path, 2, lambda record: record.update(lag_us=5))
    with pytest.raises(ConfigurationError, match=r"line \d+: it or a line before it was changed"):
        read_raw(raw_path)


def test_a_run_that_was_cut_short_is_read_as_far_as_it_goes(raw_path: Path) -> None:
    lines = raw_path.read_bytes().splitlines(keepends=True)
    raw_path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:20])
    assert read_raw(raw_path).is_cut


def test_files_of_before_carry_no_digest(raw_path: Path) -> None:
    lines = [json.loads(line) for line in raw_path.read_bytes().splitlines()]
    for line in lines:
        line.pop("digest", None)
    raw_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(read_raw(raw_path).spans) == 8


@pytest.mark.parametrize(
    "change",
    [
        lambda results: results["comparisons"][0]["throughput_gain"].update(low=0.001),
        lambda results: results["cases"][0]["latency_ms"]["itl"]["mean"].update(value=1.0),
        lambda results: results["notes"].append("all is well"),
        lambda results: results.pop("break_even"),
    ],
)
def test_a_bench_json_alone_that_was_edited(tmp_path: Path, change: Callable[[Json], object]) -> None:
    path = tmp_path / "bench.json"
    write_results(path, summarize(two_arms(users=(1, 8), rounds=2)))
    assert read_results(path).cases
    results = json.loads(path.read_text())
    path.write_text(json.dumps(results, indent=7))
    assert read_results(path).cases, "another layout of the same is no edit"
    change(results)
    path.write_text(json.dumps(results))
    with pytest.raises(ConfigurationError, match=r"bench\.json"):
        read_results(path)


def test_a_line_is_told_by_all_before_it() -> None:
    chain, lines = Chain(), []
    for text in (b'{"a":1,"digest":null}', b'{"b":2}', b'{"c":3,"digest":null}'):
        digest = chain.add(json.loads(text))
        lines.append(with_digest(text, digest) if b"digest" in text else text)
    assert first_edited(lines) is None
    assert first_edited([lines[0], b'{"b":3}', lines[2]]) == 3
    assert first_edited([lines[0], lines[2]]) == 2
    assert first_edited(lines[:2]) is None
    assert first_edited([line.replace(b":", b" : ") for line in lines]) is None, "blanks say nothing"


def test_a_digest_that_was_taken_out_of_a_sealed_file(raw_path: Path) -> None:
    """Else the last case could be changed by hand: no line behind it tells of it."""
    edited(raw_path, len(raw_path.read_bytes().splitlines()), lambda case: case.pop("digest"))
    with pytest.raises(ConfigurationError, match=r"line \d+: it or a line before it was changed"):
        read_raw(raw_path)


def test_a_file_without_any_digest_is_taken_and_said(tmp_path: Path, raw_path: Path) -> None:
    said = "carries no digest"
    assert not any(said in note for note in read_results(raw_path).notes)
    lines = [json.loads(line) for line in raw_path.read_bytes().splitlines()]
    for line in lines:
        line.pop("digest", None)
    raw_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(said in note for note in read_results(raw_path).notes)
    alone = tmp_path / "alone" / "bench.json"
    alone.parent.mkdir()
    write_results(alone, summarize(two_arms(users=(1, 8), rounds=2)))
    assert not any(said in note for note in read_results(alone).notes)
    results = json.loads(alone.read_text())
    del results["digest"]
    alone.write_text(json.dumps(results))
    assert any(said in note for note in read_results(alone).notes)
