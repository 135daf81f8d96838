"""`paceline plan` from the command line: tables, JSON, page, errors that name what is wrong; the committed page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.arguments.fields import read_speculative_arguments
from paceline.capacity.hardware import find_gpu, load_gpus
from paceline.capacity.prices import choose_price, load_prices
from paceline.capacity.request import Request, read_request
from paceline.capacity.start_document import PRESET, render_markdown, rows
from paceline.cli.app import app
from paceline.errors import ConfigurationError

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAIR = ["llama-3.1-70b", "--draft", "llama-3.2-1b", "--acceptance", "0.78", "--users", "16"]


def plan(*arguments: str) -> str:
    run = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return run.stdout


def test_tables_say_what_was_assumed() -> None:
    text = plan(*PAIR, "--tpot-ms", "20", "--sell-output", "10", "--cloud", "aws")
    for words in (
        "without",
        "K=5",
        "gain",
        "target weights",
        "Price: $7.91",
        "2026-08-06",
        "kernels measured",
        "rented",
    ):
        assert words in text


def test_commands_to_be_copied_stand_in_one_line() -> None:
    lines = plan(
        *PAIR, "--tp", "2", "-k", "0,3", "--gpu-memory-utilization", "0.85", "--max-num-batched-tokens", "1024"
    )
    (served,) = [line for line in lines.splitlines() if line.startswith("A replica of the cheapest")]
    assert len(served) > 200
    assert json.loads(shlex.split(served[served.index("paceline serve") :])[-1])["num_speculative_tokens"] == 3


def test_json_document(tmp_path: Path) -> None:
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    found = json.loads(plan(*PAIR, "--json", "--out", str(out), "--html", str(page), "-k", "0,3"))
    assert found == json.loads(out.read_text())
    assert found["question"]["users"] == 16
    assert found["gpu"]["source"]
    assert found["efficiency"]["origins"].keys() == found["efficiency"]["values"].keys()
    assert found["command"].startswith("paceline")
    assert found["date"]
    assert found["speculative"]["money"]["usd_per_month"] > 0
    assert page.read_text().startswith("<!doctype html>")


def test_the_serve_command_is_one_that_serve_takes() -> None:
    """Every option of it exists, and its speculative configuration is read."""
    from typer.main import get_command

    found = json.loads(plan(*PAIR, "--tp", "2", "--json", "-k", "0,3", "--gpu-memory-utilization", "0.85"))
    words = shlex.split(found["serve_command"])
    assert words[:3] == ["paceline", "serve", "llama-3.1-70b"]
    options = {name for parameter in get_command(app).commands["serve"].params for name in parameter.opts}  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("--")} <= options
    problems: list[str] = []
    read = read_speculative_arguments({"speculative_config": words[words.index("--speculative-config") + 1]}, problems)
    assert not problems
    assert read is not None
    assert (read.draft_tensor_parallel_size, read.quantization, read.num_speculative_tokens) == (1, "fp8", 3)


def test_gpus_are_compared_cheapest_first(tmp_path: Path) -> None:
    cards, out = "h100,h200,l4,mi325x", str(tmp_path / "c.json")
    text = plan(*PAIR, "--gpu", cards, "--tpot-ms", "15", "--tp", "1,2", "--out", out)
    lines = [line for line in text.splitlines() if line.startswith("│")]
    assert ["no price" in line for line in lines] == [False, False, True, False]
    assert "does not fit" in lines[-1]
    assert lines[2].startswith("│ mi325x *")
    found = json.loads((tmp_path / "c.json").read_text())["comparison"]
    costs = [plans["best"]["money"]["usd_per_month"] for plans in list(found.values())[:2]]
    assert costs == sorted(costs)
    assert found.keys() == {"h100-sxm", "h200", "mi325x"}


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--html", "x.html"], "one GPU"), (["--calibration", "x.json"], "one kind of GPU")],
)
def test_what_a_comparison_cannot_do_is_said(more: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(*PAIR, "--gpu", "all", *more)


def test_known_gpus_and_prices_are_listed_with_sources() -> None:
    text = plan("--list")
    for words in ("mi300x", "h100-nvl", "coreweave", "2026-"):
        assert words in text


def test_the_defaults_are_said() -> None:
    notes = read_request(Request(model="llama-3.1-8b", draft="llama-3.2-1b", gpu="a100-80")).notes
    assert [next(words for words in ("No load", "No acceptance", "no FP8") if words in note) for note in notes] == [
        "No load",
        "No acceptance",
        "no FP8",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "h300"}, r"--gpu 'h300' is not known.*h200"),
        ({"model": "llama-3.1-7b"}, "Unknown model or shape"),
        ({"acceptance": 1.5}, "--acceptance 1.5 is no probability"),
        ({"acceptance_length": 0.5}, "--acceptance-length"),
        ({"acceptance": 0.5, "acceptance_length": 2.0}, "not both"),
        ({"users": 0}, "--users must be from 1 to"),
        ({"users": 3, "requests_per_second": 1.0}, "either --users or"),
        ({"price": 3.0, "cloud": "aws"}, "either --price or --cloud"),
        ({"input_len": 0, "output_len": 0}, r"--input-len .* --output-len"),
        ({"utilization": 0.0}, "--utilization"),
        ({"ks": (0, 99)}, "-k"),
        ({"tps": (3,)}, "--tp 3: none of them divides"),
        ({"price": -1.0}, "--price"),
        ({"cloud": "awss"}, r"--cloud 'awss' is not known. Did you mean 'aws'"),
        ({"cloud": "digitalocean"}, "No price of h200 at 'digitalocean'"),
        ({"draft": "smollm2-135m"}, "must have the target's tokens"),
        ({"quantization": "int4"}, "--quantization 'int4'"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype"),
        ({"max_model_len": 64}, "--max-model-len 64 is less than a request"),
        ({"input_len": 200_000}, "knows 131,072 positions"),
        ({"calibration": Path("missing.json")}, "--calibration 'missing.json'"),
        ({"hardware_file": Path("missing.toml")}, "'missing.toml' cannot be read"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_request(Request(**{"model": "llama-3.1-70b", "draft": "llama-3.2-1b", **change}))  # type: ignore[arg-type]


def test_own_prices_and_own_hardware(tmp_path: Path) -> None:
    prices, hardware = tmp_path / "prices.toml", tmp_path / "cards.toml"
    prices.write_text(
        '[[prices]]\ncloud = "ours"\ngpu = "h200"\nusd_per_gpu_hour = 2\nsource = "contract"\nchecked = "2026-11-30"\n'
    )
    hardware.write_text(
        '[gpus.mine]\nname = "Mine"\nmemory_gib = 100\nbandwidth_tb_s = 4\nfp8_tflops = 1000\nbf16_tflops = 500\n'
        'multiprocessors = 100\ninterconnect_gb_s = 900\ngpus_per_node = 8\nruns_paceline = false\nsource = "x"\n'
        'checked = "2026-11-30"\n'
    )
    own = choose_price(load_prices(prices), "h200", "ours")
    assert own is not None
    assert own.usd_per_gpu_hour == 2
    assert find_gpu("Mine", load_gpus(hardware)).bandwidth == 4e12
    assert choose_price(load_prices(), "mi325x", None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not valid TOML"),
        ("a = 1", r"no \[\[prices\]\]"),
        ('[[prices]]\ncloud = "x"\n', "entry 1 of prices lacks 'gpu'"),
        ('[[prices]]\nclod = "x"\n', "unknown field 'clod'. Did you mean 'cloud'"),
        (
            '[[prices]]\ncloud="x"\ngpu="h200"\nusd_per_gpu_hour="2"\nsource=""\nchecked=""\n',
            "usd_per_gpu_hour must be of kind float",
        ),
        (
            '[[prices]]\ncloud="x"\ngpu="h200"\nusd_per_gpu_hour=-2\nsource=""\nchecked="2026-11-30"\n',
            "usd_per_gpu_hour must be from 0.0001 to",
        ),
        (
            '[[prices]]\ncloud="x"\ngpu="h200"\nusd_per_gpu_hour=2\nsource=""\nchecked="last spring"\n',
            "entry 1 of prices, checked must be the date",
        ),
        (
            '[[prices]]\ncloud="x"\ngpu="h100"\nusd_per_gpu_hour=2\nsource=""\nchecked=2026-11-30\n'
            '[[prices]]\ncloud="x"\ngpu="h100-sxm"\nusd_per_gpu_hour=3\nsource=""\nchecked="2026-11-30"\n',
            "entry 2 of prices: there is already a price of h100-sxm at 'x'",
        ),
    ],
)
def test_a_price_file_that_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_prices(path)


def test_every_packaged_price_is_of_a_known_gpu_and_dated() -> None:
    gpus = load_gpus()
    for price in load_prices():
        assert price.gpu in gpus
        assert price.source
        assert price.checked.startswith("2026-")
    assert len({price.cloud for price in load_prices()}) >= 5


def test_the_preset_as_json(tmp_path: Path) -> None:
    found = json.loads(plan("--preset", PRESET, "--json", "--out", str(tmp_path / "rows.json")))
    assert found["gpu"]["key"] == "h100-sxm"
    assert len(found["rows"]) == len(rows())
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == found["rows"]


def test_the_start_document_page_is_what_the_code_says() -> None:
    assert (DOCS / "start-document.md").read_text(encoding="utf-8") == render_markdown(), (
        f"run: paceline plan --preset {PRESET} > docs/start-document.md"
    )


def test_the_start_document_s_figures() -> None:
    """Both readings of 78 %, the ceiling without a draft, and which claims can agree."""
    text = {row.claim: row.physics + " | " + row.verdict for row in rows()}
    whole = " ".join(text.values())
    assert "**190 tok/s**" in whole
    assert "**3.52** tokens a pass" in whole
    assert "**4.9** are emitted" in whole
    together = text["74 and 3.2 times and 240 together"]
    assert "23.0 ms more than plain" in together
    assert "20.8 ms" in together
    assert "at 3.52 and at 3.9 they cannot" in together
