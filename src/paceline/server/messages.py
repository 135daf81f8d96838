"""The messages of a chat, and what else a chat template reads."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from paceline.errors import InvalidRequestError
from paceline.server.fields import UNSUPPORTED, Strict
from paceline.server.unsupported import UNSUPPORTED_IN_MESSAGES, UNSUPPORTED_ROLES

# Keywords of transformers' apply_chat_template that are not variables of a template.
_NOT_FOR_TEMPLATES = {
    "chat_template", "conversation", "documents", "max_length", "padding", "return_assistant_tokens_mask",
    "messages", "return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
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
            raise InvalidRequestError(f"role '{message['role']}' is not supported yet.", param="role", code=UNSUPPORTED)
        for name in UNSUPPORTED_IN_MESSAGES:
            if message.get(name) is not None:
                raise InvalidRequestError(f"'{name}' is not supported yet.", param=name, code=UNSUPPORTED)
        return {name: value for name, value in message.items() if name not in UNSUPPORTED_IN_MESSAGES}

    def for_template(self) -> dict[str, Any]:
        """Templates know no developer; it is the newer name of system."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if isinstance(self.content, str | None) else "".join(part.text for part in self.content)
        return {"role": role, "content": content}


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
