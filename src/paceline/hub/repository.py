"""Models by repo id, through huggingface_hub and its cache: safetensors, JSON and tokenizer files, never pickles."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline.hub.cache import is_model_directory
from paceline.hub.catalog import KNOWN_MODELS

ALLOWED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
IGNORED = ["*/*", "consolidated*"]  # second copies of the weights in other layouts

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def is_repo_id(name: str) -> bool:
    return _REPO_ID.fullmatch(name) is not None


def fetch_repository(repo_id: str, say: Callable[[str], None], directory: Path | None = None) -> Path:
    """Return the snapshot's directory: the local one if it is whole and the hub cannot be reached.

    With `directory` the files are put there, and a download that broke off goes on.
    """
    from huggingface_hub import snapshot_download

    say(f"Fetching {repo_id} from the model hub")
    try:
        path = Path(snapshot_download(repo_id, allow_patterns=ALLOWED, ignore_patterns=IGNORED, local_dir=directory))
    except Exception as error:  # the hub's client raises errors of several libraries: every one means "not fetched"
        raise ConfigurationError(_explain(repo_id, error)) from error
    if not is_model_directory(path):
        raise ConfigurationError(
            f"'{repo_id}' holds no config.json with safetensors weights, which is the only format that Paceline loads "
            "from a hub (pickled weights are refused). Pick a repository that has them, or convert it first."
        )
    return path


def _explain(repo_id: str, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    advice = {
        "GatedRepoError": "Accept the model's licence on its page and set HF_TOKEN.",
        "RepositoryNotFoundError": "Check the spelling; for a private model set HF_TOKEN.",
    }.get(
        type(error).__name__,
        "Check the network (HF_ENDPOINT names another hub), or download it elsewhere and give the directory's path.",
    )
    known = repo_id.split("/")[1].lower()
    without_hub = f" The name '{known}' needs no hub." if known in KNOWN_MODELS else ""
    what = f"'{repo_id}' is not a local directory and could not be fetched from the model hub"
    return f"{what}: {reason.rstrip('.')}. {advice}{without_hub}"
