"""The sides of a comparison: which servers answer, what they can do, and what each request to them carries.

What a server can do is tried out, not assumed: one short answer each for the way of counting tokens, for switching
speculation off by request, and for keeping a prompt out of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.bench.environment import local_hardware
from paceline.bench.serve.ask import Listener, ask, now_ns
from paceline.bench.serve.counters import Counters, read_counters
from paceline.bench.serve.counting import CountTokens, UsageTally, make_tally, request_fields
from paceline.bench.serve.http_stream import StreamClient, server_url
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.prompts import Prompt
from paceline.bench.serve.records import ArmInfo
from paceline.errors import ConfigurationError, PacelineError

_PROBE_TOKENS = 24  # more than any step emits, so that an answer comes in several chunks
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
AS_IT_IS = ""


@dataclass(frozen=True, slots=True)
class Server:
    """One address, tried out."""

    name: str
    url: httpx.URL
    stream: StreamClient
    control: httpx.AsyncClient
    model: str
    kind: str  # Paceline, vLLM 0.32.0, or ''
    counting: str
    takes_salt: bool
    speculates_by_request: bool
    refused_drafts: Mapping[str, str]  # of --speculation: number of drafts -> the server's words


@dataclass(frozen=True, slots=True)
class Arm:
    info: ArmInfo
    server: Server
    fields: Mapping[str, Any]  # of every request
    path: str
    shares_server: bool  # with another arm, and so its prefix cache
    count_tokens: CountTokens | None

    def body(self, prompt: Prompt, turn: int, answers: Sequence[str], fresh: str) -> dict[str, Any]:
        """`fresh`: a word for this request alone, which keeps other requests' cached prefixes from it."""
        method = self.info.fresh_prompts
        own = fresh if not self.shares_server else f"{self.info.name}:{fresh}"
        tag = f"[{_digits(own)}] " if method == "tag" else ""
        body: dict[str, Any] = {"model": self.info.model, **self.fields}
        if method == "cache_salt":
            body["cache_salt"] = own
        messages = prompt.messages(turn, answers, tag)
        if self.path.endswith("/chat/completions"):
            return body | {"messages": messages}
        return body | {"prompt": "\n".join(message["content"] for message in messages)}


def _digits(text: str) -> str:
    """Eight digits, of about the same number of tokens whatever they are."""
    from hashlib import blake2b

    return f"{int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % 10**8:08d}"


async def open_arms(
    options: ServeOptions, api_key: str | None, count_tokens: CountTokens | None
) -> tuple[list[Arm], list[str]]:
    """The arms in the order given, the baseline not moved, and notes. Raises PacelineError where a server cannot be
    asked."""
    servers = [await _try_out(name, url, options, api_key) for name, url in options.servers.items()]
    notes: list[str] = []
    words = list(options.speculation)
    if not words and len(servers) == 1 and servers[0].speculates_by_request:
        words = ["on", "0"]
    if any(word != "on" for word in words) and not any(server.speculates_by_request for server in servers):
        raise ConfigurationError(
            f"--speculation {','.join(words)}: {servers[0].url} does not speculate, or does not let a request say how "
            "much. Give it a draft, or compare two servers: --url with=… --url without=…"
        )
    arms = []
    addresses = [server.url for server in servers]
    for server in servers:
        own = words if words and server.speculates_by_request else [AS_IT_IS]
        if words and own == [AS_IT_IS]:
            notes.append(f"{server.name}: requests cannot choose speculation there; it is measured as it is.")
        for word, why in server.refused_drafts.items() if own == words else ():
            raise ConfigurationError(f"--speculation {word}: {server.url} does not take it: {why}")
        for word in own:
            shares = len(own) > 1 or addresses.count(server.url) > 1
            arms.append(_arm(server, word, options, count_tokens, several=len(servers) > 1, shares=shares))
    names = [arm.info.name for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"Two arms have the same name: {', '.join(names)}.")
    notes += _notes(arms)
    return arms, notes


