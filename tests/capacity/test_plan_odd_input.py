"""`paceline plan` with what nobody should type: it says what is wrong, by its option, and never a traceback."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace
from math import isfinite, log
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from paceline.bench.sweep import Models, Sweep, plan_engines
from paceline.capacity.calibration import predict
from paceline.capacity.comparison import gpu_names
from paceline.capacity.efficiency import Efficiency
from paceline.capacity.hardware import load_gpus
from paceline.capacity.measurement import read_measurement
from paceline.capacity.prices import choose_price, load_prices
from paceline.capacity.request import BOUNDS, Request, read_request
from paceline.cli.app import app
from paceline.cli.plan import NOT_MET
from paceline.cli.plan import plan as plan_command
from paceline.errors import ConfigurationError

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SMALL = ["llama-3.1-8b", "--draft", "llama-3.2-1b", "-k", "0,3", "--tp", "1"]
PRICE = '[[prices]]\ncloud = "{cloud}"\ngpu = "{gpu}"\nusd_per_gpu_hour = {usd}\nsource = "x"\nchecked = "2026-11-30"\n'
_PLAN = get_command(app).commands["plan"]  # type: ignore[attr-defined]
KINDS = get_type_hints(plan_command)  # by parameter
NUMERIC = [max(p.opts, key=len) for p in _PLAN.params if KINDS.get(p.name) in (int, float, int | None, float | None)]
ODD = ["0", "-1", "1e300", "-1e300", "1e-300", "nan", "inf", "9" * 30, "9" * 5000, ""]


def plan(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def refused(run: Any) -> str:
    """The message of what was refused; '' where it was not."""
    if run.exit_code in (0, NOT_MET):
        return ""
    if isinstance(run.exception, ConfigurationError):
        return str(run.exception)
    assert run.exit_code == 2, run.exception  # a usage error of the command line's own
    assert isinstance(run.exception, SystemExit)
    return " ".join(run.output.split())


def test_every_number_of_the_command_line_has_bounds() -> None:
    own = {"--acceptance", *(f"--{name.replace('_', '-')}" for name in BOUNDS if name != "cached"), "--cached-prompt"}
    assert set(NUMERIC) == own


@pytest.mark.parametrize("option", NUMERIC)
def test_an_odd_number_is_answered_or_refused_by_name(option: str) -> None:
    for value in ODD:
        run = plan(*SMALL, option, value, "--json")
        if message := refused(run):
            assert option in message, (value, message)
            assert len(message) < 6000 + len(value)
        else:
            found = json.loads(run.stdout)  # it would not be JSON with nan or infinity in it
            assert found["sweep"]["rows"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_numbers_within_bounds_are_planned(data: st.DataObject) -> None:
    """All at once, out to the edges: an answer, or a refusal that names an option; never an overflow."""
    arguments = []
    for name in data.draw(st.sets(st.sampled_from(sorted(BOUNDS)), max_size=8)):
        bounds = BOUNDS[name]
        is_whole = str(Request.__annotations__[name]).startswith("int")
        value = data.draw(
            st.sampled_from([bounds.low, bounds.high])
            | (st.integers(int(bounds.low), int(bounds.high)) if is_whole else st.floats(bounds.low, bounds.high))
        )
        option = "--cached-prompt" if name == "cached" else f"--{name.replace('_', '-')}"
        arguments += [option, str(int(value) if is_whole else value)]
    run = plan(*SMALL, *arguments, "--json")
    message = refused(run)
    assert not message or "--" in message or "Nothing fits" in message, message
    assert message or json.loads(run.stdout)


@pytest.mark.parametrize("usd", ["nan", "inf", "-inf", "0", "-3", "1e300", "1e-300", "9" * 5000, "true", '"2"', "[2]"])
def test_a_price_that_is_none(tmp_path: Path, usd: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(PRICE.format(cloud="ours", gpu="h200", usd=usd))
    message = refused(plan(*SMALL, "--prices", str(path), "--cloud", "ours"))
    assert "usd_per_gpu_hour" in message or "not valid TOML" in message


@pytest.mark.parametrize("field", ["memory_gib", "bandwidth_tb_s", "fp8_tflops", "bf16_tflops", "multiprocessors",
                                   "interconnect_gb_s", "gpus_per_node"])  # fmt: skip
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e300", "1e-300"])
def test_a_card_that_is_none(tmp_path: Path, field: str, value: str) -> None:
    rows = {"memory_gib": "100", "bandwidth_tb_s": "4", "fp8_tflops": "1000", "bf16_tflops": "500",
            "multiprocessors": "100", "interconnect_gb_s": "900", "gpus_per_node": "8"} | {field: value}  # fmt: skip
    text = "[gpus.mine]\n" + "".join(f"{name} = {content}\n" for name, content in rows.items())
    path = tmp_path / "cards.toml"
    path.write_text(text + 'name = "Mine"\nruns_paceline = false\nsource = "x"\nchecked = "2026-11-30"\n')
    assert field in refused(plan(*SMALL, "--hardware", str(path), "--gpu", "mine"))


@pytest.mark.parametrize("option", ["--prices", "--hardware", "--calibration"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[" * 100_000, b"x", b"a = " + b"9" * 5000, "folder"])
def test_a_file_that_is_none_is_named_without_an_errno(tmp_path: Path, option: str, content: Any) -> None:
    path = tmp_path / "file"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    message = refused(plan(*SMALL, option, str(path)))
    assert str(path) in message
    assert "Errno" not in message


@pytest.mark.parametrize("place", ["file/out", "", "none/out"])
@pytest.mark.parametrize("arguments", [[*SMALL, "--out"], [*SMALL, "--html"], ["--list", "--out"]])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str, arguments: list[str]) -> None:
    (tmp_path / "file").touch()
    message = refused(plan(*arguments, str(tmp_path / place)))
    assert "cannot be written" in message
    assert arguments[-1] in message
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


WORST: list[Any] = [None, "x", [], {}, -1, 0, 1e300, float("nan"), float("inf"), True, 10**400]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_calibration_with_anything_in_it_is_used_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """One value of a real run replaced, at any depth."""
    content = copy.deepcopy(RUN)
    at: Any = content
    while True:
        keys = sorted(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(list(keys)))
        if not (isinstance(at[key], dict | list) and at[key]) or data.draw(st.integers(0, 3)) == 0:
            break
        at = at[key]
    at[key] = data.draw(st.sampled_from(WORST))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    with suppress(ConfigurationError):
        found = predict(read_measurement(path, GPUS, GPUS["h200"]), Efficiency())  # the fit is this, many times
        assert all(isfinite(log(case.tokens_per_second / case.case.tokens_per_second)) for case in found)


def _short_run() -> dict[str, Any]:
    run: dict[str, Any] = json.loads((RESULTS / "h200-70b-1b-fp8.json").read_text())
    rows = [row for row in run["results"] if row["batch"] in (1, 8) and row["k"] in (0, 3)]
    wanted = {(row["batch"], row["k"], row["draft_loaded"]) for row in rows}
    runs = [one for one in run["runs"] if (one["batch"], one["k"], one["draft_loaded"]) in wanted]
    return run | {"results": rows, "runs": runs}


GPUS = load_gpus()
RUN = _short_run()


# What would be ignored is refused by its name


def _value(option: str) -> list[str]:
    flags = {"--greedy", "--quantize-lm-head"}
    return [option] if option in flags else [option, "1"]


_TAKEN = {
    "--list": {"--list", "--hardware", "--prices", "--out", "--json"},
    "--preset": {"--preset", "--out", "--json"},
}
EVERY = [max(p.opts, key=len) for p in _PLAN.params if p.param_type_name == "option" and p.name != "help"]


@pytest.mark.parametrize("mode", [["--list"], ["--preset", "llama-70b-4xh100"]])
def test_a_mode_refuses_every_option_that_it_does_not_take(mode: list[str]) -> None:
    others = [option for option in EVERY if option not in _TAKEN[mode[0]] | {"--list", "--preset"}]
    assert len(others) > 25
    message = refused(plan(*mode, "llama-3.1-8b", *(word for option in others for word in _value(option))))
    assert set(message.partition(": leave ")[2].removesuffix(" out.").split(", ")) == {"MODEL", *others}


def test_the_lists_as_json(tmp_path: Path) -> None:
    run = plan("--list", "--json", "--out", str(tmp_path / "known.json"))
    assert json.loads(run.stdout) == json.loads((tmp_path / "known.json").read_text())
    assert json.loads(run.stdout)["gpus"]["h200"]["memory_gib"] > 100


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["llama-3.1-8b", "--acceptance", "0.5"], "--acceptance"),
        (["llama-3.1-8b", "-k", "3"], "-k"),
        (["llama-3.1-8b", "--draft", "llama-3.2-1b", "-k", ""], "-k"),
        ([""], "MODEL is missing"),
        (["llama-3.1-8b", "--draft-tp", "2"], "--draft-tp"),
        (["llama-3.1-8b", "--draft", "ngram", "--draft-quantization", "fp8"], "--draft-quantization"),
        ([*SMALL, "--price", "2", "--cloud", "aws"], "--price or --cloud"),
        ([*SMALL, "--price", "2", "--prices", "p.toml"], "--price or --prices"),
        ([*SMALL, "--users", "2", "--requests-per-second", "2"], "--users or --requests-per-second"),
        ([*SMALL, "--out", "a", "--html", "a"], "--out and --html"),
        ([*SMALL, "--draft-tp", "3"], "--draft-tp 3 must divide"),
        ([*SMALL[:3], "--tp", "1,1"], "--tp 1,1: 1 stands there twice"),
        ([*SMALL[:3], "-k", "0,,2"], "-k 0,,2"),
        ([*SMALL, "--gpu", "h100,h100-sxm"], "h100-sxm stands there twice"),
        ([*SMALL, "--gpu", "h100,,h200"], "a name is empty"),
        (["--preset", "llama-70b-4xh100", "--html", "x.html"], "a table without sliders: leave --html out"),
    ],
)
def test_options_that_exclude_each_other(arguments: list[str], named: str) -> None:
    assert named in refused(plan(*arguments))


@pytest.mark.parametrize("cards", ["h200", "h200,h100"])
def test_an_objective_that_cannot_be_met_has_an_exit_status_of_its_own(tmp_path: Path, cards: str) -> None:
    out = tmp_path / "plan.json"
    asked = [*SMALL, "--users", "4", "--acceptance", "0.7", "--gpu", cards, "--out", str(out)]
    assert plan(*asked).exit_code == 0
    out.unlink()
    run = plan(*asked, "--tpot-ms", "0.01")
    assert run.exit_code == NOT_MET == 3
    assert "objective cannot be met" in " ".join(run.output.split())
    assert out.exists()  # a plan was made, and says how near it comes


# Prices


def test_own_prices_count_without_a_cloud_and_are_told_when_they_do_not(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(PRICE.format(cloud="ours", gpu="H100", usd=2))
    own = read_request(Request(model="llama-3.1-8b", gpu="h100", prices_file=path, users=1))
    assert own.question.price is not None
    assert (own.question.price.cloud, own.question.price.is_own) == ("ours", True)
    other = read_request(Request(model="llama-3.1-8b", gpu="h200", prices_file=path, users=1))
    assert any("no price of h200 (it has: h100-sxm)" in note for note in other.notes)
    listed = read_request(Request(model="llama-3.1-8b", gpu="h100", prices_file=path, users=1, cloud="aws"))
    assert any("not the one in --prices" in note for note in listed.notes)


def test_own_prices_of_several_clouds_need_one_named(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("".join(PRICE.format(cloud=cloud, gpu="h200", usd=2) for cloud in ("a", "b")))
    with pytest.raises(ConfigurationError, match="h200 at a, b: say which counts with --cloud"):
        read_request(Request(model="llama-3.1-8b", prices_file=path, users=1))


def test_a_price_of_a_misspelt_gpu_offers_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(PRICE.format(cloud="ours", gpu="h20O", usd=2))
    with pytest.raises(ConfigurationError, match=r"entry 1 of prices: gpu 'h20O' is not known. Did you mean 'h200'"):
        load_prices(path)


@pytest.mark.parametrize(("costs", "median"), [([3.0], 3.0), ([1.0, 2.0, 9.0], 2.0), ([1.0, 2.0, 4.0, 9.0], 3.0)])
def test_the_median_is_the_usual_one_and_is_explained(costs: list[float], median: float) -> None:
    listed = [price for price in load_prices() if price.gpu == "h200"][:1] * len(costs)
    prices = [
        replace(price, usd_per_gpu_hour=cost, cloud=f"c{place}")
        for place, (price, cost) in enumerate(zip(listed, costs, strict=True))
    ]
    chosen = choose_price(prices, "h200", None)
    assert chosen is not None
    assert (chosen.usd_per_gpu_hour, chosen.gpus) == (median, 1)
    assert ("the mean of the two in the middle" in chosen.in_words()) is (len(costs) % 2 == 0)


def test_what_a_price_rests_on_is_said(tmp_path: Path) -> None:
    """No word of list prices where the user's own count; and how long a month is, wherever a month costs."""
    mine = tmp_path / "p.toml"
    mine.write_text("".join(PRICE.format(cloud="ours", gpu=gpu, usd=2) for gpu in ("h200", "h100")))
    for more in (["--price", "2"], ["--prices", str(mine)], ["--prices", str(mine), "--cloud", "ours"]):
        for cards in ("h200", "h200,h100"):
            text = plan(*SMALL, "--users", "4", "--acceptance", "0.7", "--gpu", cards, *more).stdout
            assert "list price" not in text
            assert "730 hours" in text
            assert "yours" in text or "ours" in text
    mine.write_text(PRICE.format(cloud="ours", gpu="h200", usd=2))
    both = plan(*SMALL, "--gpu", "h200,h100", "--prices", str(mine)).stdout
    assert "ours, x (h200)" in both
    assert "medians of list prices, GPU by GPU (--list) (h100-sxm)" in both


