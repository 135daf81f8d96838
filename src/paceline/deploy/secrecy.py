"""Secrets are never printed: what a finding or a message may show of what was read.

Two nets, either of which would do for most:

    masked(content)     at the source: a copy of an object or of values with … in place of what is secret by its form
                        (tokens), by its place (a Secret's data) or by its name (password: x, --api-key x, ://user:x@).
                        Checks read this copy, so no message, cut or quoted in whatever way, can hold what is not there.
    redacted(text)      at the end: every finding, note and error passes here, for what came from elsewhere (names of
                        files, other programs). `known` are secrets that `secrets_of` found.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any

from paceline.errors import PacelineError

HIDDEN = "…"
TOKENS = {
    "a token of Hugging Face": re.compile(r"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{16,}"),
    "a token of GitHub": re.compile(r"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})"),
    "a key of OpenAI's form": re.compile(r"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{20,}"),
    "a key of AWS": re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    "a key of NGC": re.compile(r"(?<![A-Za-z0-9_])nvapi-[A-Za-z0-9_-]{20,}"),
    "a private key": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
    ),
    "a password in an address": re.compile(r"(?<=://)[^\s/@'\"]*:(?!\$)[^\s/@'\"]+(?=@)"),
}
_WORD = r"(?:token|passw(?:or)?d|passphrase|secret|(?:secret|access|private|api)(?:[_-]?access)?[_-]?keys?)"
_SECRET_NAME = re.compile(rf"{_WORD}$", re.IGNORECASE)
# NAME=value, NAME="value", "name": "value" inside of a text; a reference to a variable is none.
_ASSIGNED = re.compile(
    rf"""({_WORD}\\*["']?\s*(?:=|:(?=\s*\\*["']))\s*)(?![\s$…])(\\*["'])?(?!…|\$)(?P<secret>(?(2)(?:(?!\2).)+|[^\s"']+))""",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(r"(--(?:api-key|hf-token|api_key|hf_token)[ \t]+[\"']?)(?![-$\s…])(?P<secret>[^\s\"']+)")
SECRET_OPTIONS = ("--api-key", "--hf-token", "--api_key", "--hf_token")
_OF_SECRETS = ("apiVersion", "kind", "metadata", "type", "immutable")  # which hold no secret
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # which is the whole object
_SHORTEST = 4  # letters of what `redacted` looks for: shorter ones are in every text


class _Hidden(int):
    """A number that is none of a reader's business; it stays one for schemas."""

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__


def token_in(text: str) -> str | None:
    """What secret a text holds by its form alone, in words."""
    return next((what for what, pattern in TOKENS.items() if pattern.search(text)), None)


def is_secret_name(name: object) -> bool:
    """Of a variable, a key or a field that is usually secret: HF_TOKEN, password, apiKey."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def is_reference(text: str) -> bool:
    """$(NAME) and ${NAME}, alone: what another place says."""
    return re.fullmatch(r"(\$\([^)]*\)|\$\{[^}]*\})*", text) is not None


def redacted(text: str, known: Collection[str] = ()) -> str:
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern in TOKENS.values():
        text = pattern.sub(HIDDEN, text)
    return _ASSIGNED.sub(lambda found: f"{found[1]}{found[2] or ''}{HIDDEN}", text)


@contextlib.contextmanager
def nothing_secret_in_errors(known: Collection[str] = ()) -> Iterator[None]:
    """Errors made on purpose pass `redacted` on their way out."""
    try:
        yield
    except PacelineError as error:
        message = redacted(str(error), known)
        if message == str(error):
            raise
        error.args = (message, *error.args[1:])
        raise


def masked(content: Any) -> Any:
    """A copy without secrets, of the same shape: texts become …, numbers print as one."""
    return _Mask().of_object(content)


def secrets_of(content: Any) -> frozenset[str]:
    """The texts that `masked` takes away by their place or name, as they stand and decoded."""
    mask = _Mask()
    mask.of_object(content)
    return frozenset(each for each in mask.found if len(each) >= _SHORTEST)


def _is_a_secret(kind: object) -> bool:
    """Or meant to be one: Secrets, Secert."""
    return bool(get_close_matches(str(kind).lower(), ["secret"], cutoff=0.8))


class _Mask:
    def __init__(self) -> None:
        self.found: set[str] = set()

    def of_object(self, content: Any) -> Any:
        if not isinstance(content, dict) or not (_is_a_secret(content.get("kind")) or "stringData" in content):
            return self._value(content)
        kept = {name: self._value(content[name]) for name in content if name in _OF_SECRETS}
        metadata = kept.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        if isinstance(annotations, dict) and _APPLIED in annotations:
            annotations[_APPLIED] = HIDDEN
        return {name: kept[name] if name in kept else self._all(content[name]) for name in content}

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return self._list(value)
        if not isinstance(value, dict):
            return value
        if is_secret_name(value.get("name")) and "value" in value:  # a variable of a container
            value = {**value, "value": self._named(value["value"])}
        return self._keyed({key: self._of_key(key, each) for key, each in value.items()})

    def _of_key(self, key: Any, value: Any) -> Any:
        if key == "secretGenerator":
            return self._literals(self._value(value), value)
        return self._named(value) if is_secret_name(key) else self._value(value)

    def _literals(self, masked: Any, generators: Any) -> Any:
        """Of kustomize: NAME=value, all of which are secret."""
        for mask, generator in zip(masked, generators, strict=True) if isinstance(masked, list) else ():
            literals = generator.get("literals") if isinstance(generator, dict) else None
            for index, literal in enumerate(literals if isinstance(literals, list) else ()):
                name, equals, secret = str(literal).partition("=")
                self._note(secret if equals else name)
                mask["literals"][index] = f"{self._text(name)}={HIDDEN}" if equals else HIDDEN
        return masked

    def _list(self, items: Any) -> list[Any]:
        masked = []
        for index, item in enumerate(items):
            follows = index > 0 and items[index - 1] in SECRET_OPTIONS
            masked.append(self._named(item) if follows else self._value(item))
        return masked

    def _named(self, value: Any) -> Any:
        """What stands under a secret name: itself, but for what it refers to."""
        if isinstance(value, dict) or (isinstance(value, str) and (not value or is_reference(value))):
            return self._value(value)
        return self._all(value)

    def _all(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._keyed({key: self._all(each) for key, each in value.items()})
        if isinstance(value, list | tuple):
            return [self._all(each) for each in value]
        if value is None or isinstance(value, bool):
            return value
        self._note(str(value))
        return _Hidden(0) if isinstance(value, int) else HIDDEN

    def _text(self, text: str) -> str:
        for pattern in (_OPTION, _ASSIGNED):
            for match in pattern.finditer(text):
                self._note(match["secret"])
        for pattern in TOKENS.values():
            self.found.update(match[0] for match in pattern.finditer(text))
        return _OPTION.sub(lambda match: f"{match[1]}{HIDDEN}", redacted(text))

    def _note(self, secret: str) -> None:
        self.found.add(secret)
        with contextlib.suppress(binascii.Error, ValueError):
            self.found.add(base64.b64decode(secret, validate=True).decode())

    def _keyed(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        masked: dict[Any, Any] = {}
        for key, value in mapping.items():
            name = self._text(key) if isinstance(key, str) else key
            while name in masked:
                name = f"{name}{HIDDEN}"
            masked[name] = value
        return masked
