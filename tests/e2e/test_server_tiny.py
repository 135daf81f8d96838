"""Everything real but the weights: the command line, the server, the engine process, the openai client.

The pair has tiny random weights and a byte-level tokenizer, in float32, so that answers can be compared exactly
with those of the offline API.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import torch
from model.tiny import make_tiny
from unit.hub_fakes import TEMPLATE, byte_level_tokens

from paceline import LLM, SamplingParams

PROMPTS = ["Once upon a time", "héllo €", "a b a b a b a b", "x"]
OPTIONS = {"dtype": "float32", "max_model_len": 200, "kv_cache_memory_bytes": 4_000_000}
SPECULATIVE = {"num_speculative_tokens": 3, "adaptive": False}


def write_tokenizer(path: Path) -> int:
    """A byte-level tokenizer without merges; the number of its tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = byte_level_tokens()
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    inner = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>")
    inner.chat_template = TEMPLATE
    inner.save_pretrained(path)
    return len(tokens)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    paths = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    for seed, path in enumerate(paths):
        size = write_tokenizer(path)
        make_tiny("smollm2", path, seed=seed, vocab_size=size + 7)  # p39: the table is padded
    return str(paths[0]), str(paths[1])


@pytest.fixture(scope="module")
def server(pair: tuple[str, str]) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    options = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    speculative = json.dumps({"model": pair[1], **SPECULATIVE})
    command = ["serve", pair[0], "--speculative-config", speculative, "--served-model-name", "tiny", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", *command, *options],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    shown = ""
    while "Try:" not in shown:
        line = process.stderr.readline()
        assert line, shown
        shown += line
    assert "draft_model, K = 3" in shown  # p41
    url = shown.split(" on ")[-1].split()[0]
    yield process, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    engines = psutil.Process(process.pid).children(recursive=True)  # and what the engine has started
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert not any(engine.is_running() for engine in engines)


@pytest.fixture(scope="module")
def offline(pair: tuple[str, str]) -> Iterator[LLM]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other cost far more than they give
    with LLM(pair[0], speculative_config={"model": pair[1], **SPECULATIVE}, **OPTIONS) as llm:
        yield llm
    torch.set_num_threads(num_threads)


def sampling(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 24, "temperature": 0.0, **fields}


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.8, "seed": 3, "top_p": 0.9}, {"n": 3, "temperature": 1.0, "seed": 1}]
)
def test_completions_are_those_of_the_offline_api(
    server: tuple[Any, openai.OpenAI], offline: LLM, fields: dict[str, Any]
) -> None:
    answer = server[1].completions.create(model="tiny", prompt=PROMPTS, **sampling(**fields))
    outputs = offline.generate(PROMPTS, SamplingParams(**sampling(**fields)), use_tqdm=False)
    assert [choice.text for choice in answer.choices] == [a.text for output in outputs for a in output.outputs]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(a.token_ids) for output in outputs for a in output.outputs)
    assert answer.usage.prompt_tokens == sum(len(output.prompt_token_ids) for output in outputs)


def test_a_stream_is_the_answer_in_pieces(server: tuple[Any, openai.OpenAI]) -> None:
    ask: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **sampling()}
    whole = server[1].chat.completions.create(**ask)
    chunks = list(server[1].chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    pieces = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert pieces == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.metrics["speculative_decoding"]["num_spec_steps"] > 0


def test_bytes_of_logprobs_spell_the_answer(server: tuple[Any, openai.OpenAI]) -> None:
    answer = server[1].chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "€"}], logprobs=True, top_logprobs=2, **sampling()
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    spelled = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content)
    if choice.finish_reason == "length":
        assert spelled.decode(errors="replace") == choice.message.content


def test_p27_p28_every_sampling_field_works_over_http_as_offline(
    server: tuple[Any, openai.OpenAI], offline: LLM
) -> None:
    standard: dict[str, Any] = {"frequency_penalty": 0.7, "presence_penalty": -0.4, "seed": 2, "temperature": 0.9}
    extra: dict[str, Any] = {"repetition_penalty": 1.3, "bad_words": ["a", "th"], "min_p": 0.01, "top_k": 60}
    answer = server[1].completions.create(
        model="tiny", prompt=PROMPTS, max_tokens=24, extra_body={**extra, "prompt_logprobs": 1}, **standard
    )
    params = SamplingParams(max_tokens=24, prompt_logprobs=1, **standard, **extra)
    outputs = offline.generate(PROMPTS, params, use_tqdm=False)
    assert [choice.text for choice in answer.choices] == [output.outputs[0].text for output in outputs]
    for choice, output in zip(answer.choices, outputs, strict=True):
        assert "a" not in choice.text
        assert "th" not in choice.text
        theirs, mine = choice.prompt_logprobs, output.prompt_logprobs  # type: ignore[attr-defined]
        assert theirs[0] is None
        for got, expected in zip(theirs[1:], mine[1:], strict=True):
            assert {int(token): entry["rank"] for token, entry in got.items()} == {
                token: entry.rank for token, entry in expected.items()
            }


