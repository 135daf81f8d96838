"""Where prompts come from, and in which order each round asks them.

*.jsonl   one object a line: {"category", "turns": [...]}, {"messages": [...]} or {"prompt": "..."}
*.json    ShareGPT's form: [{"conversations": [{"from": "human", "value": "..."}, ...]}, ...]
others    text, one prompt a line
lengths   made-up words of about so many tokens: no text that anybody would send
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.files import read_text
from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.json_text import loads, numbered_lines

Message = dict[str, str]
_HUMAN = ("human", "user")
_MODEL = ("gpt", "assistant", "chatgpt", "model", "bot", "bard", "bing")  # its answers are not asked for
_MESSAGE = ("role", "content")
_NAMES_OF_ROWS = ("id", "question_id", "prompt_id", "idx")  # nothing that could be asked
_MOST_NAMED = 6

# Where no file is given: short tasks of several kinds, so that there is something to ask.
BUILTIN = (
    ("writing", "Write a short poem about a lighthouse in a storm."),
    ("writing", "Write the first paragraph of a story that begins with a train that does not stop."),
    ("qa", "Explain why the sky is blue to a ten-year-old."),
    ("qa", "What is the difference between weather and climate?"),
    ("coding", "Write a Python function that returns the n-th Fibonacci number, with a docstring."),
    ("coding", "Write a SQL query that finds the three customers with the most orders in the last year."),
    ("reasoning", "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Show the steps."),
    ("reasoning", "List five uses for an old newspaper and say which is best, and why."),
    ("summarization", "Summarise the plot of Romeo and Juliet in three sentences."),
    ("summarization", "Summarise what photosynthesis does, first in one sentence, then in five."),
    ("extraction", "Give me a recipe for pancakes with the amounts in grams, as a table."),
    ("translation", "Translate into French: The meeting is moved to Thursday because the room is taken."),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`turns`: what the user says, one after the other; `before`: messages that stand before the first."""

    number: int
    category: str
    turns: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()

    def messages(self, turn: int, answers: Sequence[str], tag: str = "") -> list[Message]:
        """Up to turn `turn`, with the answers of the earlier ones. `tag` stands before the first text."""
        found = [{"role": role, "content": content} for role, content in self.before]
        for place, said in enumerate(self.turns[: turn + 1]):
            if place:
                found.append({"role": "assistant", "content": answers[place - 1]})
            found.append({"role": "user", "content": said})
        if tag:
            found[0] = found[0] | {"content": f"{tag}{found[0]['content']}"}
        return found


def builtin_prompts() -> list[Prompt]:
    return [Prompt(number, category, (text,)) for number, (category, text) in enumerate(BUILTIN)]


def read_prompts(path: Path) -> tuple[list[Prompt], list[str]]:
    """And what of the file is not asked, in words. Raises ConfigurationError that names the line."""
    text = read_text(path, "--prompts")
    left_out = LeftOut(path)
    if path.suffix == ".jsonl":
        rows = [(f"{path}, line {n}", line) for n, line in numbered_lines(text)]
        found = [_from_object(where, _json(where, line), left_out) for where, line in rows]
    elif path.suffix == ".json":
        found = _from_sharegpt(path, _json(str(path), text), left_out)
    else:
        found = [("text", (line.strip(),), ()) for _, line in numbered_lines(text)]
    if not found:
        raise ConfigurationError(f"--prompts {path} holds no prompt.")
    return [Prompt(number, *parts) for number, parts in enumerate(found)], left_out.notes()


Parts = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]  # category, turns, before


