"""A run: for each load, round by round, each arm asks the same prompts in the same order.

    load 1:  warm-up of every arm,  A B,  B A,  A B, ...      a round has a seed, and a seed an order of prompts
    load 2:  ...

So every arm comes first as often as last, and a slow minute of a machine is not one arm's alone. Requests are
written as soon as a case is over; an interrupted run keeps the cases that are.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import uvloop

from paceline.bench.environment import environment
from paceline.bench.serve.arms import Arm, baseline_of, open_arms
from paceline.bench.serve.ask import Clock, Listener, ask, fill, now_ns
from paceline.bench.serve.counters import read_counters
from paceline.bench.serve.counting import CountTokens, make_tally
from paceline.bench.serve.load import closed_loop, open_loop, quiet_collector
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.prompts import Prompt, arrivals, order
from paceline.bench.serve.records import SCHEMA, CaseSpan, Load, RawWriter, Record, RunHeader
from paceline.ending import interrupted_by
from paceline.errors import PacelineError

_WARMUP_TOKENS = 16


class Watcher(Protocol):
    """Told what goes on; it must be quick."""

    def opened(self, header: RunHeader) -> None: ...

    def case(self, arm: str, load: Load, round_number: int, total: int) -> None: ...

    def answered(self, tokens: int, seconds: float, failed: bool) -> None: ...

    def case_over(self) -> None: ...


def interleaved(arms: Sequence[Arm], round_number: int) -> list[Arm]:
    """A B in even rounds, B A in odd ones."""
    return list(arms) if round_number % 2 == 0 else list(reversed(arms))


def run(options: ServeOptions, raw: Path, watcher: Watcher, api_keys: Mapping[str, str]) -> None:
    """Writes `raw`. `api_keys`: by name of the server; '' stands for all others. Raises PacelineError and
    KeyboardInterrupt; complete cases are in the file either way."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_until_a_signal(_run(options, raw, watcher, api_keys)))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _until_a_signal(work: Coroutine[Any, Any, None]) -> None:
    """Cancelled, where an exception at whatever line runs might be lost in a callback of the loop."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    cancel = task.cancel

    def interrupt() -> None:
        loop.call_soon_threadsafe(cancel)

    with interrupted_by(interrupt):
        await work


async def _run(options: ServeOptions, raw: Path, watcher: Watcher, api_keys: Mapping[str, str]) -> None:
    prompts, left_out = options.read_prompts()
    arms, notes = await open_arms(options, api_keys, token_counter(options.tokenizer))
    header = RunHeader(
        schema=SCHEMA,
        environment=environment(None),
        options=recorded(options),
        arms=[arm.info for arm in arms],
        baseline=baseline_of([arm.info for arm in arms], options.baseline),
        notes=[*options.notes(prompts, len(arms)), *left_out, *notes],
    )
    watcher.opened(header)
    writer = RawWriter(raw, header)
    session = _Session(options, prompts, writer, watcher, now_ns)
    try:
        for load in options.loads:
            for arm in arms:
                await session.warm_up(arm, load)
            for number, seed in enumerate(options.seeds):
                for arm in interleaved(arms, number):
                    await session.case(arm, load, number, seed)
    finally:
        writer.close()
        for arm in arms:
            arm.server.stream.close()
            await arm.server.control.aclose()


def recorded(options: ServeOptions) -> dict[str, object]:
    """Options as they are stored; nothing secret is among them."""
    from dataclasses import asdict

    files = {"prompts": options.prompts, "ca_file": options.ca_file}
    found = asdict(options) | {name: None if path is None else path.name for name, path in files.items()}
    return found | {"loads": [load.label for load in options.loads]}


def token_counter(name: str | None) -> CountTokens | None:
    if name is None:
        return None
    from paceline.hub.resolve import resolve
    from paceline.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve(name))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


class _Session:
    def __init__(
        self, options: ServeOptions, prompts: Sequence[Prompt], writer: RawWriter, watcher: Watcher, clock: Clock
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._writer = writer
        self._watcher = watcher
        self._clock = clock
        self._start_ns = clock()
        self._place = 0
        self._run_id = secrets.token_hex(4)  # prefixes of an earlier run may still lie in a server's cache

    async def warm_up(self, arm: Arm, load: Load) -> None:
        """Short answers that are not measured, to prompts of another order."""
        jobs = order(self._prompts, self._options.warmup, seed=2**31)

        async def send(number: int) -> None:
            body = arm.body(jobs[number], 0, (), f"{self._run_id}-w{load.label}-{number}")
            body["max_tokens"] = min(_WARMUP_TOKENS, self._options.max_tokens)
            listener = await ask(arm.server.stream, arm.path, body, make_tally("share", None), self._clock)
            if listener.error is not None:
                raise PacelineError(f"{arm.info.name}, warm-up: {listener.error}")

        try:
            await closed_loop(max(1, int(load.value)), len(jobs), send)
        except* PacelineError as group:
            raise group.exceptions[0] from None

    async def case(self, arm: Arm, load: Load, round_number: int, seed: int) -> None:
        jobs = order(self._prompts, self._options.count_of(load), seed)
        turns = [len(job.turns) if self._options.all_turns else 1 for job in jobs]
        self._watcher.case(arm.info.name, load, round_number, sum(turns))
        heard: list[tuple[Record, Listener]] = []

        async def converse(number: int, late: float = 0.0) -> None:
            answers: list[str] = []
            for turn in range(turns[number]):
                fresh = f"{self._run_id}-{load.label}-{round_number}-{number}"
                body = arm.body(jobs[number], turn, answers, fresh)
                tally = make_tally(arm.info.counting, arm.count_tokens)
                listener = await ask(arm.server.stream, arm.path, body, tally, self._clock)
                record = self._record(arm, load, round_number, number, jobs[number], turn, listener)
                record.lag_us = round(late * 1e6) if turn == 0 else 0
                heard.append((record, listener))
                tokens = listener.last.usage.completion_tokens if listener.last and listener.last.usage else 0
                self._watcher.answered(tokens, (self._clock() - start) / 1e9, listener.error is not None)
                if listener.error is not None:
                    return
                answers.append("".join(listener.pieces))

        before = await read_counters(arm.server.control)
        async with quiet_collector():
            arm.server.stream.arrivals.taken()
            start = self._clock()
            if load.kind == "rate":
                await open_loop(arrivals(load.value, len(jobs), seed), converse)
            else:
                await closed_loop(int(load.value), len(jobs), converse)
            end = self._clock()
            reads = arm.server.stream.arrivals.taken()
        risen = (await read_counters(arm.server.control)).since(before)
        records = sorted(
            (fill(record, listener, self._options.max_tokens) for record, listener in heard),
            key=lambda record: (record.number, record.turn),
        )
        span = CaseSpan(
            arm=arm.info.name,
            load=load,
            round=round_number,
            seed=seed,
            place=self._place,
            start_us=self._micros(start),
            end_us=self._micros(end),
            counters=dict(risen.values),
            accepted_per_position=list(risen.accepted_per_position),
            reads=reads,
            requests=len(records),
        )
        self._place += 1
        self._watcher.case_over()
        if all(record.error for record in records):
            raise PacelineError(f"{arm.info.name} at {load.label}: every request failed. {records[0].error}")
        self._writer.write([*records, span])

    def _record(
        self, arm: Arm, load: Load, round_number: int, number: int, prompt: Prompt, turn: int, listener: Listener
    ) -> Record:
        return Record(
            arm=arm.info.name,
            load=load,
            round=round_number,
            number=number,
            prompt=prompt.number,
            category=prompt.category,
            turn=turn,
            start_us=self._micros(listener.started_ns),
        )

    def _micros(self, ns: int) -> int:
        return (ns - self._start_ns) // 1000
