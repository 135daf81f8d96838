"""The faults that speculative decoders have had, planted into an engine through its own seams.

A fault is put together from what SpeculativeDecoder takes: the target's runner, the proposer, the acceptance.
Nothing of the engine is edited, and an LLM with a fault is asked like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from paceline import LLM
from paceline.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.layers.sampling import Law, Peaks, SamplingBatch
from paceline.plan import RowPlan, StepPlan, StepResult
from paceline.speculative.acceptance import Acceptance, make_acceptance
from paceline.speculative.decoder import SpeculativeDecoder
from paceline.speculative.proposers import DraftModelProposer, Proposer
from paceline.speculative.proposers.base import emitting_rows
from paceline.speculative.rejection import Outcome, Proposal
from paceline.worker.executor import InProcessExecutor
from paceline.worker.worker import Worker


class Watched:
    """The target's runner; remembers the logits of the last pass."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.logits: Tensor | None = None

    def forward(self, batch: Any) -> Any:
        output = self._runner.forward(batch)
        self.logits = output.logits
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class Fault:
    """No fault: what each one changes a piece of."""

    def __init__(self, worker: Worker, config: EngineConfig, vocab_size: int) -> None:
        assert worker.draft is not None
        self.target = Watched(worker.target)
        self.vocab_size = vocab_size
        self.sound = make_acceptance(config.speculative)
        self.drafter: Proposer = DraftModelProposer(
            worker.draft, block_size=config.cache.block_size, vocab_size=vocab_size
        )
        self.rows: list[RowPlan] = []
        acceptance = replace(self.sound, decide=self.decide, always_random=True)  # greedy rows too come by here
        self._decoder = SpeculativeDecoder(
            self.target,  # type: ignore[arg-type]
            self,
            block_size=config.cache.block_size,
            vocab_size=vocab_size,
            acceptance=acceptance,
        )

    def run(self, plan: StepPlan) -> StepResult:
        self.rows = emitting_rows(plan)
        return self._decoder.run(plan)

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        return self.drafter.propose(plan, sampling)

    def decide(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        return self.sound.decide(law, proposal, u_accept, u_target)

    def law_anew(self, rows: list[RowPlan], drafts: Tensor) -> Law:
        """The target's law of this step, for changed rows or drafts."""
        assert self.target.logits is not None
        logits = self.target.logits[:, : self.vocab_size].view(len(rows), -1, self.vocab_size)
        return SamplingBatch(rows, self.target.device).law(logits, drafts)


class Recording:
    """A SamplingBatch for a proposer: notes the raw law of each draft; `argmax` makes it propose the likeliest."""

    def __init__(self, inner: SamplingBatch, argmax: bool, rows: list[int] | None = None, log: Any = None) -> None:
        self._inner = inner
        self._argmax = argmax
        self._rows = list(range(10_000)) if rows is None else rows
        self.log: list[tuple[int, list[int], Tensor, Tensor]] = [] if log is None else log

    def select(self, rows: list[int]) -> Recording:
        return Recording(self._inner.select(rows), self._argmax, [self._rows[row] for row in rows], self.log)

    def law(self, logits: Tensor, drafts: Tensor, first_place: int = 0, peaks: Peaks | None = None) -> Law:
        law = self._inner.law(logits, drafts, first_place, peaks)
        if law.probs is None:
            return law
        rows = [self._rows[row] for row in law.random_rows.tolist()]
        self.log.append((first_place, rows, torch.softmax(logits[law.random_rows, 0], -1), law.probs[:, 0]))
        if not self._argmax:
            return law
        one_hot = torch.zeros_like(law.probs).scatter_(-1, law.probs.argmax(-1, keepdim=True), 1.0)
        return replace(law, probs=one_hot)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def instead(self, proposal: Proposal, which: int) -> Proposal:
        """The proposal with recorded laws (2: raw, 3: processed) in place of those that were drawn from."""
        if proposal.draft_probs is None:
            return proposal
        index = {row: place for place, row in enumerate(self._inner.random_rows.tolist())}
        probs = torch.zeros_like(proposal.draft_probs)
        for entry in self.log:
            if entry[0] < probs.shape[1]:
                probs[[index[row] for row in entry[1]], entry[0]] = entry[which]
        return replace(proposal, draft_probs=probs)


class RawRatio(Fault):
    """Drafts are drawn from the processed q; the ratio has the raw one."""

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        recording = Recording(sampling, argmax=False)
        return recording.instead(self.drafter.propose(plan, recording), 2)  # type: ignore[arg-type]


class SoftmaxOfArgmax(Fault):
    """Drafts are the argmax of q; the ratio has q."""

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        recording = Recording(sampling, argmax=True)
        return recording.instead(self.drafter.propose(plan, recording), 3)  # type: ignore[arg-type]


class FirstUnverified(Fault):
    """The first draft is kept whatever the target says."""

    def decide(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        k = proposal.num_speculative_tokens
        if law.probs is None or k == 0:
            return self.sound.decide(law, proposal, u_accept, u_target)
        first = proposal.draft_token_ids[law.random_rows, 0]
        probs = law.probs.clone()
        drafted = first >= 0
        probs[drafted, 0] = torch.nn.functional.one_hot(first[drafted], self.vocab_size).to(probs.dtype)
        return self.sound.decide(replace(law, probs=probs), proposal, u_accept, u_target)


class RowOffByOne(Fault):
    """Place i is judged and drawn by the law of place i - 1."""

    def decide(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        if law.probs is not None:
            places = [max(place - 1, 0) for place in range(law.probs.shape[1])]
            law = replace(law, probs=law.probs[:, places], argmax=law.argmax[:, places])
        return self.sound.decide(law, proposal, u_accept, u_target)


class NoNucleus(Fault):
    """top_p shapes q and not p."""

    def decide(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        rows = [
            msgspec.structs.replace(row, sampling=msgspec.structs.replace(row.sampling, top_p=1.0)) for row in self.rows
        ]
        return self.sound.decide(self.law_anew(rows, proposal.draft_token_ids), proposal, u_accept, u_target)


class PenaltiesBlindToDrafts(Fault):
    """The target's penalties count committed tokens alone."""

    def decide(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        unseen = torch.full_like(proposal.draft_token_ids, -1)
        return self.sound.decide(self.law_anew(self.rows, unseen), proposal, u_accept, u_target)


class BonusFromDraft(Fault):
    """The draft runs one token further, and that token is the bonus."""

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        longer = [
            msgspec.structs.replace(row, num_draft_tokens=row.num_draft_tokens + (row.num_draft_tokens > 0))
            for row in plan.rows
        ]
        full = self.drafter.propose(msgspec.structs.replace(plan, rows=longer), sampling)
        num_drafted = torch.tensor([max(count - 1, 0) for count in full.num_drafted])
        width = int(num_drafted.max()) if len(num_drafted) else 0
        self.extra = torch.nn.functional.pad(full.draft_token_ids, (0, 1), value=-1).gather(1, num_drafted[:, None])
        places = torch.arange(full.num_speculative_tokens)
        tokens = torch.where(places < num_drafted[:, None], full.draft_token_ids, -1)[:, :width]
        probs = None if full.draft_probs is None else full.draft_probs[:, :width]
        changed = {"draft_token_ids": tokens, "num_drafted": num_drafted.tolist(), "draft_probs": probs}
        return replace(full, **changed, on_host=None)

    def decide(self, law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        outcome = self.sound.decide(law, proposal, u_accept, u_target)
        num_drafted = torch.tensor(proposal.num_drafted)
        bonus = ((outcome.num_accepted == num_drafted) & (num_drafted > 0))[:, None]
        at = outcome.num_accepted[:, None]
        last = torch.where(bonus, self.extra, outcome.output_token_ids.gather(1, at))
        return replace(outcome, output_token_ids=outcome.output_token_ids.scatter(1, at, last))


FAULTS: dict[str, type[Fault]] = {
    "raw q in the ratio": RawRatio,
    "softmax q for an argmax draft": SoftmaxOfArgmax,
    "first draft unverified": FirstUnverified,
    "row off by one": RowOffByOne,
    "nucleus not applied to p": NoNucleus,
    "penalties without the drafts before": PenaltiesBlindToDrafts,
    "bonus token drawn from q": BonusFromDraft,
}


def with_fault(fault: type[Fault]) -> Callable[..., LLM]:
    """LLM, with the fault wherever it speculates."""

    class FaultyLLM(LLM):
        def _make_engine(self) -> Any:
            worker = Worker(self.config)
            if self.config.speculative is not None:
                worker.decoder = fault(worker, self.config, self.config.model.vocab_size)  # type: ignore[assignment]
            return Engine(self.config, InProcessExecutor(worker, self.config.cache.block_size), self._tokenizer)

    return FaultyLLM


__all__ = ["FAULTS", "Acceptance", "Fault", "with_fault"]
