"""DIR of `paceline distill --out DIR`: whose it is, what it keeps while a run is on, and what it may overwrite.

    DIR/                      the draft, its card and its report, once the run is over
    DIR/distill-run/          run.json (what was asked), log.jsonl, and until the end checkpoint.pt and text/

A file is written beside its place and renamed, so a kill at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from paceline.claim import Claim
from paceline.distill.recipe import DistillRecipe
from paceline.errors import ConfigurationError

_STATE = "distill-run"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
# What a finished draft consists of; everything else in DIR belongs to somebody else and stays.
DRAFT_FILES = (
    "README.md", "config.json", "model.safetensors", "generation_config.json", "answer_counts.npy", "report.json",
    "report.svg", *TOKENIZER_FILES,
)  # fmt: skip
REDUCED = "reduced"  # folder with the draft whose head is cut
_MARGIN_BYTES = 200 << 20


class RunFolder:
    """Made by `claim`. The checkpoints of a run, its text and its log."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.state = out / _STATE
        self.text = self.state / "text"

    @property
    def finished(self) -> bool:
        return (self.state / "finished").exists()

    def recipe(self, make: Callable[[], DistillRecipe]) -> DistillRecipe:
        """The run's recipe: what `make` said when it began, wherever it goes on."""
        path = self.state / "recipe.json"
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=DistillRecipe)
        recipe = make()
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(recipe)) + b"\n")
        os.replace(unfinished, path)
        return recipe

    def load(self) -> dict[str, Any] | None:
        path = self.state / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            raise ConfigurationError(
                f"{path} cannot be read ({error}). Delete it: the text is kept, only the learning begins anew."
            ) from None
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        unfinished = self.state / "checkpoint.unfinished"
        torch.save(dict(state), unfinished)
        os.replace(unfinished, self.state / "checkpoint.pt")

    def log(self, line: Mapping[str, Any]) -> None:
        with (self.state / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def finish(self) -> None:
        """Mark the run as over and drop what only a resumed run needs."""
        (self.state / "finished").touch()
        (self.state / "checkpoint.pt").unlink(missing_ok=True)
        shutil.rmtree(self.text, ignore_errors=True)

    def check_space(self, needed: int) -> None:
        """Raises ConfigurationError if the disk has less than `needed` bytes, and some to spare."""
        free = shutil.disk_usage(self.out).free
        if free < needed + _MARGIN_BYTES:
            raise ConfigurationError(
                f"This run needs about {needed / 1e9:.1f} GB in {self.out} (text, checkpoints and the draft), and "
                f"{free / 1e9:.1f} GB are free there. Make room, choose another --out, or lower --tokens."
            )


@contextmanager
def claim(out: Path, asked: dict[str, Any], *, overwrite: bool, resume: bool) -> Iterator[RunFolder]:
    """The folder of a run that was asked for in these words (JSON values), new or to be continued.

    Raises ConfigurationError if it holds another run or anything else, if it is in use, or if `resume` finds no run."""
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--out {out} is a file; give a folder.")
    folder = RunFolder(out)
    record = folder.state / "run.json"
    if resume and not record.exists():
        raise ConfigurationError(f"--resume: {out} holds no run that could go on. Leave --resume out to begin one.")
    if not record.exists() and not overwrite and (others := _others(out)):
        raise ConfigurationError(
            f"{out} holds other files ({', '.join(others[:4])}{', …' if len(others) > 4 else ''}). Choose an empty or "
            f"new folder; --overwrite replaces {', '.join(DRAFT_FILES[:4])}, … there and touches nothing else."
        )
    try:
        folder.state.mkdir(parents=True, exist_ok=True)
        with Claim(folder.state / "lock", f"--out '{out}'", "Give another folder"):
            if overwrite:
                _clear(folder)
            if record.exists():
                _compare(json.loads(record.read_text()), asked, out)
            else:
                unfinished = record.with_suffix(".unfinished")
                unfinished.write_text(json.dumps(asked, indent=1) + "\n")
                os.replace(unfinished, record)
            yield folder
    except PermissionError as error:
        raise ConfigurationError(f"--out {out} cannot be written to: {error}.") from None


def _others(out: Path) -> list[str]:
    names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    return [name for name in names if name != _STATE]


def _clear(folder: RunFolder) -> None:
    for name in DRAFT_FILES:
        (folder.out / name).unlink(missing_ok=True)
    shutil.rmtree(folder.out / REDUCED, ignore_errors=True)
    for path in folder.state.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _compare(there: dict[str, Any], asked: dict[str, Any], out: Path) -> None:
    """Same words, or an error that names the ones that differ."""
    asked = json.loads(json.dumps(asked))
    differing = [
        f"{name} (there {there.get(name)!r}, now {asked.get(name)!r})"
        for name in sorted(there.keys() | asked.keys())
        if there.get(name) != asked.get(name)
    ]
    if differing:
        raise ConfigurationError(
            f"{out} holds a run that was begun with other options: {'; '.join(differing)}. Give the same ones to go "
            "on with it, choose another folder, or begin anew there with --overwrite."
        )
