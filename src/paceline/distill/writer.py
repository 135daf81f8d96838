"""The teacher at its desk: rounds of raw text, chats and chats about long documents, into replay buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.distill import prompts
from paceline.distill.model import Llama
from paceline.distill.prompts import ChatFormat, Scripts
from paceline.distill.recipe import Kind, TextRecipe
from paceline.distill.replay import Batch, ReplayBuffer, select
from paceline.distill.rollout import USER, BatchDecoder, CacheMemory, Rollout

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What the writer needs of the tokenizer."""

    format: ChatFormat
    encode: Encode
    document_start: int  # the token after which the target writes plain text
    special: tuple[int, ...]  # never part of a document


class Writer:
    """Owns the decoders, the pool of documents and the buffers."""

    def __init__(self, target: Llama, language: Language, recipe: TextRecipe, *, seed: int) -> None:
        device = target.table.device
        self.language, self.recipe = language, recipe
        encode = language.encode
        scripts = Scripts.build(
            language.format, [encode(o) for o in prompts.OPENERS], [encode(f) for f in prompts.FOLLOW_UPS]
        )
        self.frames = [(encode(before), encode(after)) for before, after in prompts.FRAMES]
        self.separator = encode("\n\n")
        positions = max(recipe.chat_rows * recipe.chat_length, recipe.document_rows * recipe.document_length)
        memory = CacheMemory(target, positions)
        self.chats = BatchDecoder(
            target, language.format, scripts, memory, rows=recipe.chat_rows,
            length=recipe.chat_length, user_temperature=recipe.user_temperature,
        )  # fmt: skip
        self.papers = BatchDecoder(
            target, language.format, scripts, memory, rows=recipe.document_rows,
            length=recipe.document_length, user_temperature=recipe.user_temperature,
        )  # fmt: skip
        self.chat_buffer = ReplayBuffer(recipe.chat_capacity)
        self.document_buffer = ReplayBuffer(recipe.document_capacity)
        self.documents: deque[np.ndarray] = deque(maxlen=20_000)
        self.answer_counts = torch.zeros(target.shape.vocab_size, dtype=torch.int64, device=device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.random = np.random.default_rng(seed)
        self.seed = seed
        self.rounds = 0
        self.tokens = {"raw": 0, "chat": 0, "document": 0}  # sampled by the target
        self.selected = 0  # distinct positions offered to students
        self.latest: Rollout | None = None

    def write(self, kind: Kind, *, hold_out: int = 0) -> Batch | None:
        """One round into its buffer; the first `hold_out` rows are kept apart, whole, and returned."""
        decoder = self.papers if kind == "document" else self.chats
        prefix = self._prefix(kind, decoder.rows)
        self.rounds += 1
        rollout = decoder.generate(
            prefix.to(decoder.tokens.device),
            self._temperatures(decoder.rows),
            seed=(self.seed * 1_000_003 + self.rounds) % 2**31,
            role=USER if kind != "document" else 1 - USER,
            open_turns=kind == "chat",
        )
        self.latest = rollout
        self.tokens[kind] += decoder.rows * (decoder.length - prefix.shape[1])
        self.answer_counts += torch.bincount(rollout.tokens[rollout.is_answer], minlength=len(self.answer_counts))
        self._collect(kind, rollout)
        buffer = self.document_buffer if kind == "document" else self.chat_buffer
        for start in range(hold_out, decoder.rows, 512):
            rows = slice(start, min(start + 512, decoder.rows))
            buffer.add(select(rollout, rows, self.recipe.selected, self.generator))
        self.selected += (decoder.rows - hold_out) * self.recipe.selected
        return select(rollout, slice(0, hold_out), decoder.length - 1, self.generator) if hold_out else None

    def _prefix(self, kind: Kind, rows: int) -> Tensor:
        language = self.language
        if kind == "document":
            length = self.recipe.document_prompts[self.rounds % len(self.recipe.document_prompts)]
            return prompts.document_prompts(
                language.format, self.frames, list(self.documents), self.separator,
                rows=rows, length=length, random=self.random,
            )  # fmt: skip
        start = [language.document_start] if kind == "raw" else language.format.start
        return torch.tensor(start).expand(rows, -1)

    def _temperatures(self, rows: int) -> Tensor:
        low, high = self.recipe.temperatures
        device = self.generator.device
        drawn = low + (high - low) * torch.rand(rows, generator=self.generator, device=device)
        greedy = torch.rand(rows, generator=self.generator, device=device) < self.recipe.greedy_share
        return torch.where(greedy, 0.0, drawn)

    def _collect(self, kind: Kind, rollout: Rollout) -> None:
        """Add documents to the pool: plain texts, and long answers of chats."""
        at_least = min(96, self.recipe.chat_length // 4)
        if kind == "document":
            return
        tokens = rollout.tokens[:1024].cpu().numpy() if kind == "chat" else rollout.tokens.cpu().numpy()
        if kind == "chat":
            found = prompts.longest_answers(tokens, rollout.is_answer[:1024].cpu().numpy(), at_least=at_least)
        else:
            ends = [np.flatnonzero(row[1:] == self.language.document_start) for row in tokens]
            found = [row[1 : 1 + end[0] if len(end) else None] for row, end in zip(tokens, ends, strict=True)]
        for document in found:
            document = document[~np.isin(document, self.language.special)]
            if len(document) >= at_least:
                self.documents.append(document)
