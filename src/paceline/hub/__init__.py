"""Models by name: from a name, a path, a GGUF file or a repo id to a Hugging Face directory.

    resolve(name_or_path) -> Path                 the directory, brought here first if that takes a download
    check_name(name_or_path)                      raises for one that cannot be resolved; fetches nothing
    pull(name, progress=None) -> Path             bring a model by name or repo id; progress(line) at each stage
    pull_to(name, directory, progress=None) -> Path    the same as a plain directory of its own, whole or absent
    list_models() -> list[ModelInfo]              what is in the cache, and the models shipped inside the package
    remove(name) -> Path                          delete a model from the cache
    known_models() -> tuple[str, ...]             the names that `pull` knows without a hub
    paceline_home() -> Path                       $PACELINE_HOME, by default ~/.cache/paceline

A directory in `$PACELINE_HOME/models` is always whole: it is built beside its place and renamed at the end,
under a lock, so neither a cut connection nor a second process leaves half a model. Nothing here imports torch
until weights are converted, and pickled weights are never fetched.
"""

from paceline.hub.cache import ModelInfo, list_models, paceline_home, remove
from paceline.hub.catalog import known_models
from paceline.hub.place import pull_to
from paceline.hub.resolve import check_name, pull, resolve

__all__ = [
    "ModelInfo",
    "check_name",
    "known_models",
    "list_models",
    "paceline_home",
    "pull",
    "pull_to",
    "remove",
    "resolve",
]
