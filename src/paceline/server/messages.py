"""The messages of a chat, and what else a chat template reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from paceline.errors import InvalidRequestError
from paceline.server.fields import UNSUPPORTED, Items, Strict
from paceline.server.tools.fields import ToolCall

# Keywords of transformers' apply_chat_template that are not variables of a template.
_NOT_FOR_TEMPLATES = {
    "chat_template", "conversation", "documents", "max_length", "padding", "return_assistant_tokens_mask",
    "messages", "return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    # Present in the messages that clients send back; there is nothing in the first ones.
    refusal: None = None
    annotations: list[Any] | None = Field(None, max_length=0)
    audio: None = None
    function_call: None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        if message.get("role") == "function":
            raise InvalidRequestError(
                "role 'function' is not supported: use 'tool', which came in its place.", param="role", code=UNSUPPORTED
            )
        return message

    @model_validator(mode="after")
    def _fields_of_their_roles(self) -> ChatMessage:
        if self.tool_calls and self.role != "assistant":
            raise InvalidRequestError("only an assistant's message has 'tool_calls'.", param="tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise InvalidRequestError("only a message of role 'tool' has a 'tool_call_id'.", param="tool_call_id")
        if self.role == "tool" and self.tool_call_id is None:
            raise InvalidRequestError("a message of role 'tool' needs its 'tool_call_id'.", param="tool_call_id")
        if self.name is not None and self.role != "tool":
            raise InvalidRequestError(
                "'name' is not supported: chat templates tell speakers apart by their role.",
                param="name",
                code=UNSUPPORTED,
            )
        return self

    @property
    def is_about_tools(self) -> bool:
        return bool(self.tool_calls) or self.role == "tool"

    def for_template(self) -> dict[str, Any]:
        """Templates know no developer; it is the newer name of system."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if isinstance(self.content, str | None) else "".join(part.text for part in self.content)
        message: dict[str, Any] = {"role": role, "content": content}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.role == "tool":
            message["tool_call_id"] = self.tool_call_id
        return message | ({"name": self.name} if self.name else {})


def check_results(messages: Sequence[ChatMessage]) -> None:
    """Every result of a tool is that of a call before it; templates would show any other to the model all the same."""
    called: set[str] = set()
    for place, message in enumerate(messages):
        called |= {call.id for call in message.tool_calls or ()}
        if message.tool_call_id is not None and message.tool_call_id not in called:
            raise InvalidRequestError(
                f"messages[{place}] is the result of a call '{message.tool_call_id:.40}', and no assistant's message "
                "before it has one with this id in 'tool_calls'.",
                param=f"messages[{place}].tool_call_id",
            )


class TemplateArguments(BaseModel):
    """Fields of a body that reach the chat template."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

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
