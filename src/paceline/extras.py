"""Optional parts of the package: how to get one that is missing."""

from __future__ import annotations

import sys


def to_install(extra: str) -> str:
    """For messages. The package is on no index, so its folder is where pip finds it; -e, as it is installed there."""
    return f"{sys.executable} -m pip install -e '.[{extra}]' in the folder of Paceline's sources"
