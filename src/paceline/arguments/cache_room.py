"""A KV cache whose size was given: has it room for one sequence? Known from config.json, before weights are read."""

from __future__ import annotations

from dataclasses import replace

from paceline.config import EngineConfig, ModelConfig
from paceline.models.architecture import Architecture
from paceline.models.sharding import shard_model
from paceline.worker.memory_plan import DeviceMemory, plan_memory

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_cache_room(config: EngineConfig, target: Architecture, draft: Architecture | None) -> None:
    """Raises ConfigurationError in the words that the memory plan would have after loading."""
    if config.cache.kv_cache_memory_bytes is None and not config.cache.num_blocks:
        return  # measured once the weights are there
    draft_bytes = 0
    if draft is not None and config.draft is not None and config.speculative is not None:
        size = config.speculative.draft_tensor_parallel_size
        draft_bytes = _bytes_per_block(draft, config.draft, size, config.cache.block_size)
    plan_memory(
        replace(config, device="cpu"),  # where a given size is all that counts
        target_weight_bytes=0,
        draft_weight_bytes=0,
        target_bytes_per_block=_bytes_per_block(
            target, config.model, config.tensor_parallel_size, config.cache.block_size
        ),
        draft_bytes_per_block=draft_bytes,
        memory=DeviceMemory(free_bytes=0),
    )


def _bytes_per_block(architecture: Architecture, model: ModelConfig, num_ranks: int, block_size: int) -> int:
    """On the rank that holds most, both keys and values of all layers."""
    item = 1 if model.kv_cache_dtype == "fp8" else _ITEM_BYTES[model.dtype]
    kv_size = max(shard_model(architecture, rank, num_ranks).local.kv_size for rank in range(num_ranks))
    return 2 * kv_size * architecture.num_layers * block_size * item
