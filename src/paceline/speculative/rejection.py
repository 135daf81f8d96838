"""Rejection sampling: which drafts are kept, and which token follows them. Pure tensors, exact.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). With p the target's and q the
draft's processed law at a place, a draft token x is accepted with probability min(1, p(x)/q(x)); at the
first rejection the recovered token is drawn from norm(max(p - q, 0)); when all K are kept the bonus token
is drawn from p at place K. The emitted tokens then have exactly the target's law.

- q must be, bit for bit, the law that the draft token was drawn from; a proposer that does not draw
  (argmax, n-gram) has the one-hot law, q(x) = 1.
- The test is u*q < p: no division, so q = 0 cannot occur and p = q is always accepted (u < 1).
- Temperature 0 is a one-hot p. Nothing here asks whether a row is greedy but the Law that stores it so.
- An empty residual (p = q up to rounding, and yet a rejection) falls back to p.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from paceline.layers.sampling import Law, Peaks, draw, gather


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a proposer suggests for B emitting rows.

    draft_token_ids  [B, K] int64, padding -1
    num_drafted      [B] on the host: tokens proposed for each row
    draft_probs      [Br, K, V] float32: the laws drawn from, for the rows drawn at random (in the order of
                     the target law's random_rows); None: every token is the argmax of its law (one-hot q)
    failed           sequences whose draft gave NaN, emitting or not; they propose nothing
    on_host          the tokens of each row without padding, where the proposer has them there
    """

    draft_token_ids: Tensor
    num_drafted: list[int]
    draft_probs: Tensor | None = None
    failed: frozenset[int] = frozenset()
    on_host: list[list[int]] | None = None

    @property
    def num_speculative_tokens(self) -> int:
        return self.draft_token_ids.shape[1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """num_accepted [B] in 0..K; output_token_ids [B, K+1], padding -1; valid [B]: the last token had a law."""

    num_accepted: Tensor
    output_token_ids: Tensor
    valid: Tensor


def accept(law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
    """Decide every row. law covers K+1 places; u_accept [B, K] and u_target [B, K+1] are float64 in [0, 1)."""
    drafts = proposal.draft_token_ids
    p = law.of(drafts)  # [B, K]
    q = _draft_law_of(law, proposal)  # [B, K]
    kept = (u_accept * q < p) & (drafts >= 0)
    num_accepted = kept.to(torch.int64).cumprod(-1).sum(-1)  # [B]
    return outcome(law, proposal, num_accepted, _last_token(law, proposal, num_accepted, u_target))


def accept_greedy(law: Law, proposal: Proposal) -> list[list[int]]:
    """What every exact method decides where all rows are greedy, whatever the random numbers: drafts are kept up to the
    first that is not the target's argmax, which follows them. A row is [num_accepted, valid, *output tokens]: some
    comparisons on the host in place of some thirty operators over tensors of a handful of numbers.
    """
    if proposal.on_host is not None:
        return _decided(law.argmax.tolist(), law.valid.tolist(), proposal.on_host)
    places = law.argmax.shape[1]
    columns = [law.argmax, law.valid.to(torch.int64), proposal.draft_token_ids]
    packed = torch.cat(columns, dim=1).tolist()  # to the host as one
    argmax, valid = ([row[i * places : (i + 1) * places] for row in packed] for i in (0, 1))
    return _decided(argmax, valid, [row[2 * places :] for row in packed])


def accept_likeliest(peaks: Peaks, proposal: Proposal) -> list[list[int]]:
    """The same from the peaks [L] of the target's raw logits, where nothing restricts them; K+1 places a row come
    first in L."""
    places = proposal.num_speculative_tokens + 1
    argmax, values = peaks.token_ids.tolist(), peaks.values.tolist()
    rows = [slice(row * places, (row + 1) * places) for row in range(len(proposal.num_drafted))]
    drafts = proposal.on_host if proposal.on_host is not None else proposal.draft_token_ids.tolist()
    return _decided([argmax[row] for row in rows], [list(map(isfinite, values[row])) for row in rows], drafts)


def _decided(argmax: list[list[int]], valid: list[list[bool]], drafts: list[list[int]]) -> list[list[int]]:
    decided = []
    for likeliest, good, tokens in zip(argmax, valid, drafts, strict=True):
        kept = next((place for place, token in enumerate(tokens) if token != likeliest[place]), len(tokens))
        decided.append([kept, int(good[kept]), *tokens[:kept], likeliest[kept]])
    return decided


def outcome(law: Law, proposal: Proposal, num_accepted: Tensor, last: Tensor) -> Outcome:
    """num_accepted [B] drafts of each row, and behind them its last token [B]."""
    drafts = proposal.draft_token_ids
    places = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    output = torch.nn.functional.pad(drafts, (0, 1), value=-1)
    output = torch.where(places < num_accepted[:, None], output, -1)
    output = output.scatter(1, num_accepted[:, None], last[:, None])
    valid = law.valid.gather(1, num_accepted[:, None]).squeeze(1)
    return Outcome(num_accepted, output, valid)


def draw_at(law: Law, places: Tensor, u_target: Tensor, weights: Tensor | None = None) -> Tensor:
    """One token a row from the target's law at `places` [B]; int64 [B].

    `weights` [Br, V], not normalised, stand for the law of the rows drawn at random: a residual.
    """
    token_ids = law.argmax.gather(1, places[:, None]).squeeze(1)
    if law.probs is None:
        return token_ids
    rows = law.random_rows
    if weights is None:
        weights = law.probs[torch.arange(len(rows), device=rows.device), places[rows]]
    token_ids[rows] = draw(weights, u_target[rows].gather(1, places[rows][:, None]).squeeze(1))
    return token_ids


def _draft_law_of(law: Law, proposal: Proposal) -> Tensor:
    """q(x) of every draft token: 1 where the proposer did not draw."""
    q = torch.ones(proposal.draft_token_ids.shape, dtype=torch.float32, device=proposal.draft_token_ids.device)
    if proposal.draft_probs is not None:
        q[law.random_rows] = gather(proposal.draft_probs, proposal.draft_token_ids[law.random_rows])
    return q


def _last_token(law: Law, proposal: Proposal, num_accepted: Tensor, u_target: Tensor) -> Tensor:
    """The recovered or bonus token of each row, drawn at place num_accepted."""
    if law.probs is None:
        return draw_at(law, num_accepted, u_target)
    rows = law.random_rows
    place = num_accepted[rows]
    p = law.probs[torch.arange(len(rows), device=rows.device), place]  # [Br, V]
    return draw_at(law, num_accepted, u_target, _residual(p, proposal, rows, place))


def _residual(p: Tensor, proposal: Proposal, rows: Tensor, place: Tensor) -> Tensor:
    """max(p - q, 0) where a draft was rejected, p where none was left to reject; [Br, V], not normalised."""
    if proposal.num_speculative_tokens == 0:
        return p
    at = place.clamp(max=proposal.num_speculative_tokens - 1)
    rejected = proposal.draft_token_ids[rows].gather(1, at[:, None]).squeeze(1)  # -1: no draft there
    rejected = torch.where(place < proposal.num_speculative_tokens, rejected, -1)
    if proposal.draft_probs is not None:
        q = proposal.draft_probs[torch.arange(len(rows), device=rows.device), at]
    else:
        q = torch.zeros_like(p).scatter_(1, rejected.clamp(min=0)[:, None], 1.0)
    residual = (p - q).clamp_(min=0.0)
    use_p = (rejected < 0) | (residual.sum(-1) <= 0)
    return torch.where(use_p[:, None], p, residual)
