"""The file of values: every problem in one message, and no file written when there is one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from deploy_cases import FULL, IMAGE, PLATFORMS, RUNTIMES, one, rendered
from hypothesis import given
from hypothesis import strategies as st

from paceline.cli import main
from paceline.cli.app import app
from paceline.deploy import command
from paceline.deploy.check import builtin, check_files, promql
from paceline.deploy.folder import write_files
from paceline.deploy.presets import preset_names, preset_text, preset_values
from paceline.deploy.quantity import to_bytes
from paceline.deploy.render import render
from paceline.deploy.target import Target, folder_of
from paceline.deploy.values import IN_WORDS, Values
from paceline.deploy.values_file import load_values, merge, parse_values
from paceline.deploy.write import as_stream
from paceline.errors import ConfigurationError

BASE: dict[str, Any] = {
    "name": "model", "namespace": "llm", "image": IMAGE, "model": {"source": "org/Model"},
}  # fmt: skip


def problems(over: dict[str, Any], platform: Any = "kubernetes", runtime: Any = "paceline") -> str:
    with pytest.raises(ConfigurationError) as caught:
        render(parse_values(merge(BASE, over), "values.yaml"), platform, runtime)
    return str(caught.value)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"replica": 2}, "unknown key 'replica'. Did you mean 'replicas'?"),
        ({"storage": {"models": {"sise": "1Gi"}}}, "'storage.models.sise'. Did you mean 'size'?"),
        ({"scheduling": {"tolerations": [{"key": "a", "efect": "x"}]}}, "Did you mean 'effect'?"),
        ({"rollout": {"zzz": 1}}, "There may be: longest_request_seconds"),
        ({"replicas": "2"}, "replicas='2': input should be a valid integer"),
        ({"replicas": 0}, "greater than or equal to 1"),
        ({"resources": {"memory": "64GB"}}, "resources.memory='64GB'"),
        ({"image": "registry.example.com/paceline"}, "an image with a version"),
        ({"image": "registry.example.com:5000/paceline"}, "an image with a version"),
        ({"name": "Model_1"}, "lower-case letters"),
        ({"name": "vllm"}, "VLLM_PORT"),
        ({"name": "paceline"}, "PACELINE_PORT"),
        ({"route": {"hostname": "llm.example.com"}}, "'route.gateway' is missing"),
        ({"secrets": {"hub_token": "s3cret"}}, "secrets.hub_token"),
        ({"draft": {"source": "other/Model"}}, "same folder 'model'"),
        ({"engine": {"tensor_parallel_size": 4}, "resources": {"gpus": 2}}, "disagree"),
        ({"engine": {"tensor_parallel_size": 2, "device": "cpu"}}, "needs GPUs"),
        ({"engine": {"device": "cuda"}, "resources": {"gpus": 0}}, "disagree"),
        ({"resources": {"memory": "16Gi"}}, "at least twice as much"),
        ({"resources": {"shm": "512Mi"}}, "too little for NCCL"),
        ({"replicas": 2}, "pods on a second node could not mount it"),
        ({"storage": {"models": {"access_mode": "ReadOnlyMany"}}}, "set download: false"),
        ({"storage": {"compile_cache": {"access_mode": "ReadOnlyMany"}}}, "is written to"),
        ({"storage": {"models": {"access_mode": "ReadWriteOncePod"}}}, "both mount the claim"),
        (
            {"storage": {"models": {"existing_claim": "c"}, "compile_cache": {"existing_claim": "c"}}},
            "name one claim",
        ),
        ({**FULL, "scaling": {**FULL["scaling"], "min_replicas": 5}}, "min_replicas=5 is more than"),
        ({**FULL, "replicas": 2}, "exclude each other"),
        ({**FULL, "monitoring": {"enabled": False}}, "unscraped"),
        ({"model": {"served_name": "{{ x }}"}}, "read as a template"),
        ({"security": {"user": 99999999999}}, "less than or equal to 2147483647"),
        ({"monitoring": {"labels": {"a b": "c"}}}, "monitoring.labels: the key='a b': it must be a label's key"),
        ({"monitoring": {"labels": {"a": "b c"}}}, "a label's value"),
        ({"monitoring": {"labels": {"a": "b" * 64}}}, "a label's value"),
        ({"scheduling": {"node_selector": {"a/b/c": "d"}}}, "a label's key"),
        ({"scheduling": {"node_selector": {"Upper.com/x": "d"}}}, "a label's key"),
        ({"scheduling": {"tolerations": [{"key": "a b"}]}}, "a label's key"),
        ({"scheduling": {"tolerations": "a"}}, "give a list"),
        ({"scheduling": {"priority_class": "A b"}}, "as names of objects are"),
        ({"storage": {"models": {"storage_class": "A b"}}}, "as names of objects are"),
        ({"resources": {"gpu_resource": ""}}, "such as nvidia.com/gpu"),
        ({"resources": {"gpu_resource": "bad key"}}, "such as nvidia.com/gpu"),
        ({"resources": {"cpu": 10**30}}, "less than or equal to 1024"),
        ({"resources": {"memory": "9" * 20 + "Ti"}}, "more than any machine has"),
        ({"storage": {"models": {"size": "9" * 30 + "Ti"}}}, "at most 24 characters"),
        ({"scaling": {"max_replicas": 2, "prometheus_url": "http://p/{{x}}"}}, "it must be a URL"),
        ({"route": {**FULL["route"], "hostname": "no-domain"}}, "a name of DNS with a domain"),
        ({"engine": {"tensor_parallel_size": 0}}, "it must be one of 1, 2, 4, 8"),
        ({"resources": {"memory": "1.5Ti"}}, "1536Gi, not 1.5Ti"),
        ({"namespace": "My_Space"}, "beginning with a letter"),
        ({"vllm": {"version": "latest"}}, "a version, such as"),
        *[({"model": {"folder": folder}}, "it must stay inside") for folder in ("a/..", "a/./b", "a//b", "a/")],
        *[
            ({"model": {"source": source}}, "it must stay inside")
            for source in ("../../etc", "/etc", "~/m", "a/../../b", "-x", ".")
        ],
    ],
)
def test_wrong_values(over: dict[str, Any], message: str) -> None:
    assert message in problems(over)


@pytest.mark.parametrize("part", ["model", "draft"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        *[(source, "cannot be downloaded") for source in ("x.gguf", "a/b/x.gguf", "a/b/c", "name", "a b", "a/b@main")],
        *[(source, "cannot be downloaded") for source in ("a/b:Q4_K_M", "größe/x", "_a/b")],
        *[(source, "one line of text") for source in ("a/b\n", "a/b\nc", "a\tb", " a/b", "a/b\x1b[0m")],
        *[(source, "not an address") for source in ("hf://a/b", "https://huggingface.co/a/b", "s3://b/k")],
        ("meta-llama/Llama-3.1-1B", "it is 'meta-llama/Llama-3.2-1B'"),
        ("a/" + "b" * 300, "at most 200 characters"),
    ],
)
def test_sources_that_no_download_takes(source: str, message: str, part: str) -> None:
    assert message in problems({part: {"source": source}})


@pytest.mark.parametrize("source", ["a/b", "A-1/b_c.d", "smollm2-135m-instruct"])
def test_sources(source: str) -> None:
    render(parse_values(merge(BASE, {"model": {"source": source}}), "t"), "kubernetes", "paceline")


def test_a_model_of_ones_own_is_not_downloaded() -> None:
    over = {"model": {"source": "mine", "folder": "a/b"}, "storage": {"models": {"download": False}}}
    render(parse_values(merge(BASE, over), "t"), "kubernetes", "paceline")


LLAMA = "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic"
SPLITS: list[tuple[str, str, str | None, int, str | None]] = [
    ("vllm", LLAMA, None, 4, None),
    *[("vllm", LLAMA, None, size, "cannot split 64 attention heads") for size in (3, 5, 6, 7)],
    ("vllm", "org/Other", None, 3, None),  # of which nothing is known
    ("vllm", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", 4, "possible for Qwen/Qwen2.5-0.5B-Instruct"),
    ("vllm", "HuggingFaceTB/SmolLM2-135M", None, 2, "9 attention heads"),
    ("paceline", LLAMA, None, 8, None),
    ("paceline", LLAMA, None, 3, "it must be one of 1, 2, 4, 8"),
    ("paceline", LLAMA, None, 16, "it must be one of 1, 2, 4, 8"),
    ("paceline", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", 4, None),  # a whole draft on every rank
    ("paceline", "HuggingFaceTB/SmolLM2-135M", None, 2, None),
    ("paceline", "HuggingFaceTB/SmolLM2-135M", None, 8, "cannot be split over 8 ranks"),
]


@pytest.mark.parametrize(("runtime", "model", "draft", "size", "message"), SPLITS)
def test_heads_of_models_known_by_name(
    runtime: Any, model: str, draft: str | None, size: int, message: str | None
) -> None:
    over = {"model": {"source": model}, "engine": {"tensor_parallel_size": size}}
    over |= {"draft": {"source": draft}} if draft else {}
    if message is None:
        render(parse_values(merge(BASE, over), "t"), "kubernetes", runtime)
    else:
        assert message in problems(over, "kubernetes", runtime)


def test_more_positions_than_a_known_model_has_are_noted() -> None:
    for length, noted in ((131072, False), (200000, True)):
        over = {"model": {"source": LLAMA}, "engine": {"max_model_len": length}}
        notes = render(parse_values(merge(BASE, over), "t"), "kubernetes", "paceline").notes
        assert any("131072 positions" in note for note in notes) == noted


@pytest.mark.parametrize("key", ["", ".", "..", "..a", "a b", "a/b", "größe", "k" * 254])
def test_keys_that_no_secret_has(key: str) -> None:
    assert "secrets.api_key.key" in problems({"secrets": {"api_key": {"name": "a", "key": key}}})


def test_keys_and_names_of_secrets() -> None:
    for key in ("a", ".a", "a..b", "A_b-c.d", "k" * 253):
        over = {"secrets": {"api_key": {"name": "a.b-c", "key": key}}}
        render(parse_values(merge(BASE, over), "t"), "kubernetes", "paceline")


@pytest.mark.parametrize(
    ("vllm", "image", "version"),
    [
        ({}, "vllm/vllm-openai:v0.32.0", "0.32.0"),
        ({"version": "0.24.0"}, "vllm/vllm-openai:v0.24.0", "0.24.0"),
        ({"version": "0.24"}, "vllm/vllm-openai:v0.24.0", "0.24"),
        ({"image": "vllm/vllm-openai:v0.20.1"}, "vllm/vllm-openai:v0.20.1", "0.20.1"),
        ({"image": "vllm/vllm-openai:v0.20.1-x86_64"}, "vllm/vllm-openai:v0.20.1-x86_64", "0.20.1"),
        ({"image": "r:5000/v:0.20.1", "version": "0.20"}, "r:5000/v:0.20.1", "0.20"),
        ({"image": "r:5000/v:mine", "version": "0.20.1"}, "r:5000/v:mine", "0.20.1"),
        ({"image": f"r/v@sha256:{'0' * 64}", "version": "0.20.1"}, f"r/v@sha256:{'0' * 64}", "0.20.1"),
    ],
)
def test_vllms_image_and_version_follow_from_each_other(vllm: dict[str, Any], image: str, version: str) -> None:
    target = Target(parse_values(merge(BASE, {"vllm": vllm}), "t"), "kubernetes", "vllm")
    assert (target.vllm_image, target.vllm_version) == (image, version)
    manifests = render(target.values, "kubernetes", "vllm").manifests
    pod = next(m for m in manifests if m["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"vllm": {"image": "vllm/vllm-openai:v0.32.0", "version": "0.24.0"}}, "disagrees"),
        ({"vllm": {"image": "r/v:nightly"}}, "give vllm.version as well"),
        ({"vllm": {"image": f"r/v@sha256:{'0' * 64}"}}, "give vllm.version as well"),
        ({"vllm": {"version": "0.99.0"}}, "newer than"),
        (  # the schedule by batch size came with 0.24
            {
                "vllm": {"image": "vllm/vllm-openai:v0.20.0"},
                "engine": {
                    "speculative_config": {
                        "method": "ngram", "num_speculative_tokens": 3,
                        "num_speculative_tokens_per_batch_size": [[1, 4, 3]],
                    }
                },
            },
            "num_speculative_tokens_per_batch_size",
        ),
    ],
)  # fmt: skip
def test_vllm_images_whose_options_would_be_those_of_another(over: dict[str, Any], message: str) -> None:
    assert message in problems(over, runtime="vllm")


@pytest.mark.parametrize(
    ("field", "over"),
    [
        ("vllm.args", {"vllm": {"args": ["--chat-template", "{{ x }}"]}}),
        ("engine.chat_template", {"engine": {"chat_template": "{{ x }}"}}),
        ("engine.hf_overrides.a", {"engine": {"hf_overrides": {"a": "{{"}}}),
    ],
)
def test_templates_of_kserves_own(field: str, over: dict[str, Any]) -> None:
    for platform in ("kserve-llm", "kserve"):
        assert f"{field}" in (text := problems(over, platform, "vllm"))
        assert "'{{' would be read as a template by KServe" in text
    assert render(parse_values(merge(BASE, over), "t"), "kubernetes", "vllm").manifests


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"vllm": {"args": ["--scheduling-policy", "foo"]}}, "vllm.args: --scheduling-policy must be one of"),
        ({"vllm": {"args": ["--shutdown-timeout", "5"]}}, "set rollout.longest_request_seconds instead"),
        ({"vllm": {"args": ["--ssl-keyfile=x"]}}, "TLS ends at the gateway"),
        ({"vllm": {"args": ["--max-num-queued-reqs", "1", "--max-num-queued-reqs", "2"]}}, "given 2 times"),
        ({"vllm": {"args": ["--hf-overrides", "{bad}"]}}, "must be JSON"),
        ({"engine": {"tensor_parallel_size": 3}}, "64 attention heads"),
        ({"engine": {"max_model_len": 10**30}}, "max_model_len must be at most"),
        ({"engine": {"seed": -1}}, "seed must be between"),
    ],
)
@pytest.mark.parametrize("platform", ["kubernetes", "kserve", "kserve-llm"])
def test_what_vllm_would_refuse_at_its_start(over: dict[str, Any], message: str, platform: Any) -> None:
    source = {"model": {"source": "meta-llama/Llama-3.1-70B-Instruct"}, "draft": None}
    told = problems(merge(source, over), platform, "vllm")
    assert message in told
    assert "vllm_args" not in told


def test_all_problems_come_together() -> None:
    text = problems({"replicas": 0, "naem": "x", "resources": {"cpu": -1}})
    assert "3 problems" in text
    assert all(part in text for part in ("replicas", "Did you mean 'name'", "resources.cpu"))
    text = problems({"name": "vllm", "replicas": 2})
    assert "3 problems" in text  # the name, and both claims


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigurationError, match="'image' is missing"):
        load_values(None, "paceline", "smoke-cpu")
    with pytest.raises(ConfigurationError, match="Did you mean 'llama-70b-1xh200'"):
        load_values(None, "paceline", "llama-70b-h200")
    with pytest.raises(ConfigurationError, match="No values"):
        load_values(None, "paceline")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", "no mapping"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice"),
        ("engine: {max_model_len: 1, max_model_len: 2}", "the key 'max_model_len' is there twice"),
        ("? [a]\n: 1", "not valid YAML"),
        ("a: 2026-13-45", "not valid YAML"),
        (None, "Cannot read"),
    ],
)
def test_files_that_hold_no_values(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_values(file, "paceline")


def test_a_file_over_a_preset_over_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text("engine: {max_model_len: 1024}\nname: mine\nimage: r/p:1\n")
    values = load_values(tmp_path / "v.yaml", "paceline", "llama-70b-4xh100", {"image": "r/p:2"})
    assert (values.name, values.image) == ("mine", "r/p:2")
    assert values.engine["max_model_len"] == 1024
    assert values.engine["speculative_config"]["num_speculative_tokens"] == 5


def test_the_start_documents_preset() -> None:
    engine = preset_values("llama-70b-4xh100", "paceline")["engine"]
    assert engine["tensor_parallel_size"] == 4
    assert engine["speculative_config"] == {
        "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1, "quantization": "fp8",
    }  # fmt: skip


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_printed_is_a_file_to_start_from(name: str, tmp_path: Path) -> None:
    assert preset_text(name).startswith("# ")
    file = tmp_path / "values.yaml"
    file.write_text(preset_text(name))
    assert render(load_values(file, "paceline", None, {"image": IMAGE}), "kserve", "paceline").manifests == (
        rendered(name, "kserve", "paceline").manifests
    )


@given(st.sampled_from(["Mi", "Gi", "Ti", "M", "G", "T"]), st.integers(1, 10**6))
def test_quantities(unit: str, number: int) -> None:
    base = 1024 if unit.endswith("i") else 1000
    assert to_bytes(f"{number}{unit}") == number * base ** (" MGT".index(unit[0]) + 1)


@given(st.text("aZ0/._- \u00e9", max_size=20))
def test_any_source_gives_a_folder_that_is_one(source: str) -> None:
    folder = folder_of(source)
    assert folder
    assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert not folder.startswith((".", "-"))


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", "deploy", *words])
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_wrong_values_leave_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ("render", "--preset", "smoke-cpu", "--out", str(out))
    assert run(monkeypatch, *words) == 2
    assert "'image' is missing" in capsys.readouterr().err
    (tmp_path / "v.yaml").write_text("engine: {max_model_len: [1]}")
    assert run(monkeypatch, words[0], str(tmp_path / "v.yaml"), *words[1:], "--image", IMAGE) == 2
    assert not out.exists()
    assert run(monkeypatch, *words, "--image", IMAGE) == 0
    assert (out / "kustomization.yaml").exists()


def test_an_empty_folder_name_is_not_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "render", "--preset", "smoke-cpu", "--image", IMAGE, "--out", "") == 2
    assert "--out is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_an_existing_claim_makes_useless_is_noted() -> None:
    over = {"storage": {"models": {"existing_claim": "c", "size": "1Gi"}}}
    notes = render(parse_values(merge(BASE, over), "t"), "kubernetes", "paceline").notes
    assert "storage.models: the claim is used as it is; size changes nothing." in notes
    over["storage"]["models"].pop("size")
    notes = render(parse_values(merge(BASE, over), "t"), "kserve", "vllm").notes
    assert not any("changes nothing" in note for note in notes)


def test_render_then_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kubernetes_validate")
    assert run(monkeypatch, "render", "--preset", "smoke-cpu", "--image", IMAGE, "-n", "other") == 0
    text = capsys.readouterr().out
    (tmp_path / "all.yaml").write_text(text)
    assert {content["metadata"]["namespace"] for content in yaml.safe_load_all(text)} == {"other"}
    assert run(monkeypatch, "check", str(tmp_path)) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    (tmp_path / "all.yaml").write_text(text.replace("volumeMounts", "volumeMoutns"))
    assert run(monkeypatch, "check", str(tmp_path)) == 1
    assert "volumeMoutns" in capsys.readouterr().out


def test_values_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "values") == 0
    assert capsys.readouterr().out.split() == list(preset_names())
    assert run(monkeypatch, "values", "llama-70b-4xh100", "--runtime", "vllm") == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert "num_speculative_tokens_per_batch_size" in printed["engine"]["speculative_config"]
    assert "draft_tensor_parallel_size" not in printed["engine"]["speculative_config"]  # vLLM's is the target's


def files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_files_are_replaced_and_old_ones_go(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_files(rendered("smoke-cpu", "kserve", "paceline", True), out)
    (out / "overlay.yaml").write_text("mine")
    assert {"inferenceservice.yaml", "httproute.yaml"} <= files(out).keys()
    write_files(rendered("smoke-cpu", "kubernetes", "paceline"), out)
    names = files(out).keys()
    assert not {"inferenceservice.yaml", "httproute.yaml"} & names
    assert {"deployment.yaml", "overlay.yaml"} <= names
    assert not [name for name in names if name.endswith(".tmp")]


def test_all_files_or_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_files(rendered("smoke-cpu", "kserve", "paceline"), out)
    before = files(out)
    (out / "deployment.yaml").mkdir()
    with pytest.raises(ConfigurationError, match="Nothing was written"):
        write_files(rendered("smoke-cpu", "kubernetes", "vllm"), out)
    (out / "deployment.yaml").rmdir()
    assert files(out) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Nothing was written"):
        write_files(rendered("smoke-cpu", "kubernetes", "vllm"), tmp_path / "file" / "out")


def test_somebody_elses_kustomization_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [a.yaml]\n")
    with pytest.raises(ConfigurationError, match="is not from"):
        write_files(rendered("smoke-cpu", "kubernetes", "vllm"), tmp_path)
    assert files(tmp_path) == {"kustomization.yaml": "resources: [a.yaml]\n"}


def test_the_stream_is_headed() -> None:
    assert as_stream(rendered("smoke-cpu", "kubernetes", "paceline")).startswith("# Rendered by")


@pytest.mark.parametrize(
    ("over", "gpus"),
    [
        ({"engine": {"pipeline_parallel_size": 2}}, 8),
        ({"engine": {"data_parallel_size": 2}}, 8),
        ({"engine": {"prefill_context_parallel_size": 2}}, 8),
        ({"engine": {"decode_context_parallel_size": 2}}, 4),  # ranks of the tensor-parallel group
        ({"vllm": {"args": ["--pipeline-parallel-size", "2"]}}, 8),
        ({"vllm": {"args": ["--pipeline-parallel-size", "2"]}, "resources": {"gpus": 8}}, 8),
    ],
)
def test_a_pod_has_every_gpu_that_vllm_uses(over: dict[str, Any], gpus: int) -> None:
    values = parse_values(merge(BASE, merge({"engine": {"tensor_parallel_size": 4}}, over)), "values.yaml")
    for platform, kind in (("kubernetes", "Deployment"), ("kserve", "ServingRuntime")):
        manifests: Any = render(values, platform, "vllm").manifests  # type: ignore[arg-type]
        spec = next(each for each in manifests if each["kind"] == kind)["spec"]
        container = spec.get("template", {"spec": spec})["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
        assert container["resources"]["requests"]["nvidia.com/gpu"] == str(gpus)


@pytest.mark.parametrize(
    ("over", "message", "platform"),
    [
        ({"engine": {"pipeline_parallel_size": 2}}, "tensor parallelism alone", "kserve-llm"),
        ({"vllm": {"args": ["--data-parallel-size=2"]}}, "tensor parallelism alone", "kserve-llm"),
        ({"engine": {"pipeline_parallel_size": 4}}, "use 16 GPUs", "kubernetes"),
        ({"engine": {"pipeline_parallel_size": 2}, "resources": {"gpus": 4}}, "the server uses 8 GPUs", "kserve"),
        ({"engine": {"nnodes": 2}}, "nnodes=2: one pod", "kubernetes"),
        ({"engine": {"data_parallel_size": 2, "data_parallel_size_local": 1}}, "over several pods", "kubernetes"),
        ({"vllm": {"args": ["--headless"]}}, "over several pods", "kserve"),
        ({"engine": {"tensor_parallel_size": 1, "data_parallel_size": 2, "device": "cpu"}}, "ask for none", "kserve"),
    ],
)
def test_what_one_pod_cannot_hold(over: dict[str, Any], message: str, platform: str) -> None:
    assert message in problems(merge({"engine": {"tensor_parallel_size": 4}}, over), platform, "vllm")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[0m", "-x", "--port"])
def test_names_that_no_server_takes(name: str) -> None:
    for platform in ("kubernetes", "kserve", "kserve-llm"):
        for runtime in ("paceline", "vllm"):
            assert "model.served_name" in problems({"model": {"served_name": name}}, platform, runtime)


@pytest.mark.parametrize("name", ["a b", "$(touch F)", "it's", "a;b", "`id`", 'a"b', "a\\b", "größe", "a*"])
def test_names_that_kserves_template_would_run(name: str) -> None:
    over = {"model": {"served_name": name}}
    assert "through a shell" in problems(over, "kserve-llm", "vllm")
    render(parse_values(merge(BASE, over), "values.yaml"), "kserve-llm", "paceline")  # a command of its own
    render(parse_values(merge(BASE, over), "values.yaml"), "kserve", "vllm")


def test_names_that_kserves_template_leaves_alone() -> None:
    values = parse_values(merge(BASE, {"model": {"served_name": "org/Model-3.1:8b@v1+a_b"}}), "values.yaml")
    render(values, "kserve-llm", "vllm")


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"draft": {"source": "ngram"}}, "set engine.speculative_config.method to it"),
        ({"model": {"source": "suffix"}}, "a method of speculation and no model"),
        ({"scheduling": {"node_selector": {"zone": "größe"}}}, "a label's value"),
        ({"scheduling": {"node_selector": {"zöne": "a"}}}, "a label's key"),
        ({"monitoring": {"labels": {"a": "٣a"}}}, "a label's value"),
        ({"vllm": {"version": "0.٣"}}, "a version"),
        ({"scheduling": {"tolerations": [{"key": "gpu", "value": "yes"}]}}, "operator Exists takes no value"),
        ({"replicas": 2**31}, "less than or equal to 2147483647"),
        ({"scaling": {"max_replicas": 2**31, "prometheus_url": "http://p"}}, "less than or equal to 2147483647"),
        ({"vllm": {"version": 0.32}}, "write it in quotes, with all its digits"),
    ],
)
def test_what_a_cluster_would_refuse(over: dict[str, Any], message: str) -> None:
    assert message in problems(over)


def test_equal_tolerates_a_value() -> None:
    wanted = [{"key": "gpu", "operator": "Equal", "value": "yes"}]
    render(parse_values(merge(BASE, {"scheduling": {"tolerations": wanted}}), "values.yaml"), "kubernetes", "paceline")


def test_every_pattern_has_words() -> None:
    text = json.dumps(Values.model_json_schema())
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\\\]|\\\\.)*")', text))
    assert len(patterns) > 10
    assert not [json.loads(pattern) for pattern in patterns if json.loads(pattern) not in IN_WORDS]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"draft": "a/b"}, "draft='a/b': give a mapping of source, folder"),
        ({"route": 5}, "give a mapping of gateway, hostname"),
        ({"monitoring": {"labels": 5}}, "monitoring.labels=5: give a mapping."),
        ({"scheduling": {"tolerations": ["a"]}}, "give a mapping of key, operator"),
        ({"replicas": "5"}, "write it without quotes"),
        ({"model": {"folder": "a b"}}, "it must be a folder"),
        ({"image": "a" * 600}, "(602 characters)"),
        ({"engine": {"max_queue": 5}}, "add --max-queue to the container's args in an overlay"),
    ],
)
def test_what_is_wrong_is_said_in_words(over: dict[str, Any], message: str) -> None:
    assert message in problems(over)
    assert "pattern" not in problems(over)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"engine": {"foo": 1}}, "The engine options cannot be used: foo: vLLM"),
        ({"vllm": {"args": ["a"]}}, "vllm.args: 'a' is not an option"),
        ({"engine": {"quantization": "foo"}}, "goes through vllm.args"),
    ],
)
def test_what_vllm_does_not_take_is_said_in_the_values_names(over: dict[str, Any], message: str) -> None:
    assert message in problems(over, runtime="vllm")


TOKEN = "hf_" + "a1B2" * 8  # of the form alone


@pytest.mark.parametrize(
    "over",
    [
        {"secrets": {"hub_token": TOKEN}},
        {"vllm": {"args": ["--hf-token", TOKEN]}},
        {"engine": {"hf_token": TOKEN}},
        {"monitoring": {"labels": {"a": TOKEN}}},
        {"scheduling": {"node_selector": {"a": f"x {TOKEN}"}}},
    ],
)
def test_secrets_do_not_stand_in_values_and_are_not_printed(over: dict[str, Any]) -> None:
    text = problems(over, runtime="vllm")
    assert TOKEN not in text
    assert "holds a token of Hugging Face" in text or "…" in text


def test_options_of_the_server_are_those_that_serve_has() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {parameter.name for parameter in serve.params}
    assert set(command.OF_THE_SERVER) <= options
    assert set(command.SERVE_OPTIONS) <= options | {"enable_prefix_caching"}


# Odd, and right: what a cluster takes.
ODD_AND_RIGHT: list[dict[str, Any]] = [
    {"name": "a"},
    {"name": "a" * 40, "namespace": "n" * 63},
    {"namespace": "a0-b"},
    {"image": "r:5000/a/b@sha256:" + "0" * 64},
    {"model": {"served_name": "Org/Model-3.1:8b@v1"}},
    {"model": {"folder": "a/B_c/d.e"}},
    {"draft": {"folder": "drafts/x"}},
    {"resources": {"cpu": 1, "shm": "2G", "memory": "1Ti"}},
    {"resources": {"cpu": 1024, "shm": "16000M", "memory": "2000000M"}},
    {"resources": {"gpu_resource": "amd.com/gpu"}},
    {"storage": {"models": {"existing_claim": "a.b-c", "download": False}}},
    {"storage": {"models": {"size": "1Mi"}, "compile_cache": {"access_mode": "ReadWriteMany"}}},
    {"secrets": {"api_key": {"name": "a.b", "key": ".k_e-Y"}}},
    {"rollout": {"startup_minutes": 180, "longest_request_seconds": 7200, "pre_stop_seconds": 120}},
    {"rollout": {"longest_request_seconds": 10, "pre_stop_seconds": 1}},
    {"route": {"gateway": {"name": "g", "namespace": "g"}, "hostname": "*.a.b"}},
    {"network": {"allow_namespaces": ["a", "b"], "prometheus_namespace": "llm"}},
    {"monitoring": {"enabled": False}},
    {"monitoring": {"labels": {"a.io/b": ""}, "interval_seconds": 5, "min_acceptance_rate": 0.001}},
    {"scheduling": {"node_selector": {"a.io/b": "C_d"}, "tolerations": [{"key": "k", "effect": "NoExecute"}]}},
    {"scheduling": {"priority_class": "a.b", "service_account": "s"}},
    {"security": {"user": 2**31 - 1}},
    {"engine": {"seed": 7, "max_num_seqs": 3, "enforce_eager": True, "enable_prefix_caching": False}},
    {"engine": {"speculative_config": {"num_speculative_tokens": 6}}, "model": {"served_name": "1"}},
]


@pytest.mark.parametrize("over", ODD_AND_RIGHT, ids=lambda over: str(over)[:40])
def test_whatever_is_rendered_passes_the_check(
    over: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(builtin, "is_available", lambda: False)
    monkeypatch.setattr(promql, "has_promtool", lambda: False)
    for platform in PLATFORMS:
        for runtime in RUNTIMES:
            base = merge(preset_values("llama-70b-4xh100", runtime), {"image": IMAGE})
            manifests = render(parse_values(merge(base, over), "t"), platform, runtime).manifests
            content = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
            (tmp_path / "a.json").write_text(json.dumps(content))
            assert not check_files([tmp_path / "a.json"]).findings


def test_without_a_preset_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"^command line: 3 problems"):
        load_values(None, "paceline", None, {"name": "a"})


def test_a_hostname_that_kserves_route_does_not_take_is_noted() -> None:
    values = parse_values(merge(BASE, {"route": FULL["route"]}), "values.yaml")
    for platform, runtime in (("kserve-llm", "paceline"), ("kserve", "vllm"), ("kserve-llm", "vllm")):
        notes = render(values, platform, runtime).notes  # type: ignore[arg-type]
        assert any("route.hostname" in note for note in notes) == (platform == "kserve-llm" and runtime == "vllm")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["values", "smoke-cpu"], ["render", "--preset", "smoke-cpu", "--image", "a/b:1"]])
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "paceline.cli", "deploy", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Note")]
    assert lines == ["Error: Cannot write: No space left on device."]


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_printed_values_are_what_the_preset_is(
    preset: str, platform: Any, runtime: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """A file of one's own that begins with them renders as the preset does."""
    assert run(monkeypatch, "values", preset, "--runtime", runtime) == 0
    file = tmp_path / "values.yaml"
    file.write_text(capsys.readouterr().out)
    again = render(load_values(file, runtime, None, {"image": IMAGE}), platform, runtime)
    assert again == rendered(preset, platform, runtime)
    assert "vLLM drafts as much" not in " ".join(again.notes) or "smoke" in preset


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "over", [{}, {"engine": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}}]
)
def test_no_draft_over_a_preset(preset: str, runtime: Any, over: dict[str, Any]) -> None:
    values = load_values(None, runtime, preset, {"image": IMAGE, "draft": None, **over})
    text = as_stream(render(values, "kubernetes", runtime))
    assert "/mnt/draft" not in text
    assert ("speculative-config" in text) is bool(over)
    assert "draft_tensor" not in text


