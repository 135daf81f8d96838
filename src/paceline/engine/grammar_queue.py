"""GrammarQueue: requests whose grammar is still being compiled. No step waits for one of them.

A request with a constraint is let in when its grammar is there, and refused when it does not compile: both are
found before the request takes a place in the scheduler's queue.
"""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from paceline.engine.interfaces import GrammarCompiler
from paceline.errors import InvalidRequestError
from paceline.sequence import EngineRequest
from paceline.structured.constraint import Constraint, GrammarError

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.02  # an engine with nothing else to do waits so long for a grammar, and then looks for commands


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its compiled grammar, or with the reason why there is none."""

    request: EngineRequest
    compiled: object = None
    refusal: InvalidRequestError | None = None


class GrammarQueue:
    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._waiting: dict[str, tuple[EngineRequest, Future[object]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: EngineRequest, constraint: Constraint) -> Prepared | None:
        """None: it will come out of `take`. Raises InvalidRequestError at once for what is known to be wrong."""
        if self._compiler is None:
            raise InvalidRequestError(
                "Structured output needs a tokenizer; this engine has none.", param=constraint.param
            )
        future = self._compiler.prepare(constraint)
        if not future.done():
            self._waiting[request.request_id] = (request, future)
            return None
        prepared = _prepared(request, future)
        if prepared.refusal is not None:
            raise prepared.refusal
        return prepared

    def take(self, *, idle: bool) -> list[Prepared]:
        """Requests whose grammar is done; `idle`: it may be waited for a moment."""
        if idle and self._waiting:
            wait([future for _, future in self._waiting.values()], IDLE_SECONDS, FIRST_COMPLETED)
        done = [(request, future) for request, future in self._waiting.values() if future.done()]
        for request, _ in done:
            del self._waiting[request.request_id]
        return [_prepared(request, future) for request, future in done]

    def remove(self, request_id: str) -> EngineRequest | None:
        """Forget an aborted request; its grammar is finished for the next one that asks for it."""
        entry = self._waiting.pop(request_id, None)
        return entry[0] if entry else None

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()


def _prepared(request: EngineRequest, future: Future[object]) -> Prepared:
    constraint = request.sampling_params.structured_outputs
    assert constraint is not None
    try:
        return Prepared(request, future.result())
    except GrammarError as error:
        return Prepared(request, refusal=error.as_refusal(constraint))
    except Exception as error:  # a fault of the compiler must not be the end of everybody's engine
        logger.exception("A grammar could not be compiled.")
        unknown = GrammarError(f"its compiler failed with {type(error).__name__}.")
        return Prepared(request, refusal=unknown.as_refusal(constraint))
