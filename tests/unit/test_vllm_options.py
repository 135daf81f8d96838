"""Options of vLLM in its own spelling: what its parser refuses is refused here, over the kinds of values there are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigurationError
from paceline.runtimes.vllm import VllmCommand, facts_of, translate
from paceline.runtimes.vllm.facts import FIRST, LAST
from paceline.runtimes.vllm.fits import check_fit
from paceline.runtimes.vllm.kinds import READ_FROM, option_kinds, speculative_kinds
from paceline.runtimes.vllm.nodes import ray_lines
from paceline.runtimes.vllm.options import RuntimeOptions, check_served, printable_command
from paceline.runtimes.vllm.reserved import why_reserved
from paceline.runtimes.vllm.translate import SHARED

FACTS = facts_of(f"0.{READ_FROM}")
KINDS = {name: kind for name, kind in option_kinds(READ_FROM).items() if why_reserved(name, SHARED) is None}
TOO_LARGE = 10**30
NEEDED = {
    "enable-auto-tool-choice": ("--tool-call-parser", "hermes"),
    "enable-log-outputs": ("--enable-log-requests",),
}


def made(*words: str, version: str = FACTS.version, **arguments: Any) -> VllmCommand:
    return translate({"model": "org/m", **arguments}, facts_of(version), vllm_args=words)


def refusal(*words: str, version: str = FACTS.version, **arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        made(*words, version=version, **arguments)
    return str(caught.value)


def wrong_values(kind: Any) -> Iterator[str]:
    match kind.get("value"):
        case "int" | "size" | "size-or-auto":
            yield from ("x", "1.5", str(TOO_LARGE), "9" * 5000)
        case "float":
            yield from ("x", "nan", "inf")
        case "object":
            yield from ("{bad}", "{a:b}", "3", '{"no such key": 1}', '{"a": 1, "a": 2}')
            for key, inner in kind["keys"].items():
                yield from (json.dumps({key: wrong}) for wrong in wrong_keys(inner))
        case "json":
            yield from ("{bad}", f'{{"a": [{TOO_LARGE}]}}')
        case "json-or-text":
            yield "{bad}"
        case "lora":
            yield from ("x", '{"name": "a"}', "[]")
    if "choices" in kind:
        yield "foo"
    for bound, beyond in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
        if bound in kind:
            yield str(kind[bound] + beyond)


def wrong_keys(kind: Any) -> Iterator[Any]:
    match kind["value"]:
        case "int":
            yield from ("x", TOO_LARGE, [1])
        case "float":
            yield "x"
        case "bool":
            yield "maybe"
        case "text":
            yield 5
    if "choices" in kind:
        yield "foo"


def right_value(kind: Any) -> str:
    if "choices" in kind:
        return str(kind["choices"][0])
    numbers = {"int": 1, "float": 0.5, "size": 1, "size-or-auto": 1}
    if kind.get("value") in numbers:
        return str(kind.get("ge", kind.get("le", numbers[kind["value"]])))
    return {"object": "{}", "json": "{}", "json-or-text": "{}", "lora": "a=b"}.get(kind.get("value"), "word")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if any(wrong_values(kind))])
def test_a_value_of_the_wrong_kind(name: str) -> None:
    for value in wrong_values(KINDS[name]):
        assert f"vllm_args: --{name} " in refusal(f"--{name}", value), value
        assert f"vllm_args: --{name} " in refusal(f"--{name}={value}"), value


@pytest.mark.parametrize("version", [f"0.{minor}" for minor in range(FIRST, LAST + 1)])
def test_a_right_value_of_every_option_passes_in_every_version(version: str) -> None:
    facts = facts_of(version)
    for name in (facts.flags & KINDS.keys()) - {"hf-token"}:  # a secret is refused whatever it is
        kind = KINDS[name]
        with_value = kind["takes"] not in ("none", "on") and "names" not in kind
        value = (right_value(kind),) if with_value else ("ray",) if name == "distributed-executor-backend" else ()
        if "names" not in kind or value:
            made(f"--{name}", *value, *NEEDED.get(name, ()), version=version)


def test_values_that_another_version_alone_takes_pass_there() -> None:
    assert made("--all2all-backend", "mori", version="0.33").value("all2all-backend") == "mori"
    assert "--all2all-backend" in refusal("--all2all-backend", "mori")
    assert made("--kv-transfer-config", '{"kv_ip": "x"}', version="0.20")
    assert "no key 'kv_ip'" in refusal("--kv-transfer-config", '{"kv_ip": "x"}')


@pytest.mark.parametrize("name", ["pipeline-parallel-size", "data-parallel-rpc-port", "master-port"])
@pytest.mark.parametrize("version", ["0.20", "0.33"])
def test_sizes_and_ports_in_every_version(name: str, version: str) -> None:
    wrong = ("0", "-1", "two") if name.endswith("size") else ("0", "65536", "-1")
    for value in wrong:
        assert f"--{name} must be" in refusal(f"--{name}", value, version=version)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-num-queued-reqs", "3", "--max-num-queued-reqs=4"), "given 2 times"),
        (("--async-scheduling", "--no-async-scheduling"), "given 2 times"),
        (("--async_scheduling", "--async-scheduling"), "given 2 times"),
        (("--compilation-config.mode", "3", "--compilation-config.mode", "2"), "given 2 times"),
        (("--compilation-config", "{}", "--compilation-config.mode", "2"), "as a whole"),
        (("--ssl-keyfile", "x"), "health checks would fail"),
        (("--ssl-certfile=x",), "health checks would fail"),
        (("--uds", "/tmp/x"), "over TCP"),
        (("--grpc",), "gRPC"),
        (("--spec-tokens", "3"), "speculative configuration"),
        (("--device-memory-utilization", "0.5"), "gpu_memory_utilization"),
        (("--port", "x"), "written by Paceline"),
        (("--dtype", "foo"), "written by Paceline"),
        (("--enable-auto-tool-choice",), "needs --tool-call-parser"),
        (("--tool-call-parser", "hermez"), "Did you mean 'hermes'"),
        (("--distributed-executor-backend", "foo"), "must be one of external_launcher, mp, ray, uni"),
        (("--compilation-config.mod", "3"), "Did you mean 'mode'?"),
        (("--max-num-queued-reqs.x", "3"), "takes no keys"),
        (("--revision", "a\0b"), "NUL"),
    ],
)
def test_options_that_contradict(words: tuple[str, ...], told: str) -> None:
    assert told in refusal(*words)


def test_what_may_repeat_and_what_a_plugin_brings_passes() -> None:
    assert len(made("--middleware", "a", "--middleware", "b").options) == 2
    assert made(middleware=["a", "b"]).arguments() == ("--middleware", "a", "--middleware", "b")
    assert made("--tool-call-parser", "mine", "--tool-parser-plugin", "x.py")
    assert made("--distributed-executor-backend", "my.Executor")
    assert made("--attention-config.backend", "FLASH_ATTN", "--attention-config.use_trtllm_attention", "true")
    assert made("--kv-transfer-config.kv_connector_extra_config.a", "80m")
    assert made("--max-num-scheduled-tokens", "8k")


def test_an_option_of_tls_in_python_says_why() -> None:
    assert "health checks" in refusal(ssl_keyfile="x")
    assert "written by Paceline" in refusal(host="x")
    assert "cannot carry it" in refusal(hf_overrides=print)


def test_quotes_that_a_shell_takes_away_are_told() -> None:
    with pytest.raises(ConfigurationError, match=r"--vllm-args: .*must be JSON.*single quotes around the JSON"):
        translate({"model": "m"}, FACTS, vllm_args='--compilation-config {"mode":3}', args_label="--vllm-args")
    kept = translate({"model": "m"}, FACTS, vllm_args="--compilation-config '{\"mode\":3}'")
    assert kept.value("compilation-config") == '{"mode":3}'


# The draft's settings


@pytest.mark.parametrize("name", sorted(speculative_kinds(READ_FROM)))
def test_a_setting_of_the_draft_of_the_wrong_kind(name: str) -> None:
    if name not in FACTS.speculative_fields:  # vLLM's own, which no user gives
        return
    for value in wrong_keys(speculative_kinds(READ_FROM)[name]):
        told = refusal(speculative_config={"model": "org/d", name: value})
        assert name in told
        assert name in refusal(speculative_config=json.dumps({"model": "org/d", name: value}))


def test_a_drafts_quantization_and_a_name_given_twice() -> None:
    assert "speculative_config.quantization='foo'" in refusal(
        speculative_config={"model": "d/d", "quantization": "foo"}
    )
    assert made(speculative_config={"model": "d/d", "quantization": "fp8"})
    assert "'model' is given more than once" in refusal(speculative_config='{"model": "a/a", "model": "b/b"}')


# Numbers, names


@pytest.mark.parametrize("name", ["max_model_len", "max_num_seqs", "block_size", "seed", "kv_cache_memory_bytes"])
def test_numbers_that_no_tensor_holds(name: str) -> None:
    assert f"{name} must be" in refusal(**{name: TOO_LARGE})
    assert f"{name}='x' must be a whole number" in refusal(**{name: "x"})


@pytest.mark.parametrize("name", ["a\nb", "a/b\x1b[0m", " ", "-x"])
def test_names_that_are_none(name: str) -> None:
    assert "model=" in refusal(model=name)
    assert "speculative_config.model=" in refusal(speculative_config={"model": name})


# The shape of the model


@pytest.mark.parametrize(
    ("model", "size", "told"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 3, "64 attention heads"),
        ("nvidia/Meta-Llama-3.1-70B-Instruct-FP8", 6, "64 attention heads"),
        ("Qwen/Qwen2.5-7B-Instruct", 7, "4 key-value heads"),
        ("Qwen/Qwen2.5-0.5B-Instruct", 4, "14 attention heads"),
        ("smollm2-135m-instruct", 2, "9 attention heads"),
        ("meta-llama/Llama-3.1-70B-Instruct", 16, None),  # key-value heads are copied
        ("x/llama-3.1-70b", 8, None),
        ("org/unknown", 3, None),
    ],
)
def test_sizes_against_the_heads_of_a_model_known_by_name(model: str, size: int, told: str | None) -> None:
    command = made(model=model, tensor_parallel_size=size)
    if told is None:
        check_fit(command)
        return
    with pytest.raises(ConfigurationError, match=told):
        check_fit(command)
    check_fit(made("--hf-overrides", "{}", model=model, tensor_parallel_size=size))


def test_a_drafts_heads_the_layers_and_the_length(tmp_path: Path) -> None:
    pair = made(model="org/unknown", tensor_parallel_size=2, speculative_model="smollm2-135m-instruct")
    with pytest.raises(ConfigurationError, match="9 attention heads of 'smollm2-135m-instruct'"):
        check_fit(pair)
    with pytest.raises(ConfigurationError, match="80 layers"):
        check_fit(made("--pipeline-parallel-size", "81", model="x/llama-3.1-70b"))
    check_fit(made(model="Qwen/Qwen2.5-7B-Instruct-1M", max_model_len=1_000_000))
    for scaling, refused in ((None, True), ({"rope_type": "llama3"}, True), ({"type": "yarn"}, False)):
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "rope_scaling": scaling}))
        check_fit(made(model=str(tmp_path), max_model_len=512))
        with pytest.raises(ConfigurationError, match="512 positions") if refused else nullcontext():
            check_fit(made(model=str(tmp_path), max_model_len=513))


# Several nodes


@pytest.mark.parametrize(
    ("nodes", "words", "told"),
    [
        (0, "", "between 1 and"),
        (-3, "", "between 1 and"),
        (99999999999, "", "between 1 and"),
        (2, "--distributed-executor-backend mp", "needs --distributed-executor-backend ray"),
        (2, "--distributed-executor-backend uni", "needs --distributed-executor-backend ray"),
        (3, "--pipeline-parallel-size 2", "same number on each"),
        (2, "--pipeline-parallel-size 1", "same number on each"),
        (2, "--nnodes 2", "give one of them"),
        (1, "--nnodes 2 --distributed-executor-backend ray", "give one of them"),
        (2, "--pipeline-parallel-size 4", None),
        (1, "--nnodes 2 --distributed-executor-backend mp", None),
        (2, "", None),
    ],
)
def test_nodes_and_the_sizes_that_fit_them(nodes: int, words: str, told: str | None) -> None:
    options = RuntimeOptions(version="0.32", nodes=nodes, arguments=words)
    arguments = {"model": "org/m", "tensor_parallel_size": 1}
    if told is None:
        printable_command(arguments, options, (), "::1", 80, print)
        return
    with pytest.raises(ConfigurationError, match=told):
        printable_command(arguments, options, (), "::1", 80, print)


def test_a_vllm_without_a_server_can_be_printed_and_not_run() -> None:
    command = made("--headless")
    with pytest.raises(ConfigurationError, match="--headless"):
        check_served(command)


# The printed line


def read_by(shell: str, command: VllmCommand) -> tuple[str, ...]:
    """The environment's A, then the words that a real shell makes of the printed command."""
    script = 'vllm() { printf \'%s\\0\' "$A" "$@"; }\n' + command.shell()
    printed = subprocess.run([shell, "-c", script], capture_output=True, check=True).stdout.decode()
    return tuple(printed.split("\0")[:-1])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))), min_size=1))
