"""Names of models for vLLM: a known name or a GGUF file becomes a directory, a repo id stays what it is.

vLLM fetches repo ids itself. What it would refuse about a pair after minutes of loading is told here, as far as
the two are directories on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError
from paceline.hub import known_models, paceline_home, resolve
from paceline.hub.catalog import KNOWN_MODELS, MISTAKEN_REPOS, ShippedDirectory
from paceline.hub.repository import is_repo_id

Progress = Callable[[str], None]
_CLOUD = re.compile(r"(?:s3|gs|az)://.")  # vLLM's loaders stream from there


def locate(name: str, progress: Progress | None = None, *, fetch: bool = True, local: bool = False) -> str:
    """What to give vLLM for `name`.

    Without `fetch` nothing is downloaded: the place where it would be. `local`: always a directory, repo ids fetched
    into Paceline's cache, for those who read the model's files as well.
    """
    if name.lower() in MISTAKEN_REPOS:
        raise ConfigurationError(f"There is no model '{name}': it is '{MISTAKEN_REPOS[name.lower()]}'.")
    if _CLOUD.match(name) and not local:
        return name
    is_here = Path(name).expanduser().exists()
    if not local and not is_here and name not in known_models() and is_repo_id(name):
        return name
    if not is_here and not fetch and name in known_models():
        source = KNOWN_MODELS[name]
        return str(source.path if isinstance(source, ShippedDirectory) else paceline_home() / "models" / name)
    return str(resolve(name, progress))


def check_pair(target: str, draft: str) -> None:
    """Raises ConfigurationError if vLLM would refuse this draft model. Repo ids are not looked at."""
    target_config, draft_config = _config(target), _config(draft)
    if draft_config is None or target_config is None:
        return
    if draft_config.get("draft_vocab_size") is not None:
        raise ConfigurationError(
            f"'{draft}' has a reduced head of {draft_config['draft_vocab_size']} tokens, which only Paceline's own "
            "engine can run. Give vLLM the draft with its whole head."
        )
    sizes = [_vocab_size(config) for config in (target_config, draft_config)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ConfigurationError(
            f"vLLM runs a draft model only if its table of tokens has the target's size: '{target}' has {sizes[0]}, "
            f"'{draft}' {sizes[1]}. Choose another draft, or runtime paceline, which accepts padding of a table."
        )


def _vocab_size(config: dict[str, Any]) -> int | None:
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) else None


def _config(model: str) -> dict[str, Any] | None:
    try:
        read = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None
