"""What the target is asked to write: the chat format as token ids, openers of user turns, long documents.

No data set is needed. A conversation begins with the target's own chat template up to the user's turn;
the target then writes the user's turn too, after an opener of a few words or after nothing. Long
prompts are built from documents that the target wrote before, framed by an instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPENERS: tuple[str, ...] = (
    "What is", "What are the", "What happens when", "Who was", "Who", "When did", "Where is", "Why do", "Why is",
    "How do I", "How does", "How can I", "How many", "Which", "Can you explain", "Could you", "Please", "I need",
    "I want to", "I'm working on", "I am", "Is it", "Does", "Should I", "Tell me about", "Give me", "List", "Name",
    "Explain", "Explain the concept of", "Explain to a child", "Describe", "Define", "Compare",
    "Compare and contrast", "Discuss", "Analyze", "Evaluate", "What is the difference between",
    "What are the advantages and disadvantages of", "What were the causes of", "What role did", "In what ways",
    "Write", "Write a short story about", "Write a poem", "Write an email to", "Write a blog post about",
    "Write an essay on", "Write a letter", "Write a news article about", "Write a product description for",
    "Write a speech", "Write a dialogue between", "Write a review of", "Draft a", "Compose a", "Create a", "Design a",
    "Develop a", "Generate", "Come up with", "Suggest", "Brainstorm", "Outline", "Plan a", "Help me",
    "Imagine you are", "Pretend to be", "Act as", "You are a", "Take the role of", "Suppose that", "If you were",
    "Let's play", "Answer as if you were", "Rewrite", "Rewrite this sentence:", "Paraphrase", "Correct the grammar:",
    "Edit the following paragraph:", "Proofread", "Shorten this text:", "Make this more formal:", "Translate",
    "Translate into English:", "Translate the sentence into French:", "Translate this into Spanish:",
    "Translate the following German text into English:", "Summarize", "Summarize the following text:",
    "Give a one-sentence summary of", "What is the main idea of this passage?",
    "Read the following passage and answer the question.", "Based on the text below,",
    "Given the following paragraph,", "Extract the", "Extract all names and dates from", "Identify the", "Classify",
    "Find the", "Sort the following", "Convert the following into JSON:", "Return a list of", "Count the",
    "Fill in the blank:", "Is the following true?", "Solve", "Solve for x:", "Calculate", "Compute the",
    "What is the value of", "What is the sum of", "A train leaves", "A store sells", "A farmer has", "Sarah has",
    "Tom bought", "John is", "There are", "In a class of", "If a", "If it takes", "Each day,", "Maria earns",
    "The ratio of", "A rectangle has", "The price of", "Half of the", "Find the area of", "Prove that",
    "Think step by step:", "Which number comes next:", "Write a Python function that", "Write a program",
    "Write a function to", "Implement", "Fix the bug in this code:", "Explain this code:",
    "How do I write a SQL query", "Write an HTML page", "Write a JavaScript function", "Write a C++ program that",
    "Write a unit test for", "What does this regular expression do?", "Given an array of", "Debug", "Optimize",
    "What is the capital of", "What year", "What was the name of", "Who wrote", "Who invented", "Who won",
    "How old is", "How far is", "How long does", "What do you call", "What does the word", "What language",
    "Where did", "When was", "In physics,", "In biology,", "In chemistry,", "In economics,", "In history,",
    "In computer science,", "What is the formula for", "Explain how photosynthesis", "What are the symptoms of",
    "What is the best way to", "What should I", "Recommend", "Give me tips for", "Give me advice on", "I feel",
    "My friend", "My boss", "Hi", "Hello,", "Hey, can you", "Thanks!",
)  # fmt: skip

FOLLOW_UPS: tuple[str, ...] = (
    "Can you", "Now", "Rewrite your answer", "Make it", "What about", "Why", "How", "Give me an example", "Explain",
    "Thank you", "Please", "Could you", "Summarize", "What if", "Translate", "Shorten", "And", "In one sentence,",
    "Write", "List",
)  # fmt: skip

FRAMES: tuple[tuple[str, str], ...] = (
    ("Summarize the following text.\n\n", ""),
    ("Summarize this article in a few sentences:\n\n", ""),
    ("Please write a summary of the passage below.\n\n", ""),
    ("", "\n\nSummarize the text above."),
    ("", "\n\nWhat is the main point of this text?"),
    ("Here is a document:\n\n", "\n\nList the key points."),
    ("Read the following passage.\n\n", "\n\nWhat is the passage mainly about?"),
    ("Use the passages to answer the question.\n\n", "\n\nQuestion: What does the text say about this, and why?"),
    ("Answer the question from the documents below.\n\nDocument: ", "\n\nQuestion: Who or what is described?"),
    ("Context: ", "\n\nQuestion: What happened?\nAnswer:"),
    ("Context: ", "\n\nQuestion: How does it work?"),
    ("I have this text:\n\n", "\n\nRewrite the first paragraph in simpler words."),
    ("Extract the most important facts from this text:\n\n", ""),
    ("Article: ", "\n\nWrite a headline and a short summary for this article."),
    ("Explain the following to a beginner:\n\n", ""),
    ("Continue this text:\n\n", ""),
)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A chat template as token ids. `end` closes a turn; the two transitions are what follows it."""

    start: tuple[int, ...]  # up to the user's words
    end: int
    to_assistant: tuple[int, ...]
    to_user: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, end: int) -> ChatFormat:
        """Find the three pieces by rendering a conversation of marker words."""
        turns = [("user", "MARKA"), ("assistant", "MARKB"), ("user", "MARKC")]
        messages = [{"role": role, "content": content} for role, content in turns]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        start, rest = text.split("MARKA")
        to_assistant, rest = rest.split("MARKB")
        to_user, _ = rest.split("MARKC")
        closing = tokenizer.decode([end])
        pieces = [part.split(closing, 1)[1] for part in (to_assistant, to_user)]
        encoded = [tuple(tokenizer.encode(part, add_special_tokens=False)) for part in (start, *pieces)]
        return cls(encoded[0], end, encoded[1], encoded[2])


