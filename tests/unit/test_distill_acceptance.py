"""The expected number of passes, against a simulation of speculative sampling itself on toy laws."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from paceline.distill.acceptance import acceptance_along, expected_passes, processed_law
from paceline.distill.model import Llama, LlamaShape
from paceline.distill.report import Transcript, by_category, markdown, table
from paceline.distill.teacher import Teacher


def passes_of(kept: tuple[bool, ...], k: int) -> int:
    """Greedy passes over a text where `kept` says which drafts hit."""
    at = passes = 0
    while at < len(kept):
        hits = 0
        while hits < k and at + hits < len(kept) and kept[at + hits]:
            hits += 1
        at += hits + 1
        passes += 1
    return passes


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_expected_passes_is_the_mean_over_all_outcomes(k: int) -> None:
    chances = [0.9, 0.2, 0.5, 1.0, 0.0, 0.7, 0.6]
    mean = 0.0
    for kept in product((True, False), repeat=len(chances)):
        weight = 1.0
        for chance, hit in zip(chances, kept, strict=True):
            weight *= chance if hit else 1 - chance
        mean += weight * passes_of(kept, k)
    assert expected_passes(chances, k) == pytest.approx(mean)


def speculate(p: torch.Tensor, q: torch.Tensor, length: int, k: int, chance: random.Random) -> tuple[list[int], int]:
    """Speculative sampling of a Markov chain, as in Leviathan et al.: the text and the number of passes."""

    def draw(weights: torch.Tensor) -> int:
        return chance.choices(range(len(weights)), weights.tolist())[0]

    text, passes = [0], 0
    while len(text) <= length:
        passes += 1
        state = text[-1]
        for _ in range(k):
            token = draw(q[state])
            if chance.random() * q[state, token] >= p[state, token]:
                text.append(draw((p[state] - q[state]).clamp_min(0)))
                break
            text.append(token)
            state = token
        else:
            text.append(draw(p[state]))
    return text[: length + 1], passes


def test_tokens_a_pass_along_target_text_is_what_speculation_gives() -> None:
    torch.manual_seed(0)
    target_logits, draft_logits = torch.randn(5, 5), torch.randn(5, 5)
    p, q = target_logits.softmax(-1), draft_logits.softmax(-1)
    chance = random.Random(1)
    _, passes = speculate(p, q, 20_000, 3, chance)
    text = [0]
    for _ in range(20_000):
        text.append(chance.choices(range(5), p[text[-1]].tolist())[0])
    states, tokens = torch.tensor(text[:-1]), torch.tensor(text[1:])
    kept = acceptance_along(tokens, draft_logits[states], target_logits[states], 1.0)
    assert expected_passes(kept.tolist(), 3) == pytest.approx(passes, rel=0.02)


def test_top_p_keeps_the_smallest_head_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()
    torch.testing.assert_close(processed_law(logits, 1.0, 0.6), torch.tensor([[5 / 7, 2 / 7, 0.0, 0.0]]))
    torch.testing.assert_close(processed_law(logits, 1.0), logits.exp())


def test_sampled_text_needs_the_target() -> None:
    with pytest.raises(ValueError, match="target"):
        acceptance_along(torch.tensor([1]), torch.zeros(1, 4), None, 0.7)


def test_a_draft_that_is_the_target_keeps_everything() -> None:
    shape = LlamaShape(
        vocab_size=32, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=16
    )
    model = Llama(shape)
    ids = [3, 5, 7]
    with torch.no_grad():
        for _ in range(13):
            ids.append(int((model(torch.tensor([ids]))[0, -1] @ model.table.T).argmax()))
    transcripts = [Transcript("qa", tuple(ids[:3]), tuple(ids[3:])), Transcript("rag", (1,), (2,))]
    tallies = by_category(transcripts, model, ks=(2, 5))
    assert list(tallies) == ["qa", "rag", "all"]
    assert tallies["all"].tokens == 12  # the first comes with the prompt's pass
    assert tallies["qa"].tokens_per_pass(2) == 3.0
    assert tallies["qa"].tokens_per_pass(5) == 6.0
    sampled = by_category(transcripts[:1], model, Teacher.of_dense(model, {}), ks=(2,), temperature=0.7, top_p=0.9)
    assert sampled["all"].tokens_per_pass(2) == pytest.approx(3.0, rel=1e-3)
    assert "| qa | 1 | 12 | 1.000 | 3.00 | 6.00 |" in markdown(table({"qa": tallies["qa"]}))
    cut = by_category(transcripts[:1], model, ks=(2,), draft_vocab=torch.tensor([31]))
    assert cut["all"].hit == sum(token == 31 for token in ids[4:]) / 12
