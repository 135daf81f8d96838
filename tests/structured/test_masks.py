"""Masks of a step's places: they follow the drafts, go back over rejected ones, and depend on the plan alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structured import walks
from structured.byte_tokens import byte_tokenizer, eos_id
from structured.walks import legal, make_masks, plan_row

from paceline.structured import masks as masks_module
from paceline.structured.constraint import Constraint
from paceline.structured.params import single
from paceline.structured.store import GrammarStore

ENCODE = byte_tokenizer().encode
STORE = GrammarStore(byte_tokenizer(), [eos_id()])
A, B = ENCODE("a")[0], ENCODE("b")[0]


def regex(pattern: str) -> Constraint:
    return single("regex", pattern, "regex")


def said(mask: torch.Tensor) -> set[str]:
    return {byte_tokenizer().decode([token], skip_special_tokens=False) for token in legal(mask)}


def test_p30_a_place_sees_the_drafts_before_it() -> None:
    places = make_masks(STORE).masks(plan_row(regex("ab?c"), []), [A, B], 0, 3)
    assert [said(place) for place in places] == [{"a", "ab", "abc"}, {"b", "c"}, {"c"}]


def test_p30_a_rejected_draft_is_taken_back() -> None:
    masks, constraint = make_masks(STORE), regex("(a|b){3}")
    masks.masks(plan_row(constraint, []), [A, A, A, eos_id()], 0, 5)
    after = masks.masks(plan_row(constraint, [A, B]), [], 0, 1)[0]  # the second draft was rejected for b
    assert torch.equal(after, make_masks(STORE).masks(plan_row(constraint, [A, B]), [], 0, 1)[0])
    assert said(after) == {"a", "b"}


def test_p22_the_end_is_legal_where_the_grammar_is_met_and_nothing_comes_behind_it() -> None:
    places = make_masks(STORE).masks(plan_row(regex("ab?"), []), [A, eos_id(), eos_id()], 0, 4)
    assert said(places[0]) == {"a", "ab"}
    assert said(places[1]) == {"b", "<|end|>"}
    assert said(places[2]) == {"<|end|>"}
    assert bool(places[3].all())  # behind an answer that has ended twice: not reached, and no fault


def test_places_behind_an_illegal_draft_are_open_and_what_follows_is_right_again() -> None:
    masks, constraint = make_masks(STORE), regex("aab")
    places = masks.masks(plan_row(constraint, []), [A, B, A], 0, 4)
    assert said(places[1]) == {"a", "ab"}
    assert bool(places[2].all())
    assert masks.num_legal(plan_row(constraint, []), [A, A, B, A]) == 3
    assert said(masks.masks(plan_row(constraint, [A, A]), [], 0, 1)[0]) == {"b"}


def test_special_tokens_are_no_text() -> None:
    turn = byte_tokenizer().token_table()["<|turn|>"]
    place = make_masks(STORE).masks(plan_row(regex("[\\s\\S]+"), [A]), [], 0, 1)[0]
    assert not place[turn]
    assert place[eos_id()]
    assert int(place.sum()) > 150


def test_p39_ids_past_the_tokenizer_are_never_legal() -> None:
    wide = masks_module.GrammarMasks(STORE, byte_tokenizer().vocab_size + 11, torch.device("cpu"))
    place = wide.masks(plan_row(regex("[\\s\\S]+"), []), [], 0, 1)[0]
    assert len(place) == byte_tokenizer().vocab_size + 11
    assert not place[byte_tokenizer().vocab_size :].any()


@pytest.mark.parametrize("vocab_size", [40, 64, 70])
def test_masks_are_unpacked_alike_on_every_device(vocab_size: int) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (5, 2), dtype=np.int64).astype(np.int32)
    expected = [[w < 64 and bool(int(row[w // 32]) >> w % 32 & 1) for w in range(vocab_size)] for row in words]
    assert masks_module._unpack(words, vocab_size, torch.device("cpu")).tolist() == expected
    assert masks_module._unpack_there(torch.from_numpy(words), vocab_size).tolist() == expected


def test_p16_matchers_of_sequences_that_are_not_in_a_step_are_dropped() -> None:
    masks, constraint = make_masks(STORE), regex("a*")
    for seq_id in (1, 2):
        masks.masks(plan_row(constraint, [A], seq_id=seq_id), [], 0, 1)
    masks.keep([2, 3])
    assert list(masks._walks) == [2]
    assert said(masks.masks(plan_row(constraint, [A], seq_id=1), [], 0, 1)[0]) >= {"a", "<|end|>"}


def test_another_grammar_under_the_same_number_starts_afresh() -> None:
    masks = make_masks(STORE)
    masks.masks(plan_row(regex("a*"), [A]), [], 0, 1)
    assert said(masks.masks(plan_row(regex("ab"), [A]), [], 0, 1)[0]) == {"b"}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_p30_a_used_provider_answers_as_a_fresh_one(data: st.DataObject) -> None:
    """Whatever was asked before, in whatever order: the answer depends on the plan and its drafts alone."""
    constraint = regex("((a|b)c?){2,6}")
    alphabet = st.lists(st.sampled_from([A, B, ENCODE("c")[0], ENCODE("ab")[0], eos_id()]), max_size=4)
    used = make_masks(STORE)
    for _ in range(4):
        output = walks.legal_prefix(constraint, data.draw(alphabet), STORE)
        drafts = data.draw(alphabet)
        first = data.draw(st.integers(0, len(drafts)))
        row = plan_row(constraint, output)
        found = used.masks(row, drafts, first, len(drafts) - first + 1)
        assert torch.equal(found, make_masks(STORE).masks(row, drafts, first, len(drafts) - first + 1))
        assert used.num_legal(row, drafts) == make_masks(STORE).num_legal(row, drafts)


def test_a_grammar_that_is_too_slow_ends_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = make_masks(STORE)
    row = plan_row(regex("a*"), [])
    masks.masks(row, [], 0, 1)
    assert masks.failure(row.seq_id) is None
    monkeypatch.setattr(masks_module, "SLOW_SECONDS", 0.0)
    place = masks.masks(plan_row(regex("a*"), [A]), [], 0, 1)
    assert not place.any()
    assert "ambiguous" in str(masks.failure(row.seq_id))


CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("regex", "a.b", ["axb", "a\nb"], ["ab", "axbb"]),
    ("regex", "^(ab|b)$", ["ab", "b"], ["a"]),
    ("regex", "[0-9]{2,3}", ["12", "123"], ["1", "1234"]),
    ("choice", ["yes", 'say "no"', "a\nb", "é"], ["yes", 'say "no"', "a\nb", "é"], ["no", "yesyes"]),
    ("grammar", 'root ::= "a" root | "b"', ["b", "aab"], ["a", "ba"]),
    ("grammar", 'start: "a"+ WORD\nWORD: /[xy]/', ["aax"], ["x", "aaxy"]),
    ("json_object", True, ['{"a": [1, "x"]}', "{}"], ["[]", '"a"']),
]


@pytest.mark.parametrize(("kind", "value", "good", "bad"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_each_kind_of_constraint(kind: str, value: Any, good: list[str], bad: list[str]) -> None:
    constraint = single(kind, value, kind)
    for text, is_good in [(text, True) for text in good] + [(text, False) for text in bad]:
        drafts = [*ENCODE(text), eos_id()]
        assert (make_masks(STORE).num_legal(plan_row(constraint, []), drafts) == len(drafts)) is is_good, text
