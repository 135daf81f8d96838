"""The message of an answer with tool calls, whole and in a stream, as OpenAI has it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from paceline.server.tools.parser import Arguments, CallBegins, Content, Piece
from paceline.server.tools.plan import ToolPlan

Json = dict[str, Any]


class ToolAnswer:
    """One answer's text, taken apart as it comes."""

    def __init__(self, plan: ToolPlan, hidden: Collection[str]) -> None:
        self._plan = plan
        self._parser = plan.parser(hidden)
        self._num_begun = 0

    def delta(self, text: str, is_last: bool) -> Json:
        """The fields of a stream's delta; empty if nothing can be said yet."""
        return self._delta(self._parser.feed(text) + (self._parser.finish() if is_last else []))

    def message(self, text: str) -> Json:
        delta = self.delta(text, is_last=True)
        message: Json = {"role": "assistant", "content": delta.get("content"), "refusal": None}
        if "tool_calls" in delta:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in delta["tool_calls"]
            ]
        elif message["content"] is None and not self._plan.is_forced:
            message["content"] = ""
        return message

    def finish_reason(self, reason: str | None) -> str | None:
        return self._plan.finish_reason(reason, self._num_begun)

    def _delta(self, pieces: Sequence[Piece]) -> Json:
        content, calls = "", {}
        for piece in pieces:
            match piece:
                case Content(text):
                    content += text
                case CallBegins(index, name):
                    self._num_begun += 1
                    calls[index] = self._beginning(index, name)
                case Arguments(index, text):
                    call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                    call["function"]["arguments"] += text
        delta: Json = {"content": content} if content else {}
        return delta | ({"tool_calls": list(calls.values())} if calls else {})

    def _beginning(self, index: int, name: str) -> Json:
        function = {"name": name, "arguments": ""}
        return {"index": index, "id": self._plan.form.new_id(), "type": "function", "function": function}
