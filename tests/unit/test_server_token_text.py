"""Bytes of single tokens: byte-level BPE, SentencePiece's byte tokens, whole characters."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from paceline.server.token_text import token_bytes, token_text
from paceline.tokenizer import Tokenizer

SPELLED = ["Ġhello", "âĤ", "¬", "<0xE2>", "�", "Ċ", "ðŁĺĢ"]
DECODED = [" hello", "�", "�", "�", "�", "\n", "😀"]


class Spelling:
    backend = SimpleNamespace(id_to_token=lambda token_id: SPELLED[token_id])

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return DECODED[ids[0]]


def test_bytes_of_every_kind_of_token() -> None:
    found = [token_bytes(cast(Tokenizer, Spelling()), token_id) for token_id in range(len(SPELLED))]
    assert found == [b" hello", b"\xe2\x82", b"\xac", b"\xe2", "�".encode(), b"\n", "😀".encode()]
    assert found[1] + found[2] == "€".encode()


def test_text_of_part_of_a_character_is_unambiguous() -> None:
    assert token_text(b" a") == " a"
    assert token_text(b"\xe2\x82") == "bytes:\\xe2\\x82"
