"""What a run is asked for, checked as a whole before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.bounds import Bounds
from paceline.bench.serve.counting import METHODS
from paceline.bench.serve.http_stream import server_url
from paceline.bench.serve.prompts import Prompt, builtin_prompts, read_prompts, synthetic_prompts
from paceline.bench.serve.records import Load
from paceline.errors import ConfigurationError

_COUNT, _SEED = Bounds(1, 1e6), Bounds(0, 2**63)
_PRICE = Bounds(1e-6, 1e9, "US dollars an hour")
LOADS = {
    "users": ("--concurrency", Bounds(1, 1e5, "users")),
    "rate": ("--rate", Bounds(1e-4, 1e5, "requests a second")),
}
_FEWEST_PROMPTS = 16
_PROMPTS_A_USER = 3
_SECONDS_OF_ARRIVALS = 30
ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_OWN_FIELDS = ("model", "messages", "prompt", "stream", "stream_options", "n")
_OF_OPTIONS = {  # fields of a request that an option sets and records
    "max_tokens": "--max-tokens", "max_completion_tokens": "--max-tokens", "temperature": "--temperature",
    "ignore_eos": "--ignore-eos",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`servers`: name -> address, in the order given. `speculation`: 'on' or a number of drafts each; none: as it is.

    `prices`, `hardware`, `gpus`: server name -> what is behind it; '' stands for all.
    """

    servers: Mapping[str, str]
    speculation: Sequence[str] = ()
    baseline: str | None = None
    model: str | None = None
    loads: Sequence[Load] = (Load("users", 1), Load("users", 2), Load("users", 4), Load("users", 8))
    prompts: Path | None = None
    input_len: int | None = None
    all_turns: bool = False
    num_prompts: int | None = None
    seeds: Sequence[int] = (0, 1)
    warmup: int = 4
    max_tokens: int = 256
    temperature: float = 0.0
    ignore_eos: bool = False
    endpoint: str = "chat"
    counting: str = "auto"
    tokenizer: str | None = None
    fresh_prompts: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    goodput: Mapping[str, float] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    timeout: float = 600.0
    ca_file: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigurationError("\n".join(problems))

    def _problems(self) -> list[str]:
        found = []
        for url in self.servers.values():
            server_url(url)
        found += self._problems_of_tls()
        for word in self.speculation:
            if word != "on" and not re.fullmatch(r"\d{1,4}", word):
                found.append(f"--speculation {word[:40]}: say on, off or a number of drafts, such as on,off or 0,3,5.")
        for name, (value, bounds) in self._numbers().items():
            if value is not None and (problem := bounds.problem(name, value)):
                found.append(problem)
        if not self.loads:
            found.append("No load: give --concurrency, --rate or both.")
        found += self._problems_of_loads()
        if not self.seeds:
            found.append("--seeds: give at least one.")
        found += [problem for seed in self.seeds if (problem := _SEED.problem("--seeds", seed))][:1]
        if not found and self.input_len is not None:
            words = self.input_len * max(map(self.count_of, self.loads))
            if problem := Bounds(1, 1e8, "(that would be all made-up prompts)").problem("Tokens", words):
                found.append(f"--input-len {self.input_len} is too much for so many prompts. {problem}")
        if self.input_len is not None and self.prompts is not None:
            found.append("--input-len makes prompts up and --prompts reads them: give one.")
        if self.endpoint not in ENDPOINTS:
            found.append(f"--endpoint {self.endpoint}: chat or completions.")
        if self.all_turns and self.endpoint != "chat":
            found.append("--all-turns needs --endpoint chat.")
        if self.counting not in ("auto", *METHODS):
            found.append(f"--count {self.counting}: auto, {', '.join(METHODS)}.")
        if self.counting == "tokenizer" and self.tokenizer is None:
            found.append("--count tokenizer needs --tokenizer.")
        found += self._problems_of_extra_body()
        for option, named in (("--hardware", self.hardware), ("--gpus", self.gpus), ("--price-per-hour", self.prices)):
            found += [
                f"{option}: there is no server '{name}' (there are: {', '.join(self.servers)})."
                for name in named
                if name and name not in self.servers
            ]
        found += [problem for count in self.gpus.values() if (problem := _COUNT.problem("--gpus", count))]
        found += [problem for price in self.prices.values() if (problem := _PRICE.problem("--price-per-hour", price))]
        return found

    def _problems_of_tls(self) -> list[str]:
        asked = [("--ca-file", self.ca_file is not None), ("--insecure", self.insecure)]
        given = [name for name, is_given in asked if is_given]
        if len(given) == 2:
            return ["--insecure takes any certificate, and --ca-file says which: give one."]
        if given and not any(server_url(url).scheme == "https" for url in self.servers.values()):
            return [f"{given[0]} is about certificates, and no --url begins with https://."]
        return []

    def _problems_of_loads(self) -> list[str]:
        """One of each kind, however many loads have it."""
        outside: dict[str, str] = {}
        for load in self.loads:
            name, bounds = LOADS[load.kind]
            if problem := bounds.problem(name, load.value):
                outside.setdefault(name, problem)
        users = [load for load in self.loads if load.kind == "users"]
        if outside or self.num_prompts is None or not users:
            return list(outside.values())
        most = max(users, key=lambda load: load.value)
        if self.num_prompts >= most.value:
            return []
        return [
            f"--num-prompts {self.num_prompts} is too few for {most.label}, of whom each asks one: give at least "
            f"{most.value:g}, or fewer users with --concurrency."
        ]

    def _problems_of_extra_body(self) -> list[str]:
        """Whatever the benchmark sets itself would overwrite it in silence."""
        body = self.extra_body
        found = [f"--extra-body: '{name}' is set by the benchmark itself." for name in _OWN_FIELDS if name in body]
        found += [
            f"--extra-body: '{name}' has an option of its own: {option}."
            for name, option in _OF_OPTIONS.items()
            if name in body
        ]
        if "cache_salt" in body and self.fresh_prompts:
            found.append(
                "--extra-body: every request gets a 'cache_salt' of its own, so that none finds another's prompt in "
                "the prefix cache. With --shared-prefixes yours counts."
            )
        if "logprobs" in body and self.counting == "logprobs":
            found.append("--extra-body: 'logprobs' is set by --count logprobs; give another --count, or leave it out.")
        if "speculation" in body and not isinstance(body["speculation"], Mapping):
            found.append("--extra-body: 'speculation' must be an object. How many drafts are made: --speculation.")
        elif "num_speculative_tokens" in body.get("speculation", ()):
            found.append(
                "--extra-body: 'num_speculative_tokens' has an option of its own: --speculation. Other fields of "
                "'speculation' are sent with every arm."
            )
        return found

    def drafts(self, number: int) -> dict[str, Any]:
        """The field that asks for so many drafts a step, beside what --extra-body says of speculation."""
        return {"speculation": {**self.extra_body.get("speculation", {}), "num_speculative_tokens": number}}

    def _numbers(self) -> dict[str, tuple[float | None, Bounds]]:
        return {
            "--num-prompts": (self.num_prompts, Bounds(1, 1e6)),
            "--max-tokens": (self.max_tokens, Bounds(1, 1e7)),
            "--warmup": (self.warmup, Bounds(0, 1e5)),
            "--input-len": (self.input_len, Bounds(1, 1e7, "tokens")),
            "--temperature": (self.temperature, Bounds(0, 100)),
            "--timeout": (self.timeout, Bounds(1e-3, 1e6, "seconds")),
        }

    @property
    def path(self) -> str:
        return ENDPOINTS[self.endpoint]

    def count_of(self, load: Load) -> int:
        """Prompts of a case."""
        if self.num_prompts is not None:
            return self.num_prompts
        wanted = load.value * (_PROMPTS_A_USER if load.kind == "users" else _SECONDS_OF_ARRIVALS)
        return max(_FEWEST_PROMPTS, round(wanted))

    def read_prompts(self) -> tuple[list[Prompt], list[str]]:
        """And what of their file is not asked, in words."""
        if self.prompts is not None:
            return read_prompts(self.prompts)
        if self.input_len is not None:
            return synthetic_prompts(max(map(self.count_of, self.loads)), self.input_len, self.seeds[0]), []
        return builtin_prompts(), []

    def notes(self, prompts: Sequence[Prompt], num_arms: int = 2) -> list[str]:
        """What a reader of the figures must know."""
        found = []
        if self.input_len is not None:
            found.append(
                "SYNTHETIC PROMPTS: random words, answered to the full length. They flatter speculation and say "
                "nothing about the acceptance of your traffic. Measure with --prompts before you decide anything."
            )
        elif self.prompts is None:
            found.append(f"No --prompts: {len(prompts)} built-in ones. Measure with prompts of your own traffic.")
        if self.ends_ignored:
            found.append("Ends are ignored: text past its end repeats itself, which flatters drafts.")
        if self.insecure:
            found.append("--insecure: no certificate was checked; it may have been any server that answered.")
        most = max(map(self.count_of, self.loads))
        if self.prompts is not None and most > len(prompts):
            are = "prompt is" if most == 1 else "prompts are"
            found.append(f"{most} {are} asked a case and {self.prompts.name} has {len(prompts)}: some come again.")
        later = sum(len(prompt.turns) > 1 for prompt in prompts)
        if later and not self.all_turns:
            have = "1 prompt has" if later == 1 else f"{later} prompts have"
            found.append(f"{have} further turns; the first is asked (--all-turns asks all).")
        if len(self.seeds) % 2 and num_arms > 1:
            found.append(
                "An odd number of seeds: over an even number, every arm comes first as often as last, and a drift of "
                "the machine cancels out."
            )
        return found

    @property
    def ends_ignored(self) -> bool:
        return self.ignore_eos or self.input_len is not None

    def sampling(self) -> dict[str, Any]:
        """Fields of every request, beside its prompt and what counting needs."""
        fields: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return fields | ({"ignore_eos": True} if self.ends_ignored else {}) | dict(self.extra_body)
