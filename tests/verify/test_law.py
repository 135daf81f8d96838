"""The reference law by hand, and the engine's own law against it on random logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.layers.sampling import SamplingBatch
from paceline.plan import RowPlan, SamplingPlan
from paceline.verify.law import check_fields, laws, processed_logits

HALVES = np.log([0.5, 0.25, 0.125, 0.125])


def law(params: dict[str, Any], raw: Any = HALVES, prompt: tuple[int, ...] = (), output: tuple[int, ...] = ()) -> Any:
    return laws(processed_logits(np.array(raw), params, prompt, output, ends=(3,)), params, 0.0)[0]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [0.5, 0.25, 0.125, 0.125]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, np.array([16, 4, 1, 1]) / 22),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_k": 3}, [0.5, 0.25, 0.125, 0.125]),  # a tie at the edge is kept
        ({"top_p": 0.75}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.76}, [0.5, 0.25, 0.125, 0.125]),
        ({"min_p": 0.5}, [2 / 3, 1 / 3, 0, 0]),
        ({"min_p": 0.5, "top_p": 0.6}, [1, 0, 0, 0]),  # of what min_p left, the first holds 2/3
        ({"logit_bias": {2: np.log(2)}}, np.array([4, 2, 2, 1]) / 9),
        ({"allowed_token_ids": [1, 2]}, [0, 2 / 3, 1 / 3, 0]),
        ({"min_tokens": 1}, np.array([4, 2, 1, 0]) / 7),
    ],
)
def test_by_definition(params: dict[str, Any], expected: Any) -> None:
    np.testing.assert_allclose(law(params), expected, atol=1e-12)


def test_penalties_by_definition() -> None:
    raw, prompt, output = [1.0, 2.0, -1.0, 0.5], (0, 2), (1, 1)

    def logits(**params: float) -> list[float]:
        return processed_logits(np.array(raw), params, prompt, output, ends=()).tolist()

    assert logits(frequency_penalty=0.5) == [1.0, 1.0, -1.0, 0.5]
    assert logits(presence_penalty=0.5) == [1.0, 1.5, -1.0, 0.5]
    assert logits(repetition_penalty=2.0) == [0.5, 1.0, -2.0, 0.5]  # prompt and output; a negative logit sinks


def test_min_tokens_counts_what_stands_before() -> None:
    assert law({"min_tokens": 2}, output=(0,))[3] == 0.0
    assert law({"min_tokens": 2}, output=(0, 0))[3] > 0.0


def test_what_rounding_may_move_over_an_edge_has_a_law_of_its_own() -> None:
    """The first two tokens hold 0.75 but for rounding: with a third, or without, both are right."""
    found = laws(np.array(HALVES), {"top_p": 0.75}, 1e-3)
    assert [np.count_nonzero(one) for one in found] == [2, 4]
    assert len(laws(np.array(HALVES), {"top_p": 0.7}, 1e-3)) == 1


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="top_a"):
        check_fields({"temperature": 1.0, "top_a": 0.1})


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition=st.sampled_from([0.7, 1.0, 1.3]),
    frequency=st.sampled_from([-1.5, 0.0, 0.8]),
    presence=st.sampled_from([0.0, 1.1]),
    min_tokens=st.sampled_from([0, 3]),
    allowed=st.booleans(),
)
def test_the_engines_law_is_this_law(
    seed: int, temperature: float, top_p: float, top_k: int, min_p: float, repetition: float, frequency: float,
    presence: float, min_tokens: int, allowed: bool,
) -> None:  # fmt: skip
    """Two implementations that share no code, at a place behind two committed and one drafted token."""
    raw = np.random.default_rng(seed).normal(0, 2, 20).astype(np.float32)
    prompt, output, draft = (1, 2), (3, 1), 7
    params: dict[str, Any] = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "repetition_penalty": repetition,
        "frequency_penalty": frequency, "presence_penalty": presence, "logit_bias": {4: 1.5},
    }  # fmt: skip
    if allowed:
        params["allowed_token_ids"] = [1, 3, 4, 7, 9, 11, 5]
    plan = SamplingPlan(
        **{name: value for name, value in params.items() if name not in ("logit_bias", "allowed_token_ids")},
        logit_bias=((4, 1.5),),
        allowed_token_ids=tuple(params["allowed_token_ids"]) if allowed else None,
        min_tokens=min_tokens,
        stop_token_ids=(5,),
    )
    params["min_tokens"] = min_tokens
    row = RowPlan(
        seq_id=1,
        block_table=[1],
        start=3,
        token_ids=[1],
        num_output_tokens=2,
        history=[*prompt, *output],
        sampling=plan,
    )
    batch = SamplingBatch([row], torch.device("cpu"))
    engine = batch.law(torch.tensor(raw)[None, None], torch.tensor([[draft]]), first_place=1)
    logits = processed_logits(raw.astype(np.float64), params, prompt, (*output, draft), ends=(5,))
    candidates = laws(logits, params, 1e-5)
    found = np.zeros(20)
    if engine.probs is None:
        found[int(engine.argmax[0, 0])] = 1.0
    else:
        found = engine.probs[0, 0].double().numpy()
    assert min(np.abs(found - one).max() for one in candidates) < 1e-5
