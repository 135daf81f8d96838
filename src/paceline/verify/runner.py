"""`verify`: loads each engine once, asks it everything, and puts the report together.

The engine without speculation comes first: it gives the greedy texts to compare with. Then each mode's engine
samples for the law, answers greedily, and repeats itself in other company; what looks odd is sampled anew while it
is still loaded.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.config import EngineConfig
from paceline.errors import ConfigurationError, InvalidRequestError, PacelineError
from paceline.llm import LLM
from paceline.sequence import SpeculationCounts
from paceline.verify import cases, determinism, parity, prompts
from paceline.verify.cases import Mode, Prompt, Setting
from paceline.verify.diagnosis import Diagnosis, in_words
from paceline.verify.law_check import ALPHA, CONFIRMATION_FACTOR, POWER, SCREENING, Case, LawCheck, Place
from paceline.verify.oracle import EngineOracle, Oracle, Remembering, TransformersOracle
from paceline.verify.precision import PRECISIONS, Precision
from paceline.verify.progress import Progress, Silent
from paceline.verify.report import DeterminismTest, Difference, LawTest, ModeSummary, ParityTest, Report
from paceline.verify.sampling import Answers, Request, answer, seeds, shuffled

MakeLLM = Callable[..., LLM]
_MAX_NUM_BATCHED_TOKENS = 2048
_NUM_LAW_PROMPTS = 4
_NUM_PARITY_PROMPTS = 16
_MAX_CONTROLS = 3
PARTS = ("law", "parity", "seeds")
_SEEDED = {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Options:
    """engine: arguments of LLM, less those of speculation. prompts: text or token ids; None: our own.

    samples: answers of each case; the error that can be found falls with their square root.
    adaptive: K is chosen by load and acceptance, up to each of `numbers`.
    oracle: transformers or engine; None: transformers, or of a target that runs in FP8 the engine.
    """

    model: str
    draft: str | None  # None: n-gram alone
    numbers: tuple[int, ...] = (1, 3)  # values of K
    engine: dict[str, Any] = field(default_factory=dict)
    prompts: Sequence[str | list[int]] | None = None
    samples: int = 96
    parity_tokens: int = 20
    seed: int = 0
    quick: bool = False
    adaptive: bool = False
    methods: tuple[str, ...] = cases.METHODS
    oracle: str | None = None
    parts: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        if not self.numbers or any(k < 1 for k in self.numbers):
            raise ConfigurationError(
                "num_speculative_tokens must be 1 or more: without drafts there is nothing to verify."
            )
        if self.samples < 32:
            raise ConfigurationError(f"--samples {self.samples} proves nothing; give at least 32.")
        if not self.methods or not set(self.methods) <= set(cases.METHODS):
            raise ConfigurationError(
                f"--acceptance takes {' and '.join(cases.METHODS)}, not {', '.join(self.methods)}."
            )
        if not self.parts or not set(self.parts) <= set(PARTS):
            raise ConfigurationError(f"--only takes {', '.join(PARTS)}; not {', '.join(self.parts) or 'nothing'}.")
        if self.oracle not in (None, "transformers", "engine"):
            raise ConfigurationError(f"--oracle is transformers or engine, not '{self.oracle}'.")


def verify(options: Options, *, make_llm: MakeLLM = LLM, progress: Progress | None = None) -> Report:
    """Raises PacelineError where the engine cannot be built or fails; a law that is wrong is a report."""
    return _Run(options, make_llm, progress or Silent()).report()


class _Run:
    def __init__(self, options: Options, make_llm: MakeLLM, progress: Progress) -> None:
        self.options = options
        self.make_llm = make_llm
        self.progress = progress
        numbers = sorted(set(options.numbers))
        self.modes = cases.modes(
            options.draft, numbers, options.methods, quick=options.quick, adaptive=options.adaptive
        )
        self.places: list[Place] = []
        self.fresh: list[Place] = []
        self.summaries: list[ModeSummary] = []
        self.parity: list[ParityTest] = []
        self.determinism: list[DeterminismTest] = []
        self.not_tested: list[str] = []
        self.draft_path: Path | None = None
        self.has_either = False  # a draft model that an n-gram can stand beside

    def report(self) -> Report:
        self._prepare()
        for mode in self.modes:
            if mode.either and not self.has_either:
                self.not_tested.append("draft or n-gram in one step: on a GPU the draft model drafts alone")
                continue
            with self._open(mode) as llm:
                speculative = llm.config.speculative
                self.has_either |= speculative is not None and speculative.ngram_beside_draft
                self.draft_path = llm.config.draft.path if llm.config.draft else self.draft_path
                for part, ask in (("law", self._sample), ("parity", self._compare), ("seeds", self._repeat)):
                    if part in self.options.parts:
                        ask(mode, llm)
        law = self.check.judge(self.places, self.fresh, self._text)
        if law and not any(test.place > 0 and test.detectable is not None for test in law):
            raise PacelineError(
                "No drafted place had enough answers behind one prefix to be tested, so there is nothing to say. Give "
                f"more than --samples {self.options.samples}, or prompts whose next words are less open."
            )
        return Report(
            about=self.about,
            level={"alpha": ALPHA, "screening": SCREENING, "power": POWER},
            modes=self.summaries,
            law=law,
            parity=self.parity,
            determinism=self.determinism,
            findings=self._findings(law),
            not_tested=[*self.not_tested, *self._gaps(law)],
        )

    # -- the parts ------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Everything that the engine without speculation and the oracle give."""
        self.progress.stage("without speculation", 1)
        with self._open(None) as llm:
            config = llm.config
            self.tokenizer = None if self.options.engine.get("skip_tokenizer_init") else llm.get_tokenizer()
            self.ends = config.model.eos_token_ids
            self.is_fp8 = _is_fp8(llm)
            self.precision: Precision = PRECISIONS["fp8" if self.is_fp8 else config.model.dtype]
            ids = self._prompt_ids(config.cache.block_size)
            self.parity_prompts = ids[:_NUM_PARITY_PROMPTS]
            wanted = cases.parity_settings(self.ends) if "parity" in self.options.parts else []
            self.plain = {setting.name: self._greedy(llm, setting) for setting in wanted}
            self.path, self.vocab_size = config.model.path, config.model.vocab_size
            self.about = self._about(config)
        self.progress.advance(1)
        self.oracle = self._oracle()
        self.about["oracle"] = self.oracle.name
        self.prompts = self._law_prompts(ids)
        self.settings = cases.settings(
            self.prompts,
            self.ends,
            absolute=self.oracle.absolute,
            repeating=prompts.most_repeating(self.prompts, self.oracle),
        )
        self.check = LawCheck(self.oracle, self.prompts, self.ends, self.precision)
        if self.precision.texts == 1.0:
            self.not_tested.append("seeded texts in other company: FP8 rounds by the shape of the batch")

    def _sample(self, mode: Mode, llm: LLM) -> None:
        wanted = [Case(mode, setting) for setting in self.settings]
        self._warm_up(mode, llm)
        first = self._draw(llm, mode, wanted, self.options.samples, "first")
        self.summaries.append(_summary(mode, first.answers))
        places = [place for case in wanted for place in self.check.measure(case, first.of[case])]
        self.places += places
        odd = {place.case for place in places if place.suspicious}
        if not odd:
            return
        again = [case for case in wanted if case in odd]
        fresh = self._draw(llm, mode, again, self.options.samples * CONFIRMATION_FACTOR, "fresh")
        self.fresh += [place for case in again for place in self.check.measure(case, fresh.of[case])]

    def _compare(self, mode: Mode, llm: LLM) -> None:
        for setting in cases.parity_settings(self.ends):
            found = self._greedy(llm, setting)
            self.parity.append(
                parity.compare(
                    mode.name, setting, self.parity_prompts, self.plain[setting.name], found,
                    self.oracle, self.ends, self.precision, self._text,
                )
            )  # fmt: skip

    def _repeat(self, mode: Mode, llm: LLM) -> None:
        tokens = min(8, self.options.parity_tokens)
        self.progress.stage(f"{mode.name}: seeds", 1)
        numbers = seeds(2 * len(self.prompts), f"{self.options.seed}/{mode.name}/seeds")
        requests = [
            Request(prompt.token_ids, _SEEDED, seed, tokens)
            for prompt, seed in zip(self.prompts, numbers, strict=False)
        ]
        strangers = [
            Request(prompt.token_ids[1:] or prompt.token_ids, {**_SEEDED, "temperature": 1.3}, seed, tokens + 2)
            for prompt, seed in zip(self.prompts, numbers[len(self.prompts) :], strict=True)
        ]
        self.determinism += determinism.check(
            mode.name, requests, strangers, lambda wanted: answer(llm, wanted).token_ids, self.precision.texts
        )
        self.progress.advance(1)

    # -- how ------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, mode: Mode | None, **more: Any) -> Iterator[LLM]:
        arguments = {
            "dtype": "bfloat16" if self.options.engine.get("quantization") else "float32",
            "max_num_batched_tokens": _MAX_NUM_BATCHED_TOKENS,
            **self.options.engine,
            **more,
        }
        batch = mode.batch if mode else 64
        arguments["max_num_seqs"] = min(batch, self.options.engine.get("max_num_seqs") or batch)
        if mode is not None:
            arguments["speculative_config"] = mode.speculative_config()
        with self.make_llm(self.options.model, **arguments) as llm:
            if mode is not None and mode.adaptive:
                llm.let_k_move()
            yield llm

    def _prompt_ids(self, block_size: int) -> list[list[int]]:
        given: Sequence[str | list[int]] = self.options.prompts or [*cases.PROMPTS, *cases.PARITY_TEXTS]
        self.block_size = block_size
        return [self._ids(prompt, number) for number, prompt in enumerate(given, 1)]

    def _ids(self, prompt: str | list[int], number: int) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidRequestError(f"prompt {number} is text, and there is no tokenizer.", param="prompt")
            prompt = self.tokenizer.encode(prompt)
        if not prompt:
            raise InvalidRequestError(f"prompt {number} is empty.", param="prompt")
        return prompt

    def _law_prompts(self, ids: Sequence[Sequence[int]]) -> list[Prompt]:
        if len(ids) > _NUM_PARITY_PROMPTS:
            self.not_tested.append(f"prompts {_NUM_PARITY_PROMPTS + 1} to {len(ids)}: the first ones were taken")
        if self.options.prompts is not None and len(ids) > _NUM_LAW_PROMPTS:
            self.not_tested.append(f"the law on prompts {_NUM_LAW_PROMPTS + 1} and later; parity has them")
        return [prompts.cut(prompt, self.oracle, self.block_size) for prompt in ids[:_NUM_LAW_PROMPTS]]

    def _oracle(self) -> Oracle:
        if self.is_fp8 and self.options.oracle == "transformers":
            raise ConfigurationError(
                "--oracle transformers computes the law of the weights before they were quantised, which is not this "
                "FP8 target's. Leave --oracle out: Paceline without speculation then says what the law is."
            )
        if not self.is_fp8 and self.options.oracle != "engine":
            return Remembering(TransformersOracle(self.path, self.vocab_size))
        self.not_tested.append("repetition_penalty: this oracle gives log-probabilities, which do not tell its law")
        open_plain = partial(self._open, None, max_logprobs=-1, skip_tokenizer_init=True)
        return Remembering(EngineOracle(open_plain, self.vocab_size))

    def _about(self, config: EngineConfig) -> dict[str, str]:
        return {
            "target": self.options.model,
            "draft": self.options.draft or "n-gram",
            "dtype": config.model.dtype + (" with FP8" if self.is_fp8 else ""),
            "device": config.device,
            "seed": str(self.options.seed),
            "answers of each case": str(self.options.samples),
            "paceline": __version__,
            "python": platform.python_version(),
        }

    def _text(self, token: int) -> str | None:
        return self.tokenizer.decode([token], skip_special_tokens=False) if self.tokenizer else None

    def _warm_up(self, mode: Mode | None, llm: LLM) -> None:
        """Fill the prefix cache of both models, so that answers cost only their own tokens."""
        tokens = mode.num_places if mode else 1
        answer(llm, [Request(prompt.token_ids, {"temperature": 0.0}, None, tokens) for prompt in self.prompts])

    def _draw(self, llm: LLM, mode: Mode, wanted: Sequence[Case], samples: int, stage: str) -> _Drawn:
        """`samples` answers of every case, all cases mixed in the same steps."""
        requests, owners = [], []
        for case in wanted:
            prompt = self.prompts[case.setting.prompt].token_ids
            tokens = max(mode.num_places, case.setting.params.get("min_tokens", 0))
            for seed in seeds(samples, f"{self.options.seed}/{stage}/{mode.name}/{case.setting.name}"):
                requests.append(Request(prompt, case.setting.params, seed if mode.brings_seeds else None, tokens))
                owners.append(case)
        mixed, place = shuffled(requests, f"{self.options.seed}/{stage}/{mode.name}")
        self.progress.stage(f"{mode.name}: {'law' if stage == 'first' else f'law, {stage} answers'}", len(mixed))
        answers = answer(llm, mixed, self.progress.advance, mode.batch)
        of: dict[Case, list[list[int]]] = {case: [] for case in wanted}
        for owner, now in zip(owners, place, strict=True):
            of[owner].append(answers.token_ids[now])
        return _Drawn(answers, of)

    def _greedy(self, llm: LLM, setting: Setting) -> list[list[int]]:
        requests = [Request(prompt, setting.params, None, self.options.parity_tokens) for prompt in self.parity_prompts]
        return answer(llm, requests).token_ids

    # -- what is said ---------------------------------------------------------------------------------

    def _findings(self, law: Sequence[LawTest]) -> list[str]:
        failed = [place for place, test in zip(self.places, law, strict=True) if test.verdict == "fail"]
        said = self._explained(failed)
        for parity_test in self.parity:
            said += [_parity_in_words(d) for d in parity_test.differences if d.kind == "fault"]
        for test in self.determinism:
            if test.verdict == "fail":
                said.append(
                    f"{test.mode}; {test.company}: requests {test.changed} gave another text with the same seed."
                )
        return said

    def _explained(self, failed: Sequence[Place]) -> list[str]:
        if not failed:
            return []
        fresh = {(place.case, place.place): place for place in self.fresh}
        draft = None
        if self.draft_path is not None:
            draft = Remembering(TransformersOracle(self.draft_path, self.vocab_size))
        diagnosis = Diagnosis(self.oracle, draft, self.prompts, self.ends)
        shown = [fresh.get((place.case, place.place), place) for place in failed]
        return [in_words(place, diagnosis.explain(place)) for place in shown] + self._controls(failed)

    def _controls(self, failed: Sequence[Place]) -> list[str]:
        """The failed settings once more without speculation: is it speculation that fails?"""
        chosen = list({place.case.setting.name: place.case.setting for place in failed}.values())[:_MAX_CONTROLS]
        with self._open(None) as llm:
            control = Mode(None, 0, "no speculation")
            self._warm_up(None, llm)
            wanted = [Case(control, setting) for setting in chosen]
            drawn = self._draw(llm, control, wanted, self.options.samples * CONFIRMATION_FACTOR, "control")
        bad = [
            case.setting.name
            for case in wanted
            for place in self.check.measure(case, drawn.of[case])
            if place.fit.p_value < ALPHA
        ]
        right = [setting.name for setting in chosen if setting.name not in bad]
        said = [f"Without speculation the first token has the right law with: {'; '.join(right)}."] if right else []
        if bad:
            said.append(
                f"Without speculation the first token has a wrong law too with: {'; '.join(bad)}. Look at the target's "
                "sampling (or at the model as it is loaded) before speculation."
            )
        return said

    def _gaps(self, law: Sequence[LawTest]) -> list[str]:
        said = [f"{part}: left out with --only" for part in PARTS if part not in self.options.parts]
        for mode in self.summaries:
            if mode.missing_kinds:
                said.append(f"{mode.mode}: no {' and no '.join(mode.missing_kinds)} token ever came")
        blind = [test for test in law if test.detectable is None]
        for name in dict.fromkeys(test.mode for test in blind):
            places = Counter(test.place for test in blind if test.mode == name)
            counted = ", ".join(f"place {place} of {count}" for place, count in sorted(places.items()))
            said.append(
                f"{name}: too few answers behind one prefix, or only one token possible, at {counted} of "
                f"{len(self.settings)} settings (more --samples reach more; the report's table has them all)"
            )
        said.append("tokens behind place K + 1, stop strings, structured output, logprobs and the HTTP API (see --url)")
        return said


