"""How much JSON a body may hold, counted in its bytes before anything of it is parsed.

A parser makes an object of every entry, and a check of every object: millions of them, a few bytes each, would stop
the event loop, and with it every stream, for seconds. Text inside strings costs next to nothing and is not counted.
"""

from __future__ import annotations

from paceline.server.errors import BodyTooLargeError

MAX_ENTRIES = 262_144  # of all lists and objects together; a prompt in token ids has one a token
MAX_NAMES = 65_536  # of the members of all objects together


def check_json_size(body: bytes, max_entries: int = MAX_ENTRIES) -> None:
    """Raises BodyTooLargeError. Takes some ten milliseconds for a body of megabytes, whatever is in it."""
    if _num_entries(body) <= max_entries and body.count(b":") <= MAX_NAMES:
        return  # even with those inside strings
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    if plain.count(b'"') > 2 * (max_entries + MAX_NAMES):  # every string is an entry or a name
        raise _too_many("strings", max_entries + MAX_NAMES)
    outside = b"".join(plain.split(b'"')[::2])
    if _num_entries(outside) > max_entries:
        raise _too_many("entries in its lists and objects", max_entries)
    if outside.count(b":") > MAX_NAMES:
        raise _too_many("names in its objects", MAX_NAMES)


def _num_entries(text: bytes) -> int:
    """Every list and object has one entry more than commas; empty ones are counted as well."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _too_many(what: str, most: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body has more than {most} {what}, which is the most it may have. Send less at once.")
