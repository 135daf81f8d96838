"""The target writes conversations through Paceline's own engine: every architecture, device and dtype it serves.

Turn by turn: all rows that are not full say what they are made to say (chat markup, openers) and then speak freely in
one continuous batch, until they close their turn or are full. The prefix cache keeps what earlier turns computed.
Against rollout.py, which keeps the hidden states and has no work on the host, the host's work for each row and token
is what this costs; see docs/distill.md for where which of the two is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.distill.prompts import ChatFormat, Scripts
from paceline.distill.rollout import ASSISTANT, Rollout
from paceline.errors import PacelineError
from paceline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from paceline.llm import LLM


@dataclass(slots=True)
class _Row:
    tokens: list[int]
    is_answer: list[bool]
    role: int
    temperature: float  # of the assistant's turns
    next_user_turn: list[int]  # the script of every later user turn

    def say(self, tokens: Sequence[int], *, answer: bool = False) -> None:
        self.tokens += tokens
        self.is_answer += [answer] * len(tokens)


class EngineDecoder:
    """`llm` must have room for `length` positions. Deterministic in the seed, whatever the batch."""

    def __init__(
        self, llm: LLM, format: ChatFormat, scripts: Scripts, *, rows: int, length: int, user_temperature: float,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.llm, self.format, self.device = llm, format, device
        self.rows, self.length, self.user_temperature = rows, length, user_temperature
        self.scripts = scripts
        self.lines = [[token for token in line if token >= 0] for line in scripts.table.tolist()]

    def generate(self, prefix: Tensor, temperature: Tensor, *, seed: int, role: int, open_turns: bool) -> Rollout:
        """As BatchDecoder.generate, without hidden states."""
        rows = self._begin(prefix, temperature, seed, role, open_turns)
        turn = 0
        while unfinished := [number for number, row in enumerate(rows) if len(row.tokens) < self.length]:
            self._speak(rows, unfinished, seed, turn)
            turn += 1
        return Rollout(
            torch.tensor([row.tokens[: self.length] for row in rows], device=self.device),
            torch.tensor([row.is_answer[: self.length] for row in rows], device=self.device),
            None,
            temperature.to(self.device),
        )

    def _begin(self, prefix: Tensor, temperature: Tensor, seed: int, role: int, open_turns: bool) -> list[_Row]:
        generator = torch.Generator().manual_seed(seed)

        def pick(scripts: Tensor) -> list[int]:
            return scripts[torch.randint(len(scripts), (self.rows,), generator=generator)].tolist()

        openers, following = pick(self.scripts.first.cpu()), pick(self.scripts.following.cpu())
        rows = []
        for number, (given, warmth) in enumerate(zip(prefix.tolist(), temperature.tolist(), strict=True)):
            row = _Row([], [], role, warmth, self.lines[following[number]])
            row.say([token for token in given if token >= 0])
            if open_turns:
                row.say(self.lines[openers[number]])
            rows.append(row)
        return rows

    def _speak(self, rows: list[_Row], unfinished: list[int], seed: int, turn: int) -> None:
        """One turn of every unfinished row, and the markup that leads to the next one."""
        params = [
            SamplingParams(
                temperature=row.temperature if row.role == ASSISTANT else self.user_temperature,
                max_tokens=self.length - len(row.tokens),
                stop_token_ids=[self.format.end],
                seed=(seed * 1_000_003 + turn * self.rows + number) % 2**31,
                detokenize=False,
            )
            for number, row in ((number, rows[number]) for number in unfinished)
        ]
        outputs = self.llm.generate([{"prompt_token_ids": rows[n].tokens} for n in unfinished], params, use_tqdm=False)
        for number, output in zip(unfinished, outputs, strict=True):
            row, answer = rows[number], output.outputs[0]
            if answer.finish_reason == "error" or not answer.token_ids:
                raise PacelineError(f"The target could not write a row of text: {answer.error or 'nothing came'}.")
            row.say(answer.token_ids, answer=row.role == ASSISTANT)
            if answer.finish_reason == "stop":
                row.say(row.next_user_turn if row.role == ASSISTANT else self.format.to_assistant)
                row.role = 1 - row.role
