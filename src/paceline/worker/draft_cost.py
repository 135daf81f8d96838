"""What a draft costs in cache on every rank, and what it would cost if it were split as far as the target.

A replicated draft keeps the keys and values of all its heads on each rank, a split one those of its own heads. Llama
70B with a 1B draft on four ranks: 40,960 numbers of the target for a position and rank, and 16,384 of a whole draft
(+40 %) or 4,096 (+10 %) of a split one.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import EngineConfig
from paceline.errors import ConfigurationError
from paceline.models.architecture import Architecture, read_architecture
from paceline.models.sharding import shard_model
from paceline.worker.memory_plan import MemoryPlan

_WORTH_SAYING = 0.10  # more positions


@dataclass(frozen=True, slots=True)
class DraftCost:
    words: str
    advice: str = ""  # empty: the draft is well where it is


def draft_cost(config: EngineConfig, target: Architecture, draft: Architecture, memory: MemoryPlan) -> DraftCost:
    """`target` and `draft`: the shares of this rank."""
    own, added = _numbers(target), _numbers(draft)
    size = config.tensor_parallel_size
    words = f"{own:,} numbers of the target and {added:,} of the draft on each rank (+{added / own:.0%})"
    split = _split_numbers(config, size)
    if split is None or split >= added:
        return DraftCost(words)
    words += f"; with draft_tensor_parallel_size={size} the draft's would be {split:,} (+{split / own:.0%})"
    gain = (own + added) / (own + split) - 1
    if memory.is_all or gain < _WORTH_SAYING:
        return DraftCost(words)
    return DraftCost(
        words,
        f"The cache is short of what max_num_seqs at max_model_len could use, and the draft takes "
        f"{added / (own + added):.0%} of it on every rank. With draft_tensor_parallel_size={size} it would have room "
        f"for {gain:.0%} more positions; a draft on fewer ranks is faster, one on more leaves more cache.",
    )


def _numbers(arch: Architecture) -> int:
    """Keys and values of one position."""
    return 2 * arch.kv_size * arch.num_layers


def _split_numbers(config: EngineConfig, size: int) -> int | None:
    """Of the draft, if it were split over all ranks; None: it cannot be, or is."""
    assert config.draft is not None
    if config.draft_tensor_parallel_size == size:
        return None
    try:
        return _numbers(shard_model(read_architecture(config.draft.path), 0, size).local)
    except ConfigurationError:
        return None
