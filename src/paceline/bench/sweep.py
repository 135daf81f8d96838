"""What `paceline bench offline` measures, and the engines that it takes.

One engine serves every batch and, as K can be changed between runs, every K: loading 70 GB is what takes time. Only
a synthetic acceptance *length* asks for another engine a K, since its rates depend on K.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.arguments import resolve_arguments
from paceline.arguments.fields import SpeculativeArguments
from paceline.arguments.resolve import MAX_NUM_BATCHED_TOKENS
from paceline.bench.acceptance import SyntheticAcceptance
from paceline.bench.bounds import Bounds
from paceline.bench.measure import Workload
from paceline.bench.shapes import Located, locate_model, said_of
from paceline.config import EngineConfig
from paceline.errors import ConfigurationError

_DEFAULT_MOST = SpeculativeArguments().num_speculative_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    batches: tuple[int, ...] = (1,)
    ks: tuple[int, ...] = (0,)
    without_draft: bool = False  # K=0 once more, by an engine that has loaded no draft (p34)
    adaptive: bool = False  # and K chosen for each step, up to `most`
    input_len: int = 128
    output_len: int = 256
    repeats: int = 1
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = [
            *(("--batch", Bounds(1, 65_536, "sequences"), batch) for batch in self.batches),
            *(("-k", Bounds(0, 1024, "drafts a step"), k) for k in self.ks),
            ("--input-len", Bounds(1, 1e7, "tokens"), self.input_len),
            ("--output-len", Bounds(2, 1e7, "tokens"), self.output_len),
            ("--repeats", Bounds(1, 1e4), self.repeats),
            ("--temperature", Bounds(0, 100), self.temperature),
            ("--seed", Bounds(-(2**63), 2**63), self.seed),
        ]
        problems = [problem for name, bounds, value in numbers if (problem := bounds.problem(name, value))]
        if problems:
            raise ConfigurationError(" ".join(problems))

    @property
    def most(self) -> int:
        """The largest K: of those given, or a server's default where only an adaptive one is."""
        return max(self.ks) or (_DEFAULT_MOST if self.adaptive else 0)

    def place(self, k: int, *, adaptive: bool = False) -> int:
        """Of K in the order that the user gave; the adaptive one comes last."""
        if adaptive:
            return len(self.ks)
        return self.ks.index(k) if k in self.ks else -1

    @property
    def mean_positions(self) -> float:
        """That a row sees, over its decode steps."""
        return self.input_len + self.output_len / 2

    def workload(self, batch: int, output_len: int | None = None) -> Workload:
        return Workload(
            batch=batch,
            input_len=self.input_len,
            output_len=min(output_len or self.output_len, self.output_len),
            temperature=self.temperature,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What runs: names as `locate_model` takes them, and arguments as LLM() takes them."""

    model: str
    draft: str | None = None  # or 'ngram'
    load_format: str | None = None  # None: dummy where a model has no weights
    engine: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)  # in speculative_config, for the draft alone
    acceptance: SyntheticAcceptance | None = None


@dataclass(frozen=True, slots=True)
class EnginePlan:
    config: EngineConfig
    ks: tuple[int, ...]  # that it measures
    has_draft: bool
    most: int = 0  # drafts of a step that the engine is made for
    adaptive: bool = False  # K chosen for each step as well


def plan_engines(models: Models, sweep: Sweep, folder: Path) -> tuple[list[EnginePlan], list[str]]:
    """The engines to build, and what the user should know. `folder` holds the shapes' files as long as they are used.

    Raises ConfigurationError with every problem.
    """
    largest = sweep.most
    if largest and models.draft is None:
        asked = largest if max(sweep.ks) else "adaptive"
        raise ConfigurationError(f"-k {asked} needs something that drafts: give --draft SHAPE, a path, or 'ngram'.")
    if models.acceptance is not None and not largest:
        raise ConfigurationError("Synthetic acceptance needs drafts: give -k above 0 and --draft.")
    if sweep.adaptive and models.acceptance is not None and models.acceptance.depends_on_k:
        raise ConfigurationError(
            "-k adaptive cannot be measured with --synthetic-acceptance-length, whose rates are made for one K. Give "
            "--synthetic-acceptance instead."
        )
    target = locate_model(models.model, folder / "target")
    draft = None
    if models.draft is not None and models.draft != "ngram":
        draft = locate_model(models.draft, folder / "draft")
    plans, notes = [], []
    for ks in _groups(sweep.ks, models.acceptance):
        most = sweep.most if sweep.adaptive else max(ks)
        try:
            resolved = resolve_arguments(_arguments(models, sweep, target, draft, most))
        except ConfigurationError as error:
            error = said_of(error, target.model, models.model)
            raise (said_of(error, draft.model, models.draft or "") if draft else error) from None
        config = _named(resolved.config, target, draft)
        plans.append(EnginePlan(config, ks, has_draft=most > 0, most=most, adaptive=sweep.adaptive))
        notes += [note for note in resolved.notes if note not in notes]
    if sweep.without_draft and largest:
        plans.insert(0, EnginePlan(replace(plans[0].config, speculative=None), (0,), has_draft=False))
    if models.acceptance is not None:
        notes += [note for k in sweep.ks if k and (note := models.acceptance.note(k))]
    if largest and models.acceptance is None and plans[-1].config.model.load_format == "dummy":
        notes.append(
            "With random weights drafts are taken by chance alone: what K above 0 shows is its cost. Give "
            "--synthetic-acceptance to see a gain."
        )
    if models.draft is not None and not largest:
        notes.append("With -k 0 alone the draft is not loaded.")
    return plans, notes


def _named(config: EngineConfig, target: Located, draft: Located | None) -> EngineConfig:
    """With the names that the user wrote, instead of the directories that shapes were written to."""
    speculative = config.speculative
    if speculative is not None and speculative.draft is not None and draft is not None:
        speculative = replace(speculative, draft=replace(speculative.draft, name=draft.name))
    return replace(config, model=replace(config.model, name=target.name), speculative=speculative)


def _groups(ks: tuple[int, ...], acceptance: SyntheticAcceptance | None) -> list[tuple[int, ...]]:
    """Ks that can share an engine. K=0 goes with the first."""
    drafting = [k for k in ks if k]
    if acceptance is None or not acceptance.depends_on_k or len(drafting) < 2:
        return [ks]
    first, *others = drafting
    return [tuple(k for k in ks if k in (0, first)), *((k,) for k in others)]


def _arguments(models: Models, sweep: Sweep, target: Located, draft: Located | None, k: int) -> dict[str, Any]:
    batch = max(sweep.batches)
    dummy = not all(located.has_weights for located in (target, draft) if located)
    arguments = {
        "model": target.model,
        "skip_tokenizer_init": True,
        "load_format": models.load_format or ("dummy" if dummy else "auto"),
        "max_model_len": sweep.input_len + sweep.output_len,
        "max_num_seqs": batch,
        "enable_prefix_caching": False,
        **models.engine,
    }
    everyone = batch * (k + 1)  # tokens of a step in which every row has all its drafts
    if "max_num_batched_tokens" not in arguments and everyone > min(MAX_NUM_BATCHED_TOKENS.values()):
        arguments["max_num_batched_tokens"] = max(everyone, *MAX_NUM_BATCHED_TOKENS.values())
    if k:
        arguments["speculative_config"] = _speculative_config(models, draft, k, adaptive=sweep.adaptive)
    return arguments


def _speculative_config(models: Models, draft: Located | None, k: int, *, adaptive: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"num_speculative_tokens": k, "adaptive": adaptive, **models.speculative}
    found |= {"method": "ngram"} if draft is None else {"model": draft.model}
    if models.acceptance is not None:
        found["rejection_sample_method"] = "synthetic"
        found["synthetic_acceptance_rates"] = models.acceptance.cumulative_rates(k)
    return found