def baseline_of(arms: Sequence[ArmInfo], wanted: str | None) -> str | None:
    """What the others are measured against: the one named, or without speculation, or the last; None if alone."""
    names = [arm.name for arm in arms]
    if wanted is not None:
        if wanted not in names:
            raise ConfigurationError(f"--baseline {wanted}: the arms are {', '.join(names)}.")
        return wanted
    if len(arms) < 2:
        return None
    off = [arm.name for arm in arms if arm.extra.get("speculation") == {"num_speculative_tokens": 0}]
    return off[0] if off else names[-1]


def _arm(
    server: Server, word: str, options: ServeOptions, count_tokens: CountTokens | None, *, several: bool, shares: bool
) -> Arm:
    extra: dict[str, Any] = {}
    if word not in (AS_IT_IS, "on"):
        extra = {"speculation": {"num_speculative_tokens": int(word)}}
    labels = [server.name] if several or word == AS_IT_IS else []
    if word != AS_IT_IS:
        labels.append({"on": "speculation on", "0": "speculation off"}.get(word, f"K={word}"))
    method = "none" if not options.fresh_prompts else "cache_salt" if server.takes_salt else "tag"
    info = ArmInfo(
        name=", ".join(labels),
        url=str(server.url),
        model=server.model,
        server=server.kind,
        counting=server.counting,
        fresh_prompts=method,
        extra=extra,
        hardware=_of(options.hardware, server.name) or _hardware(server.url),
        num_gpus=_of(options.gpus, server.name),
        price_per_hour=_of(options.prices, server.name),
    )
    fields = options.sampling() | request_fields(server.counting) | extra
    return Arm(info, server, fields, options.path, shares, count_tokens)


def _of(table: Mapping[str, Any], name: str) -> Any:
    return table.get(name, table.get(""))


def _hardware(url: httpx.URL) -> str:
    return local_hardware() if url.host in _LOOPBACK else ""


def _notes(arms: Sequence[Arm]) -> list[str]:
    found = []
    for arm in arms:
        if arm.info.counting == "share":
            found.append(
                f"{arm.info.name}: the server does not say how many tokens a chunk carries. Tokens are spread over "
                "chunks by their characters: ITL is an estimate. --tokenizer NAME counts them."
            )
        if not arm.info.hardware:
            found.append(f"{arm.info.name}: the hardware behind {arm.info.url} is not known. Say it with --hardware.")
    if any(arm.info.fresh_prompts == "tag" and arm.shares_server for arm in arms):
        found.append(
            "Prompts begin with a number of their own, so that no arm finds the other's prefixes in the cache; "
            "answers of the arms may differ for it (--shared-prefixes leaves prompts as they are)."
        )
    if any(arm.info.fresh_prompts == "none" and arm.shares_server for arm in arms):
        found.append("The arms share a prefix cache: whoever asks a prompt first computes it for both (TTFT).")
    if len({arm.info.model for arm in arms}) > 1:
        found.append("The arms serve models of different names: make sure that they are the same model.")
    return found


async def _try_out(name: str, url: str, options: ServeOptions, api_key: str | None) -> Server:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    root = server_url(url)
    control = httpx.AsyncClient(base_url=root, headers=headers, timeout=httpx.Timeout(30.0, connect=5.0))
    model = options.model or await _only_model(control)
    probe = _Probe(StreamClient(root, headers, options.timeout), options, model)
    await probe.must_answer(str(root))
    counters = await read_counters(control)
    is_known = counters.server != ""
    return Server(
        name=name,
        url=root,
        stream=probe.stream,
        control=control,
        model=model,
        kind=await _kind(control, counters),
        counting=await probe.counting(),
        refused_drafts=await probe.refused_drafts(options.speculation),
        takes_salt=is_known and options.fresh_prompts and await probe.takes({"cache_salt": "probe"}),
        speculates_by_request=await probe.speculates_by_request(),
    )


