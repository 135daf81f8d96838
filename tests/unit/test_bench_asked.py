"""What a user asks of paceline bench is done or refused by its name, and never overwritten or left out in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_serve_fakes import Json, bench_says, canned_server, info, plain, raw, record, span, speculating
from typer.testing import CliRunner

from paceline.bench.page.charts import charts
from paceline.bench.page.markdown import markdown
from paceline.bench.page.tables import overview
from paceline.bench.serve.counting import request_fields
from paceline.bench.serve.drift import drift
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.prompts import read_prompts
from paceline.bench.serve.records import Load
from paceline.bench.serve.results import Comparison
from paceline.bench.serve.summary import summarize
from paceline.bench.shapes import locate_model, named_as_given
from paceline.cli.app import app
from paceline.errors import ConfigurationError

NOBODY = "http://127.0.0.1:9"  # discard: no server of any test


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and pictures take seconds, and are not what these tests are about."""
    monkeypatch.setattr("paceline.bench.page.renderers.write_report", lambda results, folder: ([], []))


# A gain is named by what is gained


def a_rate(arm: str, pace: int) -> Any:
    events = [(20_000 + place * pace, place + 1) for place in range(20)]
    rate = Load("rate", 2)
    one = record(arm, events=events, end_us=events[-1][0], completion_tokens=20)
    one.load = rate
    case = span(arm, end_us=2_000_000)
    case.load = rate
    return one, case


def test_with_arrivals_the_gain_is_in_pace_and_says_so() -> None:
    pairs = [a_rate("on", 5_000), a_rate("off", 10_000)]
    results = summarize(raw([info("on"), info("off")], [case for _, case in pairs], [one for one, _ in pairs]))
    table = overview(results)
    assert "gain in pace" in table.headings
    assert "gain in tok/s" not in table.headings
    assert [row[3] for row in table.rows] == ["2.00x", "-"]
    assert "mean TPOT of the baseline over the arm's" in table.note
    assert "gain in pace" in markdown(results)
    assert [chart.title for chart in charts(results) if "Throughput gain" in chart.title] == []
    (compared,) = results.comparisons
    assert (compared.throughput_gain, compared.gain_words) == (None, "gain in pace")


def test_with_users_and_arrivals_each_has_its_column() -> None:
    pairs = [a_rate("on", 5_000), a_rate("off", 10_000)]
    pairs += [(record(arm), span(arm)) for arm in ("on", "off")]
    results = summarize(raw([info("on"), info("off")], [case for _, case in pairs], [one for one, _ in pairs]))
    table = overview(results)
    places = [table.headings.index(name) for name in ("gain in tok/s", "gain in pace")]
    assert [[row[place] for place in places] for row in table.rows] == [
        ["-", "2.00x"], ["-", "-"], ["1.00x", "-"], ["-", "-"],
    ]  # fmt: skip


def test_a_drift_is_held_against_a_gain_by_its_name() -> None:
    load = Load("users", 2)
    records = []
    for number in range(6):
        for place in range(10):
            pace = 10_000 + 100 * number + place
            events = [(20_000 + step * pace, step + 1) for step in range(20)]
            one = record("off", round=number, number=place, prompt=place, events=events)
            one.load = load
            records.append(one)
    gain = Comparison("on", "off", load, Estimate(2, 1.99, 2.01), None, None)
    (line,) = drift({("off", load): records}, "off", [gain])
    assert line.endswith("by more than the interval of the gain in tok/s is wide to a side.")