def test_echo_scores_the_prompt(server: tuple[Any, openai.OpenAI], offline: LLM) -> None:
    answer = server[1].completions.create(model="tiny", prompt=PROMPTS[0], echo=True, logprobs=0, max_tokens=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (PROMPTS[0], "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    (output,) = offline.generate(PROMPTS[0], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert "".join(choice.logprobs.tokens or []) == PROMPTS[0]
    expected = [
        entry[token].logprob if entry else None
        for token, entry in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    ]
    assert choice.logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)


def test_the_engines_refusals_arrive(server: tuple[Any, openai.OpenAI]) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        server[1].completions.create(model="tiny", prompt="x" * 300)
    assert (long.value.param, long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as unknown:
        server[1].completions.create(model="tiny", prompt="x", logit_bias={"99999": 1})
    assert unknown.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError):
        server[1].completions.create(model="tiny", prompt="")


def test_restrictions_that_leave_no_token_are_the_requests_own_fault(server: tuple[Any, openai.OpenAI]) -> None:
    """A 400 and not a 500: a client would send a 500 again and again."""
    restricted = {"guided_regex": "[ab]{5}", "allowed_token_ids": [30]}
    with pytest.raises(openai.BadRequestError, match="Loosen them") as wrong:
        server[1].completions.create(model="tiny", prompt="x", max_tokens=4, extra_body=restricted)
    assert wrong.value.code == "no_token_left"
    with pytest.raises(openai.BadRequestError) as unreachable:
        server[1].completions.create(model="tiny", prompt="x", extra_body={"min_tokens": 100_000}, max_tokens=100_000)
    assert unreachable.value.param == "min_tokens"


def test_p30_structured_output_through_the_sandbox(server: tuple[Any, openai.OpenAI], offline: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"k": {"enum": ["x", "yy"]}, "ok": {"type": "boolean"}},
        "required": ["k"],
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "k", "schema": schema}}
    answer = server[1].completions.create(
        model="tiny", prompt=PROMPTS, **sampling(max_tokens=100), extra_body={"response_format": form}
    )
    params = SamplingParams(**sampling(max_tokens=100), structured_outputs={"json": schema})
    assert [c.text for c in answer.choices] == [o.outputs[0].text for o in offline.generate(PROMPTS, params, False)]
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert json.loads(choice.text)["k"] in ("x", "yy")
    with pytest.raises(openai.BadRequestError, match="parenthesis") as wrong:
        server[1].completions.create(model="tiny", prompt="x", stream=True, extra_body={"guided_regex": "(a"})
    assert wrong.value.param == "guided_regex"


def test_a_slow_grammar_holds_nobody_up(server: tuple[Any, openai.OpenAI]) -> None:
    slow = {"type": "object", "properties": {f"p{i}": {} for i in range(2500)}}
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(
            server[1].completions.create, model="tiny", prompt="x", max_tokens=2, extra_body={"guided_json": slow}
        )
        time.sleep(0.3)
        answer = server[1].completions.create(model="tiny", prompt="x", **sampling(max_tokens=4))
        assert answer.usage is not None
        assert not waiting.done()
        with contextlib.suppress(openai.BadRequestError):  # on a machine too busy to compile it in ten seconds
            assert waiting.result(60).choices[0].text


def test_offline_outputs_have_vllms_shape(offline: LLM) -> None:
    (output,) = offline.generate("Once upon", SamplingParams(max_tokens=12, logprobs=2, ignore_eos=True))
    (answer,) = output.outputs
    assert (len(answer.token_ids), answer.finish_reason) == (12, "length")
    assert answer.logprobs is not None
    assert all(token in entry for token, entry in zip(answer.token_ids, answer.logprobs, strict=True))
    spec = output.metrics.speculative_decoding
    assert spec.num_drafts > 0
    assert spec.mean_acceptance_length == 1 + spec.num_accepted_tokens / spec.num_drafts


def test_offline_streams_and_chat_agree(offline: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    params = SamplingParams(temperature=0, max_tokens=16)
    (output,) = offline.chat(messages, params)
    deltas = list(offline.stream(messages, params))
    assert "".join(delta.text for delta in deltas) == output.outputs[0].text
    assert [token for delta in deltas for token in delta.token_ids] == output.outputs[0].token_ids
