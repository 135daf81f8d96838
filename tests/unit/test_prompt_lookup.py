"""Prompt lookup against its definition, written out naively."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.prompt_lookup import Match, SearchableText

# Few tokens, so that n-grams recur; bytes that look alike across the borders of tokens.
TEXTS = st.lists(st.sampled_from([0, 1, 256, 257, 65536, 16777216]), max_size=40)


def naive(text: list[int], count: int, least: int, most: int) -> Match | None:
    for length in range(min(most, len(text) - 1), least - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                longer = list(text)
                for _ in range(count):
                    longer.append(longer[end + len(longer) - len(text)])
                return Match(length, longer[len(text) :]) if count else None
    return None


@given(text=TEXTS, count=st.integers(0, 12), least=st.integers(1, 4), more=st.integers(0, 5))
def test_the_latest_occurrence_of_the_longest_suffix(text: list[int], count: int, least: int, more: int) -> None:
    assert SearchableText(text).match(count, least, least + more) == naive(text, count, least, least + more)


@given(parts=st.lists(TEXTS, max_size=4))
def test_a_text_may_grow(parts: list[list[int]]) -> None:
    text = SearchableText()
    for part in parts:
        text.extend(part)
    whole = [token for part in parts for token in part]
    assert len(text) == len(whole)
    assert text.match(5, 1, 8) == SearchableText(whole).match(5, 1, 8)


def test_a_period_goes_on() -> None:
    assert SearchableText([9, 1, 2, 3, 1, 2]).match(6, 2, 4) == Match(2, [3, 1, 2, 3, 1, 2])
    assert SearchableText([7, 7, 7]).match(4, 1, 16) == Match(2, [7, 7, 7, 7])
    assert SearchableText([1, 2, 3]).match(4, 1, 16) is None
