"""Engine: requests in, deltas out. One step = schedule -> execute -> commit.

Contract
- Single-threaded: the owner calls add_request, abort and step in turn.
- Every request ends with exactly one delta per answer that carries a finish_reason; none is lost.
- A request of n answers is n sequences. The first computes the prompt; the others are let in when its
  KV is in the prefix cache, so the prompt is computed once.
- The engine holds no tensors; it speaks to the ranks in plans and results alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from paceline.config import EngineConfig
from paceline.engine.admission import Admission
from paceline.engine.block_manager import BlockManager
from paceline.engine.controller import SpeculationController
from paceline.engine.draft_choice import DraftChoice
from paceline.engine.draft_watch import DraftWatch
from paceline.engine.grammar_queue import GrammarQueue, Prepared
from paceline.engine.interfaces import Executor, GrammarCompiler, TokenDecoder
from paceline.engine.scheduler import Scheduler, Update
from paceline.engine.speculation import SpeculationPolicy
from paceline.engine.statistics import EngineStats
from paceline.engine.step_costs import StepCosts
from paceline.engine.text_drafts import TextDrafts
from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.plan import StepPlan, StepResult
from paceline.request_speculation import PROPOSERS
from paceline.sequence import EngineRequest, FinishReason, Refusal, Sequence, SequenceDelta


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        token_decoder: TokenDecoder | None,
        *,
        grammars: GrammarCompiler | None = None,
        emits_text: bool = True,
        costs: StepCosts | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Without `emits_text` deltas have text only where stop strings end answers: who reads them writes it.

        `costs`: of a step; with them K follows load and acceptance, without them it is the configuration's.
        """
        self.config = config
        self._executor = executor
        self._clock = clock
        is_watched = config.speculative is not None and config.speculative.is_lossless
        self._watch = DraftWatch() if is_watched else None  # synthetic acceptance says nothing about the draft
        self._controller = SpeculationController(costs, config.num_speculative_tokens) if costs is not None else None
        self._scheduler = make_scheduler(config, executor, self._watch, self._controller)
        positions = (executor.num_blocks - 1) * executor.block_size  # without the null block
        self._admission = Admission(config, token_decoder, positions, emits_text=emits_text)
        self._grammars = GrammarQueue(grammars)
        self._siblings: dict[str, list[Sequence]] = {}  # held until the first answer's prompt is computed
        self._queued: dict[int, Sequence] = {}  # by seq_id: those that no step has had a row of yet
        self._unreported: list[SequenceDelta] = []
        self._submit_seconds = 0.0  # of this step: on a CPU the models run while a plan is submitted
        self._last_step_end: float | None = None  # None: there was nothing to do since
        self._stats = EngineStats()
        self._stats.proposer = _proposer(config)
        self._stats.speculation.synthetic = config.speculative is not None and not config.speculative.is_lossless

    # -- requests -------------------------------------------------------------------------------------

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. Raises InvalidRequestError at once if it can never be served.

        A request whose grammar takes a while to compile is refused, if it must be, by a delta with a `refusal`.
        """
        self._admission.check(request)
        constraint = request.sampling_params.structured_outputs
        if constraint is None:
            self._admit(request)
        elif (prepared := self._grammars.add(request, constraint)) is not None:
            self._admit(request, prepared.compiled)

    def _admit(self, request: EngineRequest, grammar: object = None) -> None:
        sequences = self._admission.sequences(request)
        now = self._clock()
        for sequence in sequences:
            sequence.grammar, sequence.queued_at = grammar, now
            self._queued[sequence.seq_id] = sequence
        self._scheduler.add(sequences[0])
        if len(sequences) > 1:
            self._siblings[request.request_id] = sequences[1:]
        self._stats.prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str) -> None:
        """End a request wherever it is. Unknown or finished ids are ignored: the client may be late."""
        compiling = self._grammars.remove(request_id)
        if compiling is not None:
            self._unreported += _early_ends(compiling, FinishReason.ABORT)
        held = self._siblings.pop(request_id, [])
        for sequence in held:
            sequence.finish_reason = FinishReason.ABORT
        for sequence in self._scheduler.abort(request_id) + held:
            self._count_end(sequence)
            self._unreported.append(self._final_delta(sequence, []))
        if not self._scheduler.has_unfinished():
            self._last_step_end = None

    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished() or bool(self._unreported) or len(self._grammars) > 0

    # -- the step -------------------------------------------------------------------------------------

    def step(self) -> list[SequenceDelta]:
        """Advance every sequence that can advance; return what that added.

        Where the executor can run ahead, the next step is submitted before this one's result is waited for: the
        host commits, streams and plans while the device computes.
        """
        if len(self._grammars):
            idle = not (self._scheduler.has_unfinished() or self._unreported)
            self._admit_prepared(self._grammars.take(idle=idle))
        started, self._submit_seconds = self._clock(), 0.0
        if not self._scheduler.num_under_way:
            self._submit(self._scheduler.schedule())
        if self._executor.can_run_ahead():
            self._submit(self._scheduler.plan_ahead())
        deltas = self._collect_and_commit(started) if self._scheduler.num_under_way else []
        unreported, self._unreported = self._unreported, []
        return unreported + deltas

    def _admit_prepared(self, prepared: list[Prepared]) -> None:
        for ready in prepared:
            if ready.refusal is None:
                self._admit(ready.request, ready.compiled)
            else:
                self._unreported += _early_ends(ready.request, FinishReason.ERROR, ready.refusal)

    def _submit(self, plan: StepPlan | None) -> None:
        if plan is None:
            return
        if self._queued:
            self._leave_queue(plan)
        submitted = self._clock()
        self._executor.submit(plan)
        self._submit_seconds += self._clock() - submitted

    def _leave_queue(self, plan: StepPlan) -> None:
        now = self._clock()
        for row in plan.rows:
            if (sequence := self._queued.pop(row.seq_id, None)) is not None:
                sequence.queue_seconds = now - sequence.queued_at

    def _collect_and_commit(self, started: float) -> list[SequenceDelta]:
        planned = self._clock()
        result = self._executor.collect()
        executed = self._clock()
        updates = self._scheduler.commit(result)
        self._count_passes(updates)
        deltas = [self._delta(update) for update in updates if update.token_ids or update.sequence.finish_reason]
        for update in updates:
            self._release_siblings(update.sequence)
        self._count_step(result, started, self._clock(), executed - planned + self._submit_seconds)
        return deltas

    # -- what users see --------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """The counters now; the caller may keep the object. Raises EngineDeadError when a rank is gone: a heartbeat
        must not say that all is well while nothing is computed."""
        self._executor.check_health()
        scheduler, blocks = self._scheduler, self._scheduler.blocks
        self._stats.num_running = len(scheduler.running)
        self._stats.num_waiting = len(scheduler.waiting) + sum(map(len, self._siblings.values())) + len(self._grammars)
        self._stats.kv_cache_usage = blocks.usage
        self._stats.num_kv_blocks = blocks.num_blocks - 1
        self._stats.prefix_cache_queries = blocks.num_prefix_queries
        self._stats.prefix_cache_hits = blocks.num_prefix_hits
        self._stats.num_preemptions = scheduler.num_preemptions
        if self._controller is not None:
            choices = self._stats.choices = self._controller.counts
            self._stats.speculation_off = self._controller.reason == "acceptance"
            self._stats.num_speculation_switch_offs = choices.num_rests["acceptance"]
        elif self._watch is not None:
            self._stats.speculation_off = self._watch.is_off
            self._stats.num_speculation_switch_offs = self._watch.num_switch_offs
        return self._stats

    def describe(self) -> dict[str, str]:
        """The resolved configuration, for the table printed at start."""
        from paceline.engine.description import describe

        return describe(self.config, self._executor)

    def set_num_speculative_tokens(self, count: int | None) -> None:
        """K of the steps to come: 0 drafts nothing, the configured K is the most. None: as configured again."""
        most = self.config.num_speculative_tokens
        if count is None:
            self._scheduler.set_num_speculative_tokens(most, pinned=False)
            return
        if not 0 <= count <= most:
            raise ConfigurationError(f"num_speculative_tokens={count}: this engine was made for 0 to {most}.")
        self._scheduler.set_num_speculative_tokens(count)

    def follow_costs(self, costs: StepCosts) -> None:
        """Choose K by these costs from now on, knowing nothing of the draft. The engine must be idle."""
        self._controller = SpeculationController(costs, self.config.num_speculative_tokens)
        self._scheduler.drafts.controller = self._controller
        self.set_num_speculative_tokens(None)

    @property
    def executor(self) -> Executor:
        """For measurements, while nothing runs."""
        return self._executor

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def reset_prefix_cache(self) -> None:
        self._scheduler.blocks.reset_prefix_cache()

    def shutdown(self) -> None:
        self._grammars.close()
        self._executor.shutdown()

    # -- inside ---------------------------------------------------------------------------------------

    def _release_siblings(self, sequence: Sequence) -> None:
        """Let the other answers of a request in once the first has emitted, or has ended."""
        if sequence.request_id in self._siblings and (sequence.num_output_tokens or sequence.finish_reason):
            for sibling in self._siblings.pop(sequence.request_id):
                self._scheduler.add(sibling)

    def _delta(self, update: Update) -> SequenceDelta:
        sequence = update.sequence
        self._stats.generation_tokens += len(update.token_ids)
        self._stats.speculation.record(update.num_drafted, update.num_accepted, by_text=update.by_text)
        if sequence.finish_reason is not None:
            self._count_end(sequence)
            delta = self._final_delta(sequence, update.token_ids)
        else:
            text = sequence.text.take() if sequence.text else ""
            delta = SequenceDelta(
                request_id=sequence.request_id, index=sequence.index, token_ids=update.token_ids, text=text
            )
        if update.token_ids and sequence.num_output_tokens == len(update.token_ids):
            delta.prompt_logprobs = sequence.prompt_logprobs or None
            delta.queue_seconds = sequence.queue_seconds
        delta.num_accepted, delta.num_drafted = update.num_accepted, update.num_drafted
        delta.logprobs = update.logprobs
        delta.error = update.error
        delta.refusal = Refusal(code="no_token_left") if update.is_refusal else None
        delta.num_prompt_tokens = sequence.num_prompt_tokens
        delta.num_cached_tokens = sequence.num_cached_tokens
        return delta

    def _final_delta(self, sequence: Sequence, token_ids: list[int]) -> SequenceDelta:
        return SequenceDelta(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=token_ids,
            text=sequence.text.finish() if sequence.text else "",
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            speculation=sequence.speculation,
        )

    def _count_end(self, sequence: Sequence) -> None:
        assert sequence.finish_reason is not None
        self._queued.pop(sequence.seq_id, None)
        name = f"finished_{sequence.finish_reason.value}"
        setattr(self._stats, name, getattr(self._stats, name) + 1)
        self._stats.draft_failures += sequence.draft_failed

    def _count_passes(self, updates: list[Update]) -> None:
        drafted = [update.num_drafted for update in updates if update.token_ids]
        for count in drafted:
            self._stats.count_pass(count)
        if drafted:
            self._stats.num_speculative_tokens = max(drafted)

    def _count_step(self, result: StepResult, started: float, ended: float, execute_seconds: float) -> None:
        stats, timings = self._stats, result.timings
        step_seconds, model_seconds = ended - started, timings.draft + timings.verify + timings.accept
        stats.num_steps += 1
        stats.num_decode_steps += result.decoding
        stats.num_captured_steps += result.captured
        stats.step_seconds += step_seconds
        stats.schedule_seconds += step_seconds - execute_seconds
        stats.draft_seconds += timings.draft
        stats.verify_seconds += timings.verify
        stats.accept_seconds += timings.accept
        since = started if self._last_step_end is None else self._last_step_end
        stats.gap_seconds += max(0.0, ended - since - model_seconds)
        self._last_step_end = ended if self._scheduler.has_unfinished() else None


def make_scheduler(
    config: EngineConfig,
    executor: Executor,
    watch: DraftWatch | None = None,
    controller: SpeculationController | None = None,
) -> Scheduler:
    """The scheduler and block manager that fit a configuration and the executor's memory plan."""
    draft = config.draft
    blocks = BlockManager(
        executor.num_blocks,
        executor.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        draft_max_len=draft.max_model_len if draft else None,
    )
    return Scheduler(
        blocks,
        _draft_choice(config, watch, controller),
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        keep_history=config.speculative is not None and config.speculative.method == "ngram",
    )


