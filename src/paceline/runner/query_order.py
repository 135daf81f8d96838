"""Query order: where each query head goes for the SDPA of its group, and where its result comes back from.

Depends only on how the batch's tokens are cut into groups, so the steps of a decode loop share one.
A span (first, num_queries) is a piece of one row; a group is a tuple of spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QueryOrder:
    tokens: list[Tensor]  # a group: [n, rows], the token of each query row
    gather: Tensor  # [sum of n·KV·rows], into the projection's vectors [T·(H + 2·KV), D]
    scatter: Tensor  # [T·H], into the groups' outputs [n, rows, KV] end to end


@lru_cache(maxsize=16)
def query_order(
    groups: tuple[tuple[Span, ...], ...], num_heads: int, num_kv_heads: int, device: torch.device
) -> QueryOrder:
    heads_per_kv = num_heads // num_kv_heads
    rows = [_query_rows(spans, heads_per_kv) for spans in groups]
    gather = torch.cat([_gather(tokens, heads, num_heads, num_kv_heads) for tokens, heads in rows])
    scatter = _scatter(groups, [len(heads) for _, heads in rows], num_heads, num_kv_heads)
    return QueryOrder([tokens.to(device) for tokens, _ in rows], gather.to(device), scatter.to(device))


def padded_rows(num_rows: int) -> int:
    """Query rows so that no block of 32 ends in fewer than 4: those would take another product, rounded otherwise."""
    return num_rows + 4 - num_rows % 32 if 0 < num_rows % 32 < 4 else num_rows


def _query_rows(spans: tuple[Span, ...], heads_per_kv: int) -> tuple[Tensor, Tensor]:
    """The query rows of an SDPA, head by head: token [n, rows] and head within its group [rows]; padding repeats."""
    num_queries = max(length for _, length in spans)
    indices: list[int] = []
    for first, length in spans:
        indices += [*range(first, first + length), *[first + length - 1] * (num_queries - length)]
    rows = torch.arange(padded_rows(heads_per_kv * num_queries)).clamp_(max=heads_per_kv * num_queries - 1)
    tokens = torch.tensor(indices).view(len(spans), num_queries)
    return tokens[:, rows % num_queries], rows // num_queries


def _gather(tokens: Tensor, heads: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """In the order n, KV, rows."""
    first_heads = torch.arange(0, num_heads, num_heads // num_kv_heads).view(-1, 1)
    return (tokens.unsqueeze(1) * (num_heads + 2 * num_kv_heads) + first_heads + heads).flatten()


def _scatter(groups: tuple[tuple[Span, ...], ...], num_rows: list[int], num_heads: int, num_kv_heads: int) -> Tensor:
    num_tokens = max(first + length for spans in groups for first, length in spans)
    first_place = [0] * num_tokens  # the place of a token's head 0
    step = [0] * num_tokens  # from one head of a key-value group to the next
    offset = 0
    for spans, rows in zip(groups, num_rows, strict=True):
        num_queries = max(length for _, length in spans)
        for first, length in spans:
            end = first + length
            first_place[first:end] = range(offset, offset + length * num_kv_heads, num_kv_heads)
            step[first:end] = [num_queries * num_kv_heads] * length
            offset += rows * num_kv_heads
    places = torch.tensor([first_place, step]).view(2, -1, 1, 1)
    in_group = torch.arange(num_heads // num_kv_heads)
    return (places[0] + torch.arange(num_kv_heads).view(1, -1, 1) + in_group * places[1]).flatten()
