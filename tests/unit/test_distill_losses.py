"""The divergences against their definitions summed by hand, and the gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.distill.losses import LossTerm, divergence, head_loss, mixed_divergence, parse_loss

DIVERGENCES = ("forward_kl", "reverse_kl", "total_variation")


def law(logits: list[float], temperature: float) -> list[float]:
    weights = [math.exp(z / temperature) for z in logits]
    return [w / sum(weights) for w in weights]


def by_hand(name: str, q: list[float], p: list[float]) -> float:
    if name == "forward_kl":
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    if name == "reverse_kl":
        return sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    return 1 - sum(min(a, b) for a, b in zip(p, q, strict=True))  # one minus the acceptance of a draft


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_value_is_the_definition(name: str, temperature: float) -> None:
    draft, target = [0.3, -1.2, 2.0, 0.0], [1.1, 0.4, 0.9, -2.0]
    term = LossTerm(name, 0.5, temperature)  # type: ignore[arg-type]
    value, _ = divergence(torch.tensor([draft]), torch.tensor([target]), term)
    assert value.item() == pytest.approx(
        0.5 * by_hand(name, law(draft, temperature), law(target, temperature)), rel=1e-5
    )


@pytest.mark.parametrize("name", DIVERGENCES)
def test_gradient_is_autograds(name: str) -> None:
    torch.manual_seed(0)
    draft, target = torch.randn(6, 11, requires_grad=True), torch.randn(6, 11)
    term = LossTerm(name, 0.7, 0.8)  # type: ignore[arg-type]
    value, gradient = divergence(draft, target, term)
    (expected,) = torch.autograd.grad(value.sum(), draft)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_head_loss_in_chunks_is_the_plain_loss() -> None:
    torch.manual_seed(1)
    hidden, table = torch.randn(10, 6, requires_grad=True), torch.randn(17, 6, requires_grad=True)
    target_hidden, target_table = torch.randn(10, 8), torch.randn(17, 8)
    terms = (LossTerm("forward_kl", 0.25), LossTerm("total_variation", 1.0, 0.6))
    loss = head_loss(hidden, table, target_hidden, target_table, terms, chunk=3)
    gradients = torch.autograd.grad(2 * loss, (hidden, table))
    plain = mixed_divergence(hidden @ table.T, target_hidden @ target_table.T, terms)[0].mean()
    torch.testing.assert_close(loss, plain)
    for got, expected in zip(gradients, torch.autograd.grad(2 * plain, (hidden, table)), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)


def test_losses_are_parsed_and_said_again() -> None:
    assert parse_loss("forward-kl*0.25+tv@0.6") == (
        LossTerm("forward_kl", 0.25),
        LossTerm("total_variation", 1.0, 0.6),
    )
    for text in ("reverse-kl", "tv*0.5@0.7", "forward-kl*2"):
        assert str(LossTerm.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [("l2", "unknown loss 'l2'"), ("tv*x", "are numbers"), ("tv*0", "above 0"), ("tv@-1", "above 0"), ("", "unknown")],
)
def test_wrong_losses_are_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_loss(text)
