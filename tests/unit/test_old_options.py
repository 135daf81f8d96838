"""vLLM's old options on the command line: each is understood, or refused in words, with both runtimes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from paceline.arguments.foreign import FOREIGN
from paceline.cli.app import app
from paceline.cli.old_options import SWITCHES, VALUES
from paceline.errors import ConfigurationError
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.speculation import FLAT

PAIR = ("org/big", "--speculative-model", "org/small")


def dry_run(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words, "--runtime", "vllm", "--dry-run", "--vllm-version", "0.32"])


def config(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.exception
    line = next(line for line in result.stdout.splitlines() if "--speculative-config" in line)
    found: dict[str, object] = json.loads(line.split("'")[1])
    return found


def test_every_old_name_is_an_option_of_its_kind() -> None:
    assert {*SWITCHES, *VALUES} == (GONE.keys() | FLAT.keys()) - {"speculative_model", "num_speculative_tokens"}
    for name in (*SWITCHES, *VALUES):
        gone = GONE[name][1] if name in GONE else ()
        harmless = [*(FOREIGN[name].harmless if name in FOREIGN else ()), *(gone or ())]
        if harmless or gone is not None:  # else it is left out at any value
            assert (name in SWITCHES) == any(isinstance(value, bool) for value in harmless), name


@pytest.mark.parametrize("name", [*SWITCHES, *VALUES])
def test_each_is_answered_by_its_name(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    result = dry_run(*PAIR, flag, *(() if name in SWITCHES else ("3",)))
    assert "No such option" not in result.output
    if result.exit_code:
        assert isinstance(result.exception, ConfigurationError)
        told = str(result.exception)
        assert name in told or FLAT.get(name, name) in told or "typical_acceptance_sampler" in told
    else:
        assert flag not in result.stdout


def test_values_reach_the_configuration() -> None:
    sent = config(dry_run("org/big", "--speculative-model", "ngram", "--ngram-prompt-lookup-max", "3"))
    assert sent["prompt_lookup_max"] == 3
    sent = config(dry_run(*PAIR, "--speculative-disable-by-batch-size", "32", "--swap-space", "4"))
    assert sent["num_speculative_tokens_per_batch_size"] == [[1, 31, 5], [32, 1_000_000, 0]]
    assert "computed again" in dry_run(*PAIR, "--swap-space", "9").output
    assert "json" in str(dry_run(*PAIR, "--guided-decoding-backend", "json").exception)


def test_pacelines_own_engine_answers_them_too() -> None:
    words = ["serve", "smollm2-135m-instruct", "--port", "0", "--swap-space", "9", "--max-model-len", "-3"]
    told = str(CliRunner().invoke(app, [*words, "--speculative-disable-by-batch-size", "32"]).exception)
    assert "swap_space=9 is not supported" in told
    assert "K follows load by itself" in told


def test_help_does_not_show_them() -> None:
    assert "swap-space" not in CliRunner().invoke(app, ["serve", "--help"]).output


@pytest.mark.parametrize("name", [name for name, (_, harmless) in GONE.items() if harmless is None])
def test_what_only_tuned_a_part_that_is_gone_is_left_out_at_any_value(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    result = dry_run(*PAIR, flag, *(() if name in SWITCHES else ("4096",)))
    assert result.exit_code == 0, result.exception
    assert flag not in result.stdout
    assert f"{name}=" in result.stderr
    assert "no longer has it" in result.stderr


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
def test_quantization_may_be_the_word_none(word: str) -> None:
    for words in (("--quantization", word), ("--speculative-model-quantization", word)):
        result = dry_run(*PAIR, *words)
        assert result.exit_code == 0, result.exception
        assert "quantization" not in result.stdout


@pytest.mark.parametrize(
    "option", ["--enable-chunked-prefill", "--trust_remote_code", "--compilation-config.mode", "--no-async-scheduling"]
)
def test_an_option_of_vllm_given_directly_is_told_where_it_goes(option: str) -> None:
    result = CliRunner().invoke(app, ["serve", "org/m", option])
    assert result.exit_code == 2
    told = " ".join(result.output.replace("\u2502", " ").split())
    assert "No such option" in told
    assert f"--vllm-args '{option} ...'" in told


def test_any_other_option_is_guessed_as_before() -> None:
    result = CliRunner().invoke(app, ["serve", "org/m", "--max-num-seq", "4"])
    assert "--vllm-args" not in result.output
    assert "--max-num-seqs" in result.output
