"""Two and four ranks (gloo) say what one rank says, with the draft whole on each rank or split; and end as they should.

Starting a world takes seconds, so each test starts one and asks it for everything; its last request is its end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from model.pairs import make_llm, make_pair, prompts, texts
from parallel import workers
from parallel.grammars import answers, make, write
from parallel.worlds import NUM_BLOCKS, World, followers_find_the_tests  # noqa: F401 - a fixture

from paceline import SamplingParams
from paceline.errors import EngineDeadError, UnsupportedModelError

K = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"))


def speculative(pair: tuple[Path, Path], **more: Any) -> dict[str, Any]:
    return {"model": str(pair[1]), "num_speculative_tokens": K, "adaptive": False, **more}


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    """Greedy and sampled rows, penalties, scores; two prompts begin as another does."""
    ids = prompts(8, seed=4, low=3, high=30)
    ids += [ids[0] + [7, 8, 9], ids[0][:12] + [5] * 9]
    more: list[dict[str, Any]] = [{}] * len(ids)
    more[2], more[5] = {"presence_penalty": 0.8, "bad_words": []}, {"logprobs": 2}
    more[6] = {"top_k": 20, "min_p": 0.02}
    return ids, [
        SamplingParams(temperature=0.0 if i % 3 == 0 else 0.9, top_p=0.95, seed=i, max_tokens=12, ignore_eos=True, **m)
        for i, m in enumerate(more)
    ]


@pytest.fixture(scope="module")
def expected(pair: tuple[Path, Path]) -> list[list[int]]:
    """Of one rank with as few blocks as the worlds have."""
    with make_llm(
        pair[0], speculative(pair), device="cpu", max_model_len=80, num_gpu_blocks_override=NUM_BLOCKS
    ) as one:
        return texts(one, *requests())


def says(world: World, expected: list[list[int]]) -> None:
    """The same, with drafts taken, prefixes found and rows preempted on the way; and the ranks agree."""
    assert texts(world, *requests()) == expected
    stats = world.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.speculation.num_accepted_tokens > 0
    assert world.executor.num_checks >= stats.num_steps // 2  # they come in beside the steps


def dies(world: World, words: str, seed: int | None, *, within: float = 15.0) -> None:
    started = time.monotonic()
    with pytest.raises(EngineDeadError, match=words):
        texts(world, [[5, 6, 7]], SamplingParams(seed=seed, max_tokens=60, ignore_eos=True, temperature=1.0))
    assert time.monotonic() - started < within


def test_p36_two_ranks_with_a_whole_draft_each(pair: tuple[Path, Path], expected: list[list[int]]) -> None:
    """The end: the second rank counts otherwise than the first."""
    with World(
        "FaultyWorker", str(pair[0]), speculative_config=speculative(pair), tensor_parallel_size=2,
    ) as world:  # fmt: skip
        says(world, expected)
        dies(world, "Rank 1 and rank 0 disagree on the tokens of step", workers.COUNTS_WRONG)
        assert world.nothing_is_left()


def test_four_ranks_with_a_draft_split_as_the_target(pair: tuple[Path, Path], expected: list[list[int]]) -> None:
    """Two key-value heads, each on two ranks. The end: a rank is killed in the middle of a step."""
    with World(
        "FaultyWorker", str(pair[0]), speculative_config=speculative(pair, draft_tensor_parallel_size=4),
        tensor_parallel_size=4,
    ) as world:  # fmt: skip
        says(world, expected)
        victim = world.processes[-1]
        threading.Timer(1.0, lambda: os.kill(victim.pid, signal.SIGKILL)).start()
        dies(world, rf"Rank 3 of 4 \(process {victim.pid}\) was killed by signal 9", workers.HANGS)
        assert world.nothing_is_left()
        with pytest.raises(EngineDeadError, match="Rank 3 of 4"):
            world.stats()  # the server's heartbeat


def test_four_ranks_with_a_whole_draft_each_beside_another_world(
    pair: tuple[Path, Path], expected: list[list[int]]
) -> None:
    """Another engine runs on the same host, in the same process, and survives. The end: an error in one rank."""
    with World("CapturedWorker", str(pair[0]), speculative_config=speculative(pair, draft_tensor_parallel_size=2),
               tensor_parallel_size=2) as other:  # fmt: skip
        with World("FaultyWorker", str(pair[0]), speculative_config=speculative(pair), tensor_parallel_size=4) as world:
            says(world, expected)
            dies(world, "Rank 3 of 4: MemoryError: planted", workers.RAISES)
            assert world.nothing_is_left()
        says(other, expected)
        assert 0 < other.stats().num_captured_steps < other.stats().num_decode_steps  # penalties and scores are eager
        num_steps = other.stats().num_captured_steps
        ids, wanted = prompts(3, seed=8), SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
        with make_llm(pair[0], speculative(pair), device="cpu") as alone:
            assert texts(other, ids, wanted) == texts(alone, ids, wanted)
        assert other.stats().num_captured_steps > num_steps
        assert other.executor.num_checks > 0
    assert other.nothing_is_left()


def test_grammars_are_the_leaders_and_its_end_is_everybodys(tmp_path: Path) -> None:
    """In a program of its own, which is killed: nothing could be put in order before."""
    write(tmp_path)
    program = subprocess.Popen(
        [sys.executable, "-m", "parallel.leader", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with make(str(tmp_path), device="cpu") as alone:
        expected = answers(alone)
    assert program.stdout is not None
    said = json.loads(program.stdout.readline())
    followers = [psutil.Process(pid) for pid in said["followers"]]
    assert said["answers"] == expected
    assert re.fullmatch("[a-f]{4}-[0-9]{2}", expected[0])
    program.kill()
    program.wait()
    _, alive = psutil.wait_procs(followers, timeout=10)
    assert len(followers) == 1
    assert not alive


def test_a_rank_that_cannot_load_says_why_and_takes_the_others_along(pair: tuple[Path, Path]) -> None:
    before = psutil.Process().children()
    with pytest.raises(UnsupportedModelError, match="Rank 1 of 2: planted: tensor x is missing"):
        World("UnloadableWorker", str(pair[0]), tensor_parallel_size=2)
    assert psutil.Process().children() == before