def test_any_word_reaches_vllm_through_a_shell(values: list[str]) -> None:
    command = VllmCommand(model="m", options=(("served-model-name", tuple(values)),), version="0.32")
    assert read_by("sh", command)[1:] == command.argv()[1:]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_words_that_shells_know_reach_vllm(shell: str) -> None:
    hard = ["a'b", 'a"b', "$(date)", "`date`", "\\n", "a\nb", "*", "~", "é", "!x", "a=b", "#", "-x", "{a,b}", "%s", ""]
    options = [("compilation-config", ('{"a":"b"}',)), *(("chat-template", (word,)) for word in hard)]
    command = VllmCommand(model="org/m", options=tuple(options), version="0.32", environment={"A": "x y'z"})
    assert read_by(shell, command) == ("x y'z", *command.argv()[1:])


@pytest.mark.parametrize("value", ["-x", "--seed", "-"])
def test_a_value_with_a_dash_is_no_option(value: str) -> None:
    assert made(f"--chat-template={value}").arguments() == (f"--chat-template={value}",)
    assert made(chat_template=value).arguments() == (f"--chat-template={value}",)
    assert made(seed=0, max_model_len=-1).arguments() == ("--max-model-len", "-1", "--seed", "0")


# What a newcomer types


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa", "custom_class", "dflash"])
def test_methods_that_need_a_model(method: str) -> None:
    assert f"'{method}' needs a 'model'" in refusal(speculative_config={"method": method, "num_speculative_tokens": 3})


