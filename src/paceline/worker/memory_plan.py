"""How many blocks the KV pools get: pure arithmetic, done before anything is allocated.

Both models' weights and both pools are counted. On a CPU the pools take what `kv_cache_memory_bytes` says, or
a share of the memory that is free, but never more than all sequences at full length could use.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import EngineConfig
from paceline.errors import ConfigurationError

_CPU_SHARE = 0.25  # of the memory that is free: a server's host has other work to do
_CPU_LIMIT = 4 << 30  # taken page by page as blocks are first used
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    target_weight_bytes: int
    draft_weight_bytes: int
    target_bytes_per_block: int
    draft_bytes_per_block: int
    num_blocks: int  # with the null block
    is_all: bool = False  # more memory would be of no use: every sequence has room at full length

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * (self.target_bytes_per_block + self.draft_bytes_per_block)

    def describe(self) -> dict[str, str]:
        table = {"memory: target weights": _mib(self.target_weight_bytes)}
        if self.draft_weight_bytes:
            table["memory: draft weights"] = _mib(self.draft_weight_bytes)
        table["memory: KV cache"] = _mib(self.pool_bytes)
        if self.draft_bytes_per_block:
            share = self.draft_bytes_per_block / (self.target_bytes_per_block + self.draft_bytes_per_block)
            table["memory: KV cache"] += f", {share:.0%} of it the draft's"
        if self.is_all:
            table["memory: KV cache"] += " (all that max_num_seqs at max_model_len can use)"
        return table


def plan_memory(
    config: EngineConfig,
    *,
    target_weight_bytes: int,
    draft_weight_bytes: int,
    target_bytes_per_block: int,
    draft_bytes_per_block: int,
    free_bytes: int,
) -> MemoryPlan:
    """Fix the number of blocks. `free_bytes`: memory left after the weights were loaded.

    Raises ConfigurationError if not even one sequence of max_model_len fits.
    """
    per_block = target_bytes_per_block + draft_bytes_per_block
    per_sequence = -(-config.model.max_model_len // config.cache.block_size)
    most = config.scheduler.max_num_seqs * per_sequence + 1
    num_blocks = config.cache.num_blocks or min(most, _budget(config, free_bytes) // per_block)
    if num_blocks - 1 < per_sequence:
        raise ConfigurationError(
            f"The KV cache has room for {max(num_blocks - 1, 0)} blocks of {config.cache.block_size} positions, but "
            f"one sequence of max_model_len={config.model.max_model_len} needs {per_sequence} "
            f"({_mib((per_sequence + 1) * per_block)}). Lower max_model_len or raise kv_cache_memory_bytes."
        )
    return MemoryPlan(
        target_weight_bytes=target_weight_bytes,
        draft_weight_bytes=draft_weight_bytes,
        target_bytes_per_block=target_bytes_per_block,
        draft_bytes_per_block=draft_bytes_per_block,
        num_blocks=num_blocks,
        is_all=num_blocks >= most,
    )


def _budget(config: EngineConfig, free_bytes: int) -> int:
    if config.cache.kv_cache_memory_bytes is not None:
        return config.cache.kv_cache_memory_bytes
    if config.device == "cpu":
        return min(int(free_bytes * _CPU_SHARE), _CPU_LIMIT)
    return free_bytes


def _mib(count: int) -> str:
    return f"{count / _MIB:,.0f} MiB"
