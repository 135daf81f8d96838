"""Exactness of acceptance: histograms against known laws, forced rejections at every place, index safety."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sampling.batches import batch_of
from torch import Tensor

from paceline.layers.random import Purpose, uniforms
from paceline.layers.sampling import Law, Peaks, draw
from paceline.plan import SamplingPlan
from paceline.speculative import block_verification
from paceline.speculative.rejection import Outcome, Proposal, accept, accept_greedy, accept_likeliest

N = 200_000
V = 8


def random_law(probs: Tensor) -> Law:
    """A law whose rows are all drawn at random; probs [B, P, V]."""
    rows = torch.arange(probs.shape[0])
    return Law(probs.argmax(-1), rows, probs, torch.ones(probs.shape[:2], dtype=torch.bool))


def simulate(p: Tensor, q: Tensor | None, drafts: Tensor, seed: int = 1) -> Outcome:
    """p [P, V] and q [K, V] repeated for every row of drafts [N, K]."""
    n, k = drafts.shape
    seeds = torch.arange(n)[:, None] * 7919 + seed
    law = random_law(p.expand(n, -1, -1))
    draft_probs = None if q is None else q.expand(n, -1, -1)
    proposal = Proposal(drafts, [k] * n, draft_probs)
    positions = torch.arange(k + 1)
    u_accept = uniforms(seeds, positions[:k], Purpose.ACCEPT)
    return accept(law, proposal, u_accept, uniforms(seeds, positions, Purpose.TARGET))


def drawn_from(q: Tensor, n: int, seed: int = 1) -> Tensor:
    """[n, K] draft tokens drawn from q [K, V] with the numbers a proposer would use."""
    k = q.shape[0]
    u = uniforms(torch.arange(n)[:, None] * 7919 + seed, torch.arange(k), Purpose.DRAFT)
    return torch.stack([draw(q[i].expand(n, -1), u[:, i]) for i in range(k)], dim=1)


def chi_square(tokens: Tensor, law: Tensor) -> float:
    counts = torch.bincount(tokens, minlength=law.numel()).double()
    expected = law.double() * tokens.numel()
    assert counts[expected == 0].sum() == 0, "a token outside the law came out"
    kept = expected > 0
    return float(((counts - expected)[kept] ** 2 / expected[kept]).sum())


def laws(seed: int, *shape: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.softmax(torch.randn(*shape) * 1.5, -1)


LIMIT = 29.9  # chi-square, 7 degrees of freedom, P(> 29.9) = 1e-4; the seeds are fixed


@pytest.mark.parametrize("seed", range(4))
def test_p01_first_token_has_the_targets_law(seed: int) -> None:
    p, q = laws(seed, 2, V), laws(seed + 100, 1, V)
    outcome = simulate(p, q, drawn_from(q, N))
    assert chi_square(outcome.output_token_ids[:, 0], p[0]) < LIMIT
    bonus = outcome.output_token_ids[outcome.num_accepted == 1, 1]
    assert chi_square(bonus, p[1]) < LIMIT
    rate = torch.minimum(p[0], q[0]).sum().item()
    assert abs(outcome.num_accepted.double().mean().item() - rate) < 0.005


def test_p01_raw_q_in_the_ratio_would_be_seen() -> None:
    """The check can fail: drawn after a nucleus, divided by the raw law."""
    p, raw = laws(3, 2, V), laws(103, 1, V)
    nucleus = torch.where(raw >= raw.topk(3).values[:, -1:], raw, 0.0)
    nucleus = nucleus / nucleus.sum(-1, keepdim=True)
    drafts = drawn_from(nucleus, N)
    assert chi_square(simulate(p, nucleus, drafts).output_token_ids[:, 0], p[0]) < LIMIT
    assert chi_square(simulate(p, raw, drafts).output_token_ids[:, 0], p[0]) > 10 * LIMIT


def test_p02_an_argmax_draft_is_one_hot() -> None:
    p = laws(5, 2, V)
    token = int(p[0].topk(2).indices[1])
    outcome = simulate(p, None, torch.full((N, 1), token))
    assert abs(outcome.num_accepted.double().mean().item() - p[0, token].item()) < 0.005
    assert chi_square(outcome.output_token_ids[:, 0], p[0]) < LIMIT


def test_every_place_of_a_long_draft_has_its_own_law() -> None:
    p, q = laws(7, 4, V), laws(107, 3, V)
    outcome = simulate(p, q, drawn_from(q, N))
    for place in range(4):
        reached = outcome.num_accepted >= place
        assert chi_square(outcome.output_token_ids[reached, place], p[place]) < LIMIT


def test_p04_a_tail_token_outside_the_nucleus_is_never_emitted() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 2, V).expand(2000, -1, -1)
    law = batch_of([SamplingPlan(top_p=0.5)] * 2000).law(logits, torch.zeros(2000, 1, dtype=torch.int64))
    tail = int(logits[0, 0].argmin())
    zeros = torch.zeros(2000, 1, dtype=torch.float64)
    u = uniforms(torch.arange(2000)[:, None], torch.arange(2), Purpose.TARGET)
    outcome = accept(law, Proposal(torch.full((2000, 1), tail), [1] * 2000), zeros, u)
    assert (outcome.num_accepted == 0).all()
    assert (outcome.output_token_ids[:, 0] != tail).all()


@pytest.mark.parametrize("k", [1, 5])
def test_p07_forced_rejection_takes_the_token_of_its_own_row(k: int) -> None:
    """Place i's law can only give token i (greedy and random); the draft is wrong from place r on."""
    for greedy in (True, False):
        logits = torch.full((k + 1, k + 1, V), -50.0)
        for place in range(k + 1):
            logits[:, place, place] = 50.0
        plans = [SamplingPlan(temperature=0.0 if greedy else 1.0)] * (k + 1)
        drafts = torch.arange(k).repeat(k + 1, 1)
        law = batch_of(plans).law(logits, drafts)
        for row in range(k):
            drafts[row, row:] = 7
        half = torch.full((k + 1, k + 1), 0.5, dtype=torch.float64)
        outcome = accept(law, Proposal(drafts, [k] * (k + 1)), half[:, :k], half)
        assert outcome.num_accepted.tolist() == list(range(k + 1))
        for row in range(k + 1):
            expected = list(range(row + 1)) + [-1] * (k - row)
            assert outcome.output_token_ids[row].tolist() == expected


