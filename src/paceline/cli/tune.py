"""paceline tune: progress and notes on standard error, the table on standard output, two files if asked for."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from paceline.cli.console import console, make_console, say, show_notes
from paceline.cli.options import model_or_default_pair
from paceline.cli.termination import signals_as_ctrl_c
from paceline.cli.verify import read_prompts
from paceline.cli.writing import OutFolder, write_whole
from paceline.tune.run import Options, Tuning, tune
from paceline.tune.schedule import shown_batches

FILES = ("paceline.json", "vllm.json")


def run_tune(
    model: str | None, engine: dict[str, Any], prompts: Path, out: Path | None, max_tokens: int, temperature: float,
    raw: bool,
) -> None:  # fmt: skip
    arguments = model_or_default_pair(model, engine)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options = Options(arguments, read_prompts(prompts), max_tokens, temperature, raw)
    with signals_as_ctrl_c(), nullcontext() if out is None else OutFolder(out, is_new=False):
        found = tune(options, say)
        make_console().print(table(found))
        show_notes(found.notes)
        if out is not None:
            write(found, out)


def table(found: Tuning) -> Table:
    rates = ", ".join(f"{share:.0%}" for share in found.survival)
    pair = f"{found.model} with {found.draft or 'ngram'}"
    passes = f"{found.num_passes} passes" + ("" if found.drafting == 1.0 else f" ({found.drafting:.0%} had drafts)")
    title = f"{escape(pair)}: the first 1, 2, … drafts were all kept in {rates} of {passes}"
    shown = Table("sequences", "best K", "tokens a pass", "step", "against K=0", title=title, title_justify="left")
    wanted = set(shown_batches(len(found.best)))
    for entry in found.best:
        if entry.batch in wanted:
            shown.add_row(
                str(entry.batch), str(entry.k), f"{entry.tokens_per_pass:.2f}", f"{entry.seconds * 1e3:.1f} ms",
                f"{entry.gain:.2f} x",
            )  # fmt: skip
    return shown


def write(found: Tuning, folder: Path) -> None:
    """Two speculative_configs: one for each engine."""
    for name, content in zip(FILES, (found.paceline_config(), found.vllm_config()), strict=True):
        write_whole(folder / name, json.dumps(content, indent=1) + "\n")
        console.print(f"Written: {folder / name}", soft_wrap=True, markup=False)
