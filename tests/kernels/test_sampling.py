"""The sampling kernels against layers/sampling.py and layers/random.py: sets of tokens exactly, values to rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling.batches import batch_of
from torch import Tensor

from paceline.kernels import sampling
from paceline.kernels.philox import uniforms, uniforms_reference
from paceline.kernels.sampling import ProcessedLaw, draw, draw_seeded, processed_law
from paceline.layers import random as layers_random
from paceline.layers.sampling import draw as layers_draw
from paceline.plan import SamplingPlan

pytest.importorskip("triton")

PLANS = [
    SamplingPlan(temperature=0.0),
    SamplingPlan(temperature=1.0),
    SamplingPlan(temperature=0.6, top_p=0.9),
    SamplingPlan(temperature=1.3, top_k=7),
    SamplingPlan(temperature=1.0, min_p=0.05),
    SamplingPlan(temperature=0.8, min_p=0.002, top_k=40, top_p=0.7),
    SamplingPlan(temperature=0.9, top_k=100000),
    SamplingPlan(temperature=0.9, top_k=1),
    SamplingPlan(temperature=1.0, top_p=1e-6),
]


def law_of(logits: Tensor, plans: list[SamplingPlan], **options) -> ProcessedLaw:
    def column(name: str) -> Tensor:
        return torch.tensor([getattr(plan, name) for plan in plans], dtype=torch.float32)

    top_k = torch.tensor([plan.top_k for plan in plans], dtype=torch.int32)
    return processed_law(logits, column("temperature"), column("min_p"), top_k, column("top_p"), **options)


def layers_law(logits: Tensor, plans: list[SamplingPlan]) -> tuple[Tensor, Tensor, Tensor]:
    law = batch_of(plans).law(logits.float()[:, None], torch.zeros((len(plans), 0), dtype=torch.int64))
    probs = torch.zeros(logits.shape)
    if law.probs is not None:
        probs[law.random_rows] = law.probs[:, 0]
    return probs, law.argmax[:, 0], law.valid[:, 0]


def check(logits: Tensor, plans: list[SamplingPlan]) -> ProcessedLaw:
    law = law_of(logits, plans)
    probs, argmax, valid = layers_law(logits, plans)
    assert torch.equal(law.argmax, argmax)
    assert torch.equal(law.valid, valid)
    for row, plan in enumerate(plans):
        if not plan.greedy:
            assert torch.equal(law.probs[row] > 0, probs[row] > 0), f"row {row}: {plan}"
            torch.testing.assert_close(law.probs[row], probs[row], rtol=1e-4, atol=1e-8)
            torch.testing.assert_close(law.masses[row].sum(), law.probs[row].double().sum(), rtol=1e-12, atol=0)
    return law


@pytest.mark.parametrize("vocab", [5, 4096, 4099])
def test_laws_of_every_kind_of_row(vocab: int) -> None:
    torch.manual_seed(vocab)
    check(torch.randn(len(PLANS), vocab) * 3, PLANS)


def test_logits_in_bfloat16_are_full_of_ties_and_rows_may_lie_apart() -> None:
    torch.manual_seed(1)
    wide = (torch.randn(len(PLANS), 5000) * 2).to(torch.bfloat16)
    check(wide[:, :4500], PLANS)
    check(wide.float()[:3, :4500], PLANS[:3])


def test_ties_at_an_edge_are_all_kept_and_the_lowest_index_is_the_argmax() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.3, 0.3, 0.1, 0.1, 0.1]])).expand(3, -1).contiguous()
    law = check(logits, [SamplingPlan(top_k=1), SamplingPlan(top_p=0.65), SamplingPlan(temperature=0.0)])
    assert (law.probs[0] > 0).tolist() == [False, True, True, False, False, False]
    assert (law.probs[1] > 0).all()
    assert law.argmax.tolist() == [1, 1, 1]


def test_a_tie_across_chunks_goes_to_the_lowest_index() -> None:
    logits = torch.zeros(2, 3 * sampling.CHUNK)
    logits[:, [sampling.CHUNK + 3, 2 * sampling.CHUNK + 1]] = 4.0
    assert check(logits, [SamplingPlan(temperature=0.0), SamplingPlan()]).argmax.tolist() == [sampling.CHUNK + 3] * 2


def test_p31_bad_rows_are_not_valid_and_their_neighbours_are_untouched() -> None:
    torch.manual_seed(2)
    clean = torch.randn(7, 5000)
    plans = [SamplingPlan(top_p=0.9)] * 2 + [SamplingPlan()] * 4 + [SamplingPlan(temperature=0.0)]
    bad = clean.clone()
    bad[1, 4999] = float("nan")
    bad[2, 7] = float("inf")
    bad[3] = float("-inf")
    bad[4, :4000] = float("-inf")  # masked tokens are no fault
    bad[6, 17] = float("nan")
    law, expected = law_of(bad, plans), law_of(clean, plans)
    assert law.valid.tolist() == [True, False, False, False, True, True, False]
    assert torch.equal(law.probs[[0, 5]], expected.probs[[0, 5]])
    assert (law.probs[4, :4000] == 0).all()
    tokens = draw(law, torch.tensor([plan.temperature for plan in plans]), torch.full((7,), 0.7, dtype=torch.float64))
    assert ((tokens >= 0) & (tokens < 5000)).all()


def test_a_law_has_the_same_bits_in_any_batch() -> None:
    torch.manual_seed(3)
    plans = [PLANS[1], PLANS[0], PLANS[5]]
    logits = torch.randn(len(plans), 6000)
    together = law_of(logits, plans)
    for row in (0, 2):
        alone = law_of(logits[row : row + 1], plans[row : row + 1])
        assert torch.equal(alone.probs[0], together.probs[row])


def test_the_law_is_written_where_it_is_wanted() -> None:
    torch.manual_seed(4)
    logits = torch.randn(2, 700)
    draft_probs = torch.full((2, 3, 700), -1.0)
    law = law_of(logits, [SamplingPlan()] * 2, probs=draft_probs[:, 1], restricted=False)
    assert law.probs.data_ptr() == draft_probs[:, 1].data_ptr()
    torch.testing.assert_close(draft_probs[:, 1], logits.softmax(-1))
    assert (draft_probs[:, [0, 2]] == -1.0).all()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 40),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.93, 0.5, 0.07]),
    min_p=st.sampled_from([0.0, 0.03, 0.5]),
    levels=st.integers(1, 30),
)
def test_any_small_row(seed, vocab, temperature, top_k, top_p, min_p, levels) -> None:
    """Few levels of logits: most edges fall among ties. Odd fractions, so that no sum lands on an edge."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (1, vocab), generator=generator) * 0.37
    check(logits, [SamplingPlan(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)])


