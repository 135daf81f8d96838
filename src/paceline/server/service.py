"""ServerState: what every endpoint needs, and the steps that all of them share.

The tokenizer works in one thread of its own, so that a long prompt holds up no stream. What can never fit is
refused before it gets there, so that nobody holds up the others' prompts for long.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from starlette.types import Scope

from paceline.config import EngineConfig
from paceline.errors import InvalidRequestError, did_you_mean
from paceline.prompts import encode_text
from paceline.sampling_params import SamplingParams
from paceline.server.access.limits import Limits
from paceline.server.access.middleware import ticket_of
from paceline.server.engine_client import EngineClient
from paceline.server.errors import UnknownModelError
from paceline.server.generation import Generation
from paceline.server.messages import ChatMessage
from paceline.server.requests import Requests
from paceline.server.token_origins import TokenOrigins
from paceline.server.token_text import token_bytes
from paceline.server.tools.answer import ToolAnswer
from paceline.server.tools.formats import ToolFormat, tool_format
from paceline.server.tools.parser import ToolParser
from paceline.server.tools.plan import ToolPlan
from paceline.tokenizer import Tokenizer

T = TypeVar("T")


class ServerState:
    def __init__(
        self,
        engine: EngineClient,
        served_model_names: Sequence[str],
        tokenizer: Tokenizer,
        config: EngineConfig,
        requests: Requests,
        limits: Limits,
    ) -> None:
        self.requests = requests
        self.limits = limits
        self.engine = engine
        self.names = tuple(served_model_names)
        self.tokenizer = tokenizer
        self.config = config
        self.created = int(time.time())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    def generation(
        self,
        scope: Scope,
        name: str,
        prompts: list[list[int]],
        params: SamplingParams,
        *,
        priority: int | None = None,
        cache_salt: str | None = None,
        only_prompt: bool = False,
    ) -> Generation:
        """Work for the engine, if the limits have room for it. Raises InvalidRequestError, TooManyRequestsError."""
        num_sequences = len(prompts) * params.n
        room = max(1, self.config.model.max_model_len - min(map(len, prompts)))
        if params.max_tokens is None and (fitting := self.limits.default_tokens(num_sequences, room)) is not None:
            params = dataclasses.replace(params, max_tokens=fitting)
        self.limits.check_tokens(num_sequences, room if params.max_tokens is None else params.max_tokens, "max_tokens")
        ticket = ticket_of(scope)
        self.limits.take(ticket, num_sequences)
        return Generation(
            self.engine,
            name,
            prompts,
            params,
            only_prompt=only_prompt,
            priority=priority or 0,
            cache_salt=cache_salt or "",
            deadline=self.limits.deadline(ticket),
            request_timeout=self.limits.request_timeout,
        )

    def token_origins(self, generation: Generation) -> TokenOrigins:
        """Called before the generation's first delta."""
        generation.tell_steps()
        return TokenOrigins(self.tokenizer, generation.params, generation.num_choices)

    def check_model(self, name: str) -> None:
        if name not in self.names:
            served = ", ".join(f"'{known}'" for known in self.names)
            raise UnknownModelError(
                f"The model '{name:.80}' does not exist here.{did_you_mean(name, self.names)} Served: {served}.",
                param="model",
                code="model_not_found",
            )

    async def chat_prompt(
        self, chat: Sequence[ChatMessage], arguments: dict[str, Any], plan: ToolPlan | None = None
    ) -> list[int]:
        """The token ids that the template makes of a chat; `arguments` are its other variables."""
        if len(chat) > self.config.model.max_model_len:  # each has a token at least, of its role
            raise InvalidRequestError(
                f"There are {len(chat)} messages; this model takes at most {self.config.model.max_model_len} tokens.",
                param="messages",
                code="context_length_exceeded",
            )
        messages = [message.for_template() for message in chat]
        if plan is not None:
            arguments = {**arguments, "tools": plan.for_template()}
        calls_and_tools = [arguments.get("tools", ""), *(message.get("tool_calls", "") for message in messages)]
        length = sum(len(message["content"] or "") for message in messages) + sum(len(str(v)) for v in calls_and_tools)
        self._check_length(length, "messages")

        def work() -> list[int]:
            token_ids = self.tokenizer.apply_chat_template(messages, **arguments)
            opening = plan.opening if plan is not None else ""
            return token_ids + (self.tokenizer.encode(opening, add_special_tokens=False) if opening else [])

        return await self._in_thread(work)

    async def prompt(self, prompt: str | list[int], add_special_tokens: bool | None) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        self._check_length(len(prompt))
        if add_special_tokens is False:
            return await self._in_thread(lambda: self.tokenizer.encode(prompt, add_special_tokens=False))
        return await self._in_thread(lambda: encode_text(prompt, self.tokenizer))

    async def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included; ids that stand for no text are refused, those of padding too."""
        size = self.tokenizer.vocab_size
        for place, token_id in enumerate(token_ids):
            if token_id >= size:
                raise InvalidRequestError(
                    f"tokens[{place}] is {token_id}; this model's tokens are 0 to {size - 1}.", param=f"tokens[{place}]"
                )
        return await self._in_thread(lambda: self.tokenizer.decode(token_ids, skip_special_tokens=False))

    def _check_length(self, characters: int, param: str = "prompt") -> None:
        """Refuse a text that cannot fit whatever its tokens are, before any of it is tokenised."""
        limit = self.config.model.max_model_len
        if characters > limit and characters > limit * self._longest_token:
            raise InvalidRequestError(
                f"The prompt has {characters} characters; this model takes at most {limit} tokens, and no token has "
                f"more than {self._longest_token} characters. Shorten the prompt.",
                param=param,
                code="context_length_exceeded",
            )

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes tool calls; None if it does not."""
        return tool_format(self.tokenizer.chat_template)

    def tool_answer(self, plan: ToolPlan) -> ToolAnswer:
        return ToolAnswer(plan, self._end_texts if plan.shows_special_tokens else ())

    def tool_parser(self, plan: ToolPlan) -> ToolParser:
        return plan.parser(self._end_texts if plan.shows_special_tokens else ())

    @cached_property
    def _end_texts(self) -> tuple[str, ...]:
        """EOS tokens as they look where special tokens are shown."""
        ends = self.config.model.eos_token_ids
        return tuple(self.tokenizer.decode([token], skip_special_tokens=False) for token in ends)

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self.tokenizer.token_table()))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except UnicodeEncodeError:
            raise InvalidRequestError("The prompt is not valid Unicode.", param="prompt") from None

    def token_bytes(self, token_id: int) -> bytes:
        return token_bytes(self.tokenizer, token_id)