@pytest.mark.parametrize("method", ["mtp", "qwen3_next_mtp", "suffix", "ngram_gpu", "dspark"])
def test_methods_that_need_none(method: str) -> None:
    assert made(speculative_config={"method": method, "num_speculative_tokens": 3})


def test_names_of_cloud_storage_are_vllms_to_read() -> None:
    from paceline.runtimes.vllm.locate import locate

    for name in ("s3://bucket/model", "gs://b/m", "az://b/m"):
        assert locate(name) == name


@pytest.mark.parametrize("host", ["", "a b", "a\n"])
def test_a_host_that_is_none(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host="):
        translate({"model": "m"}, FACTS, host=host)


def test_a_short_option_is_one_problem() -> None:
    assert refusal("-tp", "4") == "vllm_args: '-tp' is not an option; write options in their long form, --name value."


def test_sizes_beyond_every_cluster_and_ranks_that_do_not_divide() -> None:
    assert "at most 4096" in refusal(tensor_parallel_size=99999999999)
    assert "at most 4096" in refusal("--data-parallel-size", "99999999999")
    with pytest.raises(ConfigurationError, match="decode_context_parallel_size=3"):
        check_fit(made("--decode-context-parallel-size", "3", tensor_parallel_size=4))
    check_fit(made("--decode-context-parallel-size", "2", tensor_parallel_size=4))


def test_what_makes_paceline_blind_is_a_note() -> None:
    assert any("not noticed" in note for note in made("--disable-log-stats").notes)
    assert any("not checked" in note for note in made("--config", "x.yaml").notes)


def test_todays_options_are_not_called_old() -> None:
    assert not any("older form" in note for note in made(speculative_model="d/d", num_speculative_tokens=3).notes)
    old = made(speculative_model="d/d", speculative_max_model_len=512)
    assert any("older form" in note for note in old.notes)


def test_a_dry_run_says_what_the_command_alone_does_not_have(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from paceline.cli.app import app

    keys = tmp_path / "keys"
    keys.write_text("a-key-of-more-than-16-characters\n")
    keys.chmod(0o600)
    words = ["serve", "org/m", "--runtime", "vllm", "--dry-run", "--vllm-version", "0.32"]
    assert "none of them" in CliRunner().invoke(app, [*words, "--api-key-file", str(keys)]).output.replace("\n", " ")
    assert "none of them" not in CliRunner().invoke(app, words, env={"PACELINE_API_KEYS": ""}).output


def test_tokens_of_a_step_against_sequences_and_length() -> None:
    assert "at least max_num_seqs=16" in refusal(max_num_batched_tokens=8, max_num_seqs=16)
    assert made(max_num_batched_tokens=16, max_num_seqs=16)
    sizes = {"max_num_batched_tokens": 512, "max_model_len": 1024}
    assert made(**sizes)
    assert "at least max_model_len=1024" in refusal("--no-enable-chunked-prefill", **sizes)
    assert "at least max_model_len=1024" in refusal(enable_chunked_prefill=False, **sizes)


@pytest.mark.parametrize(
    ("words", "label", "told"),
    [
        ("--max-num-seqs 5", "--vllm-args", "give --max-num-seqs beside --vllm-args"),
        ("--no-enable-prefix-caching", "--vllm-args", "give --no-enable-prefix-caching beside"),
        ("--model m", "--vllm-args", "give it as MODEL"),
        ("--port 9", "--vllm-args", "give --port beside"),
        ("--max-num-seqs 5", "vllm.args", "set engine.max_num_seqs."),
        ("--no-enforce-eager", "vllm.args", "set engine.enforce_eager: false"),
        ("--max-num-seqs 5", "vllm_args", "give it as an argument of its own"),
        ("--api-key k", "--vllm-args", "--api-key-file, or in the environment, PACELINE_API_KEYS"),
        ("--hf-token k", "--vllm-args", "put it into the environment, as HF_TOKEN"),
    ],
)
def test_where_it_goes_instead(words: str, label: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        translate({"model": "m"}, facts_of("0.32"), vllm_args=words, args_label=label)
    assert told in str(error.value)
    assert "None" not in str(error.value)


def test_a_token_is_no_argument_in_python_either() -> None:
    with pytest.raises(ConfigurationError, match="HF_TOKEN"):
        translate({"model": "m", "hf_token": "hf_x"}, facts_of("0.32"))
    translate({"model": "m"}, facts_of("0.32"), vllm_args="--hf-token")  # the one that is stored


@pytest.mark.parametrize("port", [80, 6379])
def test_ray_has_a_port_of_its_own(port: int) -> None:
    lines = ray_lines(2, port)
    assert not any(f":{port}" in line or f"port={port}" in line for line in lines)
    assert len({line[-4:] for line in lines if "ray start" in line}) == 1


@pytest.mark.parametrize(("version", "meant"), [("0.2", "0.20"), ("0.3", "0.30"), ("0.4", None), ("0.19", None)])
def test_a_version_that_has_lost_its_zero(version: str, meant: str | None) -> None:
    with pytest.raises(ConfigurationError) as error:
        facts_of(version)
    assert (f"Did you mean {meant}?" in str(error.value)) == (meant is not None)
