"""Who holds what of a model: pure arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline.bench.shapes import SHAPES, locate_model
from paceline.config import EngineConfig, ModelConfig, SpeculativeConfig
from paceline.errors import ConfigurationError
from paceline.models.architecture import Architecture, read_architecture
from paceline.models.sharding import possible_sizes, shard_model
from paceline.worker.draft_cost import draft_cost
from paceline.worker.memory_plan import MemoryPlan


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Architecture]:
    folder = tmp_path_factory.mktemp("shapes")
    return {name: read_architecture(Path(locate_model(name, folder / name).model)) for name in SHAPES}


@given(
    kv_heads=st.integers(1, 16), group=st.integers(1, 12), inner=st.integers(1, 3000), vocab=st.integers(1, 200_000),
    size=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_ranks_hold_everything_once(
    shapes: dict[str, Architecture], kv_heads: int, group: int, inner: int, vocab: int, size: int
) -> None:
    """Heads, columns and tokens end to end; every query head beside the key-value head that it reads."""
    arch = replace(
        shapes["llama-3.2-1b"], num_heads=kv_heads * group, num_kv_heads=kv_heads, intermediate_size=inner,
        vocab_size=vocab,
    )  # fmt: skip
    assume(inner >= size * 16)
    if size not in possible_sizes(arch):
        with pytest.raises(ConfigurationError, match="cannot be split"):
            shard_model(arch, 0, size)
        return
    shards = [shard_model(arch, rank, size) for rank in range(size)]
    for spans, total in (
        ([shard.heads for shard in shards], arch.num_heads),
        ([shard.inner for shard in shards], inner),
        ([shard.tokens for shard in shards], vocab),
    ):
        covered = [thing for span in spans for thing in range(span.start, span.start + span.length)]
        assert covered == list(range(total))
    for shard in shards:
        heads, kv = shard.heads, shard.kv_heads
        assert (shard.local.num_heads, shard.local.num_kv_heads) == (heads.length, kv.length)
        assert heads.length % kv.length == 0
        own_group = heads.length // kv.length
        for place in range(heads.length):  # as attention computes it: query head i reads key-value head i // group
            assert (heads.start + place) // group == kv.start + place // own_group
        assert shard.tokens.length <= shard.head_rows
        assert shard.inner.length > 0
    assert len({shard.head_rows for shard in shards}) == 1
    assert size == 1 or shards[0].head_rows % 16 == 0


def test_public_shapes(shapes: dict[str, Architecture]) -> None:
    assert possible_sizes(shapes["llama-3.1-70b"]) == [1, 2, 4, 8]
    assert possible_sizes(shapes["smollm2-135m"]) == [1, 2]  # 9 heads in 3 groups
    assert possible_sizes(shapes["qwen2.5-0.5b"]) == [1, 2, 4, 8]  # 2 key-value heads with 7 query heads each
    eighth = shard_model(shapes["llama-3.1-405b"], 7, 8)
    assert (eighth.local.num_heads, eighth.local.num_kv_heads, eighth.inner.length) == (16, 1, 6656)
    with pytest.raises(
        ConfigurationError, match="9 attention heads in 3 groups cannot be split over 4 ranks: use 1 or 2"
    ):
        shard_model(shapes["smollm2-135m"], 0, 4)


@pytest.mark.parametrize(("draft_size", "is_all", "advised"), [(1, False, True), (1, True, False), (4, False, False)])
def test_what_a_replicated_draft_costs_in_cache(tmp_path: Path, draft_size: int, is_all: bool, advised: bool) -> None:
    """70B over four GPUs with a 1B draft: 40 % more on each, or 10 % if the draft is split too."""
    model, small = (
        ModelConfig(path=Path(locate_model(name, tmp_path / name).model), name=name)
        for name in ("llama-3.1-70b", "llama-3.2-1b")
    )
    config = EngineConfig(
        model=model, tensor_parallel_size=4,
        speculative=SpeculativeConfig(method="draft_model", draft=small, draft_tensor_parallel_size=draft_size),
    )  # fmt: skip
    memory = MemoryPlan(
        target_weight_bytes=0, draft_weight_bytes=0, target_bytes_per_block=1, draft_bytes_per_block=1, num_blocks=9,
        is_all=is_all,
    )  # fmt: skip
    target = shard_model(read_architecture(model.path), 0, 4).local
    draft = shard_model(read_architecture(small.path), 0, draft_size).local
    cost = draft_cost(config, target, draft, memory)
    assert ("(+40%)" in cost.words) == (draft_size == 1)
    assert "(+10%)" in cost.words
    assert bool(cost.advice) == advised
    if advised:
        assert "draft_tensor_parallel_size=4 it would have room for 27% more positions" in cost.advice
