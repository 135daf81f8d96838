"""AccessOptions: who may ask, how much, and over what. All problems are found at once, before a model is loaded."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.server.access.keys import ApiKeys

KEYS_VARIABLE = "PACELINE_API_KEYS"
MAX_SECONDS = 31_536_000  # of any option, a year: timers overflow far beyond
_ORIGIN = re.compile(r"^https?://[^/\s*]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    api_keys: ApiKeys | None = None  # None: nobody needs one
    allowed_origins: tuple[str, ...] = ()  # web pages that may ask from a browser; "*": all
    ssl_certfile: str | None = None  # PEM, with what leads to a root
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None  # clients must show a certificate that one of these signed
    max_body_bytes: int = 32 * 2**20
    max_request_tokens: int | None = None  # answers of a request * max_tokens
    max_queue: int = 2048  # answers waiting beyond those that run
    requests_per_minute: int | None = None  # a key; without keys: an address
    max_concurrent_requests: int | None = None  # a key; without keys: an address
    request_timeout: float | None = None  # seconds from a request's arrival to the end of its answer
    body_timeout: float = 60.0  # seconds for a body to arrive

    @property
    def scheme(self) -> str:
        return "https" if self.ssl_certfile else "http"

    def tls(self) -> dict[str, Any]:
        """For uvicorn."""
        return {
            "ssl_certfile": self.ssl_certfile,
            "ssl_keyfile": self.ssl_keyfile,
            "ssl_ca_certs": self.ssl_ca_certs,
            "ssl_cert_reqs": ssl.CERT_REQUIRED if self.ssl_ca_certs else ssl.CERT_NONE,
        }


def read_access_options(
    given: Mapping[str, Any], problems: list[str], environment: Mapping[str, str] = os.environ
) -> AccessOptions:
    """`given`: the options that were written, under the names of the command line. What is wrong goes to `problems`."""
    values = {name: value for name, value in given.items() if value not in (None, [], ())}
    for name, least in _LEAST.items():
        if name in values and not values[name] >= least:
            problems.append(f"{_flag(name)} must be at least {least}, not {values[name]}.")
            del values[name]
        elif name.endswith("_timeout") and name in values and values[name] > MAX_SECONDS:
            problems.append(f"{_flag(name)} must be at most {MAX_SECONDS} seconds, not {values[name]:g}.")
            del values[name]
    values["api_keys"] = _keys(values.pop("api_key_file", None), environment.get(KEYS_VARIABLE), problems)
    values["allowed_origins"] = _origins(values.pop("allowed_origin", ()), problems)
    _check_tls(values, problems)
    return AccessOptions(**values)


_LEAST: dict[str, float] = {
    "max_body_bytes": 1024,
    "max_request_tokens": 1,
    "max_queue": 0,
    "requests_per_minute": 1,
    "max_concurrent_requests": 1,
    "request_timeout": 0.001,
    "body_timeout": 0.001,
}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _keys(file: str | None, variable: str | None, problems: list[str]) -> ApiKeys | None:
    try:
        return ApiKeys.load(Path(file) if file else None, variable, KEYS_VARIABLE)
    except PacelineError as error:
        problems.append(str(error))
        return None


def _origins(given: tuple[str, ...] | list[str], problems: list[str]) -> tuple[str, ...]:
    for origin in given:
        if origin != "*" and not _ORIGIN.match(origin):
            problems.append(
                f"--allowed-origin '{origin}' must be an origin as browsers write it, such as https://example.org or "
                "http://localhost:3000, without a path; or *."
            )
    return tuple(given)


def _check_tls(values: Mapping[str, Any], problems: list[str]) -> None:
    unreadable = [
        f"{_flag(name)} {values[name]} cannot be used: {reason}."
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
        if values.get(name) and (reason := _unreadable(values[name])) is not None
    ]
    problems += unreadable
    if bool(values.get("ssl_certfile")) != bool(values.get("ssl_keyfile")):
        problems.append("--ssl-certfile and --ssl-keyfile belong together: give both, or neither.")
        return
    if values.get("ssl_ca_certs") and not values.get("ssl_certfile"):
        problems.append("--ssl-ca-certs asks clients for certificates; it needs --ssl-certfile and --ssl-keyfile.")
        return
    if not values.get("ssl_certfile") or unreadable:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(values["ssl_certfile"], values["ssl_keyfile"], password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        problems.append(
            f"--ssl-certfile {values['ssl_certfile']} and --ssl-keyfile {values['ssl_keyfile']} cannot be used: "
            f"{_reason(error)}."
        )
    try:
        if values.get("ssl_ca_certs"):
            context.load_verify_locations(values["ssl_ca_certs"])
    except (OSError, ssl.SSLError) as error:
        problems.append(f"--ssl-ca-certs {values['ssl_ca_certs']} cannot be used: {_reason(error)}.")


def _unreadable(file: str) -> str | None:
    try:
        Path(file).read_bytes()
    except (OSError, ValueError) as error:
        return _reason(error)
    return None


def _no_password() -> str:
    raise ValueError("the key has a passphrase, and nobody is there to type it; take one without")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".")
