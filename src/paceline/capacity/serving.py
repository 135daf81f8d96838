"""A replica in steady state: time to the first token, time between tokens and throughput at a number of sequences.

B requests are always in flight on one replica. With s seconds a step, e tokens a pass, P seconds to read a prompt and
n tokens an answer, a request's own decoding takes (n-1)·s/e; meanwhile each of the B-1 others comes to its prompt once
and holds everyone up for P:

    D = (n-1)·s/e + (B-1)·P        TPOT = D / (n-1)        requests a second = B / (TTFT + D)

    TTFT = s/2 + P + w             the step under way, the prompt itself, and the queue for prompts

w is the mean wait of an M/D/1 queue of prompts, each taking P, with load r = (B-1)·P / (D + P): r·P / (2·(1-r)).
Figures are means, of the engine: a network and a server in front of it come on top. A prompt and the decoding rows of
one step are counted one after the other, although they share the reading of the weights: that is on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.acceptance import SyntheticAcceptance, expected_tokens
from paceline.capacity.pair import PlannedModel
from paceline.capacity.roofline import Setup, history_seconds, prefill_seconds, step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Mean lengths in tokens. `cached`: share of the prompt that the prefix cache has."""

    input_len: int
    output_len: int
    cached: float = 0.0

    @property
    def mean_positions(self) -> float:
        return self.input_len + self.output_len / 2

    @property
    def most_positions(self) -> int:
        return self.input_len + self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine: what it runs on, what it runs."""

    setup: Setup
    target: PlannedModel
    draft: PlannedModel | None
    acceptance: SyntheticAcceptance
    max_num_batched_tokens: int = 2048

    def tokens_per_pass(self, k: int) -> float:
        return expected_tokens(self.acceptance.conditional_rate(k), k) if k else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A replica with `concurrency` requests in flight. Seconds; requests and tokens a second of the replica."""

    concurrency: int
    k: int
    step: float
    tokens_per_pass: float
    prefill: float
    ttft: float
    tpot: float
    requests_per_second: float
    tokens_per_second: float  # output


def operate(replica: Replica, workload: Workload, concurrency: int, k: int) -> Point:
    step = step_seconds(
        replica.setup,
        replica.target,
        replica.draft,
        rows=concurrency,
        k=k,
        positions=workload.mean_positions,
    ).total
    return steady_state(
        workload, concurrency, k, step, replica.tokens_per_pass(k), prompt_seconds(replica, workload, k)
    )


def prompt_seconds(replica: Replica, workload: Workload, k: int) -> float:
    """Of the part that the prefix cache has not, which looks at the part that it has. With K = 0 everywhere no draft is
    loaded, and none reads the prompt."""
    tokens = max(1, round(workload.input_len * (1 - workload.cached)))
    setup, target, draft = replica.setup, replica.target, replica.draft if k else None
    own = prefill_seconds(setup, target, draft, tokens=tokens, most_tokens=replica.max_num_batched_tokens)
    return own + tokens * (workload.input_len - tokens) * history_seconds(setup, target, draft)


def steady_state(
    workload: Workload, concurrency: int, k: int, step: float, tokens_per_pass: float, prompt: float
) -> Point:
    """The formulas above; the page's script has the same."""
    after_first = max(workload.output_len - 1, 1)
    others = (concurrency - 1) * prompt
    decode = after_first * step / tokens_per_pass + others
    load = min(others / (decode + prompt), 0.99)
    ttft = step / 2 + prompt + load * prompt / (2 * (1 - load))
    rate = concurrency / (ttft + decode)
    return Point(
        concurrency=concurrency,
        k=k,
        step=step,
        tokens_per_pass=tokens_per_pass,
        prefill=prompt,
        ttft=ttft,
        tpot=decode / after_first,
        requests_per_second=rate,
        tokens_per_second=rate * workload.output_len,
    )