class LeftOut:
    """Fields that are not asked, and in how many prompts they stand."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._fields: Counter[str] = Counter()
        self.num_without_prompt = 0

    def note(self, row: Mapping[str, Any], used: Collection[str], where: str = "") -> None:
        self._fields.update(f"{where}{name}" for name in row if name not in used and name not in _NAMES_OF_ROWS)

    def notes(self) -> list[str]:
        found = []
        if self._fields:
            named = ", ".join(f"'{name:.60}' ({count:,})" for name, count in self._fields.most_common(_MOST_NAMED))
            more = f" and {len(self._fields) - _MOST_NAMED} more" if len(self._fields) > _MOST_NAMED else ""
            found.append(f"{self._name} has fields that are not asked, in so many prompts: {named}{more}.")
        if self.num_without_prompt:
            rows = "1 entry" if self.num_without_prompt == 1 else f"{self.num_without_prompt:,} entries"
            found.append(f"{self._name}: {rows} without words of a human left out.")
        return found


def _json(where: str, text: str) -> Any:
    try:
        found = loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is JSON, and no text
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ConfigurationError(f"{where} holds half of a surrogate pair ({half!a}), which is no character.") from None
    except InvalidRequestError as error:  # a name twice, too deep
        raise ConfigurationError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}.") from None
    return found


def _from_object(where: str, row: Any, left_out: LeftOut) -> Parts:
    if isinstance(row, dict):
        category = row.get("category", "all")
        if not isinstance(category, str | int):
            raise ConfigurationError(f"{where}: category must be a word.")
        turns = row.get("turns", [row["prompt"]] if isinstance(row.get("prompt"), str) else None)
        if isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns):
            left_out.note(row, ("category", "turns" if "turns" in row else "prompt"))
            return str(category), tuple(turns), ()
        if isinstance(row.get("messages"), list):
            left_out.note(row, ("category", "messages"))
            return str(category), *_from_messages(where, row["messages"], left_out)
    raise ConfigurationError(
        f'{where}: no prompt. A line is {{"category": ..., "turns": [...]}}, {{"messages": [...]}} or '
        '{"prompt": "..."}.'
    )


def _from_messages(
    where: str, messages: list[Any], left_out: LeftOut
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The conversation up to its last user's message, which is what is asked."""
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in _MESSAGE):
            raise ConfigurationError(f"{where}: a message has a role and a content, both of them text.")
    pairs = [(message["role"], message["content"]) for message in messages]
    last = max((place for place, (role, _) in enumerate(pairs) if role == "user"), default=None)
    if last is None:
        raise ConfigurationError(f"{where}: no message of a user.")
    left_out.note({key: None for message in messages for key in message}, _MESSAGE, "messages: ")
    left_out.note({role: None for role, _ in pairs[last + 1 :]}, (), "messages after the last user's: ")
    return (pairs[last][1],), tuple(pairs[:last])


def _from_sharegpt(path: Path, rows: Any, left_out: LeftOut) -> list[Parts]:
    """What its human says, one turn after the other; what a system says before that stands before it."""
    if not isinstance(rows, list):
        raise ConfigurationError(f"{path}: ShareGPT's form is a list of {{'conversations': [...]}}.")
    found: list[Parts] = []
    for row in rows:
        said = row.get("conversations") or row.get("conversation") if isinstance(row, dict) else None
        parts = [part for part in said or () if isinstance(part, dict) and part.get("value")]
        turns = tuple(str(part["value"]) for part in parts if part.get("from") in _HUMAN)
        if not turns:
            left_out.num_without_prompt += 1
            continue
        before = parts[:1] if parts[0].get("from") == "system" else []
        left_out.note(row, ("conversations", "conversation"))
        left_out.note({str(part.get("from")): None for part in parts[len(before) :]}, (*_HUMAN, *_MODEL), "from: ")
        found.append(("sharegpt", turns, tuple(("system", str(part["value"])) for part in before)))
    return found


# Common words of one token or two in any English vocabulary.
_WORDS = re.findall(
    r"\w+",
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend",
)


def synthetic_prompts(count: int, input_len: int, seed: int) -> list[Prompt]:
    """Random words, about one token each."""
    generator = np.random.default_rng(seed)
    return [
        Prompt(number, "synthetic", (" ".join(generator.choice(_WORDS, size=input_len)),)) for number in range(count)
    ]


def order(prompts: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """`count` prompts in an order that the seed alone decides; a shorter list starts anew, in another order.

    A larger count goes on where a smaller one ends, so every load of a round asks the same prompts first.
    """
    generator = np.random.default_rng(seed)
    found: list[Prompt] = []
    while len(found) < count:
        found += [prompts[place] for place in generator.permutation(len(prompts))]
    return found[:count]


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds at which requests of a Poisson process come; the first at 0. The same for every arm of a round."""
    gaps = np.random.default_rng([seed, 1]).exponential(1 / rate, size=count - 1)
    return [0.0, *(float(time) for time in np.cumsum(gaps))]
