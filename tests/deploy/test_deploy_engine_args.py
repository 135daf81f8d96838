"""paceline deploy check: arguments with which a container's engine would not start, and those with which it does."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from deploy_cases import COMBINATIONS, Combination, one, rendered

from paceline.cli import option_table
from paceline.deploy.check.engine_args import engine_findings
from paceline.deploy.check.engine_args_paceline import command_tables
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.tables import FIRST, FLAGS, LAST

Json = dict[str, Any]
TOKEN = "hf_" + "a1B2" * 8  # of the form alone


def pod(*words: str, image: str = "vllm/vllm-openai:v0.32.0", **container: Any) -> Json:
    name = container.pop("name", "server")
    spec = {"containers": [{"name": name, "image": image, "command": list(words), **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def told(content: Json) -> list[str]:
    return [f"{finding.level}: {finding.message}" for finding in engine_findings(content)]


def vllm(*words: str, image: str = "vllm/vllm-openai:v0.32.0", **container: Any) -> list[str]:
    return told(pod("vllm", "serve", "/mnt/models", *words, image=image, **container))


def speculative(**config: Any) -> tuple[str, str]:
    return "--speculative-config", json.dumps({"method": "draft_model", "model": "/mnt/draft", **config})


SCHEDULE = {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 99, 0]]}
MOUNTS = [
    {"name": "models", "mountPath": "/mnt/models", "subPath": "meta-llama-3.1-70b-instruct-fp8-dynamic"},
    {"name": "models", "mountPath": "/mnt/draft", "subPath": "llama-3.2-1b-instruct"},
]


@pytest.mark.parametrize("combination", COMBINATIONS, ids=["-".join(map(str, each)) for each in COMBINATIONS])
def test_what_is_rendered_has_no_findings(combination: Combination) -> None:
    assert not [line for manifest in rendered(*combination).manifests for line in told(manifest)]


# vLLM

VLLM: list[tuple[tuple[str, ...], str]] = [
    (("--max-model-len 4096",), "is one word, with the space"),
    (("--max-num-seqs", "five"), "--max-num-seqs must be a whole number"),
    (("--max-num-seqs", "0"), "--max-num-seqs must be at least 1"),
    (("--dtype", "float33"), "--dtype must be one of"),
    (("--enforce-eager", "--seed"), "--seed needs a value"),
    (("--compilation-config", "{"), "no such finding"),  # server_commands.py tells
    (("--compilation-config", '{"mod": 3}'), "has no key 'mod'"),
    (("--enable-auto-tool-choice",), "needs --tool-call-parser as well"),
    (("--max-num-seqs", "64", "--max-num-batched-tokens", "32"), "must be at least max_num_seqs=64"),
    (("--max-num-sequences", "5"), "has no option --max-num-sequences. Did you mean"),
    (("--watchdog-config", "{}"), "has no option --watchdog-config (it came with 0.33)"),
    (("more", "words"), "'more' belongs to no option"),
    (("-tp2",), "the number is a word of its own"),
    (speculative(bogus=1), "speculative_config.bogus: vLLM 0.32.0 has no such setting"),
    ((*speculative(draft_tensor_parallel_size=1), "-tp", "4"), "runs a draft model on as many GPUs"),
    (speculative(num_speculative_tokens=0), "num_speculative_tokens=0 must be"),
    (speculative(method="draftmodel"), "has no such method. Did you mean"),
    ((*speculative(), "-pp", "2"), "pipeline_parallel_size=2 with speculation"),
    (("--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens", "x"), "must be a whole"),
    (("--tensor-parallel-size", "3"), "cannot split the 64 attention heads"),
    ((*speculative(), "-tp", "64"), "cannot split the 32 attention heads"),
]


@pytest.mark.parametrize(("words", "message"), VLLM, ids=[f"{i}" for i in range(len(VLLM))])
def test_arguments_with_which_vllm_does_not_start(words: tuple[str, ...], message: str) -> None:
    lines = [line for line in vllm(*words, volumeMounts=MOUNTS) if line.startswith("error")]
    if message == "no such finding":
        assert not lines
    else:
        assert any(message in line for line in lines), lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", "1", "--seed", "2"), "--seed is given 2 times"),
        (("--max-num-seq", "5"), "is the beginning of a name, which vLLM takes for --max-num-seqs"),
        (("--compilation-config", "{}", "--compilation-config.mode", "3"), "is given as a whole and as"),
    ],
)
def test_arguments_that_vllm_takes_otherwise_than_they_look(words: tuple[str, ...], message: str) -> None:
    lines = vllm(*words)
    assert len(lines) == 1
    assert lines[0].startswith("warning")
    assert message in lines[0]


@pytest.mark.parametrize(
    "words",
    [
        ("--max_num_seqs=5", "-tp=4", "-O3", "-q", "fp8", "--no-enable-prefix-caching"),
        ("--served-model-name", "a", "b", "c", "--middleware", "a.b", "--middleware", "c.d"),
        ("--compilation-config.mode", "3", "-cc.cudagraph_mode=none", "--max-model-len", "8k"),
        ("--max-num-seqs", "$(SEQS)", "--tensor-parallel-size=$(TP)", *speculative(draft_tensor_parallel_size=4)),
        (*speculative(method="eagle3", draft_tensor_parallel_size=1), "-tp", "4", "-pp", "2"),
        ("--speculative-config", '{"model": "/mnt/eagle", "draft_tensor_parallel_size": 1}', "-tp", "4"),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'),
        speculative(**SCHEDULE),
        ("--tensor-parallel-size", "8"),
        ("--served-model-name={{.Name}}", "--max-num-seqs={{.Seqs}}"),  # of a ServingRuntime
        ("--chat-template", "{% for m in messages %}--x{% endfor %}"),
        (f"--api-key={TOKEN}", "--hf-token", TOKEN),
    ],
)
def test_arguments_with_which_vllm_starts(words: tuple[str, ...]) -> None:
    assert not vllm(*words, volumeMounts=MOUNTS)


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
def test_options_by_version(version: int) -> None:
    """Each that is new or gone is told where it is not, and only there."""
    image = f"vllm/vllm-openai:v0.{version}.0"
    for (first, last), names in FLAGS.items():
        for name in names.split():
            lines = [line for line in vllm(f"--{name}", image=image) if f"has no option --{name}" in line]
            others = [span for span, more in FLAGS.items() if name in more.split()]
            there = any(since <= version <= until for since, until in others)
            if name.replace("-", "_") not in GONE and (first, last) == others[0]:
                assert bool(lines) <= (not there), (name, lines)
    assert any("it came with 0.24" in line for line in vllm(*speculative(**SCHEDULE), image=image)) == (version < 24)


def test_the_version_is_that_of_an_image_of_vllm() -> None:
    words = ("--max-num-seqs", "five", "--brand-new-thing", "1", "--max-num-sequences", "5")
    unknown = ("registry/llm-d-cuda:v0.8.0", "vllm/vllm-openai:latest", "vllm/vllm-openai:v0.99.0", "x/vllm@sha256:0")
    for image in unknown:
        lines = vllm(*words, image=image)
        assert [line.partition(":")[0] for line in lines] == ["warning", "warning"]
        assert not any("brand-new" in line for line in lines)
    (line,) = vllm(*words, image="vllm/vllm-openai:v0.8.5")
    assert "vLLM 0.8.5: its arguments are not known here" in line


@pytest.mark.parametrize(
    ("command", "args", "found"),
    [
        (["vllm", "serve", "m"], ["--max-num-seqs", "five"], True),
        (["/usr/bin/vllm", "serve"], ["m", "--max-num-seqs", "five"], True),
        (None, ["--model", "m", "--max-num-seqs", "five"], True),  # the image's own command
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "m", "--max-num-seqs", "five"], True),
        (["python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"], ["--max-num-seqs", "five"], True),
        (["sh", "-c"], ["exec vllm serve m \\\n --max-num-seqs five; echo --seed x"], True),
        (["bash", "-ec", "vllm serve m --max-num-seqs $SEQS"], None, False),
        (["sh", "-c", "vllm serve 'm"], None, False),
        (["vllm", "bench", "serve", "--max-num-seqs", "five"], None, False),
        (["python3", "-m", "sglang.launch_server", "--max-num-seqs", "five"], None, False),
        (["text-generation-launcher", "--max-num-seqs", "five"], None, False),
        ([], ["--max-num-seqs", "five"], True),
        (None, None, False),
    ],
)
def test_forms_of_a_command(command: list[str] | None, args: list[str] | None, found: bool) -> None:
    container = {"name": "s", "image": "vllm/vllm-openai:v0.32.0", "command": command, "args": args}
    content = pod()
    content["spec"]["containers"] = [
        container,
        {"name": "sidecar", "image": "envoy:1", "args": ["--max-num-seqs", "x"]},
    ]
    lines = told(content)
    assert len(lines) == found, lines
    assert not any("--seed" in line for line in lines)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--port 9000", "--port here: the template writes it"),
        ("--port=9000", "--port here"),
        ("--ssl-keyfile /k", "--ssl-keyfile here"),
        ("--uds /tmp/s", "--uds here"),
        ("--model x", "--model here: the template gives"),
        ("--served-model-name x", "--served-model-name here"),
        ("--max-num-seqs five", "must be a whole number"),
        ("--tensor-parallel-size 3", "cannot split the 64 attention heads"),
        ("--port 8000", None),
        ("--tensor-parallel-size 4", None),
        ("--seed '$(id)'", None),
    ],
)
def test_what_kserves_template_writes_itself(more: str, message: str | None) -> None:
    service = copy.deepcopy(one(rendered("llama-70b-4xh100", "kserve-llm", "vllm").manifests, "LLMInferenceService"))
    assert not told(service)
    main = service["spec"]["template"]["containers"][0]
    next(variable for variable in main["env"] if variable["name"] == "VLLM_ADDITIONAL_ARGS")["value"] += f" {more}"
    service["spec"]["model"]["uri"] = "hf://meta-llama/Llama-3.1-70B-Instruct"
    lines = told(service)
    assert any(message in line for line in lines) if message else not lines, lines


def test_a_pipeline_of_the_template_and_a_draft() -> None:
    service = copy.deepcopy(one(rendered("llama-70b-4xh100", "kserve-llm", "vllm").manifests, "LLMInferenceService"))
    service["spec"]["parallelism"]["pipeline"] = 2
    assert any("pipeline_parallel_size=2 with speculation" in line for line in told(service))


# Paceline

PACELINE: list[tuple[tuple[str, ...], str]] = [
    (("serve", "m", "--max-num-seq", "5"), "has no option --max-num-seq. Did you mean '--max-num-seqs'?"),
    (("serve", "m", "--max-num-seqs", "five"), "--max-num-seqs must be a whole number"),
    (("serve", "m", "--max-num-seqs 5"), "is one word, with the space"),
    (("serve", "m", "--max-num-seqs"), "--max-num-seqs needs a value"),
    (("serve", "m", "--enforce-eager=1"), "takes no value"),
    (("serve", "m", "more"), "'more' belongs to no option"),
    (("serve", "m", "--max-num-seqs", "0"), "max_num_seqs must be at least 1"),
    (("serve", "m", "--dtype", "float33"), "dtype='float33'"),
    (("serve", "m", "--tensor-parallel-size", "3"), "tensor_parallel_size"),
    (("serve", "m", "--speculative-config", '{"method": "ngram", "num_speculative_token": 3}'), "Did you mean"),
    (("serve", "m", "--speculative-model", "d", "--num-speculative-tokens", "0"), "num_speculative_tokens"),
    (("serve", "m", "--swap-space", "9"), "swap_space=9 is not supported"),
    (("server", "m"), "'paceline server': there is no such command. Did you mean 'serve'?"),
    (("deploy", "docter"), "'paceline deploy docter': there is no such command"),
    (("deploy", "doctor", "--onyl", "model"), "has no option --onyl. Did you mean '--only'?"),
    (("deploy", "doctor", "--only", "modle", "--model", "/m"), "--only modle: no such check. Did you mean 'model'?"),
    (("deploy", "doctor", "--only", "model"), "needs a --model"),
    (("deploy", "doctor", "--wait", "-3"), "--wait must be at least 0"),
    (("deploy", "doctor", "--runtime", "vlm"), "--runtime must be one of paceline, vllm"),
    (("models", "pull", "org/m", "--too", "/mnt/models/x"), "has no option --too"),
]


@pytest.mark.parametrize(("words", "message"), PACELINE, ids=[" ".join(words)[:40] for words, _ in PACELINE])
def test_arguments_with_which_paceline_does_not_start(words: tuple[str, ...], message: str) -> None:
    for form in (("paceline", *words), ("/opt/bin/paceline", *words)):
        lines = told(pod(*form, image="registry/p:1"))
        assert any(line.startswith("error") and message in line for line in lines), lines


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "m", "--port=8000", "--host", "0.0.0.0", "--no-enable-prefix-caching", "--log-format", "json"),
        ("serve", "m", "--max-num-seqs", "$(SEQS)", "--speculative-config", "$(CONFIG)", "$(MORE)"),
        ("serve", "m", "--runtime", "vllm", "--vllm-args", "--async-scheduling", "--dtype", "half"),
        ("serve", "--device", "cpu", "--max-model-len", "512"),
        ("serve", "m", "--served-model-name", "a", "--served-model-name", "b", "--swap-space", "4"),
        ("deploy", "doctor", "--only", "model", "--only", "gpu", "--model", "/m", "--wait", "60"),
        ("models", "pull", "org/m", "--to", "/mnt/models/x"),
        ("--version",),
        ("serve", "--help"),
        ("demo", "--anything"),
    ],
)
def test_arguments_with_which_paceline_starts(words: tuple[str, ...]) -> None:
    assert not told(pod("paceline", *words, image="registry/p:1"))


def test_a_misspelt_option_is_one_finding() -> None:
    for words in (("serve", "m", "--max-num-seq", "5"), ("deploy", "doctor", "--onyl", "model", "--model", "/m")):
        assert len(told(pod("paceline", *words))) == 1


def test_an_option_of_paceline_given_twice() -> None:
    (line,) = told(pod("paceline", "serve", "m", "--seed", "1", "--seed", "2"))
    assert line.startswith("warning: --seed is given 2 times")


def test_no_secret_is_shown() -> None:
    forms = [
        ("vllm", "serve", "m", f"--hf-tokn={TOKEN}", TOKEN),
        ("vllm", "serve", "m", "--max-num-seqs", TOKEN),
        ("paceline", "serve", "m", TOKEN),
        ("paceline", "serve", "m", "--port", TOKEN),
    ]
    for words in forms:
        assert TOKEN[:12] not in str(told(pod(*words)))


def test_the_list_of_options_is_that_of_the_command_line() -> None:
    """Else: python -m paceline.cli.option_table"""
    assert option_table.FILE.read_text() == option_table.render()
    assert {"serve", "models pull", "deploy doctor"} <= command_tables().keys()
    assert command_tables()["serve"]["options"]["--max-num-seqs"] == {"takes": 1, "value": "int"}
