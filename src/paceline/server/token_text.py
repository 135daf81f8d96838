"""The text and the bytes of one token, for logprobs.

A token may be part of a character. Its bytes are then recovered from the way the vocabulary spells them
(byte-level BPE maps every byte to a printable character; SentencePiece writes <0xE2>), and its text is
OpenAI's form for such tokens: bytes:\\xe2\\x82.
"""

from __future__ import annotations

import re
from functools import lru_cache

from paceline.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BROKEN = "\ufffd"


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    if _BROKEN not in text:
        return text.encode()
    spelled = str(tokenizer.backend.id_to_token(token_id) or "")
    if match := _BYTE_TOKEN.fullmatch(spelled):
        return bytes([int(match[1], 16)])
    byte_of = _byte_of_character()
    if all(character in byte_of for character in spelled):
        return bytes(byte_of[character] for character in spelled)
    return text.encode()


def token_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@lru_cache
def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 onwards, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
