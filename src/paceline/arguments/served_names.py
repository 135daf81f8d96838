"""What a name of a model in the API may be: one rule for the server and for the manifests that start it."""

from __future__ import annotations


def wrong_served_name(name: str) -> str | None:
    """What is wrong with it, as the end of a sentence about it; None if nothing is."""
    if not (name.strip() and name.isprintable()):
        return "must be a name: not empty, and without control characters"
    if name.startswith("-"):
        return "must be a name, and one that begins with '-' is read as an option"
    return None
