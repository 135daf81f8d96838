"""Names that KServe's LLM template leaves as they are: it writes them, unquoted, into what a shell's eval runs."""

from __future__ import annotations

import re

TEMPLATE_NAMES = (
    "KServe's template passes it through a shell, which would split, change or run it; use letters, digits and "
    "._/:@+- alone, and no '-' in front"
)


def passes_template(name: str) -> bool:
    return re.fullmatch(r"(?!-)[A-Za-z0-9._/:@+-]+", name) is not None
