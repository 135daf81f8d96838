"""Block verification: all drafts of a row are judged together. Pure tensors, exact.

Sun et al. 2024, "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444, Algorithm 2). Token-wise
rejection stops at the first token that the draft likes more than the target does, although the tokens behind
it may make up for that. Here the whole drafted text is weighed. With x_1 .. x_K the drafts and p_i, q_i the
processed laws of target and draft behind the first i of them:

    w_0 = 1,  w_i = min(1, w_(i-1) * p_(i-1)(x_i) / q_(i-1)(x_i))      how well the first i drafts fit, 0..1
    r_i(x) = max(w_i * p_i(x) - q_i(x), 0),  S_i = sum_x r_i(x)        what the target still lacks behind them
    h_i = S_i / (S_i + 1 - w_i)  for i < K,   h_K = w_K

The longest prefix i with u_i < h_i is kept (i = 0 always is), u_i independent. Behind it comes a token from
norm(r_i), or from p_K when all are kept. The emitted tokens have the target's law, and no method that sees
only these laws keeps more drafts on average; token-wise rejection never does.

- A row with fewer drafts is a row with a smaller K. Rows at temperature 0 keep what equals the argmax.
- A draft that was not drawn (n-gram) has the one-hot q; then nothing is gained over token-wise rejection.
- Where the target's law is invalid (nothing left to sample) the drafts end: text that gets there fails as it
  does without drafts, and no later draft may vote on it.
- How much is kept depends on the drafts that are not. Every step therefore needs random numbers of its own for
  positions that an earlier step drafted in vain (layers/random.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.layers.sampling import Law, gather
from paceline.speculative import rejection
from paceline.speculative.rejection import Outcome, Proposal


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of the rows drawn at random; float64.

    num_usable   [Br] int64: drafts with a valid law before them, K of this row
    weights      [Br, K+1]: w_i
    keep         [Br, K+1]: h_i for i <= num_usable, 0 behind it
    """

    num_usable: Tensor
    weights: Tensor
    keep: Tensor


def accept(law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
    """Decide every row. law covers K+1 places; u_accept [B, K] and u_target [B, K+1] are float64 in [0, 1)."""
    if law.probs is None or proposal.num_speculative_tokens == 0:
        return rejection.accept(law, proposal, u_accept, u_target)
    drafts, rows = proposal.draft_token_ids, law.random_rows
    k = drafts.shape[1]
    same = (drafts == law.argmax[:, :k]) & (drafts >= 0)
    num_accepted = same.to(torch.int64).cumprod(-1).sum(-1)  # [B], right for greedy rows
    judged = judge(law, proposal)
    kept = u_accept[rows] < judged.keep[:, 1:]
    num_accepted[rows] = (kept * torch.arange(1, k + 1, device=drafts.device)).max(-1).values
    weights = last_law(law, proposal, judged, num_accepted[rows])
    return rejection.outcome(law, proposal, num_accepted, rejection.draw_at(law, num_accepted, u_target, weights))


def judge(law: Law, proposal: Proposal) -> Judgement:
    """Weights and probabilities of keeping each prefix."""
    assert law.probs is not None
    drafts = proposal.draft_token_ids[law.random_rows]  # [Br, K]
    k = drafts.shape[1]
    usable = ((drafts >= 0) & law.valid[law.random_rows, :k]).to(torch.int64).cumprod(-1)
    num_usable = usable.sum(-1)
    p = law.probs[:, :k].nan_to_num(0.0)  # a law that is invalid has no numbers; its place is not usable
    p_draft = gather(p, drafts).to(torch.float64)
    ratios = p_draft * usable
    if proposal.draft_probs is not None:
        q_draft = gather(proposal.draft_probs, drafts).to(torch.float64)
        ratios = torch.where(q_draft > 0, ratios / q_draft, 0.0)
    weights = _weights(ratios)
    if proposal.draft_probs is None:
        lacking = weights[:, :k] * (p.sum(-1, dtype=torch.float64) - p_draft)
    else:
        lacking = _residual(p, proposal.draft_probs, weights[:, :k]).sum(-1, dtype=torch.float64)
    return Judgement(num_usable, weights, _keep(weights, lacking, num_usable))


def last_law(law: Law, proposal: Proposal, judged: Judgement, num_kept: Tensor) -> Tensor:
    """What the token behind num_kept [Br] drafts is drawn from: norm(r), or p where no draft was turned down.

    [Br, V] float32, not normalised. An empty residual (rounding) falls back to p.
    """
    assert law.probs is not None
    index = torch.arange(len(num_kept), device=num_kept.device)
    p = law.probs[index, num_kept]
    at = num_kept.clamp(max=proposal.num_speculative_tokens - 1)
    if proposal.draft_probs is not None:
        q = proposal.draft_probs[index, at]
    else:
        draft = proposal.draft_token_ids[law.random_rows].gather(1, at[:, None])
        q = torch.zeros_like(p).scatter_(1, draft.clamp(min=0), 1.0)
    residual = _residual(p, q, judged.weights[index, num_kept])
    use_p = (num_kept >= judged.num_usable) | (residual.sum(-1) <= 0)
    return torch.where(use_p[:, None], p, residual)


def _weights(ratios: Tensor) -> Tensor:
    """w_0 .. w_K from p/q of each draft [Br, K]; float64 [Br, K+1]."""
    columns = [torch.ones_like(ratios[:, 0])]
    for ratio in ratios.unbind(1):
        columns.append((columns[-1] * ratio).clamp(max=1.0))
    return torch.stack(columns, dim=1)


def _residual(p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
    """max(w*p - q, 0) with p, q [.., V] and w [..]."""
    return (weights.to(p.dtype).unsqueeze(-1) * p - q).clamp_(min=0.0)


def _keep(weights: Tensor, lacking: Tensor, num_usable: Tensor) -> Tensor:
    """h_i from w_i [Br, K+1] and S_i [Br, K]. Where S_i = 0 and w_i = 1 the models agree: kept for sure."""
    whole = lacking + 1.0 - weights[:, :-1]
    keep = torch.where(whole > 0, lacking / whole, 1.0)
    keep = torch.cat([keep, weights[:, -1:]], dim=1)
    places = torch.arange(keep.shape[1], device=keep.device)
    keep = torch.where(places == num_usable[:, None], weights, keep)
    return keep.masked_fill(places > num_usable[:, None], 0.0)
