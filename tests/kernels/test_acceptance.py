"""The acceptance kernel against speculative/rejection.py, row by row and token by token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels.acceptance import accept
from paceline.layers.random import Purpose, uniforms
from paceline.layers.sampling import Law
from paceline.speculative import rejection
from paceline.speculative.acceptance import Synthetic
from paceline.speculative.rejection import Outcome, Proposal

pytest.importorskip("triton")


class Case:
    """Laws, drafts and seeds of `rows` sequences; every second one is greedy where `mixed`."""

    def __init__(self, seed: int, rows: int, k: int, vocab: int, *, mixed: bool = True, drawn: bool = True) -> None:
        g = torch.Generator().manual_seed(seed)
        self.p = torch.softmax(torch.randn((rows, k + 1, vocab), generator=g) * 2, -1)
        self.q = torch.softmax(self.p[:, :k].log() + torch.randn((rows, k, vocab), generator=g), -1) if drawn else None
        self.temperature = torch.ones(rows)
        self.temperature[1::2] = 0.0 if mixed else 1.0
        self.argmax = self.p.argmax(-1)
        self.valid = torch.rand((rows, k + 1), generator=g) > 0.2
        weights = self.q if self.q is not None else self.p[:, :k]
        self.drafts = torch.multinomial(weights.reshape(-1, vocab), 1, generator=g).view(rows, k) if k else (
            torch.zeros((rows, 0), dtype=torch.int64))  # fmt: skip
        greedy_right = torch.rand((rows, k), generator=g) < 0.7
        self.drafts = torch.where((self.temperature == 0)[:, None] & greedy_right, self.argmax[:, :k], self.drafts)
        self.num_drafted = torch.randint(0, k + 1, (rows,), generator=g)
        self.num_drafted[:2] = k
        self.drafts[torch.arange(k) >= self.num_drafted[:, None]] = -1
        self.seeds = torch.randint(-(2**62), 2**62, (rows,), generator=g)
        self.positions = torch.randint(0, 5000, (rows,), generator=g)

    def kernel(self, **options) -> Tensor:
        return accept(
            self.drafts, self.num_drafted, self.argmax, self.valid, self.temperature, self.seeds, self.positions,
            probs=self.p, draft_probs=self.q, **options,
        )  # fmt: skip

    def expected(self, decide=rejection.accept) -> Tensor:
        k = self.drafts.shape[1]
        rows = (self.temperature > 0).nonzero().squeeze(1)
        law = Law(self.argmax, rows, self.p[rows], self.valid)
        proposal = Proposal(self.drafts, self.num_drafted.tolist(), None if self.q is None else self.q[rows])
        places = self.positions[:, None] + torch.arange(k + 1)
        u_accept = uniforms(self.seeds[:, None], places[:, :k], Purpose.ACCEPT)
        return pack(decide(law, proposal, u_accept, uniforms(self.seeds[:, None], places, Purpose.TARGET)))


def pack(outcome: Outcome) -> Tensor:
    head = torch.stack((outcome.num_accepted, outcome.valid.long()), 1)
    return torch.cat((head, outcome.output_token_ids), 1).int()


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(2, 4),
    k=st.integers(0, 3),
    vocab=st.integers(2, 40),
    mixed=st.booleans(),
    drawn=st.booleans(),
)
def test_p13_any_batch_is_decided_as_rejection_does(seed, rows, k, vocab, mixed, drawn) -> None:
    case = Case(seed, rows, k, vocab, mixed=mixed, drawn=drawn)
    assert torch.equal(case.kernel(), case.expected())


@pytest.mark.parametrize("drawn", [True, False])
def test_a_vocabulary_of_several_chunks(drawn: bool) -> None:
    case = Case(11, 12, 3, 4500, drawn=drawn)
    packed = case.kernel()
    assert torch.equal(packed, case.expected())
    assert set(packed[:, 0].tolist()) >= {0, 3}, "the case should hold rejections at once and full acceptance"


@pytest.mark.parametrize("k", [1, 5])
def test_p07_p18_forced_rejection_at_every_place(k: int) -> None:
    """Place i's law can only give token i; row r's draft is wrong from place r on. The last row accepts all."""
    case = Case(0, k + 1, k, 9, mixed=False)
    case.p = torch.eye(k + 1, 9).expand(k + 1, -1, -1).contiguous()
    case.argmax = case.p.argmax(-1)
    case.q = None
    case.drafts = torch.arange(k).repeat(k + 1, 1)
    for row in range(k):
        case.drafts[row, row:] = 8
    case.num_drafted = torch.full((k + 1,), k)
    for temperature in (0.0, 1.0):
        case.temperature = torch.full((k + 1,), temperature)
        packed = case.kernel()
        assert packed[:, 0].tolist() == list(range(k + 1))
        for row in range(k + 1):
            assert packed[row, 2:].tolist() == list(range(row + 1)) + [-1] * (k - row)


def test_p09_an_empty_residual_falls_back_to_p() -> None:
    """q is p where p is positive and larger where it is not: a rejected draft leaves nothing of max(p - q, 0)."""
    case = Case(1, 8, 1, 6, mixed=False)
    case.p = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0, 0.0]).expand(8, 2, -1).contiguous()
    case.argmax = case.p.argmax(-1)
    case.q = torch.tensor([0.5, 0.5, 0.1, 0.0, 0.0, 0.0]).expand(8, 1, -1).contiguous()
    case.drafts = torch.full((8, 1), 2)
    case.num_drafted = torch.ones(8, dtype=torch.int64)
    packed = case.kernel()
    assert (packed[:, 0] == 0).all()
    assert set(packed[:, 2].tolist()) == {0, 1}
    assert torch.equal(packed, case.expected())


def test_p31_a_law_of_nan_is_reported_and_gives_a_token_that_exists() -> None:
    case = Case(2, 4, 2, 50, mixed=False)
    case.valid[:] = True
    case.p[1, :] = float("nan")
    case.valid[1, :] = False
    packed, clean = case.kernel(), Case(2, 4, 2, 50, mixed=False)
    clean.valid[:] = True
    assert packed[1, :2].tolist() == [0, 0]
    assert 0 <= packed[1, 2] < 50
    assert torch.equal(packed[[0, 2, 3]], clean.kernel()[[0, 2, 3]])


def test_greedy_rows_need_no_probabilities() -> None:
    case = Case(3, 6, 3, 30)
    case.temperature[:] = 0.0
    packed = accept(
        case.drafts, case.num_drafted, case.argmax, case.valid, case.temperature, case.seeds, case.positions
    )
    assert torch.equal(packed, case.expected())


@pytest.mark.parametrize("mixed", [True, False])
def test_synthetic_acceptance_is_that_of_the_method(mixed: bool) -> None:
    case = Case(4, 10, 3, 30, mixed=mixed)
    rates = torch.tensor([0.9, 0.5, 0.5])
    packed = case.kernel(synthetic_rates=rates.expand(10, 3))
    assert torch.equal(packed, case.expected(Synthetic(rates.tolist())))
    assert len(set(packed[:, 0].tolist())) > 1


def test_synthetic_acceptance_by_row() -> None:
    case = Case(4, 10, 3, 30)
    rates = torch.tensor([[1.0] * 3, [0.0] * 3] * 5)
    packed = case.kernel(synthetic_rates=rates)
    assert packed[::2, 0].tolist() == case.num_drafted[::2].tolist()
    assert packed[1::2, 0].tolist() == [0] * 5
