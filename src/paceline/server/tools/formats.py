"""How families of models write tool calls, told from the chat template. The names are vLLM's."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

from paceline.structured.tool_calls import CallShape


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`opening`: a special token that begins the calls; no grammar knows it, so a forced call has it in the prompt."""

    name: str
    shape: CallShape
    arguments_key: str
    opening: str = ""
    id_length: int = 24
    id_prefix: str = "call_"

    def new_id(self) -> str:
        letters = string.ascii_letters + string.digits
        return self.id_prefix + "".join(secrets.choice(letters) for _ in range(self.id_length))


HERMES = ToolFormat(
    "hermes",
    CallShape(
        open='<tool_call>\n{"name": ', between=', "arguments": ', close="}\n</tool_call>", separator="\n",
        trigger="<tool_call>",
    ),
    arguments_key="arguments",
)  # fmt: skip
LLAMA3_JSON = ToolFormat(
    "llama3_json",
    CallShape(open='{"name": ', between=', "parameters": ', close="}", separator="; "),
    arguments_key="parameters",
)
MISTRAL = ToolFormat(
    "mistral",
    CallShape(open='{"name": ', between=', "arguments": ', close="}", separator=", ", head="[", tail="]"),
    arguments_key="arguments",
    opening="[TOOL_CALLS]",
    id_length=9,  # its template takes no other ids
    id_prefix="",
)
FORMATS = {form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL)}


def tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None if it knows no tools, or has a format of its own.

    Hermes covers Qwen 2.5 and 3; `<function=` and `[ARGS]` are later formats that are not JSON throughout.
    """
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return None if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if '"parameters"' in template and "ipython" in template:
        return LLAMA3_JSON
    return None
