"""From logits to the law that tokens are drawn from, and drawing from it.

Contract
- The order is vLLM's: logit_bias, allowed_token_ids, min_tokens, temperature, min_p, top_k, top_p.
- A law is a pure function of its row's logits and parameters. Ties at the edge of top_k or top_p are all
  kept, so the law does not depend on how a sort breaks them.
- Temperature 0 is the one-hot law of the argmax. It is kept as the argmax alone: `probs` holds only rows
  that are drawn at random, and a batch of greedy rows pays for no softmax.
- Draws use the inverse distribution function in float64 with one uniform number: a token of probability 0
  is never drawn.

Rows are sequences (B); places are the positions of one sequence in the step (K+1, or 1).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.layers.random import as_int64
from paceline.plan import SamplingPlan

_NUCLEUS_CANDIDATES = 512  # top_p is decided among so many before a full sort is paid for
_NOTHING = float("-inf")


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


def gather(probs: Tensor, token_ids: Tensor) -> Tensor:
    """probs [.., V] at token_ids [..]; 0 where the token is padding (-1)."""
    values = probs.gather(-1, token_ids.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return values * (token_ids >= 0)


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """One token a row from unnormalised probs [N, V] with u [N] float64 in [0, 1); int64 [N]."""
    cumulative = probs.to(torch.float64).cumsum(-1)
    targets = u.unsqueeze(-1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1).clamp(max=probs.shape[-1] - 1)


class SamplingBatch:
    """The sampling parameters of a step's emitting rows, as tensors."""

    def __init__(self, plans: Seq[SamplingPlan], num_output_tokens: Seq[int], device: torch.device) -> None:
        self._plans = plans
        self._num_output_tokens = num_output_tokens
        random_rows = [row for row, plan in enumerate(plans) if not plan.greedy]
        self.device = device
        self.random_rows = torch.tensor(random_rows, dtype=torch.int64, device=device)
        self.seeds = torch.tensor([as_int64(plan.seed) for plan in plans], dtype=torch.int64, device=device)
        self._random_plans = [plans[row] for row in random_rows]
        self._edited = [row for row, plan in enumerate(plans) if _edits_logits(plan)]

    @property
    def all_greedy(self) -> bool:
        return not self._random_plans

    def select(self, rows: Seq[int]) -> SamplingBatch:
        """The same parameters for some of the rows."""
        if len(rows) == len(self._plans):
            return self
        return SamplingBatch(
            [self._plans[row] for row in rows], [self._num_output_tokens[row] for row in rows], self.device
        )

    def law(self, logits: Tensor, first_place: int = 0) -> Law:
        """The law of logits [B, P, V] float32, whose place 0 is the row's emitted token number `first_place`.

        The logits are not changed.
        """
        logits = self._edit(logits, first_place)
        best, argmax = logits.max(-1)
        probs = None
        if self._random_plans:
            rows = logits if len(self._random_plans) == len(self._plans) else logits[self.random_rows]
            probs = _probs(rows, self._random_plans)
        return Law(argmax=argmax, random_rows=self.random_rows, probs=probs, valid=best.isfinite())

    def _edit(self, logits: Tensor, first_place: int) -> Tensor:
        """Apply the restrictions that work on logits, to the rows that have any."""
        if not self._edited:
            return logits
        logits = logits.clone()
        for row in self._edited:
            plan = self._plans[row]
            if plan.logit_bias:
                ids, values = zip(*plan.logit_bias, strict=True)
                logits[row, :, list(ids)] += torch.tensor(values, device=logits.device)
            if plan.allowed_token_ids is not None:
                _keep_only(logits[row], plan.allowed_token_ids)
            held = plan.min_tokens - self._num_output_tokens[row] - first_place - 1
            if held > 0 and plan.stop_token_ids:
                # The token at place i is number num_output_tokens + first_place + i + 1 of the answer.
                logits[row, :held, list(plan.stop_token_ids)] = _NOTHING
        return logits


def _edits_logits(plan: SamplingPlan) -> bool:
    return bool(plan.logit_bias) or plan.allowed_token_ids is not None or plan.min_tokens > 0


def _keep_only(logits: Tensor, token_ids: tuple[int, ...]) -> None:
    """Mask everything else in logits [P, V], in place."""
    ids = list(token_ids)
    kept = logits[:, ids]
    logits.fill_(_NOTHING)
    logits[:, ids] = kept


def _probs(logits: Tensor, plans: Seq[SamplingPlan]) -> Tensor:
    """Temperature, min_p, top_k, top_p on logits [B, P, V]; float32 probabilities that sum to 1."""
    temperature = torch.tensor([plan.temperature for plan in plans], dtype=torch.float32, device=logits.device)
    probs = torch.softmax(logits / temperature[:, None, None], dim=-1)
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
    """Probability of the last token of the smallest likeliest set with mass >= top_p. [N, 1]"""
    top_p = top_p.to(probs.device).unsqueeze(-1)
    top = probs.topk(min(_NUCLEUS_CANDIDATES, probs.shape[-1]), dim=-1).values
    if bool((top.sum(-1, keepdim=True) < top_p).any()):  # the candidates do not hold enough: sort everything
        top = probs.sort(dim=-1, descending=True).values
    before = top.cumsum(-1) - top
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return top.gather(-1, last.clamp(min=0)).masked_fill(top_p >= 1.0, 0.0)
