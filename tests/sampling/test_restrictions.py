"""Restrictions on logits against their definitions, at every place and with the drafts before it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling.batches import batch_of_rows, row_of
from torch import Tensor

from paceline.plan import RowPlan, SamplingPlan

V = 9
TOKENS = st.integers(0, V - 1)
PLANS = st.builds(
    SamplingPlan,
    frequency_penalty=st.sampled_from([0.0, 0.7, -1.3]),
    presence_penalty=st.sampled_from([0.0, 1.9, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.6]),
    bad_words=st.sampled_from([(), ((3,),), ((1, 2), (4,)), ((0, 1, 2), (2, 2))]),
    logit_bias=st.sampled_from([(), ((2, 3.5), (5, -4.0))]),
    allowed_token_ids=st.sampled_from([None, (0, 1, 2, 3, 7, 8)]),
    min_tokens=st.sampled_from([0, 3]),
    stop_token_ids=st.just((8,)),
    grammar=st.sampled_from([None, "no repeats"]),
)


class NoRepeats:
    """A grammar of a kind: a token must differ from the one before it."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def masks(self, row: RowPlan, drafts: list[int], first_place: int, num_places: int) -> Tensor | None:
        assert row.history is not None
        assert len(drafts) == first_place + num_places - 1
        self.asked.append(row.seq_id)
        text = row.history + drafts
        allowed = torch.ones(num_places, V, dtype=torch.bool)
        for place in range(num_places):
            allowed[place, text[len(row.history) + first_place + place - 1]] = False
        return allowed


def definition(logits: list[float], plan: SamplingPlan, prompt: list[int], output: list[int]) -> list[float]:
    """One place, token by token; `output` ends with the drafts before it."""
    result = []
    for token, start in enumerate(logits):
        value = start + dict(plan.logit_bias).get(token, 0.0)
        if token in prompt + output:
            value = value / plan.repetition_penalty if value > 0 else value * plan.repetition_penalty
        value -= plan.frequency_penalty * output.count(token) + plan.presence_penalty * (token in output)
        is_bad = any(output[len(output) - len(w) + 1 :] == list(w[:-1]) and w[-1] == token for w in plan.bad_words)
        is_early_end = token in plan.stop_token_ids and len(output) < plan.min_tokens
        is_foreign = plan.allowed_token_ids is not None and token not in plan.allowed_token_ids
        is_repeat = plan.grammar is not None and token == (prompt + output)[-1]
        result.append(-math.inf if is_bad or is_early_end or is_foreign or is_repeat else value)
    return result


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            PLANS, st.lists(TOKENS, min_size=1, max_size=5), st.lists(TOKENS, max_size=5), st.lists(TOKENS, max_size=4)
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 10_000),
)
def test_p27_every_place_sees_the_drafts_before_it(
    cases: list[tuple[SamplingPlan, list[int], list[int], list[int]]], seed: int
) -> None:
    """All places at once, as the target does, and place by place, as the draft does: the definition, both times."""
    torch.manual_seed(seed)
    k = max(len(drafts) for *_, drafts in cases)
    logits = torch.randn(len(cases), k + 1, V) * 3
    before = logits.clone()
    padded = torch.tensor([drafts + [-1] * (k - len(drafts)) for *_, drafts in cases], dtype=torch.int64)
    rows = [row_of(i, plan, prompt + output, len(output)) for i, (plan, prompt, output, _) in enumerate(cases)]
    batch = batch_of_rows(rows, NoRepeats())
    whole = batch._restrictions.apply(logits, padded.view(len(cases), k), 0)
    for row, (plan, prompt, output, drafts) in enumerate(cases):
        for place in range(len(drafts) + 1):
            expected = torch.tensor(definition(logits[row, place].tolist(), plan, prompt, output + drafts[:place]))
            torch.testing.assert_close(whole[row, place], expected, atol=1e-5, rtol=1e-5)
            alone = batch.select([row])._restrictions.apply(
                logits[row : row + 1, place : place + 1], padded[row : row + 1, :place], place
            )
            assert torch.equal(alone[0, 0], whole[row, place]), "draft and target see one law, bit for bit"
    assert torch.equal(logits, before), "the raw logits are needed again for logprobs"


def test_rows_without_restrictions_cost_nothing() -> None:
    logits = torch.randn(2, 3, V)
    masks = NoRepeats()
    free = batch_of_rows([row_of(0, SamplingPlan()), row_of(1, SamplingPlan(temperature=0.0, top_k=3))], masks)
    assert free._restrictions.apply(logits, torch.zeros(2, 2, dtype=torch.int64), 0) is logits
    one = batch_of_rows([row_of(0, SamplingPlan()), row_of(1, SamplingPlan(grammar="x"))], masks)
    edited = one._restrictions.apply(logits, torch.zeros(2, 2, dtype=torch.int64), 0)
    assert torch.equal(edited[0], logits[0])
    assert masks.asked == [1]


@pytest.mark.parametrize(
    ("plan", "is_plain", "needs_history"),
    [
        (SamplingPlan(temperature=0.0, top_p=0.9, top_k=3, min_p=0.1, seed=7), True, False),
        (SamplingPlan(logit_bias=((1, 2.0),)), False, False),
        (SamplingPlan(min_tokens=2), False, False),
        (SamplingPlan(num_logprobs=0), False, False),
        (SamplingPlan(presence_penalty=-0.1), False, True),
        (SamplingPlan(repetition_penalty=1.1), False, True),
        (SamplingPlan(bad_words=((1,),)), False, True),
        (SamplingPlan(grammar="x"), False, True),
    ],
)
def test_what_a_plan_needs(plan: SamplingPlan, is_plain: bool, needs_history: bool) -> None:
    assert plan.is_plain is is_plain
    assert plan.needs_history is needs_history
