"""What Kubernetes takes as names and labels, as patterns and in words.

Source: the API conventions (RFC 1123 labels and subdomains, RFC 1035 labels, qualified names, IANA service names).
"""

from __future__ import annotations

import re

LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"  # RFC 1035; what we make ourselves begins with a letter
LABEL_1123 = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL_1123}(\.{LABEL_1123})*"
PREFIX, PART = rf"{SUBDOMAIN}/", r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

LABEL_WORDS = "lower-case letters, digits and '-'"
SUBDOMAIN_WORDS = "lower-case letters, digits, '-' and '.', as names of objects are"
KEY_WORDS = "letters, digits, '-', '_' and '.', perhaps after a domain and '/'"
VALUE_WORDS = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"


def wrong_label(name: object, most: int = 63, *, pattern: str = LABEL_1123) -> str | None:
    """What is wrong with the name of a container, a volume, a Service or a namespace; None if nothing is."""
    return _wrong(name, pattern, most, LABEL_WORDS)


def wrong_subdomain(name: object, most: int = 253) -> str | None:
    return _wrong(name, SUBDOMAIN, most, SUBDOMAIN_WORDS)


def wrong_key(key: object) -> str | None:
    """Of labels, annotations and node selectors."""
    return _wrong(key, rf"({PREFIX})?{PART}", 317, KEY_WORDS)


def wrong_value(value: object) -> str | None:
    """Of labels and selectors."""
    if value == "":
        return None
    if not isinstance(value, str):
        return f'is no text: write it in quotes, such as "{str(value).lower() if value is not None else ""}"'
    return _wrong(value, PART, 63, VALUE_WORDS)


def wrong_port_name(name: object) -> str | None:
    """Of a container's port: at most 15 characters, one of them a letter."""
    words = "at most 15 lower-case letters, digits and single '-', one of them a letter"
    pattern = r"(?=[^a-z]*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return _wrong(name, pattern, 15, words)


def _wrong(name: object, pattern: str, most: int, words: str) -> str | None:
    if not isinstance(name, str):
        return f"is no text; it must be {words}"
    if len(name) > most:
        return f"has {len(name)} characters; at most {most} are allowed"
    return None if re.fullmatch(pattern, name) else f"must be {words}"
