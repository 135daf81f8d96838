"""The request bodies of the API. Every field is honoured or refused with a 400 that names it.

The models are strict: "0.7" is not a number and 1 is not true. vLLM's extra sampling fields are honoured too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from paceline.arguments.foreign import Foreign
from paceline.errors import InvalidRequestError, did_you_mean
from paceline.sampling_params import SamplingParams, check_num_logprobs
from paceline.server.unsupported import CHAT, COMPLETION, UNSUPPORTED_IN_MESSAGES, UNSUPPORTED_ROLES
from paceline.structured.constraint import Constraint
from paceline.structured.params import constraint_of, response_format_constraint, single

_SAMPLING_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "min_tokens", "logit_bias", "allowed_token_ids", "skip_special_tokens", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "bad_words", "prompt_logprobs", "speculation",
)  # fmt: skip


Int = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # more than that is never meant, and fits nowhere
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
# Keywords of transformers' apply_chat_template that are not variables of a template.
_NOT_FOR_TEMPLATES = {
    "chat_template", "conversation", "documents", "max_length", "padding", "return_assistant_tokens_mask",
    "messages", "return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


_UNSUPPORTED = "unsupported_parameter"


def check_unicode(body: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair anywhere in a body: JSON can carry it, and no text contains it."""
    for name, value in body.items():
        waiting: list[Any] = [name, value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str) and not part.isascii():
                try:
                    part.encode()
                except UnicodeEncodeError:
                    raise InvalidRequestError(f"{name!a} is not valid Unicode: a lone surrogate.", param=name) from None
            elif isinstance(part, dict):
                waiting += [*part.keys(), *part.values()]
            elif isinstance(part, list):
                waiting += part


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None  # padding against traffic analysis is not offered


class GenerationRequest(_Strict):
    """What both generating endpoints take."""

    unsupported: ClassVar[dict[str, Foreign]] = {}

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

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        check_unicode(body)
        for name, value in body.items():
            foreign = cls.unsupported.get(name)
            if foreign is not None and not foreign.accepts(value):
                raise InvalidRequestError(
                    f"'{name}' is not supported with this value: {foreign.reason}",
                    param=name,
                    code=_UNSUPPORTED,
                )
            if foreign is None and name not in cls.model_fields:
                guess = did_you_mean(name, [*cls.model_fields, *cls.unsupported])
                raise InvalidRequestError(f"Unknown field '{name}'.{guess}", param=name, code="unknown_parameter")
        return {name: value for name, value in body.items() if name not in cls.unsupported}

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs cannot be streamed; set stream=false.", param="prompt_logprobs")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def _sampling(self, max_logprobs: int, **resolved: Any) -> SamplingParams:
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        params = SamplingParams(**given | resolved, structured_outputs=self._constraint())
        check_num_logprobs(params, max_logprobs)
        return params

    def _constraint(self) -> Constraint | None:
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


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    # Present in the messages that clients send back; there is nothing in them.
    refusal: None = None
    annotations: list[Any] | None = Field(None, max_length=0)
    audio: None = None
    tool_calls: list[Any] | None = Field(None, max_length=0)
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        if message.get("role") in UNSUPPORTED_ROLES:
            raise InvalidRequestError(
                f"role '{message['role']}' is not supported yet.", param="role", code=_UNSUPPORTED
            )
        for name in UNSUPPORTED_IN_MESSAGES:
            if message.get(name) is not None:
                raise InvalidRequestError(f"'{name}' is not supported yet.", param=name, code=_UNSUPPORTED)
        return {name: value for name, value in message.items() if name not in UNSUPPORTED_IN_MESSAGES}

    def for_template(self) -> dict[str, Any]:
        """Templates know no developer; it is the newer name of system."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if isinstance(self.content, str | None) else "".join(part.text for part in self.content)
        return {"role": role, "content": content}


class ChatRequest(GenerationRequest):
    unsupported: ClassVar[dict[str, Foreign]] = CHAT

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def sampling_params(self, max_logprobs: int) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise InvalidRequestError("max_tokens and max_completion_tokens differ; give one.", param="max_tokens")
        wanted = next((value for value in both if value is not None), None)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        try:
            return self._sampling(max_logprobs, max_tokens=wanted, logprobs=logprobs)
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

    def template_arguments(self) -> dict[str, Any]:
        arguments = dict(self.chat_template_kwargs or {})
        for name in arguments.keys() & _NOT_FOR_TEMPLATES:
            raise InvalidRequestError(
                f"chat_template_kwargs: '{name}' is not a variable of a template.", param="chat_template_kwargs"
            )
        for name in arguments.keys() & {"add_generation_prompt", "continue_final_message"}:
            raise InvalidRequestError(
                f"chat_template_kwargs: give '{name}' as a field of the request.", param="chat_template_kwargs"
            )
        if self.continue_final_message:
            arguments |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.add_generation_prompt is not None:
            arguments["add_generation_prompt"] = self.add_generation_prompt
        return arguments


def _check_prompt(prompt: Any) -> Any:
    """Each form of a prompt, told by its first entry; pydantic would complain once for each form it tries."""
    if isinstance(prompt, str) or prompt == []:
        return prompt
    if not isinstance(prompt, list):
        raise _not_a_prompt("prompt", prompt)
    if isinstance(prompt[0], list):
        for number, ids in enumerate(prompt):
            if not isinstance(ids, list):
                raise _not_a_prompt(f"prompt[{number}]", ids)
            _check_entries(f"prompt[{number}]", ids, _is_token_id)
    else:
        _check_entries("prompt", prompt, _is_text if isinstance(prompt[0], str) else _is_token_id)
    return prompt


def _check_entries(path: str, entries: list[Any], is_right: Callable[[Any], bool]) -> None:
    wrong = next((index for index, entry in enumerate(entries) if not is_right(entry)), None)
    if wrong is not None:
        raise _not_a_prompt(f"{path}[{wrong}]", entries[wrong])


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _not_a_prompt(path: str, value: Any) -> InvalidRequestError:
    names = {type(None): "null", list: "a list", dict: "an object", str: "a string", bool: str(value is True).lower()}
    what = names.get(type(value)) or f"{value!r:.40}"
    return InvalidRequestError(
        f"'prompt' must be a string, a list of strings, a list of token ids or a list of lists of token ids (integers "
        f"from 0); '{path}' does not fit: {what}.",
        param=path,
    )


class CompletionRequest(GenerationRequest):
    unsupported: ClassVar[dict[str, Foreign]] = COMPLETION

    prompt: Annotated[str | list[str] | list[TokenId] | list[list[TokenId]], BeforeValidator(_check_prompt)]
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
