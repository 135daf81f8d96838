"""Request and Sequence: what is asked, and one answer in the making.

A request (API) is one prompt with its sampling parameters; it becomes n sequences (engine).
A sequence's committed tokens are its prompt and its output. Two watermarks say how many of their
positions have valid KV: `num_computed_tokens` in the target's pool, `num_draft_computed_tokens` in the
draft's. The scheduler owns both; nothing else writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import msgspec

from paceline.plan import SamplingPlan, TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.text_stream import TextStream


class FinishReason(StrEnum):
    STOP = "stop"  # EOS, a stop token or a stop string
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"
    ERROR = "error"


class ProposerCounts(msgspec.Struct):
    """Counters as in SpeculationCounts, of the drafts of one proposer."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def add(self, other: ProposerCounts, sign: int = 1) -> None:
        self.num_drafts += sign * other.num_drafts
        self.num_draft_tokens += sign * other.num_draft_tokens
        self.num_accepted_tokens += sign * other.num_accepted_tokens

    def subtract(self, other: ProposerCounts) -> None:
        self.add(other, -1)


class SpeculationCounts(msgspec.Struct):
    """Counters of one sequence, or of a sum of them. One draft = one target pass with at least one draft token.

    Tokens cut off by EOS, a stop or max_tokens are not counted as accepted. `num_passes`: all target passes that were
    to emit, with drafts or without, the prompt's last one among them; of sequences (EngineStats has the engine's).
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []
    synthetic: bool = False  # drafts were kept at given rates: the text is not the target's
    ngram: ProposerCounts = msgspec.field(default_factory=lambda: ProposerCounts())  # of these, looked up in the text
    num_passes: int = 0

    def record(self, num_drafted: int, num_accepted: int, *, by_text: bool = False) -> None:
        if num_drafted == 0:
            return
        if by_text:
            self.ngram.add(ProposerCounts(1, num_drafted, num_accepted))
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        missing = num_drafted - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1

    def add(self, other: SpeculationCounts) -> None:
        self.synthetic |= other.synthetic
        self.ngram.add(other.ngram)
        self.num_passes += other.num_passes
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        missing = len(other.num_accepted_tokens_per_pos) - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for position, count in enumerate(other.num_accepted_tokens_per_pos):
            self.num_accepted_tokens_per_pos[position] += count

    @property
    def by_proposer(self) -> dict[str, ProposerCounts]:
        """ "draft" and "ngram"; they sum to the whole."""
        made = ProposerCounts(self.num_drafts, self.num_draft_tokens, self.num_accepted_tokens)
        made.subtract(self.ngram)
        return {"draft": made, "ngram": self.ngram}

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per target pass that had drafts: 1 + accepted / drafts; 1.0 before any draft."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def acceptance_histogram(self, num_speculative_tokens: int) -> list[int]:
        """Entry j: the target passes that kept exactly j drafts, j = 0 .. K. They sum to `num_drafts`."""
        missing = num_speculative_tokens - len(self.num_accepted_tokens_per_pos)
        at_least = [self.num_drafts, *self.num_accepted_tokens_per_pos, *[0] * missing, 0]
        return [more - fewer for more, fewer in pairwise(at_least)]


class EngineRequest(msgspec.Struct, kw_only=True):
    """One prompt as the engine takes it, already in token ids."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float = 0.0
    priority: int = 0  # lower is served earlier
    cache_salt: str = ""  # the prefix cache is shared among requests of one salt alone
    wants_steps: bool = False  # a delta is one step, also where the reader is behind


class Refusal(msgspec.Struct, frozen=True):
    """A request was found to be wrong after it had been taken: an InvalidRequestError; `error` is its message."""

    param: str | None = None
    code: str | None = None


class SequenceDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one step added to one sequence: the engine's output.

    token_ids[:num_accepted] are accepted drafts; what follows is the recovered token, the bonus token where all
    `num_drafted` drafts were accepted, or a plain token where nothing was drafted.
    `text` is what these tokens added to the visible text; it may lag behind the tokens while a
    character or a stop string is still open, and is complete with the delta that carries a finish_reason.
    """

    request_id: str
    index: int  # 0..n-1
    token_ids: list[int] = []
    text: str = ""
    num_accepted: int = 0
    num_drafted: int = 0  # proposed in this step
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None  # with the first tokens: of every prompt token but the first
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token or string that ended it; None for EOS
    error: str | None = None
    refusal: Refusal | None = None  # the error is the request's own
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    queue_seconds: float | None = None  # with the first tokens: from the request's arrival to its first step
    speculation: SpeculationCounts | None = None  # with the finish_reason


class SequenceStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    seq_id: int
    request_id: str
    index: int
    prompt_token_ids: list[int]
    params: SamplingParams
    sampling: SamplingPlan
    eos_token_ids: frozenset[int]
    max_tokens: int  # resolved: never None, never past max_model_len
    priority: int = 0  # lower leaves the waiting queue earlier
    cache_salt: str = ""  # which part of the prefix cache is this one's
    token_ids: list[int] = field(default_factory=list)  # committed: prompt, then output
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_draft_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prefix-cache hits at the first admission
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_preemptions: int = 0
    queued_at: float = 0.0  # the engine's clock
    queue_seconds: float = 0.0  # until its first row
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of prompt tokens 1, 2, ... as far as scored
    draft_failed: bool = False  # the draft's KV of this sequence went bad: it goes on without drafts
    text: TextStream | None = None  # None: no detokenizer
    grammar: object = None  # the compiled grammar, kept alive for the worker as long as the sequence lives
    grammar_end_token_ids: frozenset[int] = frozenset()  # legal only where the grammar is met: always an end
    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """n: committed tokens."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Prompt tokens are still to be scored. The first one has none: nothing stands before it."""
        wanted = self.num_prompt_tokens - 1 if self.sampling.num_prompt_logprobs is not None else 0
        return len(self.prompt_logprobs) < wanted

    @property
    def has_own_seed(self) -> bool:
        """The user wants this text again. It depends on K where tokens are drawn, so K must not wander."""
        return self.params.seed is not None and not self.params.greedy

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens it may still emit."""
        return self.max_tokens - self.num_output_tokens
