"""`speculation` of a request: its shape, and what an engine refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from engine.tagged import TaggedExecutor, make_engine, reference, request, run, tokens

from paceline import SamplingParams
from paceline.config import ModelConfig, SpeculativeConfig
from paceline.errors import InvalidRequestError
from paceline.request_speculation import RequestSpeculation, check_speculation, speculation_of

DRAFT = SpeculativeConfig(method="draft_model", draft=ModelConfig(path=Path("."), name="d"), num_speculative_tokens=4)
EITHER = replace(DRAFT, ngram_beside_draft=True)
NGRAM = SpeculativeConfig(method="ngram", num_speculative_tokens=4)


@pytest.mark.parametrize(("value", "param", "message"), [
    (3, "speculation", "must be an object"),
    ([], "speculation", "must be an object"),
    ({"num_speculative_token": 3}, "speculation.num_speculative_token", "Did you mean 'num_speculative_tokens'"),
    ({"num_speculative_tokens": -1}, "speculation.num_speculative_tokens", "at least 0"),
    ({"num_speculative_tokens": True}, "speculation.num_speculative_tokens", "at least 0"),
    ({"num_speculative_tokens": 1.0}, "speculation.num_speculative_tokens", "at least 0"),
    ({"proposer": "eagle"}, "speculation.proposer", "one of auto, draft, ngram"),
    ({"proposer": ["draft"]}, "speculation.proposer", "one of auto, draft, ngram"),
])  # fmt: skip
def test_wrong_shapes_are_refused_by_name(value: object, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        SamplingParams(speculation=value)
    assert caught.value.param == param


def test_right_shapes_and_by_value_between_processes() -> None:
    params = SamplingParams(speculation={"num_speculative_tokens": 2, "proposer": "draft"})
    assert params.speculation == RequestSpeculation(num_speculative_tokens=2, proposer="draft")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert SamplingParams(speculation={}) == SamplingParams(speculation={"proposer": None})
    assert SamplingParams(speculation=None) == SamplingParams()


@pytest.mark.parametrize(("value", "config", "message"), [
    ({"num_speculative_tokens": 5}, DRAFT, "at most 4, not 5: this engine drafts at most 4 tokens a step"),
    ({"num_speculative_tokens": 1}, None, "at most 0, not 1: this engine runs without speculation"),
    ({"proposer": "ngram"}, DRAFT, "drafts with 'draft' alone .* use 'auto'"),
    ({"proposer": "draft"}, NGRAM, "has loaded 'ngram'; use 'auto'"),
    ({"proposer": "draft"}, None, "runs without speculation"),
])  # fmt: skip
def test_what_the_engine_cannot_do_is_refused(
    value: dict[str, object], config: SpeculativeConfig | None, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_speculation(speculation_of(value), config)


def test_what_the_engine_can_do_is_taken() -> None:
    for value, config in (
        ({"num_speculative_tokens": 4, "proposer": "draft"}, DRAFT),
        ({"num_speculative_tokens": 0, "proposer": "ngram"}, DRAFT),
        ({"proposer": "ngram"}, NGRAM),
        ({"proposer": "ngram"}, EITHER),
        ({"proposer": "draft"}, EITHER),
        ({"proposer": "auto"}, EITHER),
        ({"proposer": "auto"}, DRAFT),
        ({"num_speculative_tokens": 0}, None),
        ({"proposer": "auto"}, None),
    ):
        check_speculation(speculation_of(value), config)


@pytest.mark.parametrize("ahead", [False, True])
def test_each_row_drafts_no_more_than_its_request_allows(ahead: bool) -> None:
    executor = TaggedExecutor(num_blocks=200, ahead=ahead)
    engine = make_engine(executor, k=4)
    asked: list[dict[str, object] | None] = [
        {"num_speculative_tokens": 0}, {"num_speculative_tokens": 2}, {}, None,
    ]  # fmt: skip
    for i, speculation in enumerate(asked):
        engine.add_request(request(str(i), [i, 5, 6], max_tokens=25, ignore_eos=True, speculation=speculation))
    with pytest.raises(InvalidRequestError, match="at most 4, not 5"):
        engine.add_request(request("x", [1], speculation={"num_speculative_tokens": 5}))
    results = run(engine)
    for i in range(4):
        assert tokens(results[f"{i}/0"]) == reference([i, 5, 6], 25, eos=None)
    most = [0] * 4
    for plan in executor.plans:
        for row in plan.rows:
            most[row.seq_id - 1] = max(most[row.seq_id - 1], row.num_draft_tokens)
            assert row.num_draft_tokens or row.seq_id > 1 or not row.draft_chunk, "it pays for no draft at all"
    assert most == [0, 2, 4, 4]
    counts = [results[f"{i}/0"][-1].speculation for i in range(4)]
    assert [c.num_draft_tokens > 0 for c in counts if c] == [False, True, True, True]


@pytest.mark.parametrize(
    "made",
    [
        RequestSpeculation(num_speculative_tokens=-1),
        RequestSpeculation(num_speculative_tokens="3"),  # type: ignore[arg-type]
        RequestSpeculation(proposer="magic"),  # type: ignore[arg-type]
    ],
)
def test_one_made_by_hand_is_checked_like_a_mapping(made: RequestSpeculation) -> None:
    with pytest.raises(InvalidRequestError, match="must be"):
        SamplingParams(speculation=made)
    good = RequestSpeculation(num_speculative_tokens=2)
    assert SamplingParams(speculation=good).speculation == good
