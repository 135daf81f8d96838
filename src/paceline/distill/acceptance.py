"""What a draft is worth: expected tokens a target pass, along text that the target wrote.

Speculation emits exactly the target's law, so text written by the target alone is a fair sample of what
speculation emits, and the drafts' fate can be told from laws computed on it in one forward pass:
given that token y was emitted where a draft stood, it was an accepted draft with probability
min(p(y), q(y)) / p(y) = min(1, q(y) / p(y)), independently of the rest. Greedy decoding is the case
where that is 0 or 1. `expected_passes` sums over all ways of cutting the text into passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def expected_passes(accepted: Sequence[float], num_speculative_tokens: int) -> float:
    """Target passes that emit len(accepted) tokens, where token i, if drafted, is kept with accepted[i].

    A pass keeps j drafts (at most K, and never beyond the last token) and adds one token of its own."""
    count = len(accepted)
    passes = [0.0] * (count + num_speculative_tokens + 2)  # beyond the end: nothing left to emit
    for start in range(count - 1, -1, -1):
        total, reached = 1.0, 1.0
        for drafts in range(num_speculative_tokens):
            keep = accepted[start + drafts] if start + drafts < count else 0.0
            total += reached * (1.0 - keep) * passes[start + drafts + 1]
            reached *= keep
        passes[start] = total + reached * passes[start + num_speculative_tokens + 1]
    return passes[0]


def processed_law(logits: Tensor, temperature: float, top_p: float = 1.0) -> Tensor:
    """Logits [N, V] -> probabilities after temperature and top-p, as the sampler processes them."""
    law = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p >= 1.0:
        return law
    ordered, order = law.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
    return torch.zeros_like(law).scatter_(1, order, ordered / ordered.sum(-1, keepdim=True))


def acceptance_along(
    tokens: Tensor, draft_logits: Tensor, target_logits: Tensor | None, temperature: float, top_p: float = 1.0
) -> Tensor:
    """Probability [N] that token i, had it been drafted, was accepted; logits [N, V] are the laws it came from.

    At temperature 0 the text itself is the target's argmax and `target_logits` is not needed."""
    if temperature == 0.0:
        return (draft_logits.argmax(-1) == tokens).float()
    if target_logits is None:
        raise ValueError("Acceptance of sampled text needs the target's logits.")
    index = tokens.unsqueeze(1)
    p = processed_law(target_logits, temperature, top_p).gather(1, index).squeeze(1)
    q = processed_law(draft_logits, temperature, top_p).gather(1, index).squeeze(1)
    return torch.where(p > 0, (q / p.clamp_min(1e-30)).clamp(max=1.0), 0.0)
