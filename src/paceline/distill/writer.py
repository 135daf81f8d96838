"""The teacher at its desk: rounds of raw text, chats, chats about long documents and a user's own prompts.

Everything about round `number` follows from (seed, number) and the rounds before it, so a run that was interrupted
finds the rounds that it wrote in the store and goes on with the next, as if nothing had happened.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paceline.distill import prompts
from paceline.distill.language import Language
from paceline.distill.prompts import Scripts
from paceline.distill.recipe import Kind, TextRecipe
from paceline.distill.replay import Batch, ReplayBuffer, select
from paceline.distill.rollout import ASSISTANT, USER, Decoder
from paceline.distill.teacher import Teacher
from paceline.distill.text import Text, TextStore
from paceline.distill.user_text import UserText

_MAX_DOCUMENTS = 20_000
_ROWS_AT_ONCE = 256  # selected, and read by the teacher, together


def scripts_of(language: Language) -> Scripts:
    """What rows are made to say."""
    encode = language.encode
    return Scripts.build(language.format, [encode(o) for o in prompts.OPENERS], [encode(f) for f in prompts.FOLLOW_UPS])


class Writer:
    """Owns the pool of documents and the buffers. `chats` and `papers` continue rows of the two lengths."""

    def __init__(
        self, teacher: Teacher, chats: Decoder, papers: Decoder, language: Language, recipe: TextRecipe,
        store: TextStore, *, seed: int, user_text: UserText | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.teacher, self.chats, self.papers = teacher, chats, papers
        self.language, self.recipe, self.store, self.seed = language, recipe, store, seed
        self.held_out_data: UserText | None = None
        self.data: UserText | None = None
        if user_text is not None:
            self.held_out_data, self.data = user_text.split(seed)
        self.frames = [(language.encode(before), language.encode(after)) for before, after in prompts.FRAMES]
        self.separator = language.encode("\n\n")
        chat_rows, long_rows = buffer_rows(recipe, teacher)
        self.buffers: dict[str, ReplayBuffer] = {"chat": ReplayBuffer(chat_rows)}
        self.buffers |= {kind: ReplayBuffer(long_rows) for kind in ("document", "data")}
        self.held_out: dict[str, Batch] = {}
        self.held_out_text: dict[str, Text] = {}
        self.documents: deque[np.ndarray] = deque(maxlen=_MAX_DOCUMENTS)
        self.answer_counts = torch.zeros(teacher.vocab_size, dtype=torch.int64)
        self.rounds = 0
        self.served = 0  # beginnings of the user's that were learnt from
        self.tokens = {"raw": 0, "chat": 0, "document": 0, "data": 0}  # positions of rows, by kind
        self.selected = 0  # distinct positions offered to students

    def catch_up(self, rounds: int) -> None:
        """The first `rounds` rounds again, for a run that goes on; only what stays in the buffers is read."""
        kinds = [self.store.kind(n) if n in self.store else self.recipe.kind_of(n) for n in range(rounds)]
        replaced, later = set[int](), Counter[str]()
        for number in reversed(range(rounds)):
            buffer = _buffer_of(kinds[number])
            if later[buffer] >= self.buffers[buffer].capacity:
                replaced.add(number)
            if kinds.index(kinds[number]) < number:  # the first round of a kind is partly held out: not counted
                later[buffer] += self.recipe.rows if buffer == "chat" else self.recipe.long_rows
        for number in range(rounds):
            self.next_round(will_be_replaced=number in replaced)

    def next_round(self, *, will_be_replaced: bool = False) -> None:
        """Write the next round, or take it from the store, and make it ready to be learnt from.

        `will_be_replaced`: enough rounds are known to follow at once for none of it to stay in a buffer."""
        number = self.rounds
        if number in self.store:
            text, hidden = self.store.load(number, self.teacher.device), None
        else:
            began = self.clock()
            text, hidden = self._write(number)
            self.store.save(number, text, seconds=self.clock() - began)
        self.rounds += 1
        if text.kind == "data":
            self.served += len(text.tokens) - self._num_held_out("data", len(text.tokens))
        self.tokens[text.kind] += text.tokens.numel()
        answers = text.tokens[text.is_answer].cpu()
        self.answer_counts += torch.bincount(answers, minlength=len(self.answer_counts))
        self._collect(text)
        self._offer(number, text, hidden, will_be_replaced)

    def _write(self, number: int) -> tuple[Text, Tensor | None]:
        kind = self.recipe.kind_of(number)
        random = np.random.default_rng((self.seed, number))
        if kind == "document" and not self.documents:
            kind = "chat"  # nothing that it wrote so far is long enough to be talked about
        decoder = self.papers if kind in ("document", "data") else self.chats
        prefix = self._prefix(kind, decoder.rows, decoder.length, number, random)
        temperatures = self._temperatures(decoder.rows, random)
        temperatures[: self._num_held_out(kind, decoder.rows) : 2] = 0.0  # greedy figures need greedy rows
        rollout = decoder.generate(
            prefix.to(self.teacher.device),
            temperatures.to(self.teacher.device),
            seed=(self.seed * 1_000_003 + number + 1) % 2**31,
            role=USER if kind in ("raw", "chat") else ASSISTANT,
            open_turns=kind == "chat",
        )
        whole = (prefix >= 0).all(1) if kind == "data" else torch.zeros(decoder.rows, dtype=torch.bool)
        is_answer = rollout.is_answer | whole.to(rollout.is_answer.device).unsqueeze(1)
        return Text(kind, rollout.tokens, is_answer, rollout.temperature), rollout.hidden

    def _prefix(self, kind: Kind, rows: int, length: int, number: int, random: np.random.Generator) -> Tensor:
        language = self.language
        if kind == "data":
            assert self.data is not None
            assert self.held_out_data is not None
            kept = self._num_held_out(kind, rows)
            held = self.held_out_data.rows(kept, length, 0, self.seed)
            return torch.from_numpy(np.concatenate((held, self.data.rows(rows - kept, length, self.served, self.seed))))
        if kind == "document":
            shares = self.recipe.prompt_shares
            return prompts.document_prompts(
                language.format, self.frames, list(self.documents), self.separator,
                rows=rows, length=int(shares[number % len(shares)] * length), random=random,
            )  # fmt: skip
        start = [language.document_start] if kind == "raw" else language.format.start
        return torch.tensor(start).expand(rows, -1)

    def _temperatures(self, rows: int, random: np.random.Generator) -> Tensor:
        drawn = random.uniform(*self.recipe.temperatures, rows)
        drawn[random.random(rows) < self.recipe.greedy_share] = 0.0
        return torch.from_numpy(drawn).float()

    def _offer(self, number: int, text: Text, hidden: Tensor | None, will_be_replaced: bool) -> None:
        """Select positions into the buffer; the first round of a kind gives the held-out rows, whole."""
        buffer = self.buffers[_buffer_of(text.kind)]
        generator = torch.Generator(self.teacher.device).manual_seed((self.seed * 1_000_003 + number) % 2**31)
        kept = self._num_held_out(text.kind, len(text.tokens))
        if kept:
            mine = _rows(text, slice(0, kept))
            states = self.teacher.read(mine.tokens) if hidden is None else hidden[:kept]
            self.held_out[text.kind] = select(mine, states, mine.tokens.shape[1] - 1, generator)
            self.held_out_text[text.kind] = mine
        for start in range(kept, len(text.tokens), _ROWS_AT_ONCE):
            rows = slice(start, min(start + _ROWS_AT_ONCE, len(text.tokens)))
            part = _rows(text, rows)
            self.selected += len(part.tokens) * self.recipe.selected
            if will_be_replaced:
                buffer.skip(len(part.tokens))
            else:
                states = self.teacher.read(part.tokens) if hidden is None else hidden[rows]
                buffer.add(select(part, states, self.recipe.selected, generator))

    def _num_held_out(self, kind: Kind, rows: int) -> int:
        """Of the next round of this kind."""
        if kind == "raw" or kind in self.held_out:
            return 0
        wanted = self.recipe.held_out if kind == "chat" else self.recipe.held_out // 2
        if kind == "data" and self.held_out_data is not None:
            wanted = min(wanted, len(self.held_out_data.beginnings))
        return max(1, min(wanted, rows // 2))

    def _collect(self, text: Text) -> None:
        """Add documents to the pool: plain texts, and long answers of chats."""
        at_least = min(96, self.recipe.length // 4)
        if text.kind in ("document", "data"):
            return
        tokens = text.tokens[:1024].cpu().numpy() if text.kind == "chat" else text.tokens.cpu().numpy()
        if text.kind == "chat":
            found = prompts.longest_answers(tokens, text.is_answer[:1024].cpu().numpy(), at_least=at_least)
        else:
            ends = [np.flatnonzero(row[1:] == self.language.document_start) for row in tokens]
            found = [row[1 : 1 + end[0] if len(end) else None] for row, end in zip(tokens, ends, strict=True)]
        for document in found:
            document = document[~np.isin(document, self.language.special)]
            if len(document) >= at_least:
                self.documents.append(document)


def _buffer_of(kind: Kind) -> str:
    return "chat" if kind == "raw" else kind


def _rows(text: Text, rows: slice) -> Text:
    return Text(text.kind, text.tokens[rows], text.is_answer[rows], text.temperature[rows])


def buffer_rows(recipe: TextRecipe, teacher: Teacher) -> tuple[int, int]:
    """Capacity in rows for chats and for each long kind: three parts of the memory and two, or what a round has."""
    row_bytes = recipe.selected * teacher.head.shape[1] * teacher.head.element_size()
    rows = recipe.buffer_bytes // row_bytes
    long_kinds = len([kind for kind in recipe.kinds if kind in ("document", "data")])
    share = rows // (3 + 2 * long_kinds)
    return max(3 * share, recipe.rows), max(2 * share, recipe.long_rows)
