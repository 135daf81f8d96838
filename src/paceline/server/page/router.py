"""The routes of the page's files.

All of them are read once, so that no request can name a path. Browsers keep them and ask whether they are still the
same (an ETag of the content): a new version is seen at once, an old one costs a 304.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX = "index.html"
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def page_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files = _read_files()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        return _answer(files[_INDEX], request)

    @router.api_route("/static/{name}", methods=["GET", "HEAD"])
    async def static(name: str, request: Request) -> Response:
        if name not in files or name == _INDEX:
            raise HTTPException(404)
        return _answer(files[name], request)

    return router


def _read_files() -> dict[str, _File]:
    found = {}
    for entry in resources.files(__package__).joinpath("files").iterdir():
        kind = _KINDS.get(entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            found[entry.name] = _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


def _answer(file: _File, request: Request) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
