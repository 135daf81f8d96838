"""Has a file been edited since it was written? Digests that a file carries of its own content.

One JSON document   `digest`: SHA-256 of everything else in it, in one canonical form
JSON lines          a line that carries one (its last field) has the SHA-256 of all lines up to it, itself without it;
                    so what was written before a run was cut short can still be told

They are no signatures: who wants to deceive writes a new one. They tell of a hand that changed a figure, and of a file
that lost some of its lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

_NULL = b',"digest":null}'
_SEALED = "case"  # lines of this kind carry one wherever the first line does: it was not taken out


def canonical(content: dict[str, Any]) -> bytes:
    """A JSON object in one form, without its own `digest`: how it is laid out is no part of what it says."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()


def of_document(content: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(content)).hexdigest()


class Chain:
    """Lines as they are written or read, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, content: dict[str, Any]) -> str:
        """The digest of all lines up to this one."""
        self._hash.update(canonical(content) + b"\n")
        return self._hash.hexdigest()


def with_digest(line: bytes, digest: str) -> bytes:
    """`line` ends with a digest that is null."""
    assert line.endswith(_NULL)
    return line.removesuffix(_NULL) + b',"digest":"' + digest.encode() + b'"}'


def first_edited(lines: Iterable[bytes]) -> int | None:
    """The number, from 1, of the first line whose digest is not that of the lines up to it. None: there is none such,
    or the first line carries none, as those of earlier versions."""
    chain, is_sealed = Chain(), False
    for number, line in enumerate(lines, 1):
        content = json.loads(line)
        said, found = content.get("digest"), chain.add(content)
        is_sealed = is_sealed or (number == 1 and said is not None)
        if not is_sealed:
            return None
        if ("digest" in content and said != found) or (said is None and content.get("kind") == _SEALED):
            return number
    return None
