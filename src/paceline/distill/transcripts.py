"""What the target alone writes for the report, by Paceline's engine: prompts from held-out rows and from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.distill.report import Transcript
from paceline.distill.text import Text
from paceline.errors import ConfigurationError
from paceline.json_text import loads, numbered_lines
from paceline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from paceline.llm import LLM


@dataclass(frozen=True, slots=True)
class ReportPrompt:
    category: str
    token_ids: tuple[int, ...]


def held_out_prompts(held_out: Mapping[str, Text], per_kind: int) -> list[ReportPrompt]:
    """The beginnings of rows that were never learnt from, up to where the target first answers."""
    prompts = []
    for kind, text in held_out.items():
        for tokens, answers in list(zip(text.tokens.tolist(), text.is_answer.tolist(), strict=True))[:per_kind]:
            first = answers.index(True) if True in answers else 0
            if first < 2:  # text that was given as it is, or a row in which nothing was answered
                first = len(tokens) // 2
            prompts.append(ReportPrompt(kind, tuple(tokens[:first])))
    return prompts


def file_prompts(path: Path, chat: Callable[[list[dict[str, Any]]], list[int]]) -> list[ReportPrompt]:
    """A JSON object a line: `category` with `turns` (Spec-Bench's form; first turns are asked) or with `messages`."""
    try:
        lines = numbered_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--report-on {path} cannot be read: {error}.") from None
    prompts = []
    for number, line in lines:
        try:
            entry = loads(line)
            messages = entry["messages"] if "messages" in entry else [{"role": "user", "content": entry["turns"][0]}]
            prompts.append(ReportPrompt(str(entry.get("category", path.stem)), tuple(chat(messages))))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ConfigurationError(
                f'--report-on {path}, line {number}: expected {{"category": "...", "turns": ["..."]}} or '
                f'{{"category": "...", "messages": [...]}} ({error}).'
            ) from None
    if not prompts:
        raise ConfigurationError(f"--report-on {path} holds no prompts.")
    return prompts


def write_transcripts(
    llm: LLM, prompts: list[ReportPrompt], *, max_tokens: int, temperature: float, top_p: float, seed: int
) -> list[Transcript]:
    """The target alone, EOS honoured. Prompts that leave no room for an answer are left out."""
    fitting = [prompt for prompt in prompts if len(prompt.token_ids) + max_tokens <= llm.config.model.max_model_len]
    params = [
        SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed + n, detokenize=False)
        for n in range(len(fitting))
    ]
    outputs = llm.generate([{"prompt_token_ids": list(p.token_ids)} for p in fitting], params, use_tqdm=False)
    return [
        Transcript(prompt.category, prompt.token_ids, tuple(output.outputs[0].token_ids))
        for prompt, output in zip(fitting, outputs, strict=True)
    ]
