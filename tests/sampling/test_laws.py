"""The processed law against a brute-force definition of every restriction."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling.batches import batch_of

from paceline.layers import sampling
from paceline.layers.sampling import Law, draw
from paceline.plan import SamplingPlan


def law_of(logits: torch.Tensor, plans: list[SamplingPlan], first_place: int = 0, num_output_tokens: int = 0) -> Law:
    """The law of logits [B, P, V], with drafts that change nothing."""
    drafts = torch.zeros(len(plans), first_place + logits.shape[1] - 1, dtype=torch.int64)
    return batch_of(plans, num_output_tokens).law(logits, drafts, first_place)


def brute_force(logits: list[float], plan: SamplingPlan) -> list[float]:
    """Definition, token by token: bias, allowed, temperature, min_p, top_k, top_p; ties at an edge are kept."""
    values = [v + dict(plan.logit_bias).get(i, 0.0) for i, v in enumerate(logits)]
    if plan.allowed_token_ids is not None:
        values = [v if i in plan.allowed_token_ids else -math.inf for i, v in enumerate(values)]
    top = max(values)
    probs = [math.exp((v - top) / plan.temperature) for v in values]

    def keep(edge: float) -> list[float]:
        kept = [p if p >= edge else 0.0 for p in probs]
        return [p / sum(kept) for p in kept]

    probs = keep(0.0)
    if plan.min_p:
        probs = keep(plan.min_p * max(probs))
    if plan.top_k:
        probs = keep(sorted(probs, reverse=True)[min(plan.top_k, len(probs)) - 1])
    if plan.top_p < 1:
        mass, edge = 0.0, 0.0
        for p in sorted(probs, reverse=True):
            mass, edge = mass + p, p
            if mass >= plan.top_p:
                break
        probs = keep(edge)
    return probs


PLANS = st.builds(
    SamplingPlan,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.07]),
    top_k=st.sampled_from([0, 1, 3, 11, 400]),
    min_p=st.sampled_from([0.0, 0.04, 0.31]),
    logit_bias=st.sampled_from([(), ((2, 3.5), (5, -100.0))]),
    allowed_token_ids=st.sampled_from([None, (1, 2, 3, 7, 8)]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PLANS, min_size=1, max_size=4), st.integers(0, 10_000))
def test_laws_equal_the_definition(plans: list[SamplingPlan], seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(len(plans), 2, 13) * 2
    before = logits.clone()
    law = law_of(logits, plans)
    assert torch.equal(logits, before), "the raw logits are needed again for logprobs"
    assert law.probs is not None
    for row, plan in enumerate(plans):
        for place in range(2):
            expected = torch.tensor(brute_force(logits[row, place].tolist(), plan))
            assert torch.allclose(law.probs[row, place], expected, atol=2e-6)


@pytest.mark.parametrize("spread", [0.01, 3.0], ids=["flat: full sort", "peaked: candidates suffice"])
def test_nucleus_of_a_large_vocabulary(spread: float) -> None:
    """Both ways of finding the edge give the smallest set of the likeliest tokens."""
    torch.manual_seed(0)
    logits = torch.randn(3, 1, 4 * sampling._NUCLEUS_CANDIDATES) * spread
    plans = [SamplingPlan(top_p=0.9)] * 3
    law = law_of(logits, plans)
    assert law.probs is not None
    full = torch.softmax(logits, -1)
    mass = (full * (law.probs > 0)).sum(-1)
    smallest = torch.where(law.probs > 0, full, 2.0).min(-1).values
    assert (mass >= 0.9 - 1e-5).all()
    assert (mass - smallest < 0.9 + 1e-5).all(), "one token fewer would have been enough"
    assert torch.allclose(law.probs.sum(-1), torch.ones(3, 1))


def test_greedy_rows_cost_no_softmax_and_mixed_batches_keep_their_rows() -> None:
    logits = torch.randn(3, 2, 9)
    greedy = SamplingPlan(temperature=0.0)
    assert law_of(logits, [greedy] * 3).probs is None
    law = law_of(logits, [greedy, SamplingPlan(), greedy])
    assert law.probs is not None
    assert law.probs.shape == (1, 2, 9)
    assert torch.allclose(law.probs[0], torch.softmax(logits[1], -1))
    argmax = logits.argmax(-1)
    assert law.of(argmax)[0].tolist() == [1.0, 1.0]
    assert law.of((argmax + 1) % 9)[2].tolist() == [0.0, 0.0]
    assert torch.allclose(law.of(argmax)[1], torch.softmax(logits[1], -1).max(-1).values)


def test_min_tokens_masks_the_ends_at_the_right_places() -> None:
    """With 2 tokens out and min_tokens 4, places 0 and 1 are numbers 3 and 4: the first end is number 5."""
    logits = torch.zeros(1, 4, 6)
    logits[..., 5] = 9.0
    plan = SamplingPlan(temperature=0.0, min_tokens=4, stop_token_ids=(5,))
    law = law_of(logits, [plan], num_output_tokens=2)
    assert (law.argmax == 5).tolist() == [[False, False, True, True]]
    later = law_of(logits[:, :1], [plan], first_place=2, num_output_tokens=2)
    assert later.argmax.tolist() == [[5]]


def test_nan_and_nothing_left_are_invalid_and_neighbours_are_not() -> None:
    logits = torch.randn(4, 1, 6)
    logits[1, 0, 3] = float("nan")
    logits[2] = float("-inf")
    logits[3, 0, 0] = float("inf")
    law = law_of(logits, [SamplingPlan(top_p=0.5)] * 4)
    assert law.valid.flatten().tolist() == [True, False, False, False]


def test_draw_never_gives_a_token_of_probability_zero() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    for u in (0.0, 0.2499999, 0.25, 0.7, 1 - 2**-53):
        token = draw(probs, torch.tensor([u], dtype=torch.float64)).item()
        assert token == (1 if u < 0.25 else 3)


def test_draw_follows_the_law_for_unnormalised_weights() -> None:
    u = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    weights = torch.tensor([[3.0, 1.0, 4.0, 0.0, 2.0]]).expand(10_000, -1)
    counts = torch.bincount(draw(weights, u), minlength=5)
    assert counts.tolist() == [3000, 1000, 4000, 0, 2000]
