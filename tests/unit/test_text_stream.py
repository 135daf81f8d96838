"""Text cut at stops, open characters held back, pieces that join to the whole. Numbers as in docs/pitfalls.md."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.text_stream import TextStream


class Bytes:
    """A tokenizer of single bytes: every character beyond ASCII is split over tokens. 256 is special."""

    def decode(self, token_ids: Seq[int], *, skip_special_tokens: bool = True) -> str:
        if not skip_special_tokens:
            return "".join("<end>" if t == 256 else bytes([t]).decode(errors="replace") for t in token_ids)
        return bytes(t for t in token_ids if t < 256).decode(errors="replace")


def feed_in_runs(stream: TextStream, tokens: list[int], cuts: Seq[int]) -> tuple[list[str], int, str | None]:
    """Feed in runs that end at `cuts`; returns the pieces, how many tokens were kept, and the stop."""
    pieces, kept, start = [], 0, 0
    for end in [*sorted(cuts), len(tokens)]:
        run = tokens[start:end]
        result = stream.feed(run)
        kept += result.num_tokens
        if result.stop is not None:
            return [*pieces, stream.finish()], kept, result.stop
        pieces.append(stream.take())
        start = end
    return [*pieces, stream.finish()], kept, None


@given(st.text(max_size=30), st.lists(st.integers(0, 60), max_size=6))
def test_pieces_join_to_the_whole(text: str, cuts: list[int]) -> None:
    tokens = list(text.encode())
    pieces, kept, _ = feed_in_runs(TextStream(Bytes()), tokens, [c for c in cuts if c < len(tokens)])
    assert "".join(pieces) == text
    assert kept == len(tokens)
    if "�" not in text:
        assert all("�" not in piece for piece in pieces)


@given(
    st.text(alphabet="ab€é", max_size=14),
    st.lists(st.text(alphabet="ab€é", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=5),
    st.booleans(),
)
def test_p23_stop_strings_cut_text_and_tokens_at_the_same_place(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    """Against the definition: the first token at which any stop string is in the text ends it."""
    tokens = list(text.encode())
    stream = TextStream(Bytes(), stop=stops, include_stop=include)
    pieces, kept, stop = feed_in_runs(stream, tokens, [c for c in cuts if c < len(tokens)])
    expected_kept, expected_text = len(tokens), text
    for count in range(1, len(tokens) + 1):
        whole = bytes(tokens[:count]).decode(errors="ignore")
        found = [(whole.find(s), s) for s in stops if s in whole]
        if found:
            at, first = min(found, key=lambda f: (f[0], stops.index(f[1])))
            expected_kept, expected_text = count, whole[: at + len(first) if include else at]
            break
    assert kept == expected_kept
    assert "".join(pieces) == expected_text
    assert (stop is None) == (not any(s in text for s in stops))


@pytest.mark.parametrize("k", [1, 5])
def test_p23_a_stop_ending_at_every_place_of_a_run(k: int) -> None:
    for lead in range(3 * (k + 1)):
        tokens = list(("x" * lead + "STOP" + "y" * 9).encode())
        stream = TextStream(Bytes(), stop=["STOP"])
        pieces, kept, stop = feed_in_runs(stream, tokens, range(k + 1, len(tokens), k + 1))
        assert ("".join(pieces), kept, stop) == ("x" * lead, lead + 4, "STOP")


def test_a_beginning_of_a_stop_is_held_back_and_let_go() -> None:
    stream = TextStream(Bytes(), stop=["###"])
    stream.feed(list(b"a##"))
    assert stream.take() == "a"
    stream.feed(list(b"b"))
    assert stream.take() == "##b"
    stream.feed(list(b"#"))
    assert stream.take() == ""
    assert stream.finish() == "#"


def test_no_stop_before_min_tokens() -> None:
    stream = TextStream(Bytes(), stop=["b"], min_tokens=4)
    assert stream.feed(list(b"abab")).num_tokens == 4
    assert stream.finish() == "aba"


def test_special_tokens() -> None:
    for skip, text in ((True, "ab"), (False, "a<end>b")):
        stream = TextStream(Bytes(), skip_special_tokens=skip)
        stream.feed([97, 256, 98])
        assert stream.finish() == text