def test_a_comparison_goes_on_where_a_cloud_lacks_a_gpu() -> None:
    text = plan(*SMALL, "--gpu", "h100,mi325x", "--cloud", "lambda").stdout
    assert "none is known at that cloud for mi325x" in text
    assert "no price" in refused(plan(*SMALL, "--gpu", "mi325x,l4", "--cloud", "lambda"))


def test_what_is_wrong_with_a_config_is_said_of_the_file_given(tmp_path: Path) -> None:
    config = tmp_path / "badcfg.json"
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 64}))
    with pytest.raises(ConfigurationError) as refused:
        read_request(Request(model=str(config)))
    assert str(config) in str(refused.value)
    assert "paceline-plan-" not in str(refused.value)
    models = Models(model=str(config), engine={"device": "cpu"})
    with pytest.raises(ConfigurationError) as refused:
        plan_engines(models, Sweep(), tmp_path / "copies")
    assert "copies" not in str(refused.value)


def test_all_stands_alone() -> None:
    with pytest.raises(ConfigurationError, match="'all' stands alone"):
        gpu_names("all,h200", load_gpus())


def test_a_price_of_a_day_to_come_is_refused(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    lines = ["[[prices]]", 'cloud = "c"', 'gpu = "h200"', "usd_per_gpu_hour = 2.0", 'source = "s"']
    prices.write_text("\n".join([*lines, 'checked = "2131-01-01"']))
    with pytest.raises(ConfigurationError, match="checked is 2131-01-01, which is yet to come"):
        load_prices(prices)
    prices.write_text("\n".join([*lines, 'checked = "2025-01-01"']))
    assert load_prices(prices)[0].checked == "2025-01-01"


def test_where_the_cache_is_full_it_is_not_batching_that_is_named() -> None:
    """A draft's cache beside the target's: from some concurrency on there is room for the target alone."""
    pair = ("llama-3.1-8b", "--draft", "llama-3.2-1b", "--acceptance", "0.78", "--tp", "1", "--users", "8")
    full = " ".join(plan(*pair, "--gpu", "l40s", "--input-len", "6000", "--output-len", "400").output.split())
    assert "no K that gains can be had: the cache has no room for so many" in full
    assert "batching has used up" not in full
    roomy = " ".join(plan(*pair, "--gpu", "h200", "--input-len", "100", "--output-len", "100").output.split())
    assert "batching has used up what speculation gains from" in roomy


def test_degrees_that_cannot_be_are_named_with_those_that_can() -> None:
    said = refused(plan("llama-3.1-8b", "--gpu", "h200", "--tp", "3", "--users", "8"))
    assert "--tp 3" in said
    assert "1, 2, 4 and 8 do" in said
    mixed = " ".join(plan("llama-3.1-8b", "--gpu", "h200", "--tp", "1,3", "--users", "8").output.split())
    assert "TP=3 is left out" in mixed
