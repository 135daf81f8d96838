"""tune: load a pair, measure what steps cost, draft over the user's prompts with the largest K, weigh the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.arguments import resolve_arguments
from paceline.build import assemble_engine
from paceline.config import ModelConfig
from paceline.engine.cost_cache import step_costs
from paceline.engine.engine import Engine
from paceline.engine.step_costs import StepCosts
from paceline.errors import ConfigurationError, InvalidRequestError, PacelineError
from paceline.hub.cache import paceline_home
from paceline.prompts import tokenize
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, SpeculationCounts
from paceline.tune.schedule import BestK, best_by_batch, ranges

ENOUGH_PASSES = 200  # fewer say little about the deeper places

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`engine`: arguments as LLM() takes them. `prompts`: texts, or token ids."""

    engine: dict[str, Any]
    prompts: list[str | list[int]]
    max_tokens: int = 128
    temperature: float = 0.0
    raw: bool = False  # texts as they stand, without the chat template


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was found. survival[j-1]: share of the passes with drafts whose first j drafts were all kept."""

    model: str
    draft: str | None  # None: n-gram
    most: int
    survival: list[float]
    num_passes: int  # that had drafts
    best: list[BestK]  # of every batch size from 1 on
    drafting: float = 1.0  # share of all passes that had drafts
    given: dict[str, Any] = field(default_factory=dict)  # the user's speculative_config: what was measured was with it
    vllm_draft: str | None = None  # what vLLM finds it by
    lookup: dict[str, int] = field(default_factory=dict)  # of an n-gram; vLLM's defaults are others
    notes: list[str] = field(default_factory=list)

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        return ranges(self.best)

    @property
    def largest_k(self) -> int:
        return max(entry.k for entry in self.best)

    def paceline_config(self) -> dict[str, Any]:
        """A `speculative_config`: K up to the largest that pays anywhere, chosen by load and acceptance."""
        own = {"num_speculative_tokens": max(1, self.largest_k), "adaptive": True}
        return {**self.given, **self._proposer(), **own}

    def vllm_config(self) -> dict[str, Any]:
        """vLLM's `speculative_config` with its schedule by batch size: [first, last, K]."""
        if self.draft is None:
            proposer: dict[str, Any] = {"method": "ngram", **self.lookup}
        else:
            proposer = {"method": "draft_model", "model": self.vllm_draft or self.draft}
        schedule = [list(entry) for entry in self.ranges]
        return {
            **proposer,
            "num_speculative_tokens": max(1, self.largest_k),
            "num_speculative_tokens_per_batch_size": schedule,
        }

    def _proposer(self) -> dict[str, Any]:
        return {"method": "ngram"} if self.draft is None else {"model": self.draft}


def tune(options: Options, say: Say) -> Tuning:
    """Raises ConfigurationError if there is nothing that drafts."""
    resolved = resolve_arguments(options.engine)
    config, tokenizer = resolved.config, resolved.tokenizer
    if config.speculative is None:
        raise ConfigurationError(
            "Nothing drafts, so there is no K to choose: give --speculative-model <a small model of the same family>, "
            "or 'ngram'."
        )
    if not config.speculative.is_lossless:
        raise ConfigurationError("tune measures what drafts are worth; synthetic acceptance says nothing about that.")
    # The largest K throughout, of the draft model alone: what a text brings is not a matter of K.
    alone = replace(config.speculative, adaptive=False, proposer="draft" if config.draft else "auto")
    config = replace(config, speculative=alone)
    # Before what takes minutes: a prompt may be none, a temperature impossible.
    params = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, detokenize=False)
    prompts = [_tokens(prompt, tokenizer, options) for prompt in options.prompts]
    say(f"Loading {config.model.name}" + (f" and {config.draft.name}" if config.draft else ""))
    engine = assemble_engine(config, tokenizer)
    try:
        say("Measuring what steps cost")
        costs = step_costs(config, engine.executor, paceline_home() / "costs", fresh=True)
        say(f"Drafting over {len(options.prompts)} prompts")
        counts, positions = _draft(engine, prompts, params)
        passes = sum(engine.stats().passes_by_num_drafts) - len(prompts)  # the prompt's own pass never drafts
    finally:
        engine.shutdown()
    found = weigh(
        costs,
        counts,
        model=config.model.name,
        draft=config.draft.name if config.draft else None,
        most=config.num_speculative_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        budget=config.scheduler.max_num_batched_tokens,
        positions=positions,
        num_passes=None if config.draft else passes,  # a draft model drafts always, but for the end of an answer
    )
    given = options.engine.get("speculative_config")
    lookup = {"prompt_lookup_max": alone.prompt_lookup_max, "prompt_lookup_min": alone.prompt_lookup_min}
    return replace(
        found,
        given=dict(given) if isinstance(given, Mapping) else {},
        vllm_draft=_for_vllm(config.draft) if config.draft else None,
        lookup={} if config.draft else lookup,
    )


