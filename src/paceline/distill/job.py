"""`paceline distill` from beginning to end: options to a draft with its card, whatever was done before."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline.distill import sizes
from paceline.distill.card import write_card
from paceline.distill.engine_decoder import EngineDecoder
from paceline.distill.folder import REDUCED, TOKENIZER_FILES, RunFolder, claim
from paceline.distill.interrupt import Interrupts
from paceline.distill.language import Language, language_of
from paceline.distill.model import Llama, LlamaShape
from paceline.distill.options import DistillOptions
from paceline.distill.prompts import ChatFormat, Scripts
from paceline.distill.recipe import DistillRecipe, TextRecipe
from paceline.distill.reduced import coverage, export_reduced, frequent_tokens
from paceline.distill.rollout import BatchDecoder, CacheMemory, Decoder
from paceline.distill.run import Distillation, Outcome, Watcher
from paceline.distill.student import export
from paceline.distill.teacher import Teacher, load_teacher
from paceline.distill.text import TextStore
from paceline.distill.transcripts import ReportPrompt, file_prompts, held_out_prompts
from paceline.distill.user_text import UserText, read_user_text
from paceline.distill.verdict import Verdict, judge
from paceline.distill.writer import Writer, scripts_of
from paceline.errors import ConfigurationError
from paceline.hub import resolve
from paceline.models.architecture import Architecture, read_architecture
from paceline.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from paceline.llm import LLM

_ANSWER_ROOM = 128  # tokens of an answer for the report
_PROMPTS_PER_KIND = 16
_MAX_SEQUENCES = 256  # of the engine at once


def distill(options: DistillOptions, watcher: Watcher, interrupts: Interrupts) -> dict[str, Any]:
    """Do what is not done yet and return the report (report.json). Raises PacelineError, and KeyboardInterrupt when
    interrupted, with everything on disk that the same call goes on from."""
    path = resolve(options.target, lambda line: watcher.note("model", message=line))
    if options.out.resolve() == path.resolve():
        raise ConfigurationError(f"--out {options.out} is the target's own folder; choose another one.")
    architecture, device = read_architecture(path), options.torch_device()
    shape = sizes.draft_shape(options.size, options.hidden, options.layers, options.heads, architecture)
    recipe = options.recipe(architecture, device)
    job = _Job(options, path, architecture, device, shape, watcher, interrupts)
    with claim(options.out, options.asked(path), overwrite=options.overwrite, resume=options.resume) as folder:
        if folder.finished:
            watcher.note("finished before", folder=str(options.out))
            report: dict[str, Any] = json.loads((options.out / "report.json").read_text())
            return report
        return replace(job, watcher=LoggedWatcher(watcher, folder)).run(folder, folder.recipe(lambda: recipe))


class LoggedWatcher:
    """Passes everything on, and keeps the notes in the run's log with the time of day."""

    def __init__(self, watcher: Watcher, folder: RunFolder) -> None:
        self._watcher, self._folder = watcher, folder

    def note(self, event: str, **values: Any) -> None:
        self._folder.log({"event": event, "time": round(time.time(), 1)} | values)
        self._watcher.note(event, **values)

    def advance(self, phase: str, done: int, total: int, **values: Any) -> None:
        self._watcher.advance(phase, done, total, **values)


