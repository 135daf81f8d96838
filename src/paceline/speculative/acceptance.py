"""The acceptance methods by name: how a step decides which drafts are kept.

rejection   token-wise rejection sampling, exact (rejection.py); the default
block       block verification, exact, keeps at least as many drafts (block_verification.py)
synthetic   draft i is kept with a given probability whatever the models say. For benchmarks of speed alone: the
            text is NOT the target's. Chosen by configuration, never by a request, and said wherever results are.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.config import SpeculativeConfig
from paceline.layers.sampling import Law
from paceline.speculative import block_verification, rejection
from paceline.speculative.rejection import Outcome, Proposal

Decide = Callable[[Law, Proposal, Tensor, Tensor], Outcome]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """decide(law, proposal, u_accept [B, K], u_target [B, K+1]) -> Outcome, and the numbers it wants.

    numbers_by_step   what is kept depends on discarded drafts: steps need random numbers of their own (random.py)
    always_random     greedy rows are decided at random as well
    """

    decide: Decide = rejection.accept
    numbers_by_step: bool = False
    always_random: bool = False


def make_acceptance(config: SpeculativeConfig | None) -> Acceptance:
    if config is not None and config.acceptance == "synthetic":
        return Acceptance(Synthetic(config.synthetic_acceptance_rates), always_random=True)
    if config is not None and config.acceptance == "block":
        return Acceptance(block_verification.accept, numbers_by_step=True)
    return Acceptance()


class Synthetic:
    """Keeps the draft at place i, if those before it were kept, with probability rates[i].

    Places behind the last rate use the last rate. The token that follows is drawn from the target's law there.
    """

    def __init__(self, rates: Seq[float]) -> None:
        self._rates = list(rates)

    def __call__(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        drafts = proposal.draft_token_ids
        k = drafts.shape[1]
        rates = (self._rates + [self._rates[-1]] * k)[:k]
        kept = (u_accept < torch.tensor(rates, dtype=u_accept.dtype, device=drafts.device)) & (drafts >= 0)
        num_accepted = kept.to(torch.int64).cumprod(-1).sum(-1)
        return rejection.outcome(law, proposal, num_accepted, rejection.draw_at(law, num_accepted, u_target))
