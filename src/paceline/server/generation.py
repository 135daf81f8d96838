"""Generation: the prompts of one HTTP request on the engine, their deltas in one stream, their sums.

The answers of all prompts are numbered through: answer index = prompt * n + delta.index. Closing the stream
early, for whatever reason, aborts every prompt that is still running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from paceline.errors import InvalidRequestError
from paceline.plan import TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta, SpeculationCounts
from paceline.server.engine_client import EngineClient
from paceline.server.errors import RequestFailedError, RequestTimeoutError
from paceline.server.prompt_field import of_prompt

_Item = tuple[int, SequenceDelta]  # the number of a prompt, and news of one of its answers


class Answer:
    """One choice, collected."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, delta: SequenceDelta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason.value, delta.stop_reason


class Generation:
    def __init__(
        self,
        engine: EngineClient,
        name: str,
        prompts: list[list[int]],
        params: SamplingParams,
        *,
        only_prompt: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        deadline: float | None = None,
        request_timeout: float | None = None,
    ) -> None:
        """`only_prompt`: what is generated is thrown away; the prompt's log-probabilities are all that is wanted.
        `deadline`: of the whole answer, on the event loop's clock. `request_timeout`: the
        seconds that led to it, for the message."""
        self._engine = engine
        self._only_prompt = only_prompt
        self._deadline = deadline
        self._request_timeout = request_timeout
        self.prompts = prompts
        self.prompt_logprobs: list[list[TokenLogprobs] | None] = [None] * len(prompts)  # of all tokens but the first
        self.params = params
        self._requests = [
            EngineRequest(
                request_id=f"{name}-{number}",
                prompt_token_ids=prompt,
                sampling_params=params,
                arrival_time=time.time(),
                priority=priority,
                cache_salt=cache_salt,
            )
            for number, prompt in enumerate(prompts)
        ]
        self.num_prompt_tokens = sum(map(len, prompts))
        self.num_completion_tokens = 0
        self._cached = [0] * len(prompts)
        self.speculation = SpeculationCounts()

    def tell_steps(self) -> None:
        """Each delta is to be one step of the engine. Before the first one."""
        for request in self._requests:
            request.wants_steps = True

    def prompt_of(self, index: int) -> int:
        """The number of the prompt that an answer belongs to."""
        return index // self.params.n

    @property
    def num_choices(self) -> int:
        return len(self._requests) * self.params.n

    @property
    def num_cached_tokens(self) -> int:
        return sum(self._cached)

    async def deltas(self) -> AsyncGenerator[tuple[int, SequenceDelta], None]:
        """Yield (answer index, delta).

        Raises RequestFailedError when one of the answers failed, InvalidRequestError when the request was refused,
        RequestTimeoutError behind the deadline.
        """
        async with aclosing(self._merged()) as merged:
            while (item := await self._next(merged)) is not None:
                prompt, delta = item
                self._count(prompt, delta)
                if delta.refusal is not None:
                    raise InvalidRequestError(str(delta.error), param=delta.refusal.param, code=delta.refusal.code)
                if delta.finish_reason is FinishReason.ERROR:
                    raise RequestFailedError(f"The generation failed: {delta.error or 'no reason was given'}")
                yield prompt * self.params.n + delta.index, delta

    async def _next(self, merged: AsyncGenerator[_Item, None]) -> _Item | None:
        """None at the end."""
        if self._deadline is None:
            return await anext(merged, None)
        try:
            async with asyncio.timeout_at(self._deadline):
                return await anext(merged, None)
        except TimeoutError:
            limit = "its time" if self._request_timeout is None else f"{self._request_timeout:g} s"
            raise RequestTimeoutError(
                f"The answer was not finished within {limit}, the most that a request may take here, waiting included "
                "(--request-timeout). Ask for fewer tokens."
            ) from None

    async def collect(self) -> list[Answer]:
        answers = [Answer() for _ in range(self.num_choices)]
        async with aclosing(self.deltas()) as deltas:
            async for index, delta in deltas:
                answers[index].add(delta)
        return answers

    def _count(self, prompt: int, delta: SequenceDelta) -> None:
        if self._only_prompt:
            delta.token_ids, delta.text, delta.logprobs, delta.num_accepted = [], "", None, 0
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs[prompt] = delta.prompt_logprobs
        self.num_completion_tokens += len(delta.token_ids)
        self._cached[prompt] = max(self._cached[prompt], delta.num_cached_tokens)
        if delta.speculation is not None:
            self.speculation.add(delta.speculation)

    async def _merged(self) -> AsyncGenerator[_Item, None]:
        if len(self._requests) == 1:
            async with aclosing(self._engine.generate(self._requests[0])) as stream:
                async for delta in stream:
                    yield 0, delta
            return
        queue: asyncio.Queue[tuple[int, SequenceDelta] | Exception | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._forward(number, queue)) for number in range(len(self._requests))]
        try:
            running = len(tasks)
            while running:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, number: int, queue: asyncio.Queue[tuple[int, SequenceDelta] | Exception | None]) -> None:
        try:
            async with aclosing(self._engine.generate(self._requests[number])) as stream:
                async for delta in stream:
                    queue.put_nowait((number, delta))
            queue.put_nowait(None)
        except InvalidRequestError as error:
            queue.put_nowait(of_prompt(error, number))
        except Exception as error:
            queue.put_nowait(error)
