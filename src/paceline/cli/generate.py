"""paceline generate."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.cli.console import console, show_configuration
from paceline.cli.options import model_or_default_pair
from paceline.errors import InvalidRequestError, PacelineError
from paceline.llm import LLM
from paceline.prompts import Prompt
from paceline.sampling_params import SamplingParams
from paceline.sequence import SequenceDelta, SpeculationCounts


def run_generate(words: Sequence[str], engine: dict[str, Any], sampling: dict[str, Any], raw: bool) -> None:
    model, prompt = split_words(words)
    params = SamplingParams(**sampling)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("paceline").setLevel(logging.INFO)  # what a first run downloads, and notes
    with LLM(**model_or_default_pair(model, engine)) as llm:
        show_configuration(llm.describe())
        asked: Prompt | list[dict[str, str]] = prompt
        if not raw and llm.get_tokenizer().has_chat_template:
            asked = [{"role": "user", "content": prompt}]
        _show(llm.stream(asked, params))


def split_words(words: Sequence[str]) -> tuple[str | None, str]:
    """[MODEL] PROMPT."""
    if len(words) > 2:
        raise InvalidRequestError(
            "Give [MODEL] PROMPT, with the prompt in quotes: paceline generate 'Why is the sky blue?'", param="prompt"
        )
    prompt = sys.stdin.read() if words[-1] == "-" else words[-1]
    if not prompt.strip():
        raise InvalidRequestError("The prompt is empty; say what to answer.", param="prompt")
    return (words[0] if len(words) == 2 else None), prompt


def _show(deltas: Iterable[SequenceDelta]) -> None:
    started = first = time.perf_counter()
    num_tokens, counts, last = 0, SpeculationCounts(), None
    for last in deltas:
        if num_tokens == 0:
            first = time.perf_counter()
        num_tokens += len(last.token_ids)
        counts = last.speculation or counts
        print(last.text, end="", flush=True)
    print()
    if last is not None and last.error is not None:
        raise PacelineError(f"The generation failed: {last.error}")
    console.print(f"[dim]{statistics(num_tokens, first - started, time.perf_counter() - started, counts)}[/]")


def statistics(num_tokens: int, ttft: float, seconds: float, counts: SpeculationCounts) -> str:
    parts = [
        f"{num_tokens} tokens in {seconds:.2f} s",
        f"{num_tokens / seconds:.1f} tok/s",
        f"first after {ttft:.2f} s",
    ]
    if counts.num_drafts:
        parts.append(f"{counts.mean_acceptance_length:.2f} tokens per target pass")
        parts.append(f"{counts.acceptance_rate:.0%} of drafts accepted")
    return " · ".join(parts)
