"""The server's command: taken by the real parsers, and unharmed by the shells and templates on the way."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy_cases import COMBINATIONS, IMAGE, Combination, one, rendered, server_pod
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.arguments.fields import EngineArguments
from paceline.cli import main
from paceline.cli.options import _PARAMETERS
from paceline.deploy.command import SERVE_OPTIONS, ServerCommand, server_command
from paceline.deploy.pod import literal
from paceline.deploy.render import render
from paceline.deploy.target import Target
from paceline.deploy.values_file import load_values
from paceline.errors import ConfigurationError

# The last line of KServe's LLM template (the flags it adds itself are shortened): a shell parses all of it again.
TEMPLATE = "eval \"exec vllm serve /mnt/models --served-model-name 'm' --port 8000 ${VLLM_ADDITIONAL_ARGS} $@\""


def words_that_vllm_gets(folder: Path, additional_args: str, *args: str) -> list[str]:
    """Run the template in a real bash, with a `vllm` that writes down its arguments."""
    vllm = folder / "vllm"
    vllm.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    vllm.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "VLLM_ADDITIONAL_ARGS": additional_args}
    done = subprocess.run(
        ["bash", "-c", TEMPLATE, "--", *args], capture_output=True, text=True, env=environment, check=True
    )
    words = done.stdout.split("\0")[:-1]
    assert words[:6] == ["serve", "/mnt/models", "--served-model-name", "m", "--port", "8000"]
    return words[6:]


def kubernetes_expands(text: str, environment: dict[str, str]) -> str:
    """As its documentation of dependent environment variables has it: $(NAME) where there is one, and $$ for $."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda found: "$" if found[1] is None else environment.get(found[1], found[0]),
        text,
    )


@given(st.text("$()HOME a", max_size=12))
def test_no_word_is_expanded_by_kubernetes(word: str) -> None:
    assert kubernetes_expands(literal(word), {"HOME": "/root", "": "empty"}) == word


@pytest.mark.parametrize("runtime", ["paceline", "vllm"])
@pytest.mark.parametrize("platform", ["kubernetes", "kserve", "kserve-llm"])
def test_dollars_reach_the_server(platform: Any, runtime: Any, tmp_path: Path) -> None:
    name = "a$(HOME)b$$c"
    over: dict[str, Any] = {"image": IMAGE, "model": {"served_name": name}}
    if (platform, runtime) == ("kserve-llm", "vllm"):
        del over["model"]  # such a name is refused there
    if runtime == "vllm":
        over["vllm"] = {"args": ["--chat-template", name]}
    manifests = render(load_values(None, runtime, "smoke-cpu", over), platform, runtime).manifests
    kind = {"kubernetes": "Deployment", "kserve": "ServingRuntime", "kserve-llm": "LLMInferenceService"}[platform]
    spec = one(manifests, kind)["spec"]
    pod = spec["template"].get("spec", spec["template"]) if "template" in spec else spec
    server = pod["containers"][0]
    environment = {"HOME": "/root"}
    if "args" in server:
        words = [kubernetes_expands(word, environment) for word in server["args"]]
        assert words[words.index("--served-model-name") + 1] == name
    else:
        value = next(each["value"] for each in server["env"] if each["name"] == "VLLM_ADDITIONAL_ARGS")
        words = words_that_vllm_gets(tmp_path, kubernetes_expands(value, environment))
    if runtime == "vllm":
        assert words[words.index("--chat-template") + 1] == name


LLM = [c for c in COMBINATIONS if c[1:3] == ("kserve-llm", "vllm")]


@pytest.mark.parametrize("combination", LLM, ids=lambda c: f"{c[0]}-{c[3]}")
def test_the_speculative_json_survives_the_templates_eval(combination: Combination, tmp_path: Path) -> None:
    _, server = server_pod(combination)
    assert "command" not in server
    assert "args" not in server
    value = next(variable["value"] for variable in server["env"] if variable["name"] == "VLLM_ADDITIONAL_ARGS")
    words = words_that_vllm_gets(tmp_path, value)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert (config["method"], config["model"]) == ("draft_model", "/mnt/draft")
    assert config["num_speculative_tokens"] == (3 if "smoke" in combination[0] else 5)
    assert "--tensor-parallel-size" not in words  # the template's, from `parallelism`