class _CountingTally(UsageTally):
    """Also in how many steps the count rose, even if they all came at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.num_counts = 0

    def _reached(self, micros: int, count: int) -> None:
        self.num_counts += count > self._count
        super()._reached(micros, count)


class _Probe:
    def __init__(self, stream: StreamClient, options: ServeOptions, model: str) -> None:
        self.stream = stream
        self._options = options
        self._model = model

    async def must_answer(self, where: str) -> None:
        """Else the server's own words say what is wrong."""
        found = await self._ask(request_fields("share"))
        if found.error is not None:
            raise PacelineError(f"{where} does not answer as asked: {found.error}")
        if self._options.counting in ("auto", "share") and found.last is None and self._options.tokenizer is None:
            raise ConfigurationError(
                f"{where} sends no usage with a stream, so tokens cannot be counted: give --tokenizer."
            )

    async def counting(self) -> str:
        wanted = self._options.counting
        if wanted not in ("auto", "usage"):
            return wanted
        tally = _CountingTally()
        found = await self._ask(request_fields("usage"), tally)
        if found.error is None and tally.num_counts > 1:
            return "usage"
        if wanted == "usage":
            reason = found.error or "its chunks carry no counts"
            raise ConfigurationError(f"--count usage: {self._model} cannot be counted so ({reason}). Try --count auto.")
        return "tokenizer" if self._options.tokenizer is not None else "share"

    async def takes(self, fields: Mapping[str, Any]) -> bool:
        return (await self._ask(request_fields("share") | dict(fields))).error is None

    async def refused_drafts(self, words: Sequence[str]) -> dict[str, str]:
        """Each number of drafts is tried, so that no arm is found out to be impossible after others were measured."""
        found = {}
        for word in words:
            if word not in ("on", "0"):
                fields = {"speculation": {"num_speculative_tokens": int(word)}}
                if (error := (await self._ask(request_fields("share") | fields)).error) is not None:
                    found[word] = error
        return found

    async def speculates_by_request(self) -> bool:
        """It takes the field, and speculates without it."""
        plain = await self._ask(request_fields("share"))
        if not plain.speculation:
            return False
        return await self.takes({"speculation": {"num_speculative_tokens": 0}})

    async def _ask(self, fields: Mapping[str, Any], tally: UsageTally | None = None) -> Listener:
        sampling = self._options.sampling() | {"max_tokens": min(_PROBE_TOKENS, self._options.max_tokens)}
        words = "Name ten animals, one a line."
        what: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
        if self._options.endpoint == "completions":
            what = {"prompt": words}
        body = {"model": self._model, **what, **sampling, **fields}
        return await ask(self.stream, self._options.path, body, tally or make_tally("share", None), now_ns)


async def _only_model(control: httpx.AsyncClient) -> str:
    root = str(control.base_url).rstrip("/")
    where = f"{root}/v1/models"
    try:
        response = await control.get("/v1/models")
    except httpx.HTTPError as error:
        raise PacelineError(f"{root} does not answer ({error}). Is a server running there?") from None
    if response.status_code in (401, 403):
        raise ConfigurationError(f"{where} answered {response.status_code}: it wants a key. See --api-key-env.")
    if response.status_code == 503:
        raise PacelineError(f"{root} is not ready: {response.text[:200]} Try again once it has loaded.")
    try:
        names = [str(entry["id"]) for entry in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        raise PacelineError(f"{where} answered {response.status_code}, and no list of models: give --model.") from None
    if not names:
        raise PacelineError(f"{root} serves no model.")
    return names[0]


async def _kind(control: httpx.AsyncClient, counters: Counters) -> str:
    try:
        response = await control.get("/version")
        version = str(response.json()["version"]) if response.status_code == 200 else ""
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        version = ""
    return f"{counters.server} {version}".strip()
