"""How many blocks there are: pure arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from paceline.errors import ConfigurationError
from paceline.worker.memory_plan import DeviceMemory, MemoryPlan, plan_memory


def plan(free: int = 1 << 40, **cache: Any) -> MemoryPlan:
    config = EngineConfig(
        model=ModelConfig(path=Path("."), name="m", max_model_len=100),
        cache=CacheConfig(block_size=16, **cache),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
    )
    return plan_memory(
        config,
        target_weight_bytes=1000,
        draft_weight_bytes=100,
        target_bytes_per_block=900,
        draft_bytes_per_block=100,
        memory=DeviceMemory(free_bytes=free),
    )


def test_never_more_than_all_sequences_at_full_length() -> None:
    """100 positions are 7 blocks; 4 sequences and the null block make 29. Saying so when more was asked for."""
    for asked in ({}, {"kv_cache_memory_bytes": 10**9}):
        assert plan(**asked).num_blocks == 29
        assert "all that max_num_seqs" in plan(**asked).describe()["memory: KV cache"]


def test_both_pools_count() -> None:
    small = plan(kv_cache_memory_bytes=12_345)
    assert small.num_blocks == 12
    assert small.pool_bytes == 12_000
    assert "10% of it the draft's" in small.describe()["memory: KV cache"]
    assert "all that" not in small.describe()["memory: KV cache"]


def test_a_share_of_free_memory_on_a_cpu() -> None:
    assert plan(free=40_000).num_blocks == 10


def test_an_override_is_taken_as_it_is() -> None:
    assert plan(num_blocks=500).num_blocks == 500


@pytest.mark.parametrize("cache", [{"kv_cache_memory_bytes": 10}, {"kv_cache_memory_bytes": 7_999}, {"num_blocks": 7}])
def test_room_for_less_than_one_sequence_is_refused(cache: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"needs 7 .*Lower max_model_len"):
        plan(**cache)
    assert plan(kv_cache_memory_bytes=8_000).num_blocks == 8


GIB = 1 << 30


def plan_on_gpu(memory: DeviceMemory, max_num_seqs: int = 256, utilization: float = 0.95, **cache: Any) -> MemoryPlan:
    """A 70B in FP8 with a 1B draft, as far as bytes go."""
    config = EngineConfig(
        model=ModelConfig(path=Path("."), name="m", max_model_len=8192),
        cache=CacheConfig(block_size=16, memory_utilization=utilization, **cache),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
        device="cuda",
    )
    return plan_memory(
        config,
        target_weight_bytes=71 * GIB,
        draft_weight_bytes=2 * GIB,
        target_bytes_per_block=16 * 320 << 10,
        draft_bytes_per_block=16 * 32 << 10,
        memory=memory,
    )


@given(
    others=st.integers(1 << 28, 8 * GIB),
    activations=st.integers(0, 8 * GIB),
    graphs=st.integers(0, 4 * GIB),
    utilization=st.floats(0.85, 1.0),
)
def test_p35_parts_add_up_to_the_limit_and_never_beyond(
    others: int, activations: int, graphs: int, utilization: float
) -> None:
    """A cache that could use more takes all that is left, to within one block."""
    total = 139 * GIB
    free = total - others - 73 * GIB
    memory = DeviceMemory(free_bytes=free, total_bytes=total, activation_bytes=activations, graph_bytes=graphs)
    plan = plan_on_gpu(memory, utilization=utilization)
    assert plan.other_bytes == others
    assert plan.planned_bytes <= plan.limit_bytes == int(utilization * total)
    assert plan.limit_bytes - plan.planned_bytes < 16 * 352 << 10
    assert plan.pool_bytes + activations + graphs <= free


def test_p35_every_part_is_in_the_table() -> None:
    memory = DeviceMemory(free_bytes=65 * GIB, total_bytes=139 * GIB, activation_bytes=3 * GIB, graph_bytes=2 * GIB)
    table = plan_on_gpu(memory).describe()
    assert table["memory: target weights"] == "72,704 MiB"
    assert table["memory: draft weights"] == "2,048 MiB"
    assert table["memory: activations"] == "3,072 MiB"
    assert table["memory: graphs"] == "2,048 MiB"
    assert table["memory: context and others"] == "1,024 MiB"
    assert table["memory: in all"].endswith("of 135,219 MiB that may be used")


def test_a_gpu_too_small_says_what_takes_its_memory() -> None:
    memory = DeviceMemory(free_bytes=4 * GIB, total_bytes=80 * GIB, activation_bytes=2 * GIB)
    with pytest.raises(ConfigurationError, match=r"No memory is left for a KV cache: .*raise gpu_memory_utilization"):
        plan_on_gpu(memory)


@pytest.mark.parametrize("cache", [{"kv_cache_memory_bytes": 60 * GIB}, {"num_blocks": 12_000}])
def test_a_cache_that_was_asked_for_and_does_not_fit_is_refused(cache: dict[str, int]) -> None:
    memory = DeviceMemory(free_bytes=60 * GIB, total_bytes=139 * GIB, activation_bytes=3 * GIB)
    with pytest.raises(ConfigurationError, match="does not fit"):
        plan_on_gpu(memory, **cache)


def test_a_few_sequences_take_no_more_than_they_can_use() -> None:
    memory = DeviceMemory(free_bytes=60 * GIB, total_bytes=139 * GIB, activation_bytes=3 * GIB)
    plan = plan_on_gpu(memory, max_num_seqs=2)
    assert plan.num_blocks == 2 * 512 + 1
    assert plan.is_all
