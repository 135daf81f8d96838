"""Edited results: every relation that holds between figures is checked where they are read, and what fails is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from bench_serve_fakes import record, two_arms
from test_bench_report import VLLM, guidellm

from paceline.bench.serve.ask import Listener, fill, speculation_counts
from paceline.bench.serve.counters import Counters
from paceline.bench.serve.counting import UsageTally
from paceline.bench.serve.reading import read_results
from paceline.bench.serve.records import Counts, Reads
from paceline.bench.serve.results import write_results
from paceline.bench.serve.sse import Chunk, Details, Usage
from paceline.errors import ConfigurationError

Json = dict[str, Any]
Change = Callable[[Any], object]
_TOLD = {"drafts": 4, "draft_tokens": 8, "accepted_tokens": 5, "accepted_per_position": [3, 2], "passes": 16}


def run() -> list[Json]:
    """The lines of a whole requests.jsonl with everything in it."""
    whole = two_arms(users=(1, 2), rounds=2)
    arms = {arm.name: arm for arm in whole.header.arms}
    arms["on"].num_gpus, arms["on"].price_per_hour = 2, 3.0
    whole.header.options |= {"seeds": [0, 1], "loads": ["1 user", "2 users"], "max_tokens": 64, "goodput": {"ttft": 50}}
    for one in whole.records:
        one.cached_tokens = 3
        if one.arm == "on":
            one.speculation = msgspec.convert(_TOLD | {"passes": one.num_tokens - 5}, Counts)
    for place, span in enumerate(whole.spans):
        span.seed, span.reads, span.requests = span.round, Reads(9, 1, 2, 11_000), int(4 * span.load.value)
        span.counters = {"drafts": 400, "draft_tokens": 800, "accepted_tokens": 500, "passes": 900}
        span.accepted_per_position = [300, 200]
        assert span.place == place
    lines: list[Json] = [{"kind": "run"} | msgspec.to_builtins(whole.header)]
    for span in whole.spans:
        lines += [msgspec.to_builtins(one) for one in whole.records
                  if (one.arm, one.load, one.round) == (span.arm, span.load, span.round)]  # fmt: skip
        lines.append(msgspec.to_builtins(span))
    return lines


RUN = run()
CASE = next(number for number, line in enumerate(RUN, 1) if line["kind"] == "case")


def written(path: Path, lines: list[Json]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def edited(number: int, change: Change) -> list[Json]:
    lines = copy.deepcopy(RUN)
    change(lines[number - 1])
    return lines


def test_a_whole_run_is_read_from_its_raw_file_and_from_its_figures(tmp_path: Path) -> None:
    found = read_results(written(tmp_path / "requests.jsonl", RUN))
    write_results(tmp_path / "alone.json", found)
    assert read_results(tmp_path / "alone.json").cases == found.cases


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (2, lambda r: r.update(end_us=146_666), "end_us is 146666, and the last of its events is at 146667"),
        (2, lambda r: r["events"].__setitem__(-1, (10**9, 20)), "the last of its events is at 1000000000"),
        (2, lambda r: r["events"].pop(), "completion_tokens is 20, and its events end at 19 tokens"),
        (2, lambda r: r.update(completion_tokens=99), "completion_tokens is 99, and its events end at 20"),
        (2, lambda r: r.update(cached_tokens=11), "cached_tokens is 11, and prompt_tokens 10"),
        (2, lambda r: r["speculation"].update(passes=3), "passes is 3, and those of them with drafts are 4"),
        (2, lambda r: r["speculation"].update(passes=4), "is 20, and 4 passes with 5 accepted drafts give 9 at most"),
        (2, lambda r: r["speculation"].update(accepted_tokens=6), "is 6, and accepted_per_position add up to 5"),
        (2, lambda r: r["speculation"].update(accepted_per_position=[2, 3]), "3 at place 2, and place 1 2"),
        (2, lambda r: r["speculation"].update(accepted_per_position=[5]), "5 at place 1, and drafts 4"),
        (2, lambda r: r["speculation"].update(draft_tokens=3), "draft_tokens is 3, and drafts, of one token at least"),
        (2, lambda r: r["speculation"].update(draft_tokens=4), "accepted_tokens is 5, and draft_tokens 4"),
        (2, lambda r: r.update(start_us=10**8), "from 0 to 3246667 us, and its request 0 .line 2. from 1000"),
        (2, lambda r: r.update(prompt=7), r"prompt is 0 \(qa\), and 7 \(qa\) in line 2"),
        (2, lambda r: r.update(category="x"), r"prompt is 0 \(qa\), and 0 \(x\) in line 2"),
        (2, lambda r: r.update(start_us=-1), "Expected `int` >= 0"),
        (2, lambda r: r.update(lines=1), "unknown field `lines`"),
        (2, lambda r: r["load"].update(kind="people"), "Invalid enum value 'people'"),
        (1, lambda r: r["options"].update(max_tokens=10), "completion_tokens is 20, and max_tokens of the run 10"),
        (CASE, lambda r: r.update(seed=5), "seed is 5, and 0 in the header"),
        (CASE, lambda r: r.update(end_us=0), "from 0 to 0 us, and its request 0 .line 2. from 0 to 1466"),
        (CASE, lambda r: r.update(end_us=10**9), "it is case 1 from 3246667 us on, and case 0 ended at 1000000000"),
        (CASE, lambda r: r.update(place=3), "it is case 3"),
        (CASE, lambda r: r.update(requests=3), "it had 3 requests, and 4 are there"),
        (2, lambda r: r.update(number=7), "request 0 is not there from its first turn on, and 7 is"),
        (2, lambda r: r.update(turn=1), "request 0 is not there from its first turn on"),
        (2, lambda r: r.update(end_us=10**6 + 1), "2 requests were under way at a time"),
        (1, lambda r: r["options"].update(num_prompts=3), "it had 4 requests, and num_prompts of the run is 3"),
        (CASE, lambda r: r["counters"].update(drafts=-1), "Expected `float` >= 0"),
        (CASE, lambda r: r["counters"].update(accepted_tokens=900), "accepted_tokens is 900, and draft_tokens 800"),
        (CASE, lambda r: r["counters"].update(passes=300), "drafts is 400, and passes 300"),
        (CASE, lambda r: r.update(accepted_per_position=[1, 1]), "accepted_tokens is 500, and the sum"),
        (CASE, lambda r: r["reads"].update(late=10), "reads: count is 9, own_time 1 and late 10"),
        (CASE, lambda r: r["reads"].update(longest_lag_us=5), "reads: 2 were late, and longest_lag_us is 5"),
    ],
)  # fmt: skip
def test_a_line_whose_figures_contradict_each_other_is_refused(
    tmp_path: Path, line: int, change: Change, said: str
) -> None:
    path = written(tmp_path / "requests.jsonl", edited(line, change))
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_results(path)
    assert str(path) in str(refused.value)
    if "xpected" not in said and "unknown" not in said and "enum" not in said:
        assert "The file was edited or cut; run it again." in str(refused.value)


def case_of(content: Json) -> Json:
    found: Json = content["cases"][0]
    return found


def latency(content: Json, metric: str, statistic: str, value: float) -> None:
    case_of(content)["latency_ms"][metric][statistic] = {"value": value}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: case_of(c)["output_tok_s"].update(value=-5), "value of -5, below 0"),
        (lambda c: case_of(c)["output_tok_s"].update(value=1e9), "output_tok_s is 1e.09, and its interval"),
        (lambda c: case_of(c).update(output_tok_s={"value": 9e9}), "output_tok_s is .*, and its parts give 33.8809"),
        (lambda c: case_of(c)["output_tok_s"].update(low=900.0, high=1.0), "and its interval 900.0 to 1.0"),
        (lambda c: case_of(c)["output_tok_s"].update(low=-50.0), "its interval begins at -50, below 0"),
        (lambda c: case_of(c).update(per_user_tok_s={"value": 7}), "per_user_tok_s is 7, and its parts give"),
        (lambda c: case_of(c).update(per_gpu_tok_s={"value": 7}), "per_gpu_tok_s is 7, and its parts give"),
        (lambda c: case_of(c).update(usd_per_million_tokens={"value": 7}), "usd_per_million_tokens is 7, and"),
        (lambda c: case_of(c).update(interactivity_tok_s={"value": 7}), "interactivity_tok_s is 7, and its parts"),
        (lambda c: case_of(c).update(requests_per_second=99), "requests_per_second is 99, and its parts give"),
        (lambda c: case_of(c).update(goodput_share={"value": 2}), "goodput_share is 2, above 1"),
        (lambda c: case_of(c).update(output_tokens=1), "1 output tokens in 8 answers"),
        (lambda c: case_of(c).update(output_tokens=50), "50 output tokens, and .* in the slices"),
        (lambda c: c["options"].update(num_prompts=3), "8 requests in 2 rounds of 3 prompts"),
        (lambda c: c["options"].update(max_tokens=3), "220 output tokens in 8 answers of at most 3"),
        (lambda c: case_of(c).update(cached_tokens=10**6), "cached_tokens is 1000000"),
        (lambda c: case_of(c).update(num_failed=2), "requests_per_second is .*, and its parts give"),
        (lambda c: case_of(c).update(errors={"x": 2}), "0 failed, and errors name 2"),
        (lambda c: case_of(c).update(num_rounds=3), "3 rounds, and 2 seeds"),
        (lambda c: case_of(c)["load"].update(value=3), "3 users: .*"),
        (lambda c: latency(c, "ttft", "p90", 90.0), "TTFT P95 is 20 ms, and P90 90 ms"),
        (lambda c: latency(c, "ttft", "mean", 9e3), "TTFT MEAN is 9000 ms, above E2E MEAN"),
        (lambda c: latency(c, "itl", "mean", 99.0), "ITL MEAN is 99 ms, above GAP MEAN"),
        (lambda c: latency(c, "e2e", "p99", 1e5), "E2E P99 is 100000 ms, and the case took"),
        (lambda c: latency(c, "e2e", "p99.9", 1e5), "latency_ms has e2e with"),
        (lambda c: latency(c, "e2e", "mean", 1e5), r"answers took 800 s together \(E2E\), and 1 user had"),
        (lambda c: case_of(c)["acceptance"].update(accepted_tokens=999), "accepted_tokens is 999, and draft_tokens 64"),
        (lambda c: case_of(c)["acceptance"].update(per_position=[0.5, 0.75]), "per_position has 0.75 at place 2"),
        (lambda c: case_of(c)["acceptance"].update(per_position=[0.5]), "is 40, and per_position times drafts 16"),
        (lambda c: case_of(c)["acceptance"].update(drafts=20), "acceptance_by_category add|per_position times"),
        (lambda c: case_of(c)["passes"].update(count=1), "count is 1, and passes_by_category add up to"),
        (lambda c: c["cases"].append(case_of(c)), "on, 1 user: the case is there twice"),
        (lambda c: c["comparisons"][0]["throughput_gain"].update(value=9, high=9), "gain is 9, and its sides"),
        (lambda c: c["comparisons"][0].update(ttft_gain={"value": 9}), "ttft_gain is 9, and its sides are 20 and 20"),
        (lambda c: c["comparisons"][0].update(pace_gain={"value": 9}), "pace_gain is 9, and its sides are 10 and 6.6"),
        (lambda c: c["comparisons"][0].update(num_pairs=99), "99 pairs of 8 and 8 answers"),
        (lambda c: c["comparisons"][0].update(same_texts=9), "9 same texts in 8 pairs"),
        (lambda c: c["comparisons"][0]["load"].update(value=4), "a comparison without a case of each"),
        (lambda c: c["arms"][0].update(gpus=3), "unknown field `gpus`"),
    ],
)  # fmt: skip
def test_a_bench_json_whose_figures_contradict_each_other_is_refused(
    tmp_path: Path, own: Json, change: Change, said: str
) -> None:
    change(own)
    (tmp_path / "bench.json").write_text(json.dumps(own))
    with pytest.raises(ConfigurationError, match=said):
        read_results(tmp_path / "bench.json")


def test_figures_beside_their_raw_file_are_derived_anew(tmp_path: Path, own: Json) -> None:
    found = read_results(written(tmp_path / "requests.jsonl", RUN))
    own["break_even"][0]["words"] = "on is always better"
    own["notes"].append("The run did not end: the cable was cut.")
    (tmp_path / "bench.json").write_text(json.dumps(own))
    anew = read_results(tmp_path)
    assert (anew.cases, anew.break_even) == (found.cases, found.break_even)
    assert anew.notes == [*found.notes, "The run did not end: the cable was cut."]
    case_of(own).update(output_tok_s={"value": case_of(own)["output_tok_s"]["value"] * 1.0005})
    (tmp_path / "bench.json").write_text(json.dumps(own))
    again = read_results(tmp_path / "bench.json")
    assert again.cases == found.cases
    assert "has other figures than its requests.jsonl gives (on, 1: output_tok_s value" in again.notes[-1]
    own["environment"] = {"date": "2026-12-01"}
    (tmp_path / "bench.json").write_text(json.dumps(own))
    assert any("is of another run than bench.json" in note for note in read_results(tmp_path).notes)
    (tmp_path / "bench.json").unlink()
    assert read_results(tmp_path).cases == found.cases  # of a run that was killed


def test_a_number_that_is_none_is_named_as_such(tmp_path: Path, own: Json) -> None:
    """And not as whatever the parser meets where it tries the lines one by one."""
    own["options"]["seeds"] = [float("nan")]
    (tmp_path / "bench.json").write_text(json.dumps(own, indent=1))
    with pytest.raises(ConfigurationError, match="is not JSON: it holds NaN, which is no finite number"):
        read_results(tmp_path / "bench.json")
    (tmp_path / "lines.json").write_text(json.dumps(VLLM) + "\n" + json.dumps(VLLM | {"duration": float("inf")}))
    with pytest.raises(ConfigurationError, match="it holds Infinity, which is no finite number"):
        read_results(tmp_path / "lines.json")


def test_what_a_break_even_says_is_derived_from_the_gains(tmp_path: Path, own: Json) -> None:
    words = own["break_even"][0]["words"]
    own["break_even"][0] |= {"words": "on is always better", "users": 9e9}
    (tmp_path / "bench.json").write_text(json.dumps(own))
    (found,) = read_results(tmp_path / "bench.json").break_even
    assert found.words == words


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"p99_ttft_ms": 1.0}, "TTFT P99 is 1 ms, and P50 45 ms"),
        ({"spec_decode_accepted_tokens": 900}, "accepted_tokens is 900, and draft_tokens 300"),
        ({"spec_decode_per_position_acceptance_rates": [0.2, 0.5, 0.8]}, "per_position has 0.5 at place 2"),
        ({"request_goodput": 9.0}, "goodput_requests_per_second is 9"),
        ({"mean_e2el_ms": 1.0}, "TTFT MEAN is 50 ms, above E2E MEAN of 1 ms"),
        ({"failed": 0, "output_lens": [10] * 16}, "output_lens add up to 160, and total_output_tokens is 3000"),
        ({"failed": 0, "ttfts": [0.5] * 15}, "ttfts have a mean of 500 ms, and mean_ttft_ms is 50"),
    ],
)
def test_edited_files_of_vllm_are_refused(tmp_path: Path, change: Json, said: str) -> None:
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM | change))
    with pytest.raises(ConfigurationError, match=said):
        read_results(tmp_path / "vllm.json")


def test_edited_files_of_guidellm_are_refused(tmp_path: Path) -> None:
    content = guidellm({"type_": "synchronous"})
    distribution = content["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]
    for change, said in (
        ({"percentiles": {"p50": 9, "p90": 8, "p95": 9, "p99": 9}}, "TTFT P90 is 8 ms, and P50 9 ms"),
        ({"mean_ci": {"lower": 99.0, "upper": 100.0}}, "latency_ms ttft mean is 84, and its interval 99.0 to 100.0"),
    ):
        whole = copy.deepcopy(distribution)
        distribution.update(change)
        (tmp_path / "guide.json").write_text(json.dumps(content))
        with pytest.raises(ConfigurationError, match=said):
            read_results(tmp_path / "guide.json")
        distribution.update(whole)


# What a server says, whatever it is, makes a record that can be read


def heard(*usages: Usage, metrics: Json | None = None) -> Listener:
    listener = Listener(UsageTally(), 0, is_done=True, end_us=len(usages), speculation=metrics)
    for micros, usage in enumerate(usages):
        listener.tally.add(micros, Chunk(usage=usage))
        listener.last = Chunk(usage=usage)
    return listener


def test_a_server_that_contradicts_itself_leaves_a_record_that_can_be_read() -> None:
    bare = {"completion_tokens": None, "events": []}
    falling = fill(record(**bare), heard(Usage(7, 5), Usage(7, 3)))
    assert falling.error == "the server counts 5 tokens, and 3 at the end (usage)"
    cached = fill(record(**bare), heard(Usage(7, 5, Details(9))))
    assert (cached.error, cached.cached_tokens, cached.prompt_tokens) == (None, None, 7)
    few = {"acceptance_histogram": [0, 1], "num_spec_steps": 1, "num_draft_tokens": 1, "num_passes": 2}
    assert fill(record(**bare), heard(Usage(7, 3), metrics=few)).speculation is not None
    assert fill(record(**bare), heard(Usage(7, 5), metrics=few)).speculation is None
    untold = fill(record(**bare), heard(Usage(7, 5), metrics=few | {"num_passes": 0})).speculation
    assert untold is not None
    assert untold.passes is None
    for metrics in ({"num_spec_steps": 3}, {"num_accepted_draft_tokens": 0}, {"num_draft_tokens": 0}):
        assert speculation_counts(few | metrics) is None


def test_counters_that_cannot_be_are_left_out() -> None:
    before = Counters("vLLM", {"drafts": 0.0, "draft_tokens": 0.0, "accepted_tokens": 0.0}, (0.0,))
    sound = {"drafts": 100.0, "draft_tokens": 100.0, "accepted_tokens": 90.0}
    assert Counters("vLLM", sound, (85.0,)).since(before).values == sound  # read while it counted
    assert Counters("vLLM", sound | {"passes": 0.0}, ()).since(before).values == sound | {"passes": 0.0}
    assert Counters("vLLM", sound, (20.0,)).since(before).values == {}
    assert Counters("vLLM", sound | {"accepted_tokens": 900.0}, ()).since(before).values == {}


@pytest.fixture(scope="module")
def summarized(tmp_path_factory: pytest.TempPathFactory) -> Json:
    path = written(tmp_path_factory.mktemp("run") / "requests.jsonl", RUN)
    return cast(Json, msgspec.to_builtins(read_results(path)))


@pytest.fixture
def own(summarized: Json) -> Json:
    """A bench.json without its raw file."""
    return copy.deepcopy(summarized)
