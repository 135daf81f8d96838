"""`make demo`: one real prompt, answered without and with speculation, as the tokens come.

Both runs are greedy in float32, on the same machine, one after the other; the texts must be identical. Accepted
drafts are green: each run of them, and the token after it, cost the target one forward pass.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from paceline.errors import PacelineError
from paceline.hub import resolve
from paceline.sequence import SequenceDelta, SpeculationCounts

if TYPE_CHECKING:
    from paceline.llm import LLM
    from paceline.tokenizer import Tokenizer

TARGET = "smollm2-135m-instruct"
DRAFT = "smollm2-135m-instruct-draft"
PROMPT = "Explain how a rainbow forms, step by step, and then give a short summary of the steps."
ACCEPTED_STYLE, PLAIN_STYLE = "bold green", ""


@dataclass
class Run:
    """What one answer was and what it took."""

    name: str
    token_ids: list[int] = field(default_factory=list)
    num_passes: int = 0  # forward passes of the target that gave tokens
    seconds: float = 0.0
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return len(self.token_ids) / self.num_passes if self.num_passes else 0.0


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(highlight=False, emoji=False)
    console.print(Text.assemble(("Prompt: ", "bold"), options.prompt, "\n"))
    try:
        for model in {options.model, options.draft} - {"ngram"}:
            resolve(model, console.print)  # before the first run: a model that is missing is said at once
        runs = [_run(name, speculation, options, console) for name, speculation in _modes(options)]
    except PacelineError as error:
        console.print(Text(str(error), "red"))
        return 1
    identical = runs[0].token_ids == runs[1].token_ids
    console.print(summary(runs, identical))
    return 0 if identical else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.demo", description="Speculation off and on, side by side."
    )
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--model", default=TARGET, help="the target: a name or a path (default: %(default)s)")
    parser.add_argument("--draft", default=DRAFT, help="a draft model, or 'ngram' (default: %(default)s)")
    parser.add_argument("--num-speculative-tokens", type=int, default=5, help="K (default: %(default)s)")
    return parser.parse_args(arguments)


def _modes(options: argparse.Namespace) -> list[tuple[str, dict[str, Any] | None]]:
    proposer = {"method": "ngram"} if options.draft == "ngram" else {"model": options.draft}
    speculation = {**proposer, "num_speculative_tokens": options.num_speculative_tokens}
    return [("off", None), (f"on, {options.draft}", speculation)]


def _run(name: str, speculation: dict[str, Any] | None, options: argparse.Namespace, console: Console) -> Run:
    from paceline import LLM, SamplingParams

    console.print(Rule(f"speculation {name}", align="left"))
    with LLM(options.model, dtype="float32", speculative_config=speculation) as llm:
        greedy = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
        warm_up = SamplingParams(temperature=0.0, max_tokens=8)  # a first request pays for allocations
        llm.generate("Once upon a time", warm_up, use_tqdm=False)
        run = _answer(llm, name, options.prompt, greedy, console)
    console.print("\n")
    return run


def _answer(llm: LLM, name: str, prompt: str, params: Any, console: Console) -> Run:
    run = Run(name)
    started = time.perf_counter()
    painter = Painter(llm.get_tokenizer())
    for delta in llm.stream([{"role": "user", "content": prompt}], params):
        run.seconds = time.perf_counter() - started
        run.num_passes += bool(delta.token_ids)
        run.token_ids += delta.token_ids
        run.counts = delta.speculation or run.counts
        for text in painter.paint(delta):
            console.print(text, end="", soft_wrap=True)
    return run


class Painter:
    """Cuts each delta's text at token borders, so that accepted drafts can have a colour of their own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = tokenizer.backend
        self._stream = DecodeStream(skip_special_tokens=True)

    def paint(self, delta: SequenceDelta) -> Iterator[Text]:
        for position, token_id in enumerate(delta.token_ids):
            piece = self._stream.step(self._backend, token_id)
            if piece:
                yield Text(piece, ACCEPTED_STYLE if position < delta.num_accepted else PLAIN_STYLE)


def summary(runs: list[Run], identical: bool) -> Table:
    verdict = "the texts are identical" if identical else "THE TEXTS DIFFER"
    table = Table(title=f"Green: accepted drafts; {verdict}", title_justify="left")
    table.add_column("speculation", overflow="fold")
    for heading in ("tokens", "seconds", "tok/s", "tokens per target pass", "acceptance"):
        table.add_column(heading, justify="right")
    for run in runs:
        acceptance = f"{run.counts.acceptance_rate:.0%}" if run.counts.num_drafts else "-"
        table.add_row(
            run.name,
            str(len(run.token_ids)),
            f"{run.seconds:.2f}",
            f"{run.tokens_per_second:.1f}",
            f"{run.tokens_per_pass:.2f}",
            acceptance,
        )
    speedup = runs[1].tokens_per_second / runs[0].tokens_per_second if runs[0].tokens_per_second else 0.0
    table.caption = f"{speedup:.2f}x the speed without speculation"
    return table


if __name__ == "__main__":
    sys.exit(main())