@dataclass(frozen=True, slots=True)
class _Job:
    options: DistillOptions
    path: Path  # the target's directory
    architecture: Architecture
    device: torch.device
    shape: LlamaShape
    watcher: Watcher
    interrupts: Interrupts

    def run(self, folder: RunFolder, recipe: DistillRecipe) -> dict[str, Any]:
        def check_space(steps: int) -> None:
            folder.check_space(sizes.disk_bytes(recipe, self.shape, steps))

        if recipe.tokens is not None:
            check_space(recipe.steps_for(recipe.tokens))
        tokenizer = load_tokenizer(self.path)
        language = language_of(_hugging_face_tokenizer(self.path), self.architecture.eos_token_ids)
        user_text = self._user_text(recipe, tokenizer, language)
        asked_about = (
            file_prompts(self.options.report_on, tokenizer.apply_chat_template) if self.options.report_on else []
        )
        self.watcher.note("loading", target=str(self.path), device=str(self.device))
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        teacher = load_teacher(self.path, dtype=dtype, device=self.device)
        with ExitStack() as engines:
            writer = self._writer(teacher, language, recipe, folder, user_text, engines)
            outcome = Distillation(
                teacher, writer, self.shape, recipe, folder, self.watcher, clock=time.monotonic,
                checkpoint_every=self.options.checkpoint_every, interrupts=self.interrupts, check_steps=check_space,
            ).run()  # fmt: skip
            engines.close()  # the writer's engine was sized for many rows
            self._export(outcome.student, writer)
            prompts = held_out_prompts(writer.held_out_text, _PROMPTS_PER_KIND) + asked_about
            facts = self._facts(recipe, outcome, writer)
            reduced = self._cut_head(outcome.student, writer.answer_counts)
            del writer  # its buffers and its cache are most of the memory
            verdict = self._judge(teacher, outcome.student, prompts, reduced, engines)
        report = facts | verdict.as_json()
        write_card(self.options.out, self.options.target, report)
        folder.finish()
        return report

    def _user_text(self, recipe: DistillRecipe, tokenizer: Tokenizer, language: Language) -> UserText | None:
        if not self.options.data:
            return None
        found = read_user_text(
            self.options.data, chat=tokenizer.apply_chat_template, encode=language.encode,
            separator=language.document_start, length=recipe.text.long_length,
        )  # fmt: skip
        self.watcher.note("data", beginnings=len(found.beginnings), too_long=found.num_too_long)
        return found

    def _writer(
        self,
        teacher: Teacher,
        language: Language,
        recipe: DistillRecipe,
        folder: RunFolder,
        user_text: UserText | None,
        engines: ExitStack,
    ) -> Writer:
        text = recipe.text
        chats, papers = self._decoders(teacher, language.format, scripts_of(language), text, engines)
        store = TextStore(folder.text)
        return Writer(teacher, chats, papers, language, text, store, seed=recipe.seed, user_text=user_text)

    def _decoders(
        self, teacher: Teacher, format: ChatFormat, scripts: Scripts, text: TextRecipe, engines: ExitStack
    ) -> list[Decoder]:
        """The batched decoder on a GPU for the targets it knows, Paceline's engine for everything else."""
        sizes = ((text.rows, text.length), (text.long_rows, text.long_length))
        warmth = text.user_temperature
        if self.device.type == "cuda" and teacher.dense is not None:
            dense, memory = teacher.dense, CacheMemory(teacher.dense, max(rows * length for rows, length in sizes))
            return [
                BatchDecoder(dense, format, scripts, memory, rows=rows, length=length, user_temperature=warmth)
                for rows, length in sizes
            ]
        engine = engines.enter_context(
            self._engine(max_num_seqs=min(text.rows, _MAX_SEQUENCES), max_model_len=text.long_length)
        )
        return [
            EngineDecoder(
                engine, format, scripts, rows=rows, length=length, user_temperature=warmth, device=self.device
            )
            for rows, length in sizes
        ]

    def _engine(self, **more: Any) -> LLM:
        """Paceline with the target, room for a row and an answer; more of LLM's arguments in `more`."""
        from paceline.llm import LLM

        dtype = "float32" if self.device.type == "cpu" else "bfloat16"
        return LLM(model=str(self.path), dtype=dtype, device=self.device.type, **more)

    def _export(self, student: Llama, writer: Writer) -> None:
        out = self.options.out
        export(student, json.loads((self.path / "config.json").read_text()), out)
        for name in TOKENIZER_FILES:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, out / name)
        np.save(out / "answer_counts.npy", writer.answer_counts.numpy().astype(np.int64))

    def _facts(self, recipe: DistillRecipe, outcome: Outcome, writer: Writer) -> dict[str, Any]:
        import msgspec

        return {
            "target": self.options.target,
            "draft": {"parameters": self.shape.num_parameters, **msgspec.to_builtins(self.shape)},
            "recipe": msgspec.to_builtins(recipe),
            "text": {"rounds": writer.rounds, "positions": writer.tokens, "distinct": writer.selected},
            "learning": {
                "loss": outcome.loss,
                "optimizer": msgspec.to_builtins(outcome.choice),
                "steps": outcome.steps,
                "positions": outcome.tokens,
                "held_out_before": outcome.before,
                "held_out_after": outcome.after,
            },
        }

    def _cut_head(self, student: Llama, answer_counts: torch.Tensor) -> torch.Tensor | None:
        if self.options.draft_vocab is None:
            return None
        tokens = frequent_tokens(answer_counts, self.options.head_size(), self.architecture.eos_token_ids)
        config = json.loads((self.path / "config.json").read_text())
        export_reduced(student, config, tokens, self.options.out / REDUCED)
        share = coverage(answer_counts, tokens)
        self.watcher.note("reduced head", tokens=len(tokens), coverage=round(share, 4))
        return tokens

    def _judge(
        self,
        teacher: Teacher,
        student: Llama,
        prompts: list[ReportPrompt],
        reduced: torch.Tensor | None,
        engines: ExitStack,
    ) -> Verdict:
        longest = max(len(prompt.token_ids) for prompt in prompts)
        room = min(longest + _ANSWER_ROOM, self.architecture.max_position_embeddings)
        draft_config = {"model": str(self.options.out), "proposer": "draft"}  # what it is worth by itself

        def drafting(k: int) -> LLM:
            speculation = draft_config | {"num_speculative_tokens": k}
            return self._engine(max_num_seqs=1, max_model_len=room, speculative_config=speculation)

        plain = engines.enter_context(self._engine(max_num_seqs=16, max_model_len=room))
        return judge(
            teacher, student, plain, drafting, prompts, answer_room=_ANSWER_ROOM, seed=self.options.seed,
            draft_vocab=reduced, watcher=self.watcher,
        )  # fmt: skip


def _hugging_face_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True)
