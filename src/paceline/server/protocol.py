"""The request bodies of the API. Every field is honoured or refused with a 400 that names it.

vLLM's extra sampling fields are honoured too.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from paceline.arguments.foreign import Foreign
from paceline.errors import InvalidRequestError
from paceline.sampling_params import SamplingParams, check_num_logprobs
from paceline.server.fields import Body, Int, Items, Strict, TokenId, TokenKey
from paceline.server.messages import ChatMessage, TemplateArguments, check_results
from paceline.server.prompt_field import PromptField
from paceline.server.tools.fields import MAX_TOOLS, Tool, ToolChoice
from paceline.server.tools.formats import ToolFormat
from paceline.server.tools.plan import NO_TOOLS, ToolPlan, plan_tools
from paceline.server.unsupported import CHAT, COMPLETION
from paceline.structured.constraint import Constraint
from paceline.structured.params import constraint_of, response_format_constraint, single

_SAMPLING_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "min_tokens", "logit_bias", "allowed_token_ids", "skip_special_tokens", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "bad_words", "prompt_logprobs", "speculation",
)  # fmt: skip


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # the usage so far in every chunk, beside include_usage
    include_obfuscation: Literal[False] | None = None  # padding against traffic analysis is not offered
    include_token_origins: bool | None = None  # where each token came from, in every chunk


class GenerationRequest(Body):
    """What both generating endpoints take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: Int | None = None
    logit_bias: dict[TokenKey, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: Int | None = None
    top_k: Int | None = None
    min_p: float | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    allowed_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    speculation: Any = None  # how many drafts, of what: checked in request_speculation.py, which words its own errors
    return_token_ids: bool | None = None
    priority: Int | None = Field(None, description="Lower is served earlier; 0 if not given.")
    cache_salt: str | None = Field(
        None, min_length=1, max_length=256, description="Cached prefixes are shared among requests of one salt alone."
    )
    # What the answer must be; the shapes are checked in structured/params.py, which words its own errors.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    user: str | None = Field(None, description="Who asks; never changes the answer.")
    safety_identifier: str | None = Field(None, description="Who asks; never changes the answer.")
    prompt_cache_key: str | None = Field(
        None, description="Has no effect: the prefix cache finds shared prefixes itself."
    )

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true.", param="stream_options")
        if self.usage_in_every_chunk and not self.include_usage:
            raise InvalidRequestError(
                "continuous_usage_stats needs include_usage=true.", param="stream_options.continuous_usage_stats"
            )
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs cannot be streamed; set stream=false.", param="prompt_logprobs")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_in_every_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def include_token_origins(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_token_origins)

    def _sampling(self, max_logprobs: int, constraint: Constraint | None, **resolved: Any) -> SamplingParams:
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        params = SamplingParams(**given | resolved, structured_outputs=constraint)
        check_num_logprobs(params, max_logprobs)
        return params

    def constraint(self) -> Constraint | None:
        """The one constraint of the request. vLLM's older fields are names for the parts of structured_outputs."""
        found = {
            "response_format": response_format_constraint(self.response_format),
            "structured_outputs": constraint_of(self.structured_outputs, "structured_outputs"),
        }
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar"):
            if getattr(self, name) is not None:
                found[name] = single(name.removeprefix("guided_"), getattr(self, name), name)
        given = [name for name, constraint in found.items() if constraint is not None]
        if len(given) > 1:
            message = f"{' and '.join(given)} both say what the answer must be; give one."
            raise InvalidRequestError(message, param=given[1])
        return found[given[0]] if given else None


class ChatRequest(GenerationRequest, TemplateArguments):
    unsupported: ClassVar[dict[str, Foreign]] = CHAT

    messages: Items[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def plan_tools(self, form: ToolFormat | None) -> ToolPlan | None:
        """What its tools come to with a model that writes calls in `form`; None where nothing can be called."""
        place = next((place for place, message in enumerate(self.messages) if message.is_about_tools), None)
        if place is not None and form is None:
            raise InvalidRequestError(f"messages[{place}] cannot be used: {NO_TOOLS}", param=f"messages[{place}]")
        check_results(self.messages)
        parallel = self.parallel_tool_calls is not False
        return plan_tools(self.tools, self.tool_choice, parallel, self.constraint(), form)

    def sampling_params(self, max_logprobs: int, plan: ToolPlan | None = None) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise InvalidRequestError("max_tokens and max_completion_tokens differ; give one.", param="max_tokens")
        wanted = next((value for value in both if value is not None), None)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        constraint = self.constraint() if plan is None else plan.constraint
        resolved = {"skip_special_tokens": False} if plan is not None and plan.shows_special_tokens else {}
        try:
            return self._sampling(max_logprobs, constraint, **resolved, max_tokens=wanted, logprobs=logprobs)
        except InvalidRequestError as error:
            raise self._in_own_words(error) from None

    def _in_own_words(self, error: InvalidRequestError) -> InvalidRequestError:
        names = {"logprobs": "top_logprobs"}
        if self.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
        name = names.get(error.param or "")
        if name is None:
            return error
        return InvalidRequestError(str(error).replace(str(error.param), name, 1), param=name, code=error.code)


class CompletionRequest(GenerationRequest):
    unsupported: ClassVar[dict[str, Foreign]] = COMPLETION

    prompt: PromptField
    logprobs: Int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    @property
    def only_prompt(self) -> bool:
        """Nothing but the prompt is asked for; OpenAI's API takes max_tokens=0 along with echo for that."""
        return bool(self.echo) and self.max_tokens == 0

    def sampling_params(self, max_logprobs: int) -> SamplingParams:
        max_tokens = 16 if self.max_tokens is None else self.max_tokens
        prompt_logprobs = self.prompt_logprobs
        if self.echo and prompt_logprobs is None:
            prompt_logprobs = self.logprobs
        return self._sampling(
            max_logprobs,
            self.constraint(),
            max_tokens=1 if self.only_prompt else max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt, in order."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]
