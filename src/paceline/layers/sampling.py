"""From logits to the law that tokens are drawn from, and drawing from it.

Contract
- The order is vLLM's: the restrictions on logits (restrictions.py), then temperature, min_p, top_k, top_p.
- A law is a pure function of its row's logits, parameters and tokens so far, drafts included. Ties at the edge
  of top_k or top_p are all kept, so the law does not depend on how a sort breaks them.
- Temperature 0 is the one-hot law of the argmax. It is kept as the argmax alone: `probs` holds only rows
  that are drawn at random, and a batch of greedy rows pays for no softmax.
- Draws use the inverse distribution function in float64 with one uniform number: a token of probability 0
  is never drawn.

Rows are sequences (B); places are the positions of one sequence in the step (K+1, or 1).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from paceline.layers.random import Purpose, as_int64, uniforms
from paceline.layers.restrictions import MaskProvider, Restrictions
from paceline.layers.threads import is_short, one_thread
from paceline.plan import RowPlan, SamplingPlan

_NUCLEUS_CANDIDATES = 512  # top_p is decided among so many, and among more where they do not hold enough
_MORE_CANDIDATES = 8  # times as many


@dataclass(frozen=True, slots=True)
class Law:
    """The processed law at P places of B rows.

    argmax       [B, P] int64
    random_rows  [Br] int64: rows with temperature > 0
    probs        [Br, P, V] float32, of those rows in that order; None if there are none
    valid        [B, P] bool: False where the logits are NaN or infinite, or nothing is left to sample
    """

    argmax: Tensor
    random_rows: Tensor
    probs: Tensor | None
    valid: Tensor

    def of(self, token_ids: Tensor) -> Tensor:
        """Probability of token_ids [B, P'] at the first P' places; float32 [B, P']. Padding (-1) gets 0."""
        places = token_ids.shape[1]
        result = (token_ids == self.argmax[:, :places]).to(torch.float32)
        if self.probs is not None:
            result[self.random_rows] = gather(self.probs[:, :places], token_ids[self.random_rows])
        return result


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of raw logits, where a forward pass has looked already; both of one shape, [L] or [B, P].

    values       float32: the largest, NaN if a logit is
    token_ids    int64: the first token that has it
    """

    values: Tensor
    token_ids: Tensor

    def shaped(self, num_rows: int, num_places: int) -> Peaks:
        """The first num_rows * num_places of [L] as [B, P]."""
        count = num_rows * num_places
        return Peaks(self.values[:count].view(num_rows, num_places), self.token_ids[:count].view(num_rows, num_places))


def gather(probs: Tensor, token_ids: Tensor) -> Tensor:
    """probs [.., V] at token_ids [..]; 0 where the token is padding (-1)."""
    values = probs.gather(-1, token_ids.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return values * (token_ids >= 0)


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """One token a row from unnormalised probs [N, V] with u [N] float64 in [0, 1); int64 [N]."""
    with one_thread(is_short(probs)):
        cumulative = probs.to(torch.float64).cumsum(-1)
        targets = u.unsqueeze(-1) * cumulative[:, -1:]
        return torch.searchsorted(cumulative, targets, right=True).squeeze(-1).clamp(max=probs.shape[-1] - 1)


class SamplingBatch:
    """The sampling parameters of a step's emitting rows, as tensors.

    masks             of rows with a grammar; needed only if there are any
    numbers_by_step   each step has random numbers of its own (see random.py)
    """

    def __init__(
        self,
        rows: Seq[RowPlan],
        device: torch.device,
        *,
        masks: MaskProvider | None = None,
        numbers_by_step: bool = False,
    ) -> None:
        self._rows = rows
        self.device = device
        plans = [row.sampling for row in rows]
        self._random_places = [row for row, plan in enumerate(plans) if not plan.greedy]
        self._random_plans = [plans[row] for row in self._random_places]
        self._restrictions = Restrictions(rows, masks)
        self._numbers_by_step = numbers_by_step

    @cached_property
    def random_rows(self) -> Tensor:
        """[Br] int64: rows with temperature > 0. Made when it is asked for: a greedy step on a CPU asks for none."""
        return torch.tensor(self._random_places, dtype=torch.int64, device=self.device)

    @property
    def all_greedy(self) -> bool:
        return not self._random_plans

    @property
    def is_unrestricted(self) -> bool:
        """Nothing changes a row's logits before its law is taken."""
        return not self._restrictions.are_any

    def select(self, rows: Seq[int]) -> SamplingBatch:
        """The same parameters for some of the rows."""
        if len(rows) == len(self._rows):
            return self
        selected = SamplingBatch([self._rows[row] for row in rows], self.device, numbers_by_step=self._numbers_by_step)
        selected._restrictions = self._restrictions.select(rows)
        return selected

    def uniforms(self, purpose: Purpose, num_places: int, first_place: int = 0) -> Tensor:
        """The random numbers of every row at `num_places` places; float64 [B, num_places] in [0, 1)."""
        seeds = torch.tensor([as_int64(row.sampling.seed) for row in self._rows], dtype=torch.int64)
        starts = torch.tensor([row.num_committed_tokens for row in self._rows], dtype=torch.int64)
        seeds, starts = seeds.to(self.device)[:, None], starts.to(self.device)[:, None]
        positions = starts + torch.arange(first_place, first_place + num_places, device=self.device)
        return uniforms(seeds, positions, purpose, starts if self._numbers_by_step else None)

    def num_legal(self, row: int, drafts: list[int]) -> int:
        """How many of a row's drafts, from the first on, its grammar follows; all of them without a grammar."""
        return self._restrictions.num_legal(row, drafts)

    def law(self, logits: Tensor, drafts: Tensor, first_place: int = 0, peaks: Peaks | None = None) -> Law:
        """The laws of logits [B, P, V] float32 at places first_place .. first_place+P-1.

        Place i follows the row's committed tokens and drafts[b, :i]: `drafts` [B, D] int64 with D >= first_place+P-1
        holds the tokens drafted so far, padding -1. At the places behind a row's padding the law is not used. The
        logits are not changed. `peaks` [B, P]: theirs, if they are known.
        """
        with one_thread(is_short(logits)):
            return self._law(logits, drafts, first_place, peaks)

    def _law(self, raw: Tensor, drafts: Tensor, first_place: int, peaks: Peaks | None) -> Law:
        logits = self._restrictions.apply(raw, drafts, first_place)
        best, argmax = (peaks.values, peaks.token_ids) if peaks is not None and logits is raw else logits.max(-1)
        probs = None
        if self._random_plans:
            is_all = len(self._random_plans) == len(self._rows)
            rows, highest = (logits, best) if is_all else (logits[self.random_rows], best[self.random_rows])
            probs = _probs(rows, highest, self._random_plans)
        return Law(argmax=argmax, random_rows=self.random_rows, probs=probs, valid=best.isfinite())


def _probs(logits: Tensor, peaks: Tensor, plans: Seq[SamplingPlan]) -> Tensor:
    """Temperature, min_p, top_k, top_p on logits [B, P, V], peaks [B, P] their largest; float32 probabilities that sum
    to 1."""
    temperature = torch.tensor([plan.temperature for plan in plans], dtype=torch.float32, device=logits.device)
    # The peak is taken off first: a large logit over a tiny temperature is beyond float32.
    probs = torch.softmax((logits - peaks.unsqueeze(-1)).div_(temperature[:, None, None]), dim=-1)
    restricted = [row for row, plan in enumerate(plans) if plan.min_p > 0 or plan.top_k > 0 or plan.top_p < 1]
    if not restricted:
        return probs
    places = probs.shape[1]
    some = probs[restricted].flatten(0, 1)
    some = _restrict(some, [plans[row] for row in restricted for _ in range(places)])
    probs[restricted] = some.view(len(restricted), places, -1)
    return probs


def _restrict(probs: Tensor, plans: Seq[SamplingPlan]) -> Tensor:
    """min_p, top_k, top_p in turn on probs [N, V]; each works on what the one before left."""
    vocab = probs.shape[-1]
    min_p = torch.tensor([plan.min_p for plan in plans], device=probs.device)
    if any(plan.min_p > 0 for plan in plans):
        probs = _keep_from(probs, min_p[:, None] * probs.max(-1, keepdim=True).values)
    if any(plan.top_k > 0 for plan in plans):
        top_k = [min(plan.top_k or vocab, vocab) for plan in plans]
        probs = _keep_from(probs, _kth_largest(probs, top_k))
    if any(plan.top_p < 1 for plan in plans):
        probs = _keep_from(probs, _nucleus_edge(probs, torch.tensor([plan.top_p for plan in plans])))
    return probs


def _keep_from(probs: Tensor, edge: Tensor) -> Tensor:
    """Drop what lies below edge [N, 1] and normalise."""
    probs = torch.where(probs >= edge, probs, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _kth_largest(probs: Tensor, k: list[int]) -> Tensor:
    """The k-th largest of each row; 0 where k is the whole vocabulary. [N, 1]"""
    vocab = probs.shape[-1]
    limited = [value if value < vocab else 1 for value in k]
    top = probs.topk(max(limited), dim=-1).values
    edge = top.gather(-1, torch.tensor(limited, device=probs.device).unsqueeze(-1) - 1)
    unlimited = torch.tensor([value >= vocab for value in k], device=probs.device).unsqueeze(-1)
    return edge.masked_fill(unlimited, 0.0)


def _nucleus_edge(probs: Tensor, top_p: Tensor) -> Tensor:
    """Probability of the last token of the smallest likeliest set with mass >= top_p. [N, 1]

    It is looked for among the likeliest tokens; only rows whose candidates do not hold enough are given more.
    """
    vocab = probs.shape[-1]
    top_p = top_p.to(probs.device)
    edge = torch.zeros_like(probs[:, :1])
    rows = (top_p < 1.0).nonzero().squeeze(1)
    size = min(_NUCLEUS_CANDIDATES, vocab)
    while len(rows):
        some = probs if len(rows) == len(probs) else probs[rows]
        top = some.topk(size, dim=-1).values if size < vocab else some.sort(dim=-1, descending=True).values
        mass, wanted = top.cumsum(-1), top_p[rows].unsqueeze(-1)
        last = ((mass - top) < wanted).sum(-1, keepdim=True) - 1
        edge[rows] = top.gather(-1, last.clamp(min=0))
        rows = rows[(mass[:, -1:] < wanted).squeeze(1)] if size < vocab else rows[:0]
        size = min(_MORE_CANDIDATES * size, vocab)
    return edge