def test_draws_are_those_of_the_layers() -> None:
    torch.manual_seed(5)
    n, vocab = 40, 9001
    law = ProcessedLaw(*(part.expand(n, *part.shape[1:]) for part in law_of(torch.randn(1, vocab), [SamplingPlan()])))
    law = law._replace(probs=law.probs.contiguous(), masses=law.masses.contiguous())
    law.probs[:, :2000], law.masses[:, 0] = 0.0, law.probs[:, 2000 : sampling.CHUNK].double().sum(-1)
    law.probs[:, -3:], law.masses[:, -1] = 0.0, law.probs[:, 2 * sampling.CHUNK : -3].double().sum(-1)
    u = torch.rand(n, dtype=torch.float64)
    u[:2] = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    tokens = draw(law, torch.ones(n), u)
    assert torch.equal(tokens[:1], layers_draw(law.probs[:1], u[:1]))
    assert torch.equal(tokens[2:], layers_draw(law.probs[2:], u[2:]))
    assert (law.probs.gather(1, tokens[:, None]) > 0).all()  # u just below 1 too


def test_p05_seeded_draws_take_the_number_of_their_position() -> None:
    torch.manual_seed(6)
    n = 8
    law = law_of(torch.randn(n, 300), [SamplingPlan()] * n)
    seeds, positions = torch.arange(n) * 977 - 3, torch.arange(n) + 40
    temperature = torch.tensor([1.0, 0.0] * 4)
    u = uniforms(seeds, positions, 0)
    tokens = draw_seeded(law, temperature, seeds, positions, 0)
    assert torch.equal(tokens, draw(law, temperature, u))
    assert torch.equal(tokens[1::2], law.argmax[1::2])
    assert torch.equal(tokens[0::2], layers_draw(law.probs, u)[0::2])


@pytest.mark.parametrize("purpose", list(layers_random.Purpose))
def test_uniforms_are_the_layers_bit_for_bit(purpose: layers_random.Purpose) -> None:
    torch.manual_seed(7)
    seeds = torch.randint(-(2**63), 2**63 - 1, (300,))
    positions = torch.cat((torch.randint(0, 10**6, (150,)), torch.randint(0, 2**62, (150,))))
    steps = torch.randint(0, 2**31, (300,))
    expected = layers_random.uniforms(seeds, positions, purpose)
    assert torch.equal(uniforms(seeds, positions, purpose), expected)
    assert torch.equal(uniforms_reference(seeds, positions, purpose), expected)
    expected = layers_random.uniforms(seeds, positions, purpose, steps)
    assert torch.equal(uniforms(seeds, positions, purpose, steps), expected)
    assert torch.equal(uniforms_reference(seeds, positions, purpose, steps), expected)
