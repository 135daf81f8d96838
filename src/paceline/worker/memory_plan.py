"""How many blocks the KV pools get: pure arithmetic, done before the pools are allocated.

On a GPU everything that takes memory is a part of the plan, and the parts add up to what is used (p35):

    memory_utilization * total = others + target weights + draft weights + activations + graphs + both pools

`others` is what the device had in use before (the CUDA context, kernels, other processes); weights are measured after
loading; activations are the peak of the largest steps, measured in worker/profile.py; graphs are what their owner says
it will capture. On a CPU the pools take what `kv_cache_memory_bytes` says, or a share of the memory that is free.
Never more than all sequences at full length could use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.config import EngineConfig
from paceline.errors import ConfigurationError

_CPU_SHARE = 0.25  # of the memory that is free: a server's host has other work to do
_CPU_LIMIT = 4 << 30  # taken page by page as blocks are first used
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Of a GPU, after the weights were loaded. On a CPU only `free_bytes` counts."""

    free_bytes: int
    total_bytes: int = 0
    activation_bytes: int = 0  # peak of a step beside weights and pools
    graph_bytes: int = 0  # of the captured graphs
    num_sharers: int = 1  # ranks that take their pools from the same memory (on a CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    target_weight_bytes: int
    draft_weight_bytes: int
    target_bytes_per_block: int
    draft_bytes_per_block: int
    num_blocks: int  # with the null block
    is_all: bool = False  # more memory would be of no use: every sequence has room at full length
    activation_bytes: int = 0
    graph_bytes: int = 0
    other_bytes: int = 0  # in use on the device, and not by this engine's tensors
    limit_bytes: int = 0  # of the device; 0: no limit is known

    def with_blocks(self, num_blocks: int) -> MemoryPlan:
        """The same with the number of blocks that all ranks have room for."""
        return replace(self, num_blocks=num_blocks, is_all=self.is_all and num_blocks == self.num_blocks)

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * (self.target_bytes_per_block + self.draft_bytes_per_block)

    @property
    def planned_bytes(self) -> int:
        """Everything: what the device will have in use once the cache is full."""
        weights = self.target_weight_bytes + self.draft_weight_bytes
        return weights + self.pool_bytes + self.activation_bytes + self.graph_bytes + self.other_bytes

    def describe(self) -> dict[str, str]:
        table = {"memory: target weights": _mib(self.target_weight_bytes)}
        if self.draft_weight_bytes:
            table["memory: draft weights"] = _mib(self.draft_weight_bytes)
        table["memory: KV cache"] = self._pools_in_words()
        if self.limit_bytes:
            table["memory: activations"] = _mib(self.activation_bytes)
            table["memory: graphs"] = _mib(self.graph_bytes)
            table["memory: context and others"] = _mib(self.other_bytes)
            table["memory: in all"] = f"{_mib(self.planned_bytes)} of {_mib(self.limit_bytes)} that may be used"
        return table

    def in_words(self) -> str:
        """In one line, for one of several ranks."""
        if self.limit_bytes:
            return f"{_mib(self.planned_bytes)} of {_mib(self.limit_bytes)} that may be used"
        return f"{_mib(self.planned_bytes)}"

    def _pools_in_words(self) -> str:
        words = _mib(self.pool_bytes)
        if self.draft_bytes_per_block:
            share = self.draft_bytes_per_block / (self.target_bytes_per_block + self.draft_bytes_per_block)
            words += f", {share:.0%} of it the draft's"
        if self.is_all:
            words += " (all that max_num_seqs at max_model_len can use)"
        return words


def plan_memory(
    config: EngineConfig,
    *,
    target_weight_bytes: int,
    draft_weight_bytes: int,
    target_bytes_per_block: int,
    draft_bytes_per_block: int,
    memory: DeviceMemory,
) -> MemoryPlan:
    """Fix the number of blocks. Raises ConfigurationError if not even one sequence of max_model_len fits, or if the
    number of blocks that the configuration names does not."""
    per_block = target_bytes_per_block + draft_bytes_per_block
    per_sequence = -(-config.model.max_model_len // config.cache.block_size)
    most = config.scheduler.max_num_seqs * per_sequence + 1
    limit = int(config.cache.memory_utilization * memory.total_bytes) if config.device == "cuda" else 0
    room = memory.free_bytes - (memory.total_bytes - limit) - memory.activation_bytes - memory.graph_bytes
    asked = config.cache.num_blocks or min(most, _budget(config, room, memory) // per_block)
    num_blocks = max(asked, 0)
    if num_blocks - 1 < per_sequence:
        raise ConfigurationError(_too_small(config, num_blocks, per_sequence, per_block, limit, room))
    if limit and num_blocks * per_block > room:
        raise ConfigurationError(
            f"A KV cache of {_mib(num_blocks * per_block)} does not fit: {_mib(max(room, 0))} are left of "
            f"{_mib(limit)} (gpu_memory_utilization={config.cache.memory_utilization}) beside weights, activations and "
            "graphs. Ask for a smaller cache, or leave its size out."
        )
    weights = target_weight_bytes + draft_weight_bytes
    return MemoryPlan(
        target_weight_bytes=target_weight_bytes,
        draft_weight_bytes=draft_weight_bytes,
        target_bytes_per_block=target_bytes_per_block,
        draft_bytes_per_block=draft_bytes_per_block,
        num_blocks=num_blocks,
        is_all=num_blocks >= most,
        activation_bytes=memory.activation_bytes,
        graph_bytes=memory.graph_bytes,
        other_bytes=max(memory.total_bytes - memory.free_bytes - weights, 0) if limit else 0,
        limit_bytes=limit,
    )


def _budget(config: EngineConfig, room: int, memory: DeviceMemory) -> int:
    if config.cache.kv_cache_memory_bytes is not None:
        return config.cache.kv_cache_memory_bytes
    if config.device == "cpu":
        return min(int(memory.free_bytes * _CPU_SHARE), _CPU_LIMIT) // memory.num_sharers
    return room


def _too_small(config: EngineConfig, num_blocks: int, per_sequence: int, per_block: int, limit: int, room: int) -> str:
    remedies = "Lower max_model_len or raise kv_cache_memory_bytes."
    if limit and config.cache.kv_cache_memory_bytes is None:
        remedies = "Lower max_model_len or max_num_batched_tokens, raise gpu_memory_utilization"
        remedies += "." if config.draft is None else ", or choose a smaller draft."
        if room <= 0:
            return (
                f"No memory is left for a KV cache: weights, activations and graphs take {_mib(limit - room)} of the "
                f"{_mib(limit)} that gpu_memory_utilization={config.cache.memory_utilization} allows. {remedies}"
            )
    return (
        f"The KV cache has room for {max(num_blocks - 1, 0)} blocks of {config.cache.block_size} positions, but "
        f"one sequence of max_model_len={config.model.max_model_len} needs {per_sequence} "
        f"({_mib((per_sequence + 1) * per_block)}). {remedies}"
    )


def _mib(count: int) -> str:
    return f"{count / _MIB:,.0f} MiB"
