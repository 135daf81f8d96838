"""Synthetic acceptance: the given rates, whatever the models say; said loudly, and refused where it is half given."""

from __future__ import annotations

import torch
from sampling.batches import batch_of

from paceline.layers.random import Purpose
from paceline.plan import SamplingPlan
from paceline.speculative.acceptance import Synthetic
from paceline.speculative.rejection import Proposal

N, V = 20_000, 6


def test_drafts_are_kept_at_the_given_rates_and_the_last_token_has_the_targets_law() -> None:
    """The draft is the token that the target never emits: no exact method would keep it."""
    logits = torch.tensor([-1e9, 1.0, 0.5, 0.0, -0.5, 2.0]).expand(N, 4, V)
    batch = batch_of([SamplingPlan(seed=seed) for seed in range(N)])
    drafts = torch.zeros(N, 3, dtype=torch.int64)
    law = batch.law(logits, drafts)
    outcome = Synthetic([0.8, 0.5])(
        law, Proposal(drafts, [3] * N), batch.uniforms(Purpose.ACCEPT, 3), batch.uniforms(Purpose.TARGET, 4)
    )
    shares = torch.bincount(outcome.num_accepted, minlength=4) / N
    expected = torch.tensor([0.2, 0.8 * 0.5, 0.8 * 0.5 * 0.5, 0.8 * 0.5 * 0.5])  # the last rate goes on
    assert torch.allclose(shares, expected, atol=0.015)
    last = outcome.output_token_ids.gather(1, outcome.num_accepted[:, None]).squeeze(1)
    assert torch.allclose(torch.bincount(last, minlength=V) / N, logits[0, 0].softmax(-1), atol=0.015)


def test_greedy_and_ragged_rows() -> None:
    logits = torch.randn(2, 3, V)
    drafts = torch.tensor([[4, 4], [4, -1]])
    batch = batch_of([SamplingPlan(temperature=0.0)] * 2)
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    outcome = Synthetic([1.0])(batch.law(logits, drafts), Proposal(drafts, [2, 1]), zeros[:, :2], zeros)
    assert outcome.num_accepted.tolist() == [2, 1]
    assert outcome.output_token_ids[0].tolist() == [4, 4, int(logits[0, 2].argmax())]
    assert outcome.output_token_ids[1].tolist() == [4, int(logits[1, 1].argmax()), -1]
