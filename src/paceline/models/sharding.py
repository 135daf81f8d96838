"""What one rank of a tensor-parallel group holds of a model. Pure arithmetic; imports no torch.

    q, k, v, gate, up    split by outputs: each rank has some attention heads, and some of the MLP's inner columns
    o, down              split by inputs, to match; the ranks' partial sums are added (one all-reduce each)
    head                 split by tokens, HEAD_UNIT at a time; the logits are gathered
    embedding, norms     whole on every rank

Key-value heads are split as far as they go; with fewer heads than ranks each is on several ranks, which share its
group of query heads. Sizes need not be equal: 9 heads in groups of 3 are 6 and 3 on two ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.errors import ConfigurationError
from paceline.models.architecture import Architecture

HEAD_UNIT = 16  # rows of the head; FP8 products come in multiples of it
_INNER_UNIT = 16  # the same for the columns of the MLP, where they can be cut so


@dataclass(frozen=True, slots=True)
class Span:
    """`length` things from `start` on, of `full`."""

    start: int
    length: int
    full: int

    def __mul__(self, size: int) -> Span:
        return Span(self.start * size, self.length * size, self.full * size)


@dataclass(frozen=True, slots=True)
class Shard:
    """`local`: the architecture with the heads and inner columns of this rank alone."""

    rank: int
    size: int
    local: Architecture
    heads: Span
    kv_heads: Span
    inner: Span
    tokens: Span  # rows of the head; empty where the others have all
    head_rows: int  # on every rank: tokens, then zeros


def shard_model(arch: Architecture, rank: int, size: int) -> Shard:
    """Raises ConfigurationError where this model cannot be split so."""
    kv_heads, heads = _head_spans(arch, rank, size)
    unit = _INNER_UNIT if arch.intermediate_size % _INNER_UNIT == 0 else 1
    inner = _even(arch.intermediate_size // unit, rank, size) * unit
    if inner.length == 0:
        raise ConfigurationError(
            f"an MLP of {arch.intermediate_size} columns cannot be split over {size} ranks; use fewer ranks."
        )
    local = replace(arch, num_heads=heads.length, num_kv_heads=kv_heads.length, intermediate_size=inner.length)
    rows = -(-arch.vocab_size // (size * HEAD_UNIT)) * HEAD_UNIT if size > 1 else arch.vocab_size
    start = min(rank * rows, arch.vocab_size)
    tokens = Span(start, min(rows, arch.vocab_size - start), arch.vocab_size)
    return Shard(rank, size, local, heads, kv_heads, inner, tokens, rows)


def _head_spans(arch: Architecture, rank: int, size: int) -> tuple[Span, Span]:
    """(key-value heads, query heads) of a rank."""
    num_kv, group = arch.num_kv_heads, arch.num_heads // arch.num_kv_heads
    if num_kv >= size:
        kv_heads = _even(num_kv, rank, size)
        return kv_heads, kv_heads * group
    copies = size // num_kv
    if size % num_kv or copies > group:
        raise ConfigurationError(
            f"{arch.num_heads} attention heads in {num_kv} groups cannot be split over {size} ranks: use "
            f"{' or '.join(map(str, possible_sizes(arch)))}."
        )
    kv_head, part = divmod(rank, copies)
    within = _even(group, part, copies)
    return Span(kv_head, 1, num_kv), Span(kv_head * group + within.start, within.length, arch.num_heads)


def possible_sizes(arch: Architecture) -> list[int]:
    """Numbers of ranks, of those offered, that a model's heads can be split over."""
    num_kv, group = arch.num_kv_heads, arch.num_heads // arch.num_kv_heads
    return [
        size for size in (1, 2, 4, 8) if num_kv >= size or (size % num_kv == 0 and size // num_kv <= group)
    ]  # fmt: skip


def _even(total: int, rank: int, size: int) -> Span:
    """As even as it goes, the larger shares first."""
    each, more = divmod(total, size)
    return Span(rank * each + min(rank, more), each + (rank < more), total)
