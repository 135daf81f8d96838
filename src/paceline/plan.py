"""StepPlan and StepResult: the only words spoken between the scheduler and the workers.

Contract
- A plan is complete in itself: a worker keeps no state of a sequence between two steps except
  the KV in its pools. (A follower rank that joins late, or a step that is replayed, needs nothing else.)
- There is no prefill step and no decode step. A row lists the committed tokens whose KV is still
  missing, for the target and for the draft, and how many tokens may be drafted behind them.
- `num_draft_tokens > 0` only where the row's chunks reach its last committed token: in the target, and in the draft
  unless the drafts come from the text.

Positions count from 0. A row with n committed tokens that drafts k feeds the target its last
`len(token_ids)` committed tokens and k drafts, at positions start .. n-1+k.
"""

from __future__ import annotations

import msgspec

from paceline.step_forms import StepForms

MAX_SCORED_TOKENS = 256  # prompt tokens scored in one step: each takes a row of logits, of the vocabulary's size


class SamplingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a request's sampling parameters; everything already validated."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    seed: int = 0  # 64 bit, never None: the engine draws one where the user gave none
    num_logprobs: int | None = None  # None: no logprobs; 0: of the emitted token alone
    num_prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()  # masked until min_tokens are out; includes EOS
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be completed
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    grammar: str | None = None  # what the mask provider compiles; None: anything may be said

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def needs_history(self) -> bool:
        """The law depends on which tokens were committed, not on their number alone."""
        return self.has_penalties or bool(self.bad_words) or self.grammar is not None

    @property
    def edits_logits(self) -> bool:
        """Something but temperature, min_p, top_k and top_p shapes the law."""
        return self.needs_history or bool(self.logit_bias) or self.allowed_token_ids is not None or self.min_tokens > 0

    @property
    def takes_likeliest(self) -> bool:
        """No law is computed for it: its tokens are the largest of the model's own logits."""
        return self.greedy and not self.edits_logits

    @property
    def is_plain(self) -> bool:
        """Only temperature, top_p, top_k, min_p and seed matter: what a captured step can do."""
        return not self.edits_logits and self.num_logprobs is None and self.num_prompt_logprobs is None


class RowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence's share of a step.

    seq_id              the sequence
    block_table         its blocks, in order; covers start + len(token_ids) + num_draft_tokens positions
    start               position of token_ids[0] = the target's num_computed_tokens
    token_ids           committed tokens the target computes in this step; never empty
    draft_start         position of draft_chunk[0]
    draft_chunk         committed tokens the draft reads first (empty: the draft rests)
    num_draft_computed_tokens
                        positions below this already hold the draft's KV: they are fed for their
                        hidden state and written to the null block
    num_draft_tokens    K of this row: tokens to propose behind the last committed one
    text_drafts         these tokens, where they were looked up in the row's own text; the draft model then rests.
                        Empty: the proposer finds them
    emits               the chunk reaches the last committed token, so at least one token comes out
    num_output_tokens   tokens emitted before this step (min_tokens counts from there)
    scored_token_ids    prompt tokens behind the first len(scored_token_ids) of token_ids: their log-probabilities
                        are wanted
    history             all committed tokens; only where something reads them: a proposer of text (n-gram), or
                        sampling parameters with `needs_history`
    source              None, or the row follows a step whose result is not known yet, and this is its place there:
                        token_ids and draft_chunk are empty, `start` is the least it can be, and the worker takes the
                        row's last tokens and its length from that step's outcome
    draft_limit         committed tokens and drafts together end here at the latest; with `source` the worker lowers
                        num_draft_tokens to it, else the scheduler has done so
    """

    seq_id: int
    block_table: list[int]
    start: int
    token_ids: list[int]
    draft_start: int = 0
    draft_chunk: list[int] = []
    num_draft_computed_tokens: int = 0
    num_draft_tokens: int = 0
    text_drafts: list[int] = []
    emits: bool = True
    num_output_tokens: int = 0
    scored_token_ids: list[int] = []
    history: list[int] | None = None
    source: int | None = None
    draft_limit: int = 0
    sampling: SamplingPlan = SamplingPlan()

    @property
    def num_committed_tokens(self) -> int:
        """Committed tokens once the chunk is in; the position of the first token to come, if it emits."""
        return self.start + len(self.token_ids)

    @property
    def num_model_drafts(self) -> int:
        """Tokens for the draft model to propose."""
        return 0 if self.text_drafts else self.num_draft_tokens

    @property
    def output_history(self) -> list[int]:
        """The committed tokens behind the prompt; [] where the row carries no history."""
        history = self.history or []
        return history[len(history) - self.num_output_tokens :] if history else []


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    step_id: int
    rows: list[RowPlan]

    @property
    def num_speculative_tokens(self) -> int:
        """K of the step: the most that any row drafts."""
        return max((row.num_draft_tokens for row in self.rows), default=0)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one position, before temperature and every restriction."""

    logprob: float  # of the token that stands there
    rank: int  # 1: it was the likeliest
    top_ids: list[int]
    top_logprobs: list[float]


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one row produced.

    output_token_ids    accepted drafts and then the recovered or bonus token; empty if not emits
    num_accepted        0..num_drafted, never counts the recovered or bonus token
    num_drafted         drafts really proposed (a proposer may find fewer than the plan allows)
    logprobs            one entry a token of output_token_ids, if asked for
    prompt_logprobs     one entry a token of the plan's scored_token_ids
    error               the row failed (NaN logits, nothing left to sample): its request ends with this
    is_refusal          ... and the request itself is wrong: its restrictions contradict each other
    draft_failed        the draft produced NaN for this row: its KV is void, the row goes on without drafts
    """

    seq_id: int
    output_token_ids: list[int] = []
    num_accepted: int = 0
    num_drafted: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] = []
    error: str | None = None
    is_refusal: bool = False
    draft_failed: bool = False


class StepTimings(msgspec.Struct, frozen=True):
    """Seconds of the parts of one step, on the worker."""

    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    step_id: int
    rows: list[RowResult]
    timings: StepTimings = StepTimings()
    decoding: bool = False  # every row computed one committed token and emitted
    captured: bool = False  # ... and the step ran as one captured graph


class StepShapes(msgspec.Struct, frozen=True, kw_only=True):
    """What steps an executor can run, and on what: where a table of costs belongs.

    forms      what is captured; empty: every step is eager
    hardware   in words
    forward    which of two implementations computes the target, where there are two
    """

    forms: StepForms = StepForms()
    hardware: str = ""
    forward: str = ""
