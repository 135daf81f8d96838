"""An answer as output items, and how they come about as events, in the order that OpenAI has them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from paceline.server.tools.parser import Arguments, CallBegins, Content, Piece

Json = dict[str, Any]


class Output:
    """Items, one open at a time. Every method returns the events of what it did, without their numbers."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self.items: list[Json] = []
        self._new_call_id = new_call_id
        self._is_open = False

    def take(self, pieces: Iterable[Piece]) -> list[Json]:
        events: list[Json] = []
        for piece in pieces:
            match piece:
                case Content(text):
                    events += self._add_text(text)
                case CallBegins(_, name):
                    events += self._open_call(name)
                case Arguments(_, text):
                    self.items[-1]["arguments"] += text
                    events.append(self._event("response.function_call_arguments.delta", delta=text))
        return events

    def finish(self, status: str) -> list[Json]:
        """`status`: completed or incomplete, of the item that was written last."""
        events = [] if self.items else self._open_message()
        return events + self._close(status)

    def abandon(self) -> None:
        """An error ended the answer: what was being written stays as it is."""
        if self._is_open:
            self.items[-1]["status"] = "incomplete"

    def _add_text(self, text: str) -> list[Json]:
        is_message = self._is_open and self.items[-1]["type"] == "message"
        events = [] if is_message else self._open_message()
        self.items[-1]["content"][0]["text"] += text
        return [*events, self._event("response.output_text.delta", content_index=0, delta=text, logprobs=[])]

    def _open_message(self) -> list[Json]:
        events = self._close("completed")
        self._open({"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "content": []})
        events.append(self._item_event("response.output_item.added"))
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events.append(self._event("response.content_part.added", content_index=0, part=dict(part)))
        self.items[-1]["content"].append(part)
        return events

    def _open_call(self, name: str) -> list[Json]:
        events = self._close("completed")
        call_id = self._new_call_id()
        item = {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "call_id": call_id, "name": name}
        self._open({**item, "arguments": ""})
        return [*events, self._item_event("response.output_item.added")]

    def _open(self, item: Json) -> None:
        self.items.append({**item, "status": "in_progress"})
        self._is_open = True

    def _close(self, status: str) -> list[Json]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            events = [
                self._event("response.output_text.done", content_index=0, text=part["text"], logprobs=[]),
                self._event("response.content_part.done", content_index=0, part=part),
            ]
        else:
            done = {"arguments": item["arguments"], "name": item["name"]}
            events = [self._event("response.function_call_arguments.done", **done)]
        return [*events, self._item_event("response.output_item.done")]

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}

    def _item_event(self, kind: str) -> Json:
        item = {**self.items[-1]}
        if "content" in item:
            item["content"] = [dict(part) for part in item["content"]]
        return {"type": kind, "output_index": len(self.items) - 1, "item": item}
