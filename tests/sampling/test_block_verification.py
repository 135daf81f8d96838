"""Block verification proved by exhaustion: every draft path of small vocabularies, exact sums, no sampling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.layers.random import Purpose, uniforms
from paceline.layers.sampling import Law, draw
from paceline.speculative import block_verification, rejection
from paceline.speculative.block_verification import judge, last_law
from paceline.speculative.rejection import Proposal

Text = tuple[int, ...]


@dataclass
class Models:
    """Laws of target and draft behind every text of up to K tokens."""

    p: dict[Text, Tensor]
    q: dict[Text, Tensor]
    vocab: int
    k: int

    @property
    def texts(self) -> list[Text]:
        return list(itertools.product(range(self.vocab), repeat=self.k))


def random_models(seed: int, vocab: int, k: int, *, sharpness: float = 1.5, zeros: bool = False) -> Models:
    """Laws differ with the text before them. zeros: both models forbid some tokens, not the same ones."""
    generator = torch.Generator().manual_seed(seed)

    def law() -> Tensor:
        logits = torch.randn(vocab, generator=generator) * sharpness
        if zeros:
            logits[torch.randint(vocab, (1,), generator=generator)] = float("-inf")
        return logits.softmax(-1)

    contexts = [text for n in range(k + 1) for text in itertools.product(range(vocab), repeat=n)]
    return Models({c: law() for c in contexts}, {c: law() for c in contexts}, vocab, k)


def rows_of(models: Models, texts: list[Text]) -> tuple[Law, Proposal]:
    """One row a draft path."""
    k = models.k
    probs = torch.stack([torch.stack([models.p[t[:i]] for i in range(k + 1)]) for t in texts])
    q = torch.stack([torch.stack([models.q[t[:i]] for i in range(k)]) for t in texts])
    rows = torch.arange(len(texts))
    law = Law(probs.argmax(-1), rows, probs, torch.ones(probs.shape[:2], dtype=torch.bool))
    return law, Proposal(torch.tensor(texts), [k] * len(texts), q)


def chance(models: dict[Text, Tensor], text: Text, start: int = 0) -> float:
    """The probability that a model writes text[start:] behind text[:start]."""
    result = 1.0
    for i in range(start, len(text)):
        result *= models[text[:i]][text[i]].item()
    return result


Method = Callable[[Law, Proposal], tuple[Tensor, list[Tensor]]]


def by_block(law: Law, proposal: Proposal) -> tuple[Tensor, list[Tensor]]:
    """P(num_accepted = i) of each row [N, K+1], and the law of the token behind i drafts, for each i [N, V]."""
    judged = judge(law, proposal)
    keep = judged.keep.clone()
    keep[:, 0] = 1.0
    behind = torch.cat([(1 - keep).flip(1).cumprod(1).flip(1)[:, 1:], torch.ones(len(keep), 1)], dim=1)
    n = len(keep)
    laws = [last_law(law, proposal, judged, torch.full((n,), i)) for i in range(keep.shape[1])]
    return keep * behind, [weights / weights.sum(-1, keepdim=True) for weights in laws]


def by_token(law: Law, proposal: Proposal) -> tuple[Tensor, list[Tensor]]:
    assert law.probs is not None
    assert proposal.draft_probs is not None
    drafts = proposal.draft_token_ids[..., None]
    p = law.probs[:, :-1].gather(-1, drafts).squeeze(-1).double()
    q = proposal.draft_probs.gather(-1, drafts).squeeze(-1).double()
    rates = torch.where(q > 0, p / q, 0.0).clamp(max=1.0)  # a path that is never drafted may be anything
    reach = torch.cat([torch.ones(len(rates), 1), rates.cumprod(-1)], dim=1)
    stop = torch.cat([1 - rates, torch.ones(len(rates), 1)], dim=1)
    rows = torch.arange(len(rates))
    laws = [
        rejection._residual(law.probs[:, i], proposal, rows, torch.full((len(rates),), i))
        for i in range(p.shape[1] + 1)
    ]
    return reach * stop, [weights / weights.sum(-1, keepdim=True) for weights in laws]


def emitted_law(models: Models, method: Method) -> dict[Text, float]:
    """The law of K+1 tokens: what a step emits, continued by the target. Exact, over every draft path."""
    texts = models.texts
    num_accepted, last = method(*rows_of(models, texts))
    result: dict[Text, float] = dict.fromkeys(itertools.product(range(models.vocab), repeat=models.k + 1), 0.0)
    for row, drafts in enumerate(texts):
        drawn = chance(models.q, drafts)
        for kept in range(models.k + 1):
            share = drawn * num_accepted[row, kept].item()
            if share == 0.0:
                continue
            for rest in itertools.product(range(models.vocab), repeat=models.k + 1 - kept):
                text = drafts[:kept] + rest
                result[text] += share * last[kept][row, rest[0]].item() * chance(models.p, text, kept + 1)
    return result


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(2, 3), (3, 2), (4, 1), (3, 3)]), st.booleans())
def test_the_emitted_text_has_the_targets_law(seed: int, size: tuple[int, int], zeros: bool) -> None:
    models = random_models(seed, *size, zeros=zeros)
    for method in (by_block, by_token):
        for text, probability in emitted_law(models, method).items():
            assert abs(probability - chance(models.p, text)) < 1e-6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(2, 4), (3, 3), (5, 2)]), st.sampled_from([0.3, 1.5, 5.0]))
def test_never_fewer_drafts_than_token_wise(seed: int, size: tuple[int, int], sharpness: float) -> None:
    models = random_models(seed, *size, sharpness=sharpness)
    assert expected_accepted(models, by_block) >= expected_accepted(models, by_token) - 1e-6


def expected_accepted(models: Models, method: Method) -> float:
    drawn = torch.tensor([chance(models.q, text) for text in models.texts], dtype=torch.float64)
    num_accepted, _ = method(*rows_of(models, models.texts))
    return float((drawn[:, None] * num_accepted * torch.arange(models.k + 1)).sum())


def test_the_papers_example() -> None:
    """Two tokens, p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 10/9 drafts token by token, 11/9 as a block (section 2)."""
    p, q = torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3])
    contexts = [text for n in range(3) for text in itertools.product(range(2), repeat=n)]
    models = Models(dict.fromkeys(contexts, p), dict.fromkeys(contexts, q), 2, 2)
    assert expected_accepted(models, by_token) == pytest.approx(10 / 9, abs=1e-6)
    assert expected_accepted(models, by_block) == pytest.approx(11 / 9, abs=1e-6)


def test_the_drawn_counts_and_tokens_follow_the_judgement() -> None:
    """`accept` itself, with real random numbers: for one draft path, counts and last tokens as judged."""
    n, models = 100_000, random_models(5, 4, 3)
    text = (1, 0, 2)
    law, proposal = rows_of(models, [text])
    num_accepted, last = by_block(law, proposal)
    assert law.probs is not None
    assert proposal.draft_probs is not None
    many = Law(law.argmax.expand(n, -1), torch.arange(n), law.probs.expand(n, -1, -1), law.valid.expand(n, -1))
    drafts = Proposal(proposal.draft_token_ids.expand(n, -1), [3] * n, proposal.draft_probs.expand(n, -1, -1))
    seeds, places = torch.arange(n)[:, None], torch.arange(4)
    outcome = block_verification.accept(
        many, drafts, uniforms(seeds, places[:3], Purpose.ACCEPT), uniforms(seeds, places, Purpose.TARGET)
    )
    shares = torch.bincount(outcome.num_accepted, minlength=4) / n
    assert torch.allclose(shares.double(), num_accepted[0], atol=0.006)
    for kept in range(4):
        tokens = outcome.output_token_ids[outcome.num_accepted == kept, kept]
        if len(tokens) > 1000:
            assert torch.allclose(torch.bincount(tokens, minlength=4) / len(tokens), last[kept][0], atol=0.03)


def test_mixed_rows_of_any_length_equal_their_solo_runs() -> None:
    """Greedy rows, random ones with 0..K drafts, and one-hot drafts: none touches another's row."""
    torch.manual_seed(3)
    k, n, vocab = 3, 12, 5
    logits = torch.randn(n, k + 1, vocab)
    random_rows = torch.arange(1, n, 2)
    law = Law(logits.argmax(-1), random_rows, logits[random_rows].softmax(-1), torch.ones(n, k + 1, dtype=torch.bool))
    num = [row % (k + 1) for row in range(n)]
    drafts = torch.full((n, k), -1)
    q = torch.zeros(len(random_rows), k, vocab)
    for row in range(n):
        drafts[row, : num[row]] = logits[row, : num[row]].argmax(-1)
        if row % 2:
            q[row // 2, : num[row]] = torch.randn(num[row], vocab).softmax(-1)
    u = uniforms(torch.arange(n)[:, None], torch.arange(k + 1), Purpose.ACCEPT)
    v = uniforms(torch.arange(n)[:, None], torch.arange(k + 1), Purpose.TARGET)
    for probs in (q, None):
        whole = block_verification.accept(law, Proposal(drafts, num, probs), u[:, :k], v)
        for row in range(n):
            mine = torch.tensor([0] if row % 2 else [], dtype=torch.int64)
            assert law.probs is not None
            alone = Law(
                law.argmax[row : row + 1],
                mine,
                law.probs[row // 2 : row // 2 + 1] if row % 2 else None,
                law.valid[row : row + 1],
            )
            own = probs[row // 2 : row // 2 + 1, : num[row]] if probs is not None and row % 2 else None
            solo = block_verification.accept(
                alone,
                Proposal(drafts[row : row + 1, : num[row]], [num[row]], own),
                u[row : row + 1, : num[row]],
                v[row : row + 1],
            )
            assert solo.output_token_ids[0].tolist() == whole.output_token_ids[row, : num[row] + 1].tolist()
            assert whole.num_accepted[row] <= num[row]
            if row % 2 == 0:
                assert whole.num_accepted[row] == num[row], "greedy drafts equal to the argmax are kept"


def test_one_hot_drafts_are_kept_as_often_as_token_by_token_and_the_law_holds() -> None:
    """A draft that was not drawn: every path of the target's tree, with the drafted path fixed."""
    models = random_models(11, 3, 3)
    drafts = (2, 0, 1)
    law, proposal = rows_of(models, [drafts])
    num_accepted, last = by_block(law, Proposal(proposal.draft_token_ids, [3]))
    result: dict[Text, float] = dict.fromkeys(itertools.product(range(3), repeat=4), 0.0)
    for kept in range(4):
        for rest in itertools.product(range(3), repeat=4 - kept):
            text = drafts[:kept] + rest
            result[text] += (
                num_accepted[0, kept].item() * last[kept][0, rest[0]].item() * chance(models.p, text, kept + 1)
            )
    for text, probability in result.items():
        assert abs(probability - chance(models.p, text)) < 1e-6
    expected = sum(chance(models.p, drafts[:i]) for i in (1, 2, 3))
    assert (num_accepted[0] * torch.arange(4)).sum().item() == pytest.approx(expected, abs=1e-6)


def test_a_text_that_reaches_a_place_without_a_law_fails_as_often_as_it_should() -> None:
    """Behind draft 1 nothing may be said: the row fails with the target's probability of that text, no less."""
    models = random_models(2, 3, 3)
    texts = models.texts
    law, proposal = rows_of(models, texts)
    assert law.probs is not None
    dead = torch.tensor([text[0] == 1 for text in texts])
    law.valid[dead, 1:] = False
    law.probs[dead, 1:] = float("nan")
    num_accepted, last = by_block(law, proposal)
    failed = 0.0
    for row, text in enumerate(texts):
        drawn = chance(models.q, text)
        if dead[row]:
            assert num_accepted[row, 2:].sum() == 0
            failed += drawn * num_accepted[row, 1].item()  # accepted, and then without a law
        failed += drawn * num_accepted[row, 0].item() * last[0][row, 1].item()  # recovered; the next step fails
    assert failed == pytest.approx(models.p[()][1].item(), abs=1e-6)


@pytest.mark.parametrize("by_step", [True, False])
def test_a_later_step_needs_numbers_of_its_own(by_step: bool) -> None:
    """Two steps one after the other. Spent numbers on discarded drafts would bend the law of the second step."""
    n, k, vocab = 100_000, 3, 3
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.6, 0.3, 0.1])
    seeds = torch.arange(n)[:, None] * 7919
    start = torch.full((n, 1), 10)
    for _ in range(2):
        positions = start + torch.arange(k + 1)
        steps = start if by_step else None
        u = uniforms(seeds, positions, Purpose.DRAFT, steps)
        drafts = torch.stack([draw(q.expand(n, -1), u[:, i]) for i in range(k)], dim=1)
        law = Law(
            torch.zeros(n, k + 1, dtype=torch.int64),
            torch.arange(n),
            p.expand(n, k + 1, -1),
            torch.ones(n, k + 1, dtype=torch.bool),
        )
        outcome = block_verification.accept(
            law,
            Proposal(drafts, [k] * n, q.expand(n, k, -1)),
            uniforms(seeds, positions[:, :k], Purpose.ACCEPT, steps),
            uniforms(seeds, positions, Purpose.TARGET, steps),
        )
        start = start + outcome.num_accepted[:, None] + 1
    counts = torch.bincount(outcome.output_token_ids[:, 0], minlength=vocab).double()
    chi_square = float(((counts - n * p.double()) ** 2 / (n * p.double())).sum())
    limit = 18.4  # 2 degrees of freedom, P(> 18.4) = 1e-4; the seeds are fixed
    assert (chi_square < limit) if by_step else (chi_square > 4 * limit)
