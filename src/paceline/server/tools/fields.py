"""The fields of a chat that are about tools, as OpenAI has them. Functions only: custom tools are refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from paceline.errors import InvalidRequestError
from paceline.server.fields import UNSUPPORTED, Strict, matches

_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
FunctionName = Annotated[
    str,
    AfterValidator(matches(_NAME, "a name has 1 to 64 letters, digits, '_', '.' or '-'")),
    WithJsonSchema({"type": "string", "pattern": _NAME}),
]
MAX_TOOLS = 128


def _refuse_custom(tool: Any, param: str) -> None:
    if isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function":
        raise InvalidRequestError(
            f"tools of type '{tool['type']}' are not supported: only functions are.", param=param, code=UNSUPPORTED
        )


class FunctionDefinition(Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionDefinition

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, tool: Any) -> Any:
        _refuse_custom(tool, "type")
        return tool

    def for_template(self) -> dict[str, Any]:
        """As templates expect it: `strict` is about enforcement and no business of the model."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": {"description": "", **function}}


class FunctionChoice(Strict):
    name: FunctionName


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class ToolChoice(Strict):
    """{"type": "function", "function": {"name"}} or {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}."""

    type: Literal["function", "allowed_tools"]
    function: FunctionChoice | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _what_its_type_says(self) -> ToolChoice:
        other = "allowed_tools" if self.type == "function" else "function"
        if getattr(self, self.type) is None:
            raise InvalidRequestError(f"tool_choice of type '{self.type}' needs '{self.type}'.", param="tool_choice")
        if getattr(self, other) is not None:
            raise InvalidRequestError(
                f"tool_choice of type '{self.type}' has no '{other}'.", param=f"tool_choice.{other}"
            )
        return self


class CalledFunction(Strict):
    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        """Templates write the arguments as JSON themselves, so they are given an object."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise InvalidRequestError(
                "'arguments' of a tool call must be the text of a JSON object.", param="function.arguments"
            )
        return {"name": self.name, "arguments": arguments}


class ToolCall(Strict):
    """A call in an assistant's message that a client sends back."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None  # clients that collect a stream leave it there

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, call: Any) -> Any:
        _refuse_custom(call, "type")
        return call

    @model_validator(mode="after")
    def _arguments_are_an_object(self) -> ToolCall:
        self.function.for_template()
        return self

    def for_template(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": self.function.for_template()}
