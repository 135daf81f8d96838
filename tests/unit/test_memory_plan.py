"""How many blocks there are: pure arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from paceline.errors import ConfigurationError
from paceline.worker.memory_plan import MemoryPlan, plan_memory


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
        free_bytes=free,
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
