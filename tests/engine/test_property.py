"""Random arrivals, aborts, preemptions and acceptance patterns against the naive reference.

After every step the blocks, tables and watermarks are checked (`check_integrity`), and the tagged-KV model
refuses to read an entry that is not the sequence's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest.mock import patch

from engine.speculation_simulator import cpu_costs, gpu_costs
from engine.tagged import EOS, VOCAB, TaggedExecutor, make_engine, reference, request
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engine import controller, rests
from paceline.engine.step_costs import StepCosts
from paceline.engine.text_drafts import TextDrafts
from paceline.prompt_lookup import Match
from paceline.sequence import FinishReason, Sequence


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: list[int]
    max_tokens: int
    n: int
    abort_after: int | None
    most_drafts: int | None = None
    proposer: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Scenario:
    arrivals: list[Arrival]
    num_blocks: int
    block_size: int
    k: int
    has_draft: bool
    max_num_seqs: int
    budget: int
    draft_max_len: int
    prefix_caching: bool
    ahead: bool
    looks_up: bool  # beside the draft model; what is found there is scripted
    adapts: str  # the costs that a controller has; "": K is fixed
    acceptance: list[bool] = field(default_factory=list)


# Few distinct tokens and shared beginnings: prefix hits happen.
_PREFIXES = st.sampled_from([[], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 9, 9, 9, 9]])
_PROMPTS = st.builds(lambda prefix, rest: (prefix + rest) or [3], _PREFIXES, st.lists(st.integers(0, 3), max_size=12))
_ARRIVALS = st.builds(
    Arrival,
    step=st.integers(0, 12),
    prompt=_PROMPTS,
    max_tokens=st.integers(1, 14),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    abort_after=st.one_of(st.none(), st.none(), st.integers(0, 8)),
    most_drafts=st.one_of(st.none(), st.integers(0, 6)),
    proposer=st.sampled_from([None, "auto", "draft", "ngram"]),
    seed=st.sampled_from([None, 3]),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    max_num_seqs = draw(st.integers(1, 6))
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    least = -(-40 // block_size) + 1
    return Scenario(
        arrivals=draw(st.lists(_ARRIVALS, min_size=1, max_size=8)),
        num_blocks=draw(st.integers(least, 3 * least)),
        block_size=block_size,
        k=draw(st.integers(0, 6)),
        has_draft=draw(st.booleans()),
        max_num_seqs=max_num_seqs,
        budget=draw(st.integers(max_num_seqs, 40)),
        draft_max_len=draw(st.sampled_from([8, 17, 64])),
        prefix_caching=draw(st.booleans()),
        ahead=draw(st.booleans()),
        looks_up=draw(st.booleans()),
        adapts=draw(st.sampled_from(["", "gpu", "cpu"])),
        acceptance=draw(st.lists(st.booleans(), min_size=1, max_size=17)),
    )


def step_costs(scenario: Scenario) -> StepCosts | None:
    if not scenario.k or not scenario.adapts:
        return None
    return gpu_costs() if scenario.adapts == "gpu" else cpu_costs()


@settings(max_examples=300, deadline=None)
@given(scenarios())
def test_engine_equals_reference(scenario: Scenario) -> None:
    looked_up = iter(range(1 << 30))

    def find(texts: TextDrafts, sequence: Sequence, count: int) -> Match | None:
        """The right tokens up to a scripted place; sometimes nothing."""
        script = scenario.acceptance[next(looked_up) % len(scenario.acceptance) :]
        if count < 1 or not script:
            return None
        tokens = reference(sequence.token_ids, count, eos=None)
        wrong = script.index(False) if False in script else count
        return Match(1 + len(script) % 5, tokens[:wrong] + [(token + 1) % VOCAB for token in tokens[wrong:]])

    with (
        patch.multiple(controller, LEAST_WAIT=2, MOST_WAIT=8),
        patch.multiple(rests, MOST_WAIT=8, LEAST_ROW_WAIT=2, PROBE_SHARE=10.0),
        patch.object(TextDrafts, "_find", find),
    ):
        play(scenario)


def play(scenario: Scenario) -> None:
    script = iter(range(1 << 30))
    executor = TaggedExecutor(
        num_blocks=scenario.num_blocks,
        block_size=scenario.block_size,
        has_draft=scenario.has_draft,
        ahead=scenario.ahead and (scenario.has_draft or scenario.k == 0),  # an n-gram proposer reads the text
        accepts=lambda row, place: scenario.acceptance[next(script) % len(scenario.acceptance)],
    )
    engine = make_engine(
        executor,
        k=scenario.k,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.budget,
        max_model_len=40,
        draft_max_len=scenario.draft_max_len,
        prefix_caching=scenario.prefix_caching,
        costs=step_costs(scenario),
        lookups=scenario.looks_up,
    )
    output: dict[tuple[str, int], list[int]] = {}
    ended: dict[tuple[str, int], FinishReason] = {}
    age: dict[str, int] = {}
    for step in range(3000):
        for number, arrival in enumerate(scenario.arrivals):
            if arrival.step == step:
                age[str(number)] = step
                proposer = arrival.proposer if scenario.looks_up and scenario.has_draft and scenario.k else None
                own = None if arrival.most_drafts is None else min(arrival.most_drafts, scenario.k)
                engine.add_request(
                    request(
                        str(number), arrival.prompt, max_tokens=arrival.max_tokens, n=arrival.n, seed=arrival.seed,
                        speculation={"num_speculative_tokens": own, "proposer": proposer},
                    )
                )  # fmt: skip
            if arrival.abort_after is not None and step == arrival.step + arrival.abort_after:
                engine.abort(str(number))
                engine.check_integrity()
        for delta in engine.step():
            key = (delta.request_id, delta.index)
            assert key not in ended, "a delta after the end"
            output.setdefault(key, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                ended[key] = delta.finish_reason
        engine.check_integrity()
        if step > 12 and not engine.has_unfinished():
            break
    else:
        raise AssertionError("the engine did not finish")
    for number, arrival in enumerate(scenario.arrivals):
        expected = reference(arrival.prompt, min(arrival.max_tokens, 40 - len(arrival.prompt)))
        for index in range(arrival.n):
            key = (str(number), index)
            got = output.get(key, [])
            if ended[key] is FinishReason.ABORT:
                assert got == expected[: len(got)]
                continue
            assert got == expected
            assert ended[key] == (FinishReason.STOP if expected[-1] == EOS else FinishReason.LENGTH)
    stats = engine.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.kv_cache_usage == 0.0, "blocks leaked"
    counts = stats.speculation
    assert 0 <= counts.num_accepted_tokens <= counts.num_draft_tokens
    assert sum(counts.num_accepted_tokens_per_pos) == counts.num_accepted_tokens
