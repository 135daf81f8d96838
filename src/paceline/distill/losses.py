"""How far the draft's law q is from the target's law p, and the gradient on the draft's logits.

With z the draft's logits and q = softmax(z / T), p = softmax(target logits / T), per position:

- forward KL   sum p log(p/q)       gradient (q - p) / T
- reverse KL   sum q log(q/p)       gradient q (log(q/p) - KL) / T
- total variation  sum |p - q| / 2  gradient q (s - sum q s) / T with s = sign(q - p) / 2

Total variation is exactly one minus the probability that speculative sampling accepts a draft token
(Leviathan et al., arXiv 2211.17192); at a low T it tends to "the two argmaxes differ", which is what
greedy decoding rejects on. The choice among divergences follows DistillSpec (arXiv 2310.08461).

Gradients are written out instead of left to autograd because a vocabulary of 49,152 makes the logits
the largest tensors of a step: `HeadLoss` never holds more than one chunk of them, and hands back the
gradients of the hidden states and of the table directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Divergence = Literal["forward_kl", "reverse_kl", "total_variation"]
LOSS_NAMES: dict[str, Divergence] = {"forward-kl": "forward_kl", "reverse-kl": "reverse_kl", "tv": "total_variation"}
LossFunction = Callable[[Tensor, Tensor, "tuple[LossTerm, ...]"], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class LossTerm:
    """`weight` times one divergence between the two laws at `temperature`."""

    divergence: Divergence
    weight: float = 1.0
    temperature: float = 1.0

    @classmethod
    def parse(cls, text: str) -> LossTerm:
        """'forward-kl', 'tv*0.5' or 'tv*0.5@0.7' (weight, temperature). Raises ValueError in words for a user."""
        rest, _, temperature = text.strip().partition("@")
        name, _, weight = rest.partition("*")
        if name not in LOSS_NAMES:
            raise ValueError(f"unknown loss '{name}': use {', '.join(LOSS_NAMES)}.")
        try:
            factor, heat = float(weight or 1), float(temperature or 1)
        except ValueError:
            raise ValueError(f"'{text}': weight and temperature are numbers, as in tv*0.5@0.7.") from None
        if not (0 < factor < math.inf and 0 < heat < math.inf):
            raise ValueError(f"'{text}': weight and temperature must be above 0.")
        return cls(LOSS_NAMES[name], factor, heat)

    def __str__(self) -> str:
        name = next(short for short, long in LOSS_NAMES.items() if long == self.divergence)
        weight = "" if self.weight == 1 else f"*{self.weight:g}"
        return name + weight + ("" if self.temperature == 1 else f"@{self.temperature:g}")


def parse_loss(text: str) -> tuple[LossTerm, ...]:
    """A sum of terms: 'forward-kl*0.25+tv@0.6'."""
    return tuple(LossTerm.parse(part) for part in text.split("+"))


def divergence(draft_logits: Tensor, target_logits: Tensor, term: LossTerm) -> tuple[Tensor, Tensor]:
    """Logits [N, V] -> value [N] and gradient on the draft's logits [N, V], fp32, weight included."""
    log_q = torch.log_softmax(draft_logits.float() / term.temperature, dim=-1)
    log_p = torch.log_softmax(target_logits.float() / term.temperature, dim=-1)
    q, p = log_q.exp(), log_p.exp()
    if term.divergence == "forward_kl":
        value = (p * (log_p - log_q)).sum(-1)
        gradient = q - p
    elif term.divergence == "reverse_kl":
        ratio = log_q - log_p
        value = (q * ratio).sum(-1)
        gradient = q * (ratio - value.unsqueeze(-1))
    else:
        value = (p - q).abs().sum(-1) / 2
        sign = torch.sign(q - p) / 2
        gradient = q * (sign - (q * sign).sum(-1, keepdim=True))
    return term.weight * value, (term.weight / term.temperature) * gradient


def mixed_divergence(draft_logits: Tensor, target_logits: Tensor, terms: tuple[LossTerm, ...]) -> tuple[Tensor, Tensor]:
    """The sum over `terms`: value [N] fp32, gradient [N, V] in the draft logits' dtype."""
    value, gradient = divergence(draft_logits, target_logits, terms[0])
    for term in terms[1:]:
        more_value, more_gradient = divergence(draft_logits, target_logits, term)
        value, gradient = value + more_value, gradient + more_gradient
    return value, gradient.to(draft_logits.dtype)


class HeadLoss(torch.autograd.Function):
    """Mean divergence over N positions, from hidden states instead of logits, in chunks of positions."""

    @staticmethod
    def forward(
        ctx: Any,
        draft_hidden: Tensor,  # [N, h]
        draft_table: Tensor,  # [V, h]
        target_hidden: Tensor,  # [N, H]
        target_table: Tensor,  # [V, H]
        terms: tuple[LossTerm, ...],
        chunk: int,
        function: LossFunction,
    ) -> Tensor:
        table = draft_table.to(draft_hidden.dtype)
        count = draft_hidden.shape[0]
        total = torch.zeros((), dtype=torch.float32, device=draft_hidden.device)
        hidden_gradient = torch.empty_like(draft_hidden)
        table_gradient = torch.zeros_like(draft_table, dtype=torch.float32)
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            value, gradient = function(draft_hidden[rows] @ table.T, target_hidden[rows] @ target_table.T, terms)
            total += value.sum()
            torch.mm(gradient, table, out=hidden_gradient[rows])
            table_gradient += gradient.T @ draft_hidden[rows]
        ctx.save_for_backward(hidden_gradient.div_(count), table_gradient.div_(count).to(draft_table.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, table_gradient = ctx.saved_tensors
        return hidden_gradient * upstream[0], table_gradient * upstream[0], None, None, None, None, None


def head_loss(
    draft_hidden: Tensor,
    draft_table: Tensor,
    target_hidden: Tensor,
    target_table: Tensor,
    terms: tuple[LossTerm, ...],
    *,
    chunk: int = 8192,
    function: LossFunction = mixed_divergence,
) -> Tensor:
    """Mean over positions of the mixed divergence; `function` may be a compiled `mixed_divergence`."""
    loss: Tensor = HeadLoss.apply(  # type: ignore[no-untyped-call]
        draft_hidden, draft_table, target_hidden, target_table, terms, chunk, function
    )
    return loss