def test_what_the_eval_does_to_json_that_is_not_quoted(tmp_path: Path) -> None:
    """The trap itself: both of the ways that look right."""
    config = '{"method": "ngram", "num_speculative_tokens": 5}'
    unquoted = words_that_vllm_gets(tmp_path, f"--speculative-config {config}")
    assert config not in unquoted
    as_argument = words_that_vllm_gets(tmp_path, "", "--speculative-config", config)
    assert config not in as_argument
    assert config in words_that_vllm_gets(tmp_path, f"--speculative-config '{config}'")


@settings(max_examples=15, deadline=None)
@given(words=st.lists(st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",)), min_size=1), max_size=4))
def test_any_word_survives_the_eval(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "eval"
    folder.mkdir(exist_ok=True)
    value = ServerCommand(tuple(words), {}).as_additional_args()
    assert words_that_vllm_gets(folder, value) == words


@pytest.mark.parametrize(
    "combination", [c for c in COMBINATIONS if c[2] == "paceline"], ids=lambda c: "-".join(map(str, c))
)
def test_paceline_serve_takes_the_rendered_command(combination: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real command line: what reaches the engine is what the values said."""
    seen: dict[str, Any] = {}

    def run_server(model: str, engine: dict[str, Any], *rest: Any, **more: Any) -> int:
        seen.update(model=model, engine=engine, rest=repr((rest, more)))
        return 0

    monkeypatch.setattr("paceline.cli.serve.run_server", run_server)
    _, server = server_pod(combination)
    monkeypatch.setattr(sys, "argv", [*server["command"], *server["args"]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert seen["model"] == "/mnt/models"
    assert "'0.0.0.0'" in seen["rest"]
    longest = 120.0 if "smoke" in combination[0] else 600.0
    assert f"shutdown_grace_seconds={longest}" in seen["rest"]  # a rollout cuts nobody off
    assert f"request_timeout={longest}" in seen["rest"]
    engine = dict(load_values(None, "paceline", combination[0], {"image": IMAGE}).engine)
    speculative = {**engine.pop("speculative_config"), "method": "draft_model", "model": "/mnt/draft"}
    assert json.loads(seen["engine"].pop("speculative_config")) == speculative
    assert seen["engine"] == engine


def test_the_options_are_those_of_paceline_serve() -> None:
    """A new engine option is either rendered or set elsewhere."""
    elsewhere = {"speculative_model", "num_speculative_tokens", "speculative_config"}
    on_the_command_line = {"enable_prefix_caching" if n == "no_prefix_caching" else n for n in _PARAMETERS} - elsewhere
    both = on_the_command_line & set(EngineArguments.__dataclass_fields__)
    assert both <= set(SERVE_OPTIONS)
    assert set(SERVE_OPTIONS) <= set(EngineArguments.__dataclass_fields__)


def command(runtime: Any = "paceline", **engine: Any) -> ServerCommand:
    values = load_values(None, runtime, "smoke-cpu", {"image": IMAGE, "engine": engine})
    return server_command(Target(values, "kubernetes", runtime))


def test_switches() -> None:
    words = command(enable_prefix_caching=False, enforce_eager=True, quantize_lm_head=False).arguments
    assert "--no-enable-prefix-caching" in words
    assert "--enforce-eager" in words
    assert "--quantize-lm-head" not in words
    assert "--enable-prefix-caching" not in words


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"max_modle_len": 1}, "Did you mean 'max_model_len'"),
        ({"max_model_len": "long"}, "max_model_len"),
        ({"pipeline_parallel_size": 2}, "one node"),
        ({"model": "x"}, "set model.source instead"),
        ({"speculative_model": "x"}, "set draft.source instead"),
        ({"num_gpu_blocks_override": 7}, "has no such option"),
        ({"request_timeout": 60}, "set rollout.longest_request_seconds instead"),
        ({"shutdown_grace": 60}, "set rollout.longest_request_seconds instead"),
        ({"api_key_file": "k"}, "set secrets.api_key instead"),
        ({"served_model_name": "m"}, "set model.served_name instead"),
        ({"host": "::"}, "leave it out"),
        ({"port": 80}, "listens on 8000"),
        ({"ssl_certfile": "c"}, "TLS ends at the gateway"),
        ({"speculative_config": {"num_speculative_tokens": "5"}}, "num_speculative_tokens"),
        ({"speculative_config": {"draft_tp": 1}}, "draft_tp"),
        ({"speculative_config": 5}, "give a mapping"),
        ({"speculative_config": "foo"}, "give a mapping"),
        ({"speculative_config": []}, "give a mapping"),
        ({"speculative_config": {"method": "ngram"}}, "needs no draft model"),
        ({"speculative_config": {"model": "[ngram]"}}, "needs no draft model"),
        ({"speculative_config": {"model": "org/other"}}, "set draft.source instead"),
        ({"speculative_config": {"method": "draft"}}, "method"),
        ({"speculative_config": {"num_speculative_tokens": 0}}, "between 1 and 32"),
        ({"speculative_config": {"num_speculative_tokens": 33}}, "between 1 and 32"),
        ({"speculative_config": {"max_model_len": 1}}, "at least 2"),
        ({"speculative_config": {"draft_tensor_parallel_size": 3}}, "must divide"),
        ({"tensor_parallel_size": 3}, "must be one of"),
        ({"tensor_parallel_size": 0}, "must be one of"),
        ({"tensor_parallel_size": -4}, "must be one of"),
        ({"max_model_len": -5}, "at least 2"),
        ({"max_model_len": 0}, "at least 2"),
        ({"gpu_memory_utilization": 5}, "at most 1"),
        ({"gpu_memory_utilization": 0}, "above 0"),
        ({"block_size": 17}, "power of two"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_batched_tokens": 1}, "max_num_seqs"),
        ({"max_logprobs": -2}, "at least 0"),
        ({"kv_cache_dtype": "fp8"}, "need a GPU"),
        ({"device": "cuda", "tensor_parallel_size": 3}, "must be one of"),
    ],
)
def test_wrong_engine_options(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        command(**engine)
    assert message in str(caught.value)


GPU_ENGINES: list[tuple[dict[str, Any], str]] = [
    ({"tensor_parallel_size": 3, "speculative_config": {"draft_tensor_parallel_size": 3}}, "must be one of"),
    ({"speculative_config": {"draft_tensor_parallel_size": 3}}, "must divide"),
    ({"max_model_len": -5, "gpu_memory_utilization": 5}, "2. gpu_memory_utilization"),
]


@pytest.mark.parametrize(("engine", "message"), GPU_ENGINES)
def test_what_the_server_refuses_at_its_start_is_refused_here(engine: dict[str, Any], message: str) -> None:
    values = load_values(None, "paceline", "llama-70b-4xh100", {"image": IMAGE, "engine": engine})
    with pytest.raises(ConfigurationError) as caught:
        render(values, "kubernetes", "paceline")
    assert message in str(caught.value)


@pytest.mark.parametrize("runtime", ["paceline", "vllm"])
@pytest.mark.parametrize("config", [5, "foo", [], {"method": "ngram"}])
def test_a_speculative_config_that_is_none_or_contradicts_the_draft(config: Any, runtime: Any) -> None:
    values = load_values(None, runtime, "llama-70b-4xh100", {"image": IMAGE, "engine": {"speculative_config": config}})
    with pytest.raises(ConfigurationError, match=r"engine\.speculative_config"):
        render(values, "kserve", runtime)


def test_vllm_refuses_a_draft_of_another_degree_than_the_targets() -> None:
    values = load_values(
        None,
        "vllm",
        "llama-70b-4xh100",
        {"image": IMAGE, "engine": {"speculative_config": {"draft_tensor_parallel_size": 1}}},
    )
    with pytest.raises(ConfigurationError, match="draft_tensor_parallel_size"):
        server_command(Target(values, "kserve", "vllm"))


def test_without_a_draft_there_is_no_speculation_unless_ngram() -> None:
    base = {"name": "m", "namespace": "n", "image": IMAGE, "model": {"source": "a/b"}}
    from paceline.deploy.values_file import parse_values

    plain = server_command(Target(parse_values(base, "t"), "kubernetes", "paceline"))
    assert "--speculative-config" not in plain.arguments
    ngram = parse_values({**base, "engine": {"speculative_config": {"method": "ngram"}}}, "t")
    words = server_command(Target(ngram, "kubernetes", "paceline")).arguments
    assert json.loads(words[words.index("--speculative-config") + 1]) == {"method": "ngram"}


def test_vllm_drains_as_long_as_the_longest_request() -> None:
    words = shlex.split(command("vllm").as_additional_args())
    assert words[words.index("--shutdown-timeout") + 1] == "120"
    assert rendered("smoke-cpu", "kubernetes", "vllm").manifests
