"""LLM: the engine in this process, with the shape of vLLM's offline API.

    from paceline import LLM, SamplingParams
    llm = LLM(model="smollm2-135m-instruct", speculative_config={"model": "smollm2-135m-instruct-draft"})
    for output in llm.generate(["Hello"], SamplingParams(temperature=0.7, max_tokens=64)):
        print(output.outputs[0].text, output.metrics.speculative_decoding.mean_acceptance_length)

Contract
- Results come in the order of the prompts. Prompts of one call run as one continuous batch.
- A wrong prompt or parameter raises InvalidRequestError, and nothing of that call keeps running.
- A request that fails inside the engine is returned with finish_reason "error"; the others are untouched.
- `stream` may be left early, and several streams and calls may be open at once: each sees its own tokens.
- Not for several threads; the server has the engine in a process of its own.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from paceline.arguments import check_runtime, resolve_arguments
from paceline.config import EngineConfig
from paceline.engine.statistics import EngineStats
from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.outputs import OutputBuilder, RequestOutput
from paceline.progress import GenerationProgress
from paceline.prompts import Prompt, TokenizedPrompt, as_prompts, tokenize
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, SequenceDelta

if TYPE_CHECKING:
    from paceline.engine.core_process import EngineLike
    from paceline.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """`arguments` are those of vLLM's LLM; see `paceline.arguments` for what is honoured.

    `runtime="vllm"` runs the same on a vLLM in another environment, whose Python is `vllm_python`; `vllm_args` are
    options in vLLM's own spelling. See docs/vllm-runtime.md.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        runtime: str = "paceline",
        vllm_python: str | None = None,
        vllm_args: str | Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        check_runtime(runtime, vllm_python=vllm_python, vllm_args=vllm_args)
        self._config: EngineConfig | None = None
        self._tokenizer: Tokenizer | None
        self._engine: EngineLike | None
        if runtime == "vllm":
            from paceline.runtimes.vllm.llm import start

            given = {"model": str(model), **arguments}
            self._engine, self._tokenizer = start(given, vllm_python, vllm_args, logger.info, logger.warning)
        else:
            resolved = resolve_arguments({"model": model, **arguments}, progress=logger.info)
            for note in resolved.notes:
                logger.warning(note)
            self._config, self._tokenizer = resolved.config, resolved.tokenizer
            self._engine = self._make_engine()
        self._ids = itertools.count()
        self._inbox: dict[str, deque[SequenceDelta]] = {}

    def _make_engine(self) -> EngineLike:
        from paceline.build import assemble_engine

        return assemble_engine(self.config, self._tokenizer)

    @property
    def config(self) -> EngineConfig:
        if self._config is None:
            raise ConfigurationError("vLLM keeps its own configuration; describe() tells the command that it runs.")
        return self._config

    def let_k_move(self) -> None:
        """For checks: K follows load and acceptance by costs at which it really moves, whatever this machine's are."""
        from paceline.engine.engine import Engine
        from paceline.engine.moving_costs import moving_costs

        engine = self._running_engine()
        if not isinstance(engine, Engine):
            raise ConfigurationError("Here vLLM chooses K; only Paceline's own engine can be told how.")
        engine.follow_costs(moving_costs(engine.executor.shapes()))

    # What users call

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt: text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, or a list of these.

        A dict may also have a "cache_salt": cached prefixes are shared among prompts of one salt alone.
        `sampling_params` is one for all or one for each, and so is `priority`: lower is served earlier, 0 if not
        given. `use_tqdm` shows a progress bar when the work is long.
        """
        return self._run(
            [tokenize(prompt, self._tokenizer) for prompt in as_prompts(prompts)], sampling_params, use_tqdm, priority
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, written with the model's chat template."""
        if not _is_list(messages):
            raise _not_messages(messages)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        kwargs: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, **(chat_template_kwargs or {})}
        if continue_final_message:
            kwargs["continue_final_message"] = True
        if tools:
            kwargs["tools"] = list(tools)
        prompts = [self._chat_prompt(conversation, kwargs) for conversation in conversations]
        return self._run(prompts, sampling_params, use_tqdm)

    def stream(
        self, prompt: Prompt | Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[SequenceDelta]:
        """Yield what each step adds to the answer of one prompt or one conversation."""
        return self._deltas(self._one_prompt(prompt), sampling_params or SamplingParams())

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ConfigurationError("This LLM was made with skip_tokenizer_init=True; it has no tokenizer.")
        return self._tokenizer

    def stats(self) -> EngineStats:
        return self._running_engine().stats()

    def describe(self) -> dict[str, str]:
        """The resolved configuration and memory plan."""
        return self._running_engine().describe()

    def close(self) -> None:
        """Free the models. A closed LLM answers nothing any more; closing twice is harmless."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # How it works

    def _one_prompt(self, prompt: Prompt | Sequence[Message]) -> TokenizedPrompt:
        if not isinstance(prompt, str | Mapping) and prompt and isinstance(prompt[0], Mapping):
            return self._chat_prompt(prompt, {})
        prompts = as_prompts(prompt)
        if len(prompts) != 1:
            raise InvalidRequestError(f"stream takes one prompt, not {len(prompts)}; see generate.", param="prompt")
        return tokenize(prompts[0], self._tokenizer)

    def _chat_prompt(self, messages: Any, kwargs: dict[str, Any]) -> TokenizedPrompt:
        if not _is_list(messages):
            raise _not_messages(messages)
        for message in messages:
            if not isinstance(message, Mapping):
                raise _not_messages(message)
        return TokenizedPrompt(None, self.get_tokenizer().apply_chat_template(messages, **kwargs))

    def _run(
        self,
        prompts: list[TokenizedPrompt],
        sampling_params: Params,
        show_progress: bool,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        priorities = _priorities(priority, len(prompts))
        builders: dict[str, OutputBuilder] = {}
        try:
            for index, params in enumerate(_one_for_each(sampling_params, len(prompts))):
                with _naming_the_prompt(index, len(prompts)):
                    request_id = self._submit(prompts[index], params, priorities[index])
                builders[request_id] = self._builder(request_id, prompts[index], params)
            with GenerationProgress(len(builders), enabled=show_progress) as progress:
                self._finish(builders, progress)
        finally:
            self._abandon([name for name, builder in builders.items() if not builder.output.finished])
        return [builder.output for builder in builders.values()]

    def _builder(self, request_id: str, prompt: TokenizedPrompt, params: SamplingParams) -> OutputBuilder:
        return OutputBuilder(request_id, prompt.text, prompt.token_ids, params, self._tokenizer)

    def _finish(self, builders: dict[str, OutputBuilder], progress: GenerationProgress) -> None:
        unfinished = dict(builders)
        while unfinished:
            self._pump()
            for request_id, builder in list(unfinished.items()):
                inbox = self._inbox[request_id]
                while inbox:
                    delta = inbox.popleft()
                    builder.add(delta)
                    progress.add(delta)
                if builder.output.finished:
                    progress.finish_request()
                    del unfinished[request_id], self._inbox[request_id]

    def _deltas(self, prompt: TokenizedPrompt, params: SamplingParams) -> Iterator[SequenceDelta]:
        request_id, unfinished = self._submit(prompt, params), params.n
        try:
            while unfinished:
                inbox = self._inbox[request_id]
                while not inbox:
                    self._pump()
                delta = inbox.popleft()
                unfinished -= delta.finish_reason is not None
                yield delta
        finally:
            self._abandon([request_id] if unfinished else [])
            self._inbox.pop(request_id, None)

    def _submit(self, prompt: TokenizedPrompt, params: SamplingParams, priority: int = 0) -> str:
        request_id = str(next(self._ids))
        if self._tokenizer is None and params.stop:
            raise InvalidRequestError("Stop strings need a tokenizer; this LLM has none.", param="stop")
        self._running_engine().add_request(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=prompt.token_ids,
                sampling_params=params,
                priority=priority,
                cache_salt=prompt.cache_salt,
            )
        )
        self._inbox[request_id] = deque()
        return request_id

    def _pump(self) -> None:
        """One step of the engine; its deltas go to whoever asked, those of abandoned requests to nobody."""
        for delta in self._running_engine().step():
            if delta.request_id in self._inbox:
                self._inbox[delta.request_id].append(delta)

    def _abandon(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._inbox.pop(request_id, None)
            if self._engine is not None:
                self._engine.abort(request_id)

    def _running_engine(self) -> EngineLike:
        if self._engine is None:
            raise ConfigurationError("This LLM was closed; make a new one.")
        return self._engine


def _one_for_each(sampling_params: Params, count: int) -> list[SamplingParams]:
    each = sampling_params if isinstance(sampling_params, list | tuple) else [sampling_params]
    if not all(params is None or isinstance(params, SamplingParams) for params in each):
        raise InvalidRequestError(
            "sampling_params must be SamplingParams, or a list with one for each prompt, e.g. "
            "SamplingParams(temperature=0.7, max_tokens=64).",
            param="sampling_params",
        )
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * count
    if len(sampling_params) != count:
        raise InvalidRequestError(
            f"There are {count} prompts and {len(sampling_params)} sampling parameters; give one for all, or one each.",
            param="sampling_params",
        )
    return list(sampling_params)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _not_messages(found: object) -> InvalidRequestError:
    return InvalidRequestError(
        f'messages must be a list of {{"role": ..., "content": ...}}, or a list of such lists; '
        f"{type(found).__name__} is neither.",
        param="messages",
    )


def _priorities(priority: int | Sequence[int] | None, count: int) -> list[int]:
    if priority is None or type(priority) is int:
        each = [priority or 0] * count
    else:
        each = list(priority) if isinstance(priority, list | tuple) else []
        if len(each) != count:
            message = f"priority must be an integer, or a list with one for each of the {count} prompts."
            raise InvalidRequestError(message, param="priority")
    if not all(type(value) is int and -(2**31) <= value < 2**31 for value in each):
        raise InvalidRequestError(
            "A priority must be an integer of 32 bits; lower is served earlier.", param="priority"
        )
    return each


@contextmanager
def _naming_the_prompt(index: int, count: int) -> Iterator[None]:
    """Say which of many prompts was refused."""
    try:
        yield
    except InvalidRequestError as error:
        if count == 1:
            raise
        raise InvalidRequestError(f"prompts[{index}]: {error}", param=error.param, code=error.code) from error