def _for_vllm(draft: ModelConfig) -> str:
    """A repo id of a hub as it is; for what only we know by that name, or only from this folder, where it lies."""
    is_repo_id = draft.name.count("/") == 1 and not draft.name.startswith(".") and not Path(draft.name).exists()
    return draft.name if is_repo_id else str(draft.path.resolve())


def weigh(
    costs: StepCosts, counts: SpeculationCounts, *, model: str, draft: str | None, most: int, max_num_seqs: int,
    budget: int, positions: float, num_passes: int | None = None,
) -> Tuning:  # fmt: skip
    """The choice, from what was measured. `num_passes`: with drafts or without; None: all had some."""
    if not counts.num_drafts:
        raise PacelineError("No token was drafted over these prompts; give more of them, or longer answers.")
    kept = counts.num_accepted_tokens_per_pos
    survival = [count / counts.num_drafts for count in kept] + [0.0] * (most - len(kept))
    drafting = min(1.0, counts.num_drafts / num_passes) if num_passes else 1.0
    best = best_by_batch(
        costs, survival, range(1, max_num_seqs + 1), positions=positions, budget=budget, drafting=drafting
    )
    notes = []
    if counts.num_drafts < ENOUGH_PASSES:
        notes.append(f"Only {counts.num_drafts} passes were drafted: give more prompts for figures that hold.")
    if max(entry.k for entry in best) == most:
        more = f"try --num-speculative-tokens {most + 3}"
        notes.append(f"K={most}, the largest that was tried, is the best somewhere: {more}.")
    if not any(entry.k for entry in best):
        notes.append("Drafting pays at no batch size here. Serve without speculation, or with another draft.")
    return Tuning(
        model=model, draft=draft, most=most, survival=survival, num_passes=counts.num_drafts, best=best, notes=notes,
        drafting=drafting,
    )  # fmt: skip


def _tokens(prompt: str | list[int], tokenizer: Any, options: Options) -> list[int]:
    if isinstance(prompt, str) and not options.raw and tokenizer is not None and tokenizer.has_chat_template:
        ids: list[int] = tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
        return ids
    return tokenize(prompt, tokenizer).token_ids


def _draft(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> tuple[SpeculationCounts, float]:
    """The counts, and the positions that a row had on average."""
    for number, ids in enumerate(prompts):
        try:
            engine.add_request(EngineRequest(request_id=str(number), prompt_token_ids=ids, sampling_params=params))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"Prompt {number + 1}: {error}", param=error.param) from error
    lengths = {str(number): len(ids) for number, ids in enumerate(prompts)}
    emitted = dict.fromkeys(lengths, 0)
    while engine.has_unfinished():
        for delta in engine.step():
            emitted[delta.request_id] += len(delta.token_ids)
            if delta.error is not None:
                raise PacelineError(f"A prompt failed: {delta.error}")
    positions = sum(lengths[name] + emitted[name] / 2 for name in lengths) / len(lengths)
    return engine.stats().speculation, positions
