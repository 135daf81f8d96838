"""One log line for every request that asked for tokens or that failed; without its prompt unless that was asked for."""

from __future__ import annotations

import logging
from typing import Any

from paceline.server.telemetry.record import RequestRecord
from paceline.tokenizer import Tokenizer

logger = logging.getLogger("paceline.requests")

_MAX_PATH = 200  # characters; whoever asks chooses the path, with a key or without


class RequestLog:
    """An observer of the telemetry. `prompt_tokenizer` writes prompts out; without it none is logged."""

    def __init__(self, prompt_tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = prompt_tokenizer

    def __call__(self, record: RequestRecord) -> None:
        if not (record.is_generation or record.error):
            return  # probes and scrapes
        fields = self._fields(record)
        details = " ".join(f"{name}={value}" for name, value in fields.items() if name not in ("method", "path"))
        level = logging.WARNING if record.status >= 500 else logging.INFO
        logger.log(level, "%s %s %s", fields["method"], fields["path"], details, extra={"fields": fields})

    def _fields(self, record: RequestRecord) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "method": record.method,
            "path": _bounded(record.path),
            "status": record.status,
            "request_id": record.request_id,
            "seconds": round(record.seconds, 4),
        }
        if record.is_generation:
            fields |= _generation_fields(record)
        if record.error is not None:
            fields["error"] = record.error
        if self._tokenizer is not None:
            prompts = [self._tokenizer.decode(ids, skip_special_tokens=False) for ids in record.prompt_token_ids]
            fields["prompts"] = prompts
        return fields


def _bounded(path: str) -> str:
    return path if len(path) <= _MAX_PATH else f"{path[:_MAX_PATH]}... ({len(path)} characters)"


def _generation_fields(record: RequestRecord) -> dict[str, Any]:
    first = record.time_to_first_token
    return {
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "completion_tokens": record.num_completion_tokens,
        "time_to_first_token": None if first is None else round(first, 4),
        "queue_seconds": None if record.queue_seconds is None else round(record.queue_seconds, 4),
        "finish_reason": ",".join(record.finish_reasons) or ("abort" if record.is_aborted else None),
        "mean_acceptance_length": round(record.speculation.mean_acceptance_length, 3),
    }
