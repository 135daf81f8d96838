"""The body of /v1/responses, and what it says as a chat."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, ValidationError
from pydantic.functional_validators import BeforeValidator
from pydantic.types import Discriminator

from paceline.arguments.foreign import Foreign
from paceline.errors import InvalidRequestError
from paceline.server.fields import UNSUPPORTED, Body, Int, Items, Strict
from paceline.server.protocol import ChatRequest
from paceline.server.tools.fields import MAX_TOOLS, FunctionName
from paceline.server.unsupported import RESPONSES

_Status = Literal["in_progress", "completed", "incomplete"]
# Names of a chat's fields, as this body has them; for errors.
_OWN_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}


class InputText(Strict):
    """Text that was sent or, in an answer that comes back, written."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = Field(None, max_length=0)
    logprobs: list[Any] | None = Field(None, max_length=0)


class InputMessage(Strict):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Items[InputText]
    id: str | None = None
    status: _Status | None = None
    phase: None = None

    def as_message(self) -> dict[str, Any]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class InputCall(Strict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: _Status | None = None


class InputResult(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Items[InputText]
    id: str | None = None
    status: _Status | None = None

    def as_message(self) -> dict[str, Any]:
        text = self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)
        return {"role": "tool", "tool_call_id": self.call_id, "content": text}


_KINDS = {"message": "InputMessage", "function_call": "InputCall", "function_call_output": "InputResult"}


def _kind(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return _KINDS.get(kind, "InputMessage") if isinstance(kind, str) else "InputMessage"


def _only_known_items(items: Any) -> Any:
    for place, item in enumerate(items if isinstance(items, list) else []):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in _KINDS:
            raise InvalidRequestError(
                f"items of type '{kind}' are not supported.", param=f"input[{place}].type", code=UNSUPPORTED
            )
    return items


InputItem = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[InputCall, Tag("InputCall")]
    | Annotated[InputResult, Tag("InputResult")],
    Discriminator(_kind),
]


class FlatTool(Strict):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Strict):
    type: Literal["function"]
    name: FunctionName


class FlatAllowed(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FlatChoice] = Field(min_length=1)


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # say in the prompt how long the answer should be


class NoObfuscation(Strict):
    include_obfuscation: Literal[False] | None = None


def _only_functions(tools: Any) -> Any:
    for place, tool in enumerate(tools if isinstance(tools, list) else []):
        if isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function":
            raise InvalidRequestError(
                f"tools of type '{tool['type']}' are not supported: only functions are.",
                param=f"tools[{place}].type",
                code=UNSUPPORTED,
            )
    return tools


class ResponsesRequest(Body):
    unsupported: ClassVar[dict[str, Foreign]] = RESPONSES

    model: str
    input: Annotated[str | Items[InputItem], BeforeValidator(_only_known_items)]
    instructions: str | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    stream_options: NoObfuscation | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FlatTool] | None, BeforeValidator(_only_functions)] = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | FlatAllowed | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = Field(None, description="Comes back with the answer; nothing is stored.")
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # vLLM's and ours, as in a chat
    seed: int | None = None
    top_k: Int | None = None
    min_p: float | None = None
    priority: Int | None = None
    speculation: Any = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """Raises InvalidRequestError."""
        same = (
            "model", "temperature", "top_p", "parallel_tool_calls", "seed", "top_k", "min_p", "priority",
            "speculation", "cache_salt", "chat_template_kwargs",
        )  # fmt: skip
        fields = {name: getattr(self, name) for name in same}
        fields["max_completion_tokens"] = self.max_output_tokens
        fields["messages"] = self._messages()
        fields["response_format"] = self._response_format()
        if self.tools is not None:
            fields["tools"] = [
                {"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools
            ]
        fields["tool_choice"] = self._tool_choice()
        if not fields["messages"]:
            raise InvalidRequestError("'input' is empty.", param="input")
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            return ChatRequest.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            cause = first.get("ctx", {}).get("error")
            if isinstance(cause, InvalidRequestError) and cause.param in ChatRequest.model_fields:
                raise cause from None
            reason = str(cause) if cause is not None else first["msg"]
            raise InvalidRequestError(reason, param=str(first["loc"][0]) if first["loc"] else "input") from None

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        called: set[str] = set()
        for place, item in enumerate(self.input):
            if isinstance(item, InputCall):
                called.add(item.call_id)
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                if messages and messages[-1]["role"] == "assistant":
                    messages[-1].setdefault("tool_calls", []).append(call)
                else:
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            else:
                if isinstance(item, InputResult) and item.call_id not in called:
                    raise InvalidRequestError(
                        f"input[{place}] is the result of a call '{item.call_id:.40}', and no 'function_call' before "
                        "it has this call_id.",
                        param=f"input[{place}].call_id",
                    )
                messages.append(item.as_message())
        return messages

    def _response_format(self) -> dict[str, Any] | None:
        form = self.text.format if self.text is not None else None
        if form is None:
            return None
        rest = form.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": form.type, "json_schema": rest} if form.type == "json_schema" else {"type": form.type, **rest}

    def _tool_choice(self) -> Any:
        match self.tool_choice:
            case FlatChoice(name=name):
                return {"type": "function", "function": {"name": name}}
            case FlatAllowed(mode=mode, tools=tools):
                named = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
                return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        return self.tool_choice


def in_own_words(error: InvalidRequestError) -> InvalidRequestError:
    """An error about a field of the chat, with the name that the field has here."""
    for name, own in _OWN_NAMES.items():
        if error.param and error.param.startswith(name):
            param = own + error.param.removeprefix(name)
            return InvalidRequestError(str(error).replace(name, own), param=param, code=error.code)
    return error
