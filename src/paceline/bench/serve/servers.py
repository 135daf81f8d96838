"""The servers of a run, tried out before anything is measured.

What a server can do is tried, not assumed: one short answer each for the way of counting tokens, for switching
speculation off by request, and for keeping a prompt out of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.bench.serve.ask import Listener, ask, now_ns
from paceline.bench.serve.counters import Counters, read_counters
from paceline.bench.serve.counting import LogprobsTally, Tally, UsageTally, make_tally, request_fields
from paceline.bench.serve.http_stream import StreamClient, server_url
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.tls import failure_in_words, tls_context
from paceline.errors import ConfigurationError, PacelineError

_PROBE_TOKENS = 24  # more than any step emits, so that an answer comes in several chunks


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


async def try_out(name: str, url: str, options: ServeOptions, api_key: str | None) -> Server:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    root = server_url(url)
    is_https = root.scheme == "https"  # else a certificate that cannot be read is of no account
    tls = tls_context(options.ca_file, insecure=options.insecure) if is_https else None
    control = httpx.AsyncClient(  # no proxy and no .netrc, which streams do not have either
        base_url=root, headers=headers, timeout=httpx.Timeout(30.0, connect=5.0), verify=tls or True, trust_env=False
    )
    cards = await _models(control, is_needed=options.model is None, has_key=api_key is not None)
    model = options.model or next(iter(cards))
    _check_lengths(options, model, root, cards.get(model))
    probe = _Probe(StreamClient(root, headers, options.timeout, tls), options, model, has_key=api_key is not None)
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
    def __init__(self, stream: StreamClient, options: ServeOptions, model: str, *, has_key: bool) -> None:
        self.stream = stream
        self._has_key = has_key
        self._options = options
        self._model = model

    async def must_answer(self, where: str) -> None:
        """Else the server's own words say what is wrong."""
        found = await self._ask(request_fields("share"))
        if found.error is not None:
            if found.error.startswith(("status 401", "status 403")):
                raise ConfigurationError(_refused(where, found.error.removeprefix("status ")[:3], self._has_key))
            raise PacelineError(f"{where} does not answer as asked: {found.error}")
        if self._options.counting in ("auto", "share") and found.last is None and self._options.tokenizer is None:
            raise ConfigurationError(
                f"{where} sends no usage with a stream, so tokens cannot be counted: give --tokenizer."
            )

    async def counting(self) -> str:
        wanted = self._options.counting
        if wanted == "logprobs":
            by_logprobs = LogprobsTally()
            found = await self._ask(request_fields(wanted, self._options.endpoint), by_logprobs)
            if found.error is not None or not by_logprobs.resolve(None):
                raise self._cannot_count(found.error or "its chunks carry no log-probabilities")
        if wanted not in ("auto", "usage"):
            return wanted
        tally = _CountingTally()
        found = await self._ask(request_fields("usage"), tally)
        if found.error is None and tally.num_counts > 1:
            return "usage"
        if wanted == "usage":
            raise self._cannot_count(found.error or "its chunks carry no counts")
        return "tokenizer" if self._options.tokenizer is not None else "share"

    def _cannot_count(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"--count {self._options.counting}: {self._model} cannot be counted so ({reason}). Try --count auto."
        )

    async def takes(self, fields: Mapping[str, Any]) -> bool:
        return (await self._ask(request_fields("share") | dict(fields))).error is None

    async def refused_drafts(self, words: Sequence[str]) -> dict[str, str]:
        """Each number of drafts is tried, so that no arm is found out to be impossible after others were measured."""
        found = {}
        for word in words:
            if word not in ("on", "0"):
                fields = request_fields("share") | self._options.drafts(int(word))
                if (error := (await self._ask(fields)).error) is not None:
                    found[word] = error
        return found

    async def speculates_by_request(self) -> bool:
        """It takes the field, and speculates without it."""
        plain = await self._ask(request_fields("share"))
        if not plain.speculation:
            return False
        return await self.takes(self._options.drafts(0))

    async def _ask(self, fields: Mapping[str, Any], tally: Tally | None = None) -> Listener:
        sampling = self._options.sampling() | {"max_tokens": min(_PROBE_TOKENS, self._options.max_tokens)}
        words = "Name ten animals, one a line."
        what: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
        if self._options.endpoint == "completions":
            what = {"prompt": words}
        body = {"model": self._model, **what, **sampling, **fields}
        return await ask(self.stream, self._options.path, body, tally or make_tally("share", None), now_ns)


async def _models(control: httpx.AsyncClient, *, is_needed: bool, has_key: bool) -> dict[str, int | None]:
    """Name -> the longest request that it takes, if the server says so; the first is the default. Raises PacelineError
    where the server cannot be asked, and unless `is_needed` only then."""
    root = str(control.base_url).rstrip("/")
    where = f"{root}/v1/models"
    try:
        response = await control.get("/v1/models")
    except httpx.HTTPError as error:
        about_tls = failure_in_words(root, error)
        why = str(error) or "not in time"
        raise PacelineError(about_tls or f"{root} does not answer ({why}). Is a server running there?") from None
    if response.status_code in (401, 403):
        raise ConfigurationError(_refused(where, str(response.status_code), has_key))
    if response.status_code == 503:
        raise PacelineError(f"{root} is not ready: {response.text[:200]} Try again once it has loaded.")
    try:
        cards = {str(entry["id"]): entry.get("max_model_len") for entry in response.json()["data"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        if not is_needed:
            return {}
        raise PacelineError(f"{where} answered {response.status_code}, and no list of models: give --model.") from None
    if not cards and is_needed:
        raise PacelineError(f"{root} serves no model.")
    return {name: longest if isinstance(longest, int) else None for name, longest in cards.items()}


def _refused(where: str, status: str, has_key: bool) -> str:
    if has_key:
        return f"{where} answered {status}: it does not take this key. Is --api-key-env (or OPENAI_API_KEY) its own?"
    return f"{where} answered {status}: it wants a key. Name the variable that holds it with --api-key-env."


def _check_lengths(options: ServeOptions, model: str, root: httpx.URL, longest: int | None) -> None:
    """Before anything is asked: else it is the warm-up that fails, in the server's words."""
    wanted = None if options.input_len is None else options.input_len + options.max_tokens
    if wanted is not None and longest is not None and wanted > longest:
        raise ConfigurationError(
            f"--input-len {options.input_len:,} and --max-tokens {options.max_tokens:,} are {wanted:,} tokens, and "
            f"{model} at {root} takes {longest:,}: give fewer."
        )


async def _kind(control: httpx.AsyncClient, counters: Counters) -> str:
    try:
        response = await control.get("/version")
        version = str(response.json()["version"]) if response.status_code == 200 else ""
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        version = ""
    return f"{counters.server} {version}".strip()
