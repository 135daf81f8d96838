"""What vLLM would refuse at its start is refused in words before, and a command says how many GPUs it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigurationError
from paceline.runtimes.vllm import VllmCommand, facts_of, translate
from paceline.runtimes.vllm.facts import DEFAULT_VERSION
from paceline.runtimes.vllm.kinds import option_kinds
from paceline.runtimes.vllm.options import RuntimeOptions, printable_command
from paceline.runtimes.vllm.probe import ask
from paceline.runtimes.vllm.reserved import why_reserved
from paceline.runtimes.vllm.tables import FLAGS
from paceline.runtimes.vllm.translate import SHARED

FACTS = facts_of("0.32.0")
PARALLEL = ("pipeline-parallel-size", "data-parallel-size", "prefill-context-parallel-size")


def made(raw: str = "", **arguments: Any) -> VllmCommand:
    return translate({"model": "m", **arguments}, FACTS, vllm_args=raw)


def refusal(raw: str = "", **arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        made(raw, **arguments)
    return str(caught.value)


@pytest.mark.parametrize("k", [0, -1, 257, True, 2.5])
@pytest.mark.parametrize("form", ["flat", "nested", "json", "ngram"])
def test_a_wrong_k_is_never_replaced_by_the_default(k: Any, form: str) -> None:
    config = {"method": "draft_model", "model": "d", "num_speculative_tokens": k}
    match form:
        case "flat":
            told = refusal(speculative_model="d", num_speculative_tokens=k)
        case "nested":
            told = refusal(speculative_config=config)
        case "json":
            told = refusal(speculative_config=json.dumps(config))
        case _:
            told = refusal(speculative_config={"method": "ngram", "num_speculative_tokens": k})
    assert f"num_speculative_tokens={k!r}" in told


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("tensor_parallel_size", (0, -1), (1, 3)),
        ("max_model_len", (0, -5), (-1, 1)),
        ("gpu_memory_utilization", (0.0, -0.1, 5.0), (0.01, 1.0)),
        ("max_num_seqs", (0,), (1,)),
        ("max_num_batched_tokens", (0,), (1,)),
        ("block_size", (0, -16), (16,)),
        ("num_gpu_blocks_override", (0,), (1,)),
        ("kv_cache_memory_bytes", (0,), (1,)),
        ("max_logprobs", (-2,), (-1, 0)),
        ("dtype", ("foo", "fp16"), ("half", "auto")),
        ("quantization", ("foo", "fp9"), ("awq", "fp8", "compressed-tensors")),
        ("kv_cache_dtype", ("foo",), ("fp8_e5m2",)),
        ("load_format", ("foo",), ("runai_streamer",)),
    ],
)
def test_values_that_every_version_refuses(name: str, wrong: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    for value in wrong:
        assert f"{name}={value!r}" in refusal(**{name: value})
    for value in right:
        assert made(**{name: value}).value(name.replace("_", "-")) == str(value)


@pytest.mark.parametrize("port", [0, -1, 65536, 99999])
def test_a_port_that_is_none(port: int) -> None:
    with pytest.raises(ConfigurationError, match="between 1 and 65535"):
        translate({"model": "m"}, FACTS, port=port)


def test_a_plugins_quantization_goes_through_in_vllms_own_spelling() -> None:
    assert "--vllm-args '--quantization ascend'" in refusal(quantization="ascend")
    assert made("--quantization ascend").value("quantization") == "ascend"
    assert "written by Paceline" in refusal("--quantization ascend", quantization="fp8")


def flags() -> list[str]:
    return sorted(name for (first, last), names in FLAGS.items() if first <= 32 <= last for name in names.split())


@pytest.mark.parametrize("name", flags())
def test_every_option_needs_its_number_of_values(name: str) -> None:
    """For each option of 0.32: too few or too many words are told, the right number is not."""
    if why_reserved(name, SHARED - {"quantization", "load-format"}) is not None:
        assert f"--{name}" in refusal(f"--{name} 1")
        return
    kind = option_kinds(32)[name]
    takes_none = kind["takes"] in ("none", "on")
    if kind["takes"] != "perhaps":
        wrong = "on or off" if takes_none else "needs a value"
        assert f"--{name} {wrong}" in refusal(f"--{name} 1" if takes_none else f"--{name}").replace("is on", "on")
    if kind["takes"] != "many":
        assert f"--{name} " in refusal(f"--{name} 1 2")
    if kind["takes"] != "none":
        assert f"--no-{name}" in refusal(f"--no-{name}")


@pytest.mark.parametrize("name", PARALLEL)
def test_sizes_are_whole_numbers_of_at_least_one(name: str) -> None:
    for value in ("two", "0", "-2", "1.5", "''"):
        assert f"--{name} " in refusal(f"--{name} {value}")
        assert f"--{name} " in refusal(f"--{name}={value}")
    assert "must be at least 1" in refusal(**{name.replace("-", "_"): 0})
    assert "whole number" in refusal(**{name.replace("-", "_"): "two"})


def test_python_values_are_written_as_the_parser_takes_them() -> None:
    assert made(cudagraph_capture_sizes=[1, 2]).arguments() == ("--cudagraph-capture-sizes", "1", "2")
    assert made(disable_log_stats=False).arguments() == ()  # there is no --no-disable-log-stats
    assert made(disable_log_stats=True).arguments() == ("--disable-log-stats",)
    assert "needs a value" in refusal(kv_transfer_config=True)


@pytest.mark.parametrize("by_words", [False, True])
def test_the_gpus_of_a_command_are_the_product_of_its_sizes(by_words: bool) -> None:
    assert made().num_gpus == 1
    assert made(tensor_parallel_size=4).num_gpus == 4
    expected = 4
    given: dict[str, int] = {}
    for size, name in zip((2, 3, 5), PARALLEL, strict=True):
        given[name] = size
        expected *= size
        if by_words:
            command = made(" ".join(f"--{n} {v}" for n, v in given.items()), tensor_parallel_size=4)
        else:
            command = made(tensor_parallel_size=4, **{n.replace("-", "_"): v for n, v in given.items()})
        assert command.num_gpus == expected
    assert made("--decode-context-parallel-size 2", tensor_parallel_size=4).num_gpus == 4  # ranks among the four
    assert (made(nnodes=2, node_rank=0).num_nodes, made().num_nodes) == (2, 1)


def test_old_options_in_vllm_args_say_what_to_do_instead() -> None:
    assert "computed again" in refusal("--swap-space 4")
    assert "no such choice any more" in refusal("--use-v2-block-manager")
    assert "older form" in refusal("--speculative-disable-by-batch-size 32")


@pytest.mark.parametrize("kind", ["a file", "read-only"])
def test_an_answer_that_cannot_be_kept_is_a_note(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    if kind == "a file":
        home.write_text("")
    monkeypatch.setenv("PACELINE_HOME", str(home) if kind == "a file" else "/proc/nope")
    where = {"version": DEFAULT_VERSION, "distribution": "vllm", "place": str(tmp_path)}
    answer = {"flags": ["--x"], "speculative_fields": [], "methods": [], "acceptance_methods": [], "device": "cpu"}
    answer |= {"kinds": {}, "speculative_kinds": {}}

    def run(words: Any, seconds: float) -> subprocess.CompletedProcess[str]:
        told = where if "importlib.metadata.distribution(" in words[-1] else where | answer
        return subprocess.CompletedProcess(words, 0, json.dumps(told), "")

    installation = ask(sys.executable, lambda text: None, run)
    assert installation.facts.flags == {"x"}
    assert "PACELINE_HOME" in installation.notes[0]


@pytest.mark.parametrize("nested", [False, True])
def test_a_size_that_does_not_divide_the_heads_of_a_model_that_is_here(nested: bool, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 9}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": heads} if nested else heads))
    options = RuntimeOptions(version="0.32")
    for size in (1, 3, 9):
        given = {"model": str(tmp_path), "tensor_parallel_size": size}
        printable_command(given, options, (), "::1", 80, print)
    with pytest.raises(ConfigurationError, match="the 9 attention heads"):
        printable_command({"model": str(tmp_path), "tensor_parallel_size": 2}, options, (), "::1", 80, print)
