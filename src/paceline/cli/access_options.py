"""Options of `paceline serve`: who may ask, how much, and over what. server/access/options.py reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Access and limits", show_default=False, **more)


def _access_options(
    api_key_file: Annotated[
        str | None,
        _option(
            "Requests need one of the keys in this file: one a line, or NAME KEY; read again when it changes. Keys may "
            "also be in the environment, PACELINE_API_KEYS. /health needs none."
        ),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        _option("Let web pages of this origin ask from a browser (CORS); * for all. May be repeated. Default: none."),
    ] = None,
    ssl_certfile: Annotated[str | None, _option("Serve HTTPS: certificate chain, PEM.")] = None,
    ssl_keyfile: Annotated[str | None, _option("Its private key, PEM, without a passphrase.")] = None,
    ssl_ca_certs: Annotated[str | None, _option("Clients must show a certificate signed by one of these, PEM.")] = None,
    max_body_bytes: Annotated[int | None, _option("Largest body of a request. Default 33554432 (32 MiB).")] = None,
    max_request_tokens: Annotated[
        int | None, _option("Most tokens that the answers of one request may have together, n x max_tokens.")
    ] = None,
    max_queue: Annotated[
        int | None,
        _option("Answers that may wait beyond the --max-num-seqs that run; then requests get 429. Default 2048."),
    ] = None,
    requests_per_minute: Annotated[
        int | None, _option("Of one key; without keys, of one address. More get 429.")
    ] = None,
    max_concurrent_requests: Annotated[
        int | None, _option("Of one key; without keys, of one address. More get 429.")
    ] = None,
    request_timeout: Annotated[
        float | None, _option("Seconds until a request must be answered in full; then it ends with an error.")
    ] = None,
    body_timeout: Annotated[float | None, _option("Seconds for a body to arrive. Default 60.")] = None,
) -> None:
    """Only its signature is used."""


_PARAMETERS = inspect.signature(_access_options, eval_str=True).parameters


def with_access_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., access: dict)` becomes a command with these options; `access` has those that were written."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "access"]

    @wraps(command)
    def with_options(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in _PARAMETERS}
        command(**arguments, access={name: value for name, value in given.items() if value is not None})

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) for p in (*own, *_PARAMETERS.values())]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options
