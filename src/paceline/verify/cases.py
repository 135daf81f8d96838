"""What is tested: ways to speculate (modes) times sampling parameters (settings), on short prompts.

Modes differ in who proposes, in K, in the acceptance method and in how many sequences share a step. Settings are
chosen so that every parameter that shapes a law is there alone or with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.verify.law import check_fields

# Their continuations are neither certain nor endless: several tokens share the mass, and the same beginnings recur.
PROMPTS = (
    "Red, green, blue, red, green, yellow, red, green, blue, red, green, yellow, red, green, brown, red, blue,",
    "He laughed: ha ha ha, ho ho ho, ha ha ho, ha ho ho, ha ha ha, ho ha ha ho, ha ha, ho ho ha, ha ha ha, ho",
    "Once upon a time there was a little girl who lived in a small house near the forest. One day she went out to",
    "1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 3, 1, 2, 4, 1, 2, 6, 1, 2, 3,",
)
PARITY_TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "To be, or not to be, that is the question:",
)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to speculate; an LLM is loaded for each. `draft` None: n-gram.

    adaptive: K is the most, and the controller chooses; either: a row drafts with the draft model or from its text,
    whichever is surer. Requests bring no seed in either case, because with one neither may change.
    """

    draft: str | None
    num_speculative_tokens: int
    acceptance: str = "rejection"
    batch: int = 64  # sequences in a step, at most
    adaptive: bool = False
    either: bool = False

    @property
    def brings_seeds(self) -> bool:
        return not (self.adaptive or self.either)

    @property
    def name(self) -> str:
        proposer = "n-gram" if self.draft is None else "draft or n-gram" if self.either else "draft"
        k = f"K from 0 to {self.num_speculative_tokens}" if self.adaptive else f"K={self.num_speculative_tokens}"
        return f"{proposer}, {k}, {self.acceptance}, batch {self.batch}"

    @property
    def num_places(self) -> int:
        """Places tested, and tokens of an answer: the first token, which is not drafted, then a step of K drafts."""
        return self.num_speculative_tokens + 2

    def speculative_config(self) -> dict[str, Any]:
        proposer = {"model": self.draft, "proposer": "auto" if self.either else "draft"}
        if self.draft is None:
            proposer = {"method": "ngram"}
        config: dict[str, Any] = {**proposer, "num_speculative_tokens": self.num_speculative_tokens}
        config["adaptive"] = self.adaptive
        if self.acceptance == "block":
            config["rejection_sample_method"] = "block"
        return config


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Sampling parameters, with the number of the prompt they are tried on. Made once, told apart by identity."""

    name: str
    params: dict[str, Any]
    prompt: int = 0

    def __post_init__(self) -> None:
        check_fields(self.params)

    @property
    def needs_absolute_logits(self) -> bool:
        return bool(self.params.get("repetition_penalty", 1.0) != 1.0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in token ids, its likeliest next token, and what is likely to follow that one, in order."""

    token_ids: tuple[int, ...]
    first: int
    likely: tuple[int, ...]


# Below 0 a penalty is a reward: the token just drafted becomes likely, in a model that would never repeat it.
REWARDS: dict[str, Any] = {"temperature": 1.5, "frequency_penalty": -2.0, "presence_penalty": -2.0}
NUM_ALLOWED = 4  # besides the first token
METHODS = ("rejection", "block")


def modes(
    draft: str | None, numbers: Sequence[int], methods: Sequence[str], *, quick: bool, adaptive: bool = False
) -> list[Mode]:
    """`numbers`: values of K, ascending. Methods differ only where K > 1: block verification takes the largest K."""
    found = []
    if "rejection" in methods:
        found += [Mode(draft, k, batch=64 if k == numbers[0] else 48) for k in numbers]
    if "block" in methods:
        found.append(Mode(draft, numbers[-1], "block", batch=64))
    if draft is not None and not quick:
        found += [Mode(None, numbers[-1], methods[0], batch=16), Mode(draft, numbers[-1], methods[0], either=True)]
    return [replace(mode, adaptive=adaptive) for mode in found]


def settings(prompts: Sequence[Prompt], ends: Sequence[int], *, absolute: bool, repeating: int = 0) -> list[Setting]:
    """`absolute` False: the oracle cannot tell what repetition_penalty does, so nothing here has it.

    `repeating`: the prompt on which a penalty that leaves the drafts out would show most.
    """
    repetition = {"repetition_penalty": 1.3} if absolute else {}

    def likely(prompt: int, count: int) -> list[int]:
        """What may be drafted first: `likely` tokens behind the first one."""
        return [token for token in chosen(prompt).likely if token != chosen(prompt).first][:count]

    def chosen(prompt: int) -> Prompt:
        return prompts[prompt % len(prompts)]

    bias: dict[int, float] = dict.fromkeys(likely(2, 3), -1.0)
    bias |= dict.fromkeys(ends, 4.0)
    every = dict.fromkeys(likely(1, 2), 0.7)
    found = [
        Setting("plain", {"temperature": 1.0}, 0),
        Setting("temperature, top_p", {"temperature": 0.7, "top_p": 0.9}, 3),
        Setting("temperature, top_k", {"temperature": 1.3, "top_k": 6}, 1),
        # Two tokens a place: beginnings recur up to the last place, so the bonus tokens of a large K are reached.
        Setting("temperature, top_k 2", {"temperature": 0.8, "top_k": 2}, 2),
        Setting("min_p", {"temperature": 1.1, "min_p": 0.1}, 2),
        Setting(
            "frequency and presence penalty, allowed_token_ids",
            {**REWARDS, "allowed_token_ids": sorted([chosen(repeating).first, *likely(repeating, NUM_ALLOWED)])},
            repeating,
        ),
        Setting("logit_bias, min_tokens", {"logit_bias": bias, "min_tokens": 2, "ignore_eos": False}, 2),
        Setting(
            "all together",
            {
                "temperature": 0.9,
                "top_p": 0.85,
                "top_k": 20,
                "min_p": 0.02,
                "presence_penalty": 0.7,
                "frequency_penalty": 0.4,
                "logit_bias": every,
                **repetition,
            },
            1,
        ),
    ]
    if absolute:
        found.insert(6, Setting("repetition_penalty", {"temperature": 0.9, "repetition_penalty": 1.4}, 0))
    return [Setting(s.name, {"ignore_eos": True, **s.params}, s.prompt % len(prompts)) for s in found]


def parity_settings(ends: Sequence[int]) -> list[Setting]:
    penalties = {"frequency_penalty": 0.6, "presence_penalty": 0.3, "logit_bias": dict.fromkeys(ends, -5.0)}
    return [
        Setting("greedy", {"temperature": 0.0, "ignore_eos": True}),
        Setting("greedy with penalties and bias", {"temperature": 0.0, "ignore_eos": True, **penalties}),
    ]