@dataclass(frozen=True, slots=True)
class _Drawn:
    answers: Answers
    of: dict[Case, list[list[int]]]


def _summary(mode: Mode, answers: Answers) -> ModeSummary:
    counts = answers.counts
    return ModeSummary(
        mode=mode.name,
        num_answers=len(answers.token_ids),
        num_drafts=counts.num_drafts,
        num_draft_tokens=counts.num_draft_tokens,
        num_accepted=counts.num_accepted_tokens,
        num_bonus=_kept_all(mode, counts),
        acceptance_rate=counts.acceptance_rate,
    )


def _kept_all(mode: Mode, counts: SpeculationCounts) -> int:
    """Answers of K + 2 tokens draft K only once, behind their first; the last of those is kept if all are."""
    by_place = counts.num_accepted_tokens_per_pos
    k = mode.num_speculative_tokens
    return by_place[k - 1] if 0 < k <= len(by_place) else 0


def _parity_in_words(difference: Difference) -> str:
    return (
        f"{difference.mode}; {difference.setting}; prompt {difference.prompt}, token {difference.place}: with "
        f"speculation {difference.speculative_token} {difference.speculative_text!r} (logit "
        f"{difference.speculative_logit}), without {difference.plain_token} {difference.plain_text!r} (logit "
        f"{difference.plain_logit}). The logits are further apart than {difference.tolerance}: a fault, no near-tie."
    )


def _is_fp8(llm: LLM) -> bool:
    """Does the target compute or keep its cache in FP8 on this machine, whatever its checkpoint holds?"""
    table = llm.describe()
    return "fp8" in table.get("target quantization", "") or "float8" in table.get("KV cache dtype", "")