def test_p09_equal_laws_and_a_forced_rejection_fall_back_to_p() -> None:
    p = laws(9, 2, V)
    drafts = drawn_from(p[:1], 1000)
    law, u = random_law(p.expand(1000, -1, -1)), uniforms(torch.arange(1000)[:, None], torch.arange(2), Purpose.TARGET)
    proposal = Proposal(drafts, [1] * 1000, p[:1].expand(1000, -1, -1))
    kept = accept(law, proposal, torch.full((1000, 1), 1 - 2**-53, dtype=torch.float64), u)
    assert (kept.num_accepted == 1).all(), "p = q is always accepted"
    forced = accept(law, proposal, torch.full((1000, 1), 1.5, dtype=torch.float64), u)
    assert (forced.num_accepted == 0).all()
    assert forced.valid.all()
    assert ((forced.output_token_ids[:, 0] >= 0) & (forced.output_token_ids[:, 0] < V)).all()


def test_p12_p13_p18_mixed_rows_of_any_length() -> None:
    """Greedy and random rows with 0..K drafts each: none touches another's row, and indices stay inside."""
    torch.manual_seed(2)
    k, plans, num = 3, [], []
    for row in range(12):
        plans.append(SamplingPlan(temperature=float(row % 2), top_k=4))
        num.append(row % (k + 1))
    logits = torch.randn(12, k + 1, V)
    batch = batch_of(plans)
    drafts = torch.full((12, k), -1)
    draft_probs = torch.zeros(6, k, V)
    for row in range(12):
        drafts[row, : num[row]] = logits[row, : num[row]].argmax(-1)
        if row % 2:
            draft_probs[row // 2, : num[row]] = 1 / V
    seeds, places = torch.arange(12)[:, None], torch.arange(k + 1)
    u_accept, u_target = uniforms(seeds, places[:k], Purpose.ACCEPT), uniforms(seeds, places, Purpose.TARGET)
    whole = accept(batch.law(logits, drafts), Proposal(drafts, num, draft_probs), u_accept, u_target)
    for row in range(12):
        alone = batch.select([row])
        probs = draft_probs[row // 2 : row // 2 + 1] if row % 2 else None
        solo = accept(
            alone.law(logits[row : row + 1], drafts[row : row + 1]),
            Proposal(drafts[row : row + 1], [num[row]], probs),
            u_accept[row : row + 1],
            u_target[row : row + 1],
        )
        assert solo.output_token_ids[0].tolist() == whole.output_token_ids[row].tolist()
        assert whole.num_accepted[row] <= num[row]
        if row % 2 == 0:
            assert whole.num_accepted[row] == num[row], "greedy drafts equal to the argmax are kept"


def test_k_zero() -> None:
    logits = torch.randn(2, 1, V)
    empty = torch.zeros(2, 0, dtype=torch.float64)
    proposal = Proposal(torch.zeros(2, 0, dtype=torch.int64), [0, 0])
    law = batch_of([SamplingPlan(temperature=0.0), SamplingPlan()]).law(logits, proposal.draft_token_ids)
    outcome = accept(law, proposal, empty, torch.full((2, 1), 0.5, dtype=torch.float64))
    assert outcome.num_accepted.tolist() == [0, 0]
    assert outcome.output_token_ids.shape == (2, 1)
    assert outcome.output_token_ids[0, 0] == logits[0, 0].argmax()


@pytest.mark.parametrize("decide", [accept, block_verification.accept])
def test_drafts_drawn_and_drafts_looked_up_share_a_batch(decide: Callable[..., Outcome]) -> None:
    """Rows in turn: drawn from q, and tokens that nobody drew, whose q is 1 there. Every row has the target's law, and
    the rows that were looked up end as if the whole batch had been."""
    p, q = laws(11, 3, V), laws(111, 2, V)
    drawn = drawn_from(q, N)
    likely = p[:2].topk(2).indices[:, 1]
    by_text = torch.arange(N) % 2 == 1
    drafts = torch.where(by_text[:, None], likely, drawn)
    one_hot = torch.nn.functional.one_hot(likely, V).to(q.dtype)
    probs = torch.where(by_text[:, None, None], one_hot, q)
    seeds, positions = torch.arange(N)[:, None] * 7919 + 1, torch.arange(3)
    law = random_law(p.expand(N, -1, -1))
    u_accept, u_target = (
        uniforms(seeds, positions[: 2 + i], purpose) for i, purpose in enumerate((Purpose.ACCEPT, Purpose.TARGET))
    )
    outcome = decide(law, Proposal(drafts, [2] * N, probs), u_accept, u_target)
    for rows in (by_text, ~by_text):
        assert chi_square(outcome.output_token_ids[rows, 0], p[0]) < LIMIT
        for place in (1, 2):
            reached = rows & (outcome.num_accepted >= place)
            assert chi_square(outcome.output_token_ids[reached, place], p[place]) < LIMIT
    alone = decide(law, Proposal(likely.expand(N, -1), [2] * N), u_accept, u_target)
    assert torch.equal(outcome.output_token_ids[by_text], alone.output_token_ids[by_text])


@pytest.mark.parametrize("decide", [accept, block_verification.accept])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_greedy_rows_are_decided_on_the_host_as_every_exact_method_does(decide: Callable[..., Outcome], k: int) -> None:
    """Whatever the numbers; drafts that are all kept, rejected at any place, padded, and laws that are none."""
    torch.manual_seed(k)
    n = 400
    argmax = torch.randint(0, 3, (n, k + 1))
    drafts = torch.where(torch.rand(n, k) < 0.7, argmax[:, :k], torch.randint(0, 3, (n, k)))
    num = [row % (k + 1) for row in range(n)]
    drafts = drafts.masked_fill(torch.arange(k) >= torch.tensor(num)[:, None], -1)
    law = Law(argmax, torch.zeros(0, dtype=torch.int64), None, torch.rand(n, k + 1) < 0.9)
    proposal = Proposal(drafts, num)
    numbers = torch.rand(n, k + 1, dtype=torch.float64)
    outcome = decide(law, proposal, numbers[:, :k], numbers)
    on_host = Proposal(drafts, num, on_host=[row[:count] for row, count in zip(drafts.tolist(), num, strict=True)])
    found = accept_greedy(law, proposal)
    assert accept_greedy(law, on_host) == found
    peaks = Peaks(torch.where(law.valid, 1.0, torch.nan).flatten(), argmax.flatten())
    assert accept_likeliest(peaks, on_host) == accept_likeliest(peaks, proposal) == found
    assert [row[0] for row in found] == outcome.num_accepted.tolist()
    assert [bool(row[1]) for row in found] == outcome.valid.tolist()
    assert [row[2:] for row in found] == [[t for t in row if t >= 0] for row in outcome.output_token_ids.tolist()]
