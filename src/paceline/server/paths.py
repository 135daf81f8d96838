"""Paths that are read: GET, and HEAD with the same status and headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

Handler = Callable[..., Any]


def get(router: APIRouter, *paths: str) -> Callable[[Handler], Handler]:
    """`@router.get` for each path. HEAD is left out of the schema, where it would say everything twice; the web server
    leaves out its body."""

    def add(handler: Handler) -> Handler:
        for path in paths:
            router.add_api_route(path, handler, methods=["GET"])
            router.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)
        return handler

    return add