def test_another_degree_over_a_preset_of_vllm() -> None:
    over = {"image": IMAGE, "engine": {"tensor_parallel_size": 8}}
    manifests = render(load_values(None, "vllm", "llama-70b-4xh100", over), "kubernetes", "vllm").manifests
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


SAID: list[tuple[dict[str, Any], str, str]] = [
    ({"image": "foo:latest"}, "paceline", "it names no version"),
    ({"vllm": {"image": "vllm/vllm-openai:latest"}}, "vllm", "it names no version"),
    ({"scaling": {"max_replicas": 2, "prometheus_url": "http://u@p"}}, "paceline", "no user and no password"),
    ({"vllm": {"args": ["a", 5]}}, "vllm", 'such as "5"'),
    ({"vllm": {"version": 0.20}}, "vllm", "with all its digits"),
    ({"draft": None, "engine": {"speculative_config": {"num_speculative_tokens": 2}}}, "vllm", "and nothing drafts"),
    ({"engine": {"speculative_config": {"draft_tensor_parallel_size": 1}}}, "vllm", "PRESET --runtime vllm"),
    ({"scheduling": {"node_selector": {"hf_" + "a1B2" * 8: "a"}}}, "vllm", "holds a token"),
]


@pytest.mark.parametrize(("over", "runtime", "message"), SAID, ids=[message for *_, message in SAID])
def test_what_values_are_told(over: dict[str, Any], runtime: Any, message: str) -> None:
    preset = "llama-70b-4xh100"
    with pytest.raises(ConfigurationError) as raised:
        render(load_values(None, runtime, preset, {"image": IMAGE, **over}), "kubernetes", runtime)
    assert message in str(raised.value)
    assert "speculative_model" not in str(raised.value)