# Fields of every request


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"extra_body": {"cache_salt": "x"}}, "With --shared-prefixes yours counts"),
        ({"extra_body": {"logprobs": 5}, "counting": "logprobs"}, "'logprobs' is set by --count logprobs"),
        ({"extra_body": {"speculation": {"num_speculative_tokens": 3}}}, "an option of its own: --speculation"),
        ({"extra_body": {"speculation": 3}}, "'speculation' must be an object"),
    ],
)
def test_a_field_that_the_benchmark_would_overwrite_is_refused(fields: Json, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ServeOptions(**{"servers": {"a": "http://h:1"}} | fields)


@pytest.mark.usefixtures("no_report")
def test_fields_that_are_not_refused_are_sent(tmp_path: Path) -> None:
    extra = {"cache_salt": "mine", "speculation": {"proposer": "ngram"}, "logprobs": True, "top_p": 0.5}

    def reply(path: str, asked: Json) -> list[bytes] | None:
        told = asked.get("speculation") or {}
        return speculating(path, asked | {"speculation": told if "num_speculative_tokens" in told else None})

    with canned_server(reply) as (address, seen):
        run = CliRunner().invoke(
            app,
            ["bench", "serve", "--url", address, "--concurrency", "1", "--num-prompts", "2", "--seeds", "0",
             "--warmup", "1", "--shared-prefixes", "--extra-body", json.dumps(extra), "--out", str(tmp_path / "out")],
        )  # fmt: skip
    assert run.exit_code == 0, run.output
    asked = [body for path, body, _ in seen if path.endswith("completions") and body["max_tokens"] == 256]
    assert len(asked) == 4
    for body in asked:
        told = body["speculation"]
        assert told.pop("num_speculative_tokens", 0) == 0
        assert {name: body[name] for name in extra} == extra
    header = json.loads((tmp_path / "out" / "requests.jsonl").read_text().splitlines()[0])
    assert header["baseline"] == "speculation off"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"seed": NaN}', "NaN and infinity are no numbers of JSON"),
        ('{"seed": 1e999}', "NaN and infinity are no numbers of JSON"),
        ('{"seed": 1, "seed": 2}', "'seed' is given more than once"),
        ('{"seed": ', "this is not JSON"),
        ("[1]", "give a JSON object"),
    ],
)
def test_what_is_wrong_with_an_object_is_said(tmp_path: Path, text: str, said: str) -> None:
    assert said in bench_says("serve", "--url", NOBODY, "--extra-body", text, "--out", str(tmp_path / "out"))


# Options


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "serve", "--seeds", "0", "--seeds", "1"],
        ["bench", "offline", "--model", "smollm2-135m", "-k", "0", "-k", "3"],
        ["bench", "report", "x.json", "--out", "a", "--out=b"],
        ["plan", "llama-3.1-70b", "--users", "1", "--users", "2"],
    ],
)
def test_an_option_of_one_value_given_twice_is_refused(arguments: list[str]) -> None:
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 2
    assert "given more than once; give one value" in " ".join(run.output.replace("│", " ").split())


def test_one_line_says_what_is_wrong_with_several_loads() -> None:
    for fields, said in (
        ({"num_prompts": 2}, "--num-prompts 2 is too few for 16 users"),
        ({"loads": [Load("users", 0), Load("users", -1)]}, "--concurrency must be from 1"),
        ({"seeds": [-1, -2]}, "--seeds must be from 0"),
    ):
        loads = {"loads": [Load("users", users) for users in (4, 8, 16)]}
        with pytest.raises(ConfigurationError, match=said) as refused:
            ServeOptions(**{"servers": {"a": "http://h:1"}} | loads | fields)
        assert "\n" not in str(refused.value)


def test_a_length_beyond_the_model_s_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    def reply(path: str, asked: Json) -> list[bytes] | None:
        if path == "/v1/models":
            return [plain("200 OK", {"data": [{"id": "small", "max_model_len": 512}]})]
        return speculating(path, asked)

    with canned_server(reply) as (address, seen):
        said = bench_says("serve", "--url", address, "--input-len", "500", "--out", str(tmp_path / "out"))
        named = bench_says(
            "serve", "--url", address, "--model", "small", "--input-len", "500", "--out", str(tmp_path / "o")
        )
    assert said == named
    assert "--input-len 500 and --max-tokens 256 are 756 tokens, and small at" in said
    assert "takes 512: give fewer" in said
    assert {path for path, _, _ in seen} == {"/v1/models"}


