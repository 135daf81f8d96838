"""What a user asks of `paceline distill`, checked before anything is loaded or written, and the recipe it becomes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.distill import sizes
from paceline.distill.losses import LossTerm, parse_loss
from paceline.distill.recipe import DistillRecipe, OptimizerChoice
from paceline.errors import ConfigurationError
from paceline.models.architecture import Architecture

_DEFAULT_LOSS, _DEFAULT_FINAL_LOSS = "forward-kl", "forward-kl*0.25+tv@0.6"  # by measurement: docs/distill.md
_DEFAULT_MIX = 0.5
_NOT_THE_RUN = ("out", "checkpoint_every", "overwrite", "resume")  # may change when a run goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions:
    target: str
    out: Path
    size: str = "small"
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    tokens: int | None = None
    steps: int | None = None
    minutes: float | None = None
    loss: str | None = None
    final_loss: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    data: tuple[Path, ...] = ()
    data_mix: float | None = None
    rows: int | None = None
    length: int | None = None
    batch: int | None = None
    draft_vocab: str | None = None
    report_on: Path | None = None
    device: str = "auto"
    seed: int = 1
    checkpoint_every: float = 60.0
    overwrite: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigurationError for what is wrong by itself."""
        budgets = {"--tokens": self.tokens, "--steps": self.steps, "--minutes": self.minutes}
        given = [name for name, value in budgets.items() if value is not None]
        _require(len(given) <= 1, f"Give one of {', '.join(budgets)}, not {' and '.join(given)}.")
        for name in given:
            value = budgets[name]
            _require(value is not None and 0 < value < math.inf, f"{name} {value} must be above 0.")
        _require(
            not (self.overwrite and self.resume), "--overwrite begins anew and --resume goes on: give one of them."
        )
        _require(self.data_mix is None or bool(self.data), "--data-mix is the share of --data, and there is none.")
        mix = self.mix
        _require(0.0 < mix <= 1.0 or not self.data, f"--data-mix {mix} must be above 0 and at most 1.")
        _require(self.device in ("auto", "cpu", "cuda"), f"--device {self.device}: there are auto, cpu, cuda.")
        _require(self.batch is None or self.batch >= 1, f"--batch {self.batch} must be at least 1.")
        _require(0 <= self.seed < 2**31, f"--seed {self.seed} must be between 0 and {2**31 - 1}.")
        _require(self.checkpoint_every >= 0, "--checkpoint-every must be a number of seconds.")
        self.losses(), self.optimizers(), self.head_size()

    @property
    def mix(self) -> float:
        """Share of the user's own data."""
        if not self.data:
            return 0.0
        return _DEFAULT_MIX if self.data_mix is None else self.data_mix

    def losses(self) -> tuple[tuple[LossTerm, ...], tuple[tuple[LossTerm, ...], ...]]:
        """The loss, and those of the end of the run; a loss that was asked for is kept to the end."""
        final = self.final_loss or (() if self.loss else (_DEFAULT_FINAL_LOSS,))
        try:
            return parse_loss(self.loss or _DEFAULT_LOSS), tuple(parse_loss(text) for text in final)
        except ValueError as error:
            raise ConfigurationError(f"--loss, --final-loss: {error}") from None

    def optimizers(self) -> tuple[OptimizerChoice, ...]:
        """'muon:0.005:0.006': the matrices' optimizer, its learning rate, the table's."""
        choices = []
        for text in self.optimizer:
            name, *rates = text.split(":")
            try:
                rate, table_rate = (float(value) for value in rates)
            except ValueError:
                rate = table_rate = 0.0
            _require(
                name in ("muon", "adamw") and rate > 0 and table_rate > 0,
                f"--optimizer {text}: give NAME:RATE:TABLE_RATE with muon or adamw, as in muon:0.005:0.006.",
            )
            choices.append(OptimizerChoice(name, rate, table_rate))  # type: ignore[arg-type]
        return tuple(choices) or (OptimizerChoice(),)

    def head_size(self) -> int | None:
        """Tokens of a reduced head; None for 'auto' and for no reduced head."""
        if self.draft_vocab in (None, "auto"):
            return None
        _require(
            str(self.draft_vocab).isdigit(), f"--draft-vocab {self.draft_vocab}: give a number of tokens, or auto."
        )
        return int(str(self.draft_vocab))

    def torch_device(self) -> torch.device:
        available = torch.cuda.is_available()
        _require(
            self.device != "cuda" or available, "--device cuda: there is no GPU that PyTorch can use; leave it out."
        )
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")

    def asked(self, target: Path) -> dict[str, Any]:
        """What makes it this run and no other, in JSON values; data by content."""
        words = {name: value for name, value in asdict(self).items() if name not in _NOT_THE_RUN}
        asked_about = _digest("--report-on", self.report_on) if self.report_on else None
        data = [_digest("--data", path) for path in self.data]
        return words | {"target": str(target), "data": data, "report_on": asked_about}

    def recipe(self, target: Architecture, device: torch.device) -> DistillRecipe:
        loss, final_losses = self.losses()
        text = sizes.default_text(target, device, self.rows, self.length, self.mix)
        recipe = DistillRecipe(
            text=text, minutes=self.minutes, batch=self.batch or sizes.default_batch(device), loss=loss,
            final_losses=final_losses, candidates=self.optimizers(), seed=self.seed,
            head_chunk=8192 if device.type == "cuda" else 1024,
        )  # fmt: skip
        if self.minutes is not None:
            return recipe
        wanted = round(self.steps * recipe.tokens_per_step) if self.steps else self.tokens
        return replace(recipe, tokens=wanted or sizes.default_tokens(device))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


def _digest(option: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"{path.name} sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
    except OSError as error:
        raise ConfigurationError(f"{option} {path} cannot be read: {error}.") from None