def _draft_choice(
    config: EngineConfig, watch: DraftWatch | None, controller: SpeculationController | None
) -> DraftChoice:
    draft, speculative = config.draft, config.speculative
    policy = SpeculationPolicy(config.num_speculative_tokens, draft.max_model_len if draft else None)
    if speculative is None or not speculative.ngram_beside_draft:
        return DraftChoice(policy, watch, controller)
    texts = TextDrafts(speculative.prompt_lookup_min, speculative.prompt_lookup_max)
    policy = replace(policy, looks_up=True, proposer=speculative.proposer)
    return DraftChoice(policy, watch, controller, texts)


def _proposer(config: EngineConfig) -> str:
    """Of requests that name none."""
    speculative = config.speculative
    if speculative is None:
        return ""
    return speculative.proposer if speculative.ngram_beside_draft else PROPOSERS[speculative.method]


def _early_ends(
    request: EngineRequest, reason: FinishReason, refusal: InvalidRequestError | None = None
) -> list[SequenceDelta]:
    """The last deltas of a request that never got into the scheduler, one an answer."""
    return [
        SequenceDelta(
            request_id=request.request_id,
            index=index,
            finish_reason=reason,
            error=str(refusal) if refusal else None,
            refusal=Refusal(refusal.param, refusal.code) if refusal else None,
            num_prompt_tokens=len(request.prompt_token_ids),
        )
        for index in range(request.sampling_params.n)
    ]