@pytest.mark.usefixtures("no_report")
def test_one_server_under_two_names_is_said(tmp_path: Path) -> None:
    with canned_server(speculating) as (address, _):
        other = address.replace("127.0.0.1", "localhost")
        run = CliRunner().invoke(
            app,
            ["bench", "serve", "--url", f"a={address}", "--url", f"b={other}/v1", "--concurrency", "1",
             "--num-prompts", "2", "--seeds", "0", "--warmup", "0", "--out", str(tmp_path / "out")],
        )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert "a and b are one server: what lies between them" in (tmp_path / "out" / "requests.jsonl").read_text()
    assert "Give each a name of its own" in bench_says("serve", "--url", f"a={NOBODY}", "--url", "a=http://h:1")


def test_a_shape_is_named_as_it_was_given_and_not_by_its_copy(tmp_path: Path) -> None:
    located = locate_model("smollm2-135m", tmp_path / "target")
    table = {"model": f"smollm2-135m ({located.model})", "draft": "mine (/models/mine)", "device": "cpu (2 cores)"}
    assert named_as_given(table, tmp_path) == table | {"model": "smollm2-135m"}


def test_logprobs_are_asked_for_as_the_endpoint_takes_them_and_tried_first(tmp_path: Path) -> None:
    assert request_fields("logprobs", "completions")["logprobs"] == 1
    assert request_fields("logprobs")["logprobs"] is True

    def without(path: str, asked: Json) -> list[bytes] | None:
        return speculating(path.replace("v1/completions", "v1/chat/completions"), asked)

    with canned_server(without) as (address, seen):
        for endpoint in ("chat", "completions"):
            said = bench_says(
                "serve", "--url", address, "--count", "logprobs", "--endpoint", endpoint, "--out", str(tmp_path / "out")
            )
            assert "--count logprobs: small cannot be counted so (its chunks carry no log-probabilities)" in said
    assert len([path for path, _, _ in seen if path.endswith("completions")]) == 4


# Prompts


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.jsonl", '{"prompt": "a", "prompt": "b"}\n', "line 1: 'prompt' is given more than once"),
        ("p.json", '[{"conversations": [], "conversations": []}]', "'conversations' is given more than once"),
        ("p.jsonl", '{"prompt": "a", "category": ["x"]}\n', "line 1: category must be a word"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}\n', "both of them text"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": null}]}\n', "both of them text"),
    ],
)
def test_prompts_that_say_two_things_or_nothing_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_prompts(tmp_path / name)


def test_fields_that_are_not_asked_are_named_once(tmp_path: Path) -> None:
    rows: list[Json] = [{"prompt": f"p{n}", "question_id": n, "reference": "r"} for n in range(1200)]
    rows.append({"messages": [{"role": "user", "content": "u", "name": "x"}, {"role": "assistant", "content": "a"}],
                 "prompt": 5})  # fmt: skip
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts, notes = read_prompts(tmp_path / "p.jsonl")
    assert len(prompts) == 1201
    assert notes == [
        "p.jsonl has fields that are not asked, in so many prompts: 'reference' (1,200), 'prompt' (1), "
        "'messages: name' (1), 'messages after the last user's: assistant' (1)."
    ]


def test_a_file_of_sharegpt_says_what_of_it_is_not_asked(tmp_path: Path) -> None:
    def part(who: str, said: str) -> Json:
        return {"from": who, "value": said}

    rows = [
        {"id": "1", "conversations": [part("system", "be brief"), part("human", "hi"), part("gpt", "yo")]},
        {"id": "2", "conversations": [part("gpt", "yo")]},
        {"id": "3", "conversations": [part("human", "hi"), part("tool", "42")], "source": "x"},
    ]
    (tmp_path / "s.json").write_text(json.dumps(rows))
    prompts, notes = read_prompts(tmp_path / "s.json")
    assert prompts[0].messages(0, ()) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert notes == [
        "s.json has fields that are not asked, in so many prompts: 'source' (1), 'from: tool' (1).",
        "s.json: 1 entry without words of a human left out.",
    ]
