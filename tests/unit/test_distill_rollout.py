"""The batched decoder against the dense model; scripts; the law of the sampler; kernels against references."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from distill_toys import FORMAT, LANGUAGE, VOCAB, toy_target

from paceline.distill import prompts, sampling
from paceline.distill.prompts import Scripts
from paceline.distill.replay import ReplayBuffer, select
from paceline.distill.rollout import ASSISTANT, USER, BatchDecoder, CacheMemory, Rollout
from paceline.distill.text import Text

ROWS, LENGTH = 12, 40


@pytest.fixture(scope="module")
def rollout() -> Rollout:
    target = toy_target()
    scripts = Scripts.build(FORMAT, [[8, 9], [10]], [[11]])
    memory = CacheMemory(target, ROWS * LENGTH)
    decoder = BatchDecoder(
        target, FORMAT, scripts, memory, rows=ROWS, length=LENGTH, user_temperature=1.0
    )  # fmt: skip
    temperature = torch.tensor([0.0, 0.7] * (ROWS // 2))
    prefix = torch.tensor(FORMAT.start).expand(ROWS, -1)
    return decoder.generate(prefix, temperature, seed=3, role=USER, open_turns=True)


def test_hidden_states_are_the_dense_models(rollout: Rollout) -> None:
    dense = toy_target()(rollout.tokens)
    torch.testing.assert_close(rollout.hidden[:, :-1], dense[:, :-1], atol=1e-5, rtol=1e-4)


def test_greedy_answers_are_the_argmax(rollout: Rollout) -> None:
    greedy = (rollout.hidden @ toy_target().table.T).argmax(-1)[:, :-1]
    answers = rollout.is_answer[:, 1:] & (rollout.temperature == 0).unsqueeze(1)
    assert answers.any()
    assert torch.equal(greedy[answers], rollout.tokens[:, 1:][answers])


def test_turns_alternate_and_markup_is_never_an_answer(rollout: Rollout) -> None:
    for tokens, answers in zip(rollout.tokens.tolist(), rollout.is_answer.tolist(), strict=True):
        assert tuple(tokens[:3]) == FORMAT.start
        at, user = 3, True
        while FORMAT.end in tokens[at:]:
            end = tokens.index(FORMAT.end, at)
            spoken = answers[at : end + 1]
            assert not any(spoken) if user else all(spoken)
            markup = FORMAT.to_assistant if user else FORMAT.to_user
            room = tokens[end + 1 : end + 1 + len(markup)]
            assert tuple(room) == markup[: len(room)]
            assert not any(answers[end + 1 : end + 1 + len(markup)])
            at, user = end + 1 + len(markup), not user


def test_ragged_beginnings_are_kept_and_answered() -> None:
    target = toy_target()
    memory = CacheMemory(target, 3 * LENGTH)
    decoder = BatchDecoder(
        target, FORMAT, Scripts.build(FORMAT, [[8]], [[11]]), memory, rows=3, length=LENGTH, user_temperature=1.0
    )
    given = [[1, 5, 6, 9, 2, 1, 7], [1, 5, 6, 9, 10, 11, 12, 2, 1, 7], list(range(3, 23)) * 2]
    prefix = torch.tensor([row + [-1] * (LENGTH - len(row)) for row in given])
    rollout = decoder.generate(prefix, torch.zeros(3), seed=1, role=ASSISTANT, open_turns=False)
    greedy = (target(rollout.tokens) @ target.table.T).argmax(-1)
    for row, beginning in enumerate(given):
        assert rollout.tokens[row, : len(beginning)].tolist() == beginning
        assert not rollout.is_answer[row, : len(beginning)].any()
    for row in (0, 1):  # the first free token is the target's answer to the beginning
        first = len(given[row])
        assert rollout.is_answer[row, first]
        assert rollout.tokens[row, first] == greedy[row, first - 1]
    torch.testing.assert_close(rollout.hidden[:, :-1], target(rollout.tokens)[:, :-1], atol=1e-5, rtol=1e-4)


def test_draws_follow_the_law() -> None:
    torch.manual_seed(0)
    logits, count = torch.randn(10), 40_000
    keys = sampling.row_keys(count, torch.tensor([9]), torch.tensor([4]))
    drawn = sampling.reference(logits.expand(count, -1), torch.full((count,), 0.8), keys)
    expected = torch.softmax(logits / 0.8, 0) * count
    chi_square = ((torch.bincount(drawn, minlength=10) - expected) ** 2 / expected).sum()
    assert chi_square < 27.9  # 9 degrees of freedom, one in a thousand


def test_selection_takes_answers_first_and_the_ring_keeps_the_latest(rollout: Rollout) -> None:
    generator = torch.Generator().manual_seed(0)
    text = Text("chat", rollout.tokens, rollout.is_answer, rollout.temperature)
    batch = select(text, rollout.hidden, 20, generator)
    answers = rollout.is_answer[:, 1:].sum(1)
    assert torch.equal(batch.answers.sum(1), answers.clamp(max=20))
    expected = rollout.hidden[torch.arange(ROWS).unsqueeze(1), batch.positions]
    assert torch.equal(batch.hidden, expected)
    ring = ReplayBuffer(ROWS + 4)
    ring.add(batch)
    ring.add(batch)
    assert ring.size == ROWS + 4
    assert ring.draw(5, generator).tokens.shape == (5, LENGTH)
    with pytest.raises(ValueError, match="do not fit"):
        ReplayBuffer(3).add(batch)


def test_document_prompts_fill_their_length_exactly() -> None:
    random = np.random.default_rng(0)
    documents = [np.array([12, 13, 14]), np.array([15, 16])]
    out = prompts.document_prompts(FORMAT, [((8,), (9,))], documents, [3], rows=4, length=20, random=random)
    assert out.shape == (4, 20)
    assert out[:, :4].tolist() == [[*FORMAT.start, 8]] * 4
    assert out[:, -4:].tolist() == [[9, FORMAT.end, *FORMAT.to_assistant]] * 4
    assert out.max() < VOCAB


def test_longest_answers_leave_out_the_closing_token() -> None:
    tokens = np.array([[5, 6, 7, 2, 8, 2]])
    flags = np.array([[False, True, True, True, False, True]])
    assert [a.tolist() for a in prompts.longest_answers(tokens, flags, at_least=2)] == [[6, 7]]
    assert LANGUAGE.encode("abc")


KERNELS = """
import torch
from paceline.distill import decode_attention as attention, sampling
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for length in (0, 1, 63, 64, 65, 100):
    new = [torch.randn(2, heads, 32, device=device) for heads in (6, 2, 2)]
    cache = [torch.randn(2, 2, 128, 32, device=device) for _ in range(2)]
    copies = [c.clone() for c in cache]
    position = torch.tensor([length], device=device)
    expected = attention.reference(*new, *copies, position)
    got = attention.append_and_attend(*new, *cache, position)
    assert (got - expected).norm() < 3e-3 * expected.norm()
    assert all(torch.equal(a, b) for a, b in zip(cache, copies))
logits, temperature = torch.randn(9, 10000, device=device), torch.linspace(0, 1, 9, device=device)
keys = sampling.row_keys(9, torch.tensor([5], device=device), torch.tensor([7], device=device))
assert torch.equal(sampling.draw(logits, temperature, keys), sampling.reference(logits, temperature, keys))
"""


def test_kernels_equal_their_references() -> None:
    """In Triton's interpreter on a CPU, compiled on a GPU."""
    pytest.importorskip("triton")
    interpreter = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", KERNELS], check=True, env=os.environ | interpreter)
