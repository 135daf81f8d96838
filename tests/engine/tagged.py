"""A fake model whose KV entries are tags, so that a stale or missing entry cannot go unnoticed.

An entry at a position is a chain hash of every token up to it. The "model" reads the entry before a token,
checks that the whole table holds the chain of that sequence, and its next token is a function of the
chain: the greedy text of a prompt can be computed by `reference` with no engine at all. The target and
the draft have a pool each; the draft proposes the true next token or a wrong one, as a script says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from paceline.engine.engine import Engine
from paceline.engine.step_costs import StepCosts
from paceline.plan import RowPlan, RowResult, StepPlan, StepResult
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, SequenceDelta

VOCAB = 50
EOS = 49
MODULUS = (1 << 61) - 1


def chain(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % MODULUS


def next_token(state: int) -> int:
    return (state >> 7) % VOCAB


def reference(prompt: list[int], max_tokens: int, *, eos: int | None = EOS) -> list[int]:
    """The greedy text, computed without an engine."""
    state = 0
    for token in prompt:
        state = chain(state, token)
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(next_token(state))
        state = chain(state, output[-1])
        if output[-1] == eos:
            break
    return output


Pool = dict[int, tuple[int, int]]  # slot -> (chain hash up to here, token)


def always(row: RowPlan, place: int) -> bool:
    return True


def never(row: RowPlan, place: int) -> bool:
    return False


@dataclass
class TaggedExecutor:
    """Implements the executor's protocol. `accepts(row, place)`: is the draft at that place right?

    `ahead`: steps may be submitted before the one under way is collected, as a GPU's captured steps are.
    """

    num_blocks: int = 64
    block_size: int = 4
    has_draft: bool = True
    accepts: Callable[[RowPlan, int], bool] = always
    fail: Callable[[RowPlan], bool] = lambda row: False
    empty: Callable[[RowPlan], bool] = lambda row: False
    target: Pool = field(default_factory=dict)
    draft: Pool = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    ahead: bool = False
    num_ahead: int = 0  # steps submitted before the one under way was collected
    results: deque[StepResult] = field(default_factory=deque)
    carry: list[RowPlan | None] = field(default_factory=list)  # by place: the row that follows, but for its table

    def submit(self, plan: StepPlan) -> None:
        assert len(self.results) < (2 if self.ahead else 1)
        self.num_ahead += bool(self.results)
        rows = [row if row.source is None else self._follow(row) for row in plan.rows]
        result = self.execute(StepPlan(step_id=plan.step_id, rows=rows))
        self.carry = [_next_row(row, done) for row, done in zip(rows, result.rows, strict=True)]
        self.results.append(result)

    def collect(self) -> StepResult:
        return self.results.popleft()

    def can_run_ahead(self) -> bool:
        return self.ahead and len(self.results) == 1 and None not in self.carry

    def _follow(self, row: RowPlan) -> RowPlan:
        assert row.source is not None
        assert not row.token_ids
        assert not row.draft_chunk
        before = self.carry[row.source]
        assert before is not None
        assert before.seq_id == row.seq_id
        assert row.start <= before.start
        drafts = max(0, min(row.num_draft_tokens, row.draft_limit - before.start - 1))
        return msgspec.structs.replace(
            row, source=None, start=before.start, token_ids=before.token_ids,
            draft_start=before.draft_start if drafts else 0, draft_chunk=before.draft_chunk if drafts else [],
            num_draft_computed_tokens=before.num_draft_computed_tokens, num_draft_tokens=drafts,
        )  # fmt: skip

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return StepResult(step_id=plan.step_id, rows=[self._row(row) for row in plan.rows])

    def describe(self) -> dict[str, str]:
        return {"model": "tagged"}

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...

    def _row(self, row: RowPlan) -> RowResult:
        if self.fail(row):
            return RowResult(seq_id=row.seq_id, error="planted failure")
        self._check_shape(row)
        drafts = self._propose(row)
        state = self._read_and_write(self.target, row, row.start, row.token_ids, row.start)
        if not row.emits or self.empty(row):
            return RowResult(seq_id=row.seq_id)
        output: list[int] = []
        for place, token in enumerate(drafts):
            if token != next_token(state):
                break
            output.append(token)
            state = self._extend(self.target, row, row.num_committed_tokens + place, state, token)
        accepted = len(output)
        for place, token in enumerate(drafts[accepted:], start=accepted):  # rejected drafts are written too
            self.target[self._slot(row, row.num_committed_tokens + place)] = (-1, token)
        return RowResult(
            seq_id=row.seq_id,
            output_token_ids=[*output, next_token(state)],
            num_accepted=accepted,
            num_drafted=len(drafts),
        )

    def _check_shape(self, row: RowPlan) -> None:
        assert row.token_ids, "a row must compute at least one token"
        assert len(row.block_table) * self.block_size >= row.num_committed_tokens + row.num_draft_tokens
        assert row.num_draft_tokens == 0 or row.emits, "drafts behind an unfinished chunk"
        assert not row.text_drafts or len(row.text_drafts) == row.num_draft_tokens
        if self.has_draft and row.num_model_drafts:
            assert row.draft_start + len(row.draft_chunk) == row.num_committed_tokens
            assert len(row.draft_chunk) >= min(2, row.num_committed_tokens), "the last two tokens are always read"

    def _propose(self, row: RowPlan) -> list[int]:
        if row.text_drafts:
            assert not row.draft_chunk, "the draft model makes no pass for a text"
            return row.text_drafts
        if not self.has_draft:
            state = self._peek(row)
        elif row.draft_chunk:
            state = self._read_and_write(
                self.draft, row, row.draft_start, row.draft_chunk, row.num_draft_computed_tokens
            )
        else:
            assert row.num_draft_tokens == 0
            return []
        drafts = []
        for place in range(row.num_draft_tokens):
            token = next_token(state)
            if not self.accepts(row, place):
                token = (token + 1) % VOCAB
            drafts.append(token)
            if self.has_draft and place + 1 < row.num_draft_tokens:
                state = self._extend(self.draft, row, row.num_committed_tokens + place, state, token)
            else:
                state = chain(state, token)
        return drafts

    def _peek(self, row: RowPlan) -> int:
        state = self._state_before(self.target, row, row.start)
        for token in row.token_ids:
            state = chain(state, token)
        return state

    def _read_and_write(self, pool: Pool, row: RowPlan, start: int, tokens: list[int], write_from: int) -> int:
        state = self._state_before(pool, row, start)
        for position, token in enumerate(tokens, start=start):
            if position >= write_from:
                state = self._extend(pool, row, position, state, token)
            else:
                state = chain(state, token)
                assert pool.get(self._slot(row, position)) == (state, token), f"no valid KV at {position} to reuse"
        return state

    def _state_before(self, pool: Pool, row: RowPlan, start: int) -> int:
        """Read every entry below `start`; they must form one chain."""
        state = 0
        for position in range(start):
            entry = pool.get(self._slot(row, position))
            assert entry is not None, f"sequence {row.seq_id} reads position {position}, which nobody wrote"
            state = chain(state, entry[1])
            assert entry[0] == state, f"sequence {row.seq_id} reads stale KV at position {position}"
        return state

    def _extend(self, pool: Pool, row: RowPlan, position: int, state: int, token: int) -> int:
        state = chain(state, token)
        pool[self._slot(row, position)] = (state, token)
        return state

    def _slot(self, row: RowPlan, position: int) -> int:
        block = row.block_table[position // self.block_size]
        assert block != 0, "the null block holds no sequence's KV"
        return block * self.block_size + position % self.block_size


def _next_row(row: RowPlan, result: RowResult) -> RowPlan | None:
    """What the device knows of a row after the step; None: nothing was emitted, no step can follow unseen."""
    if not result.output_token_ids:
        return None
    tokens = [*row.token_ids, *result.output_token_ids]
    n = row.start + len(tokens)
    mark = row.num_draft_computed_tokens
    if result.num_drafted:
        last_fed = row.num_committed_tokens + result.num_drafted - 1
        mark = min(n - 1, last_fed)
    return RowPlan(
        seq_id=row.seq_id, block_table=[], start=n - 1, token_ids=tokens[-1:],
        draft_start=n - 2, draft_chunk=tokens[-2:], num_draft_computed_tokens=mark,
    )  # fmt: skip


def make_engine(
    executor: TaggedExecutor,
    *,
    k: int = 5,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 64,
    draft_max_len: int | None = None,
    prefix_caching: bool = True,
    decoder: object | None = None,
    costs: StepCosts | None = None,
    lookups: bool = False,
) -> Engine:
    """`lookups`: drafts may come from the text as well, and do where it is surer."""
    model = ModelConfig(
        path=Path("."), name="tagged", max_model_len=max_model_len, vocab_size=VOCAB, eos_token_ids=(EOS,)
    )
    draft = ModelConfig(path=Path("."), name="draft", max_model_len=draft_max_len or max_model_len)
    speculative = None
    if k:
        speculative = SpeculativeConfig(
            method="draft_model" if executor.has_draft else "ngram",
            num_speculative_tokens=k,
            draft=draft if executor.has_draft else None,
            ngram_beside_draft=lookups and executor.has_draft,
            prompt_lookup_min=1,
        )
    config = EngineConfig(
        model=model,
        speculative=speculative,
        cache=CacheConfig(block_size=executor.block_size, enable_prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
    )
    return Engine(config, executor, decoder, costs=costs)  # type: ignore[arg-type]


def request(request_id: str, prompt: list[int], **params: object) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **params}),
    )


def run(engine: Engine, max_steps: int = 2000) -> dict[str, list[SequenceDelta]]:
    """Step to the end, checking integrity after every step; deltas by request and index."""
    deltas: dict[str, list[SequenceDelta]] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished():
            return deltas
        for delta in engine.step():
            deltas.setdefault(f"{delta.request_id}/{delta.index}", []).append(delta)
        engine.check_integrity()
    raise AssertionError(f"not finished after {max_steps} steps")


def tokens(deltas: list[SequenceDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]
