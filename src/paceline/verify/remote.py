"""Parity and determinism of a running server, through /v1/completions alone.

The law is not tested here: a server gives no logits of its whole vocabulary, and thousands of answers are better
drawn from an LLM of one's own. Parity compares with the same model without speculation: a second server, or on one of
Paceline's own the same server, whose requests may do without drafts (each side with a prefix cache of its own).
Near-ties are told by the baseline's log-probabilities.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.errors import ConfigurationError, PacelineError
from paceline.verify import cases, determinism
from paceline.verify.parity import first_difference
from paceline.verify.precision import PRECISIONS, Precision
from paceline.verify.progress import Progress, Silent
from paceline.verify.report import DeterminismTest, Difference, ParityTest, Report
from paceline.verify.sampling import Request, seeds

_TIMEOUT = httpx.Timeout(120.0, connect=5.0)
_NUM_LOGPROBS = 5
_SEEDED = {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True}
# Each side of one server in a prefix cache of its own: what the other has computed must not stand in for it.
_WITH_DRAFTS = {"cache_salt": "paceline verify, with drafts"}
_WITHOUT_DRAFTS = {"cache_salt": "paceline verify, without drafts", "speculation": {"num_speculative_tokens": 0}}
_PENALTIES = {"frequency_penalty": 0.6, "presence_penalty": 0.3}


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """url speculates; baseline_url serves the same model without speculation. dtype: that of both.

    baseline_url None: url's own requests without drafts, if it is a server of Paceline's.
    """

    url: str
    baseline_url: str | None = None
    model: str | None = None
    prompts: Sequence[str | list[int]] | None = None
    tokens: int = 20
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for url in filter(None, (self.url, self.baseline_url)):
            if httpx.URL(url).scheme not in ("http", "https") or not httpx.URL(url).host:
                raise ConfigurationError(f"'{url}' is not an address such as http://127.0.0.1:8000.")
        if self.dtype not in PRECISIONS:
            raise ConfigurationError(f"--dtype {self.dtype}: say what the servers run in: {', '.join(PRECISIONS)}.")


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens as texts, with the log-probabilities of the likeliest at each, before penalties."""

    tokens: list[str]
    top: list[dict[str, float]]