@dataclass(frozen=True, slots=True)
class Scripts:
    """Token sequences that a row is made to say, one a table row, -1 where it speaks freely again."""

    table: Tensor  # [S, Q] int64; row 0 is empty, row 1 leads to the assistant's turn
    first: Tensor  # [n] rows that open a conversation
    following: Tensor  # [n] rows that lead to another user turn

    @classmethod
    def build(
        cls, format: ChatFormat, openers: Sequence[Sequence[int]], follow_ups: Sequence[Sequence[int]]
    ) -> Scripts:
        """Half of the drawn user turns begin freely: the empty opener stands as often as all others together."""
        first = [list(o) for o in openers] + [[] for _ in openers]
        following = [[*format.to_user, *o] for o in follow_ups] + [[*format.to_user] for _ in follow_ups]
        rows = [[], [*format.to_assistant], *first, *following]
        width = max(map(len, rows)) + 1
        table = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
        return cls(table, torch.arange(2, 2 + len(first)), torch.arange(2 + len(first), len(rows)))


def longest_answers(tokens: np.ndarray, is_answer: np.ndarray, *, at_least: int) -> list[np.ndarray]:
    """From rows [B, L], the longest run of answer tokens of each row, where it reaches `at_least`."""
    padded = np.pad(is_answer.astype(np.int8), ((0, 0), (1, 1)))
    found = []
    for row, steps in zip(tokens, np.diff(padded, axis=1), strict=True):
        starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
        if len(starts) and (ends - starts).max() >= at_least:
            best = int((ends - starts).argmax())
            found.append(row[starts[best] : ends[best] - 1])  # without the closing token
    return found


def document_prompts(
    format: ChatFormat,
    frames: Sequence[tuple[Sequence[int], Sequence[int]]],
    documents: Sequence[np.ndarray],
    separator: Sequence[int],
    *,
    rows: int,
    length: int,
    random: np.random.Generator,
) -> Tensor:
    """[rows, length] prompts: an instruction around documents that fill the length exactly."""
    out = np.empty((rows, length), dtype=np.int64)
    for row in out:
        before, after = frames[int(random.integers(len(frames)))]
        head = [*format.start, *before]
        tail = [*after, format.end, *format.to_assistant]
        body: list[int] = []
        while len(body) < length:
            body += [*documents[int(random.integers(len(documents)))].tolist(), *separator]
        row[:] = head + body[: length - len(head) - len(tail)] + tail
    return torch.from_numpy(out)
