"""The sides of a comparison: which servers answer, and what each request to them carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.bench.environment import local_hardware
from paceline.bench.serve.counting import CountTokens, request_fields
from paceline.bench.serve.http_stream import LOOPBACK, same_server
from paceline.bench.serve.options import ServeOptions
from paceline.bench.serve.prompts import Prompt
from paceline.bench.serve.records import ArmInfo
from paceline.bench.serve.servers import Server, try_out
from paceline.errors import ConfigurationError

AS_IT_IS = ""


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
        own = f"{self.info.name}:{fresh}" if self.shares_server else fresh
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
    options: ServeOptions, api_keys: Mapping[str, str], count_tokens: CountTokens | None
) -> tuple[list[Arm], list[str]]:
    """The arms in the order given, the baseline not moved, and notes. Raises PacelineError where a server cannot be
    asked."""
    servers = [await try_out(name, url, options, _of(api_keys, name)) for name, url in options.servers.items()]
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
    for server in servers:
        own = words if words and server.speculates_by_request else [AS_IT_IS]
        if words and own == [AS_IT_IS]:
            notes.append(f"{server.name}: requests cannot choose speculation there; it is measured as it is.")
        for word, why in server.refused_drafts.items() if own == words else ():
            raise ConfigurationError(f"--speculation {word}: {server.url} does not take it: {why}")
        for word in own:
            shares = len(own) > 1 or sum(same_server(server.url, other.url) for other in servers) > 1
            arms.append(_arm(server, word, options, count_tokens, several=len(servers) > 1, shares=shares))
    names = [arm.info.name for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"Two arms have the same name: {', '.join(names)}.")
    notes += _notes(arms) + _notes_of_same(servers)
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
    off = [arm.name for arm in arms if arm.extra.get("speculation", {}).get("num_speculative_tokens") == 0]
    return off[0] if off else names[-1]


def _arm(
    server: Server, word: str, options: ServeOptions, count_tokens: CountTokens | None, *, several: bool, shares: bool
) -> Arm:
    extra: dict[str, Any] = {}
    if word not in (AS_IT_IS, "on"):
        extra = options.drafts(int(word))
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
    fields = options.sampling() | request_fields(server.counting, options.endpoint) | extra
    return Arm(info, server, fields, options.path, shares, count_tokens)


def _of(table: Mapping[str, Any], name: str) -> Any:
    return table.get(name, table.get(""))


def _hardware(url: httpx.URL) -> str:
    return local_hardware() if url.host in LOOPBACK else ""


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


def _notes_of_same(servers: Sequence[Server]) -> list[str]:
    found = dict.fromkeys(
        tuple(other.name for other in servers if same_server(server.url, other.url)) for server in servers
    )
    return [
        f"{' and '.join(names)} are one server: what lies between them is chance, and shows how large it is."
        for names in found
        if len(names) > 1
    ]