class Server:
    """One address. Errors say which server, what it was asked and what it said."""

    def __init__(
        self,
        url: str,
        model: str | None,
        transport: httpx.BaseTransport | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """`extra`: fields of every request."""
        self.url = url.rstrip("/")
        self._extra = extra or {}
        self._client = httpx.Client(base_url=self.url, timeout=_TIMEOUT, transport=transport, headers=_key())
        self.model = model or self._only_model()

    def close(self) -> None:
        self._client.close()

    def complete(self, prompt: str | Sequence[int], params: Mapping[str, Any]) -> Answer:
        body = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "logprobs": _NUM_LOGPROBS,
            **self._extra,
            **params,
        }
        (choice,) = self._ask("POST", "/v1/completions", body)["choices"]
        if choice.get("finish_reason") == "error" or not choice.get("logprobs"):
            raise PacelineError(f"{self.url} answered without tokens: {choice}")
        return Answer(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"])

    def drafts_by_request(self) -> bool:
        """Is it one of Paceline's, where a request may do without drafts?"""
        try:
            return self._client.get("/v1/paceline/status").status_code == 200
        except httpx.HTTPError:
            return False

    def _only_model(self) -> str:
        names = [entry["id"] for entry in self._ask("GET", "/v1/models")["data"]]
        if not names:
            raise PacelineError(f"{self.url} serves no model.")
        return str(names[0])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise PacelineError(f"{self.url}{path} does not answer ({error}). Is a server running there?") from None
        if response.status_code != 200:
            raise PacelineError(f"{self.url}{path} answered {response.status_code}: {response.text[:500]}")
        try:
            answer: dict[str, Any] = response.json()
        except ValueError:
            raise PacelineError(f"{self.url}{path} answered no JSON: {response.text[:200]!r}") from None
        return answer


def _key() -> dict[str, str]:
    """Where a server wants a key: the variable that OpenAI's clients read."""
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def verify_server(
    options: RemoteOptions, *, progress: Progress | None = None, transport: httpx.BaseTransport | None = None
) -> Report:
    """Raises PacelineError where a server cannot be asked. `transport`: for tests."""
    progress = progress or Silent()
    server = Server(options.url, options.model, transport)
    prompts = list(options.prompts or [*cases.PROMPTS, *cases.PARITY_TEXTS])[:16]
    precision = PRECISIONS[options.dtype]
    try:
        progress.stage(f"{options.url}: seeds", 1)
        repeated = _determinism(server, prompts[:8], options, precision)
        progress.advance(1)
        parity, gaps = _parity(server, prompts, options, precision, progress, transport)
    finally:
        server.close()
    own = "its own requests without drafts" if parity else "-"
    findings = [
        f"{t.company}: requests {t.changed} gave another text with the same seed."
        for t in repeated
        if t.verdict == "fail"
    ]
    findings += [_in_words(d) for test in parity for d in test.differences if d.kind == "fault"]
    return Report(
        about={"target": f"{server.model} at {options.url}", "baseline": options.baseline_url or own}
        | {"dtype": options.dtype, "seed": str(options.seed)},
        level={},
        modes=[],
        law=[],
        parity=parity,
        determinism=repeated,
        findings=findings,
        not_tested=["the law: run paceline verify TARGET --speculative-model DRAFT on the same models", *gaps],
    )


def _determinism(
    server: Server, prompts: Sequence[str | list[int]], options: RemoteOptions, precision: Precision
) -> list[DeterminismTest]:
    """Requests of one batch are sent at once; `alone` one after the other. Prompts are told apart by number."""
    numbers = seeds(2 * len(prompts), f"{options.seed}/server")

    def answer(requests: Sequence[Request]) -> list[list[int]]:
        def ask(request: Request) -> list[str]:
            params = {**request.params, "seed": request.seed, "max_tokens": request.max_tokens}
            return server.complete(prompts[request.prompt[0]], params).tokens

        with ThreadPoolExecutor(max_workers=len(requests)) as pool:
            return [_numbered(tokens) for tokens in pool.map(ask, requests)]

    known: dict[str, int] = {}

    def _numbered(tokens: list[str]) -> list[int]:
        return [known.setdefault(token, len(known)) for token in tokens]

    half = options.tokens // 2 + 1
    requests = [Request([index], _SEEDED, numbers[index], half) for index in range(len(prompts))]
    strangers = [
        Request([index], {**_SEEDED, "temperature": 1.3}, numbers[len(prompts) + index], half + 2)
        for index in range(len(prompts))
    ]
    return determinism.check(server.url, requests, strangers, answer, precision.texts)


def _parity(
    server: Server,
    prompts: Sequence[str | list[int]],
    options: RemoteOptions,
    precision: Precision,
    progress: Progress,
    transport: httpx.BaseTransport | None,
) -> tuple[list[ParityTest], list[str]]:
    if options.baseline_url is not None:
        baseline, drafting = Server(options.baseline_url, options.model, transport), {}
    elif server.drafts_by_request():
        baseline, drafting = Server(options.url, options.model, transport, _WITHOUT_DRAFTS), _WITH_DRAFTS
    else:
        return [], ["greedy parity: give --baseline-url, the same model served without speculation"]
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": options.tokens, "ignore_eos": True}
    tests = []
    try:
        for name, extra in (("greedy", {}), ("greedy with penalties", _PENALTIES)):
            progress.stage(f"{options.url} and {options.baseline_url or 'itself without drafts'}: {name}", len(prompts))
            differences = []
            for number, prompt in enumerate(prompts, 1):
                plain = baseline.complete(prompt, greedy | extra)
                other = server.complete(prompt, greedy | drafting | extra)
                found = _difference(server.url, name, number, plain, other, extra, precision)
                differences += [found] if found else []
                progress.advance(1)
            total = len(prompts)
            tests.append(
                ParityTest(server.url, name, total, total * options.tokens, total - len(differences), differences)
            )
    finally:
        baseline.close()
    return tests, []


def _difference(
    mode: str,
    setting: str,
    number: int,
    plain: Answer,
    other: Answer,
    penalties: Mapping[str, float],
    precision: Precision,
) -> Difference | None:
    known: dict[str, int] = {}
    one, two = ([known.setdefault(token, len(known)) for token in answer.tokens] for answer in (plain, other))
    place = first_difference(one, two)
    if place is None:
        return None
    texts = [answer.tokens[place] if place < len(answer.tokens) else None for answer in (plain, other)]
    values = [_penalised(text, plain, place, penalties) for text in texts]
    is_tie = None not in values and abs((values[0] or 0.0) - (values[1] or 0.0)) <= precision.logit
    return Difference(
        mode=mode,
        setting=setting,
        prompt=str(number),
        place=place,
        plain_token=-1,
        speculative_token=-1,
        plain_text=texts[0] or "(the text ends)",
        speculative_text=texts[1] or "(the text ends)",
        plain_logit=values[0],
        speculative_logit=values[1],
        tolerance=precision.logit,
        kind="near-tie" if is_tie else "fault",
    )


def _penalised(token: str | None, answer: Answer, place: int, penalties: Mapping[str, float]) -> float | None:
    """The baseline's log-probability with penalties; None where the token is none of the likeliest."""
    if token is None or place >= len(answer.top) or token not in answer.top[place]:
        return None
    count = answer.tokens[:place].count(token)
    frequency, presence = penalties.get("frequency_penalty", 0.0), penalties.get("presence_penalty", 0.0)
    return answer.top[place][token] - frequency * count - presence * (count > 0)


def _in_words(difference: Difference) -> str:
    return (
        f"{difference.setting}; prompt {difference.prompt}, token {difference.place}: with speculation "
        f"{difference.speculative_text!r} (log-probability {difference.speculative_logit}), without "
        f"{difference.plain_text!r} ({difference.plain_logit}): further apart than {difference.tolerance}, a fault."
    )
