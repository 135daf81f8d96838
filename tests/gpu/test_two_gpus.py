"""Two GPUs and NCCL: what tests/parallel shows with gloo, on the cards, with captured steps.

One world is started a test, and each is used for all that it can show: starting takes most of the time.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from model.pairs import make_llm, make_pair, prompts, texts
from model.tiny import make_tiny

from paceline import LLM, SamplingParams
from paceline.errors import EngineDeadError
from paceline.hub.cache import cached
from paceline.worker.parallel_executor import ParallelExecutor

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def executor_of(llm: LLM) -> ParallelExecutor:
    return llm._engine._executor  # type: ignore[union-attr,no-any-return]


def mixed(count: int) -> list[SamplingParams]:
    """Greedy and sampled; every fifth goes to the eager decoder."""
    return [
        SamplingParams(
            temperature=0.0 if i % 2 else 0.9, top_p=0.9, seed=i, max_tokens=24, ignore_eos=True,
            presence_penalty=0.5 if i % 5 == 4 else 0.0,
        )
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("draft_size", [1, 2])
def test_two_ranks_give_the_tokens_of_one_in_fp32(tmp_path: Path, draft_size: int) -> None:
    target, draft = make_pair(tmp_path)
    ids, params = prompts(10), mixed(10)
    speculative = {"model": str(draft), "num_speculative_tokens": 4}
    with make_llm(target, speculative) as alone:
        expected = texts(alone, ids, params)
    speculative["draft_tensor_parallel_size"] = draft_size
    with make_llm(target, speculative, tensor_parallel_size=2) as llm:
        for _ in range(2):  # cold, and from the prefix cache
            assert texts(llm, ids, params) == expected
        greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        texts(llm, ids, greedy)
        stats = llm.stats()
        assert stats.num_captured_steps > 0
        assert stats.speculation.num_accepted_tokens > 0
        assert executor_of(llm).num_checks > 0


def test_a_shape_whose_heads_do_not_divide(tmp_path: Path) -> None:
    """SmolLM2-135M has 9 heads in 3 groups: 6 and 3 of them on two ranks."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    target = make_tiny("smollm2", tmp_path / "target", vocab_size=4096, num_hidden_layers=4, **sizes)
    ids, params = prompts(6), mixed(6)
    with make_llm(target) as alone:
        expected = texts(alone, ids, params)
    with make_llm(target, tensor_parallel_size=2) as llm:
        assert texts(llm, ids, params) == expected


@pytest.mark.skipif(cached("smollm2-135m-instruct") is None, reason="needs the default model pair")
def test_the_default_pair(tmp_path: Path) -> None:
    target, draft = "smollm2-135m-instruct", "smollm2-135m-instruct-draft"
    wanted = SamplingParams(temperature=0.0, max_tokens=48)
    questions = ["What is the capital of France?", "Name three rivers.", "Write a haiku about the sea."]

    def answers(llm: LLM) -> list[str]:
        chats = [[{"role": "user", "content": question}] for question in questions]
        return [output.outputs[0].text for output in llm.chat(chats, wanted, use_tqdm=False)]

    speculative = {"model": draft, "num_speculative_tokens": 5}
    with LLM(target, dtype="float32", speculative_config=speculative) as alone:
        expected = answers(alone)
    with LLM(target, dtype="float32", speculative_config=speculative, tensor_parallel_size=2) as llm:
        assert answers(llm) == expected


def test_a_rank_that_is_killed_in_the_middle_of_a_step_is_named_within_seconds(tmp_path: Path) -> None:
    target, draft = make_pair(tmp_path)
    llm = make_llm(target, {"model": str(draft), "num_speculative_tokens": 4}, tensor_parallel_size=2)
    (pid,) = executor_of(llm).pids
    stream = llm.stream({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=200, ignore_eos=True))
    for _ in range(5):
        next(stream)
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineDeadError, match=rf"Rank 1 of 2 \(process {pid}\) was killed by signal 9"):
        for _ in stream:
            pass
    assert time.monotonic() - started < 10
    llm.close()
    torch.zeros(1, device="cuda").sum().item()  # the leader's device is free again
