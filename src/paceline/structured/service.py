"""GrammarService: what the engine asks for a grammar. The answer is a Future, and no step waits for it.

With a sandbox (the server) constraints are tried there and then compiled here, in one thread; equal constraints
are compiled once, and those that failed are remembered. Without one (the offline API, whose caller pays for
his own grammars alone) a constraint is compiled at once and the Future is done.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from paceline.structured.constraint import Constraint, GrammarError, NotNowError
from paceline.structured.sandbox import Sandbox
from paceline.structured.store import CompiledGrammar, GrammarStore

_REMEMBERED_ERRORS = 1024

_Key = tuple[str, str, bool]


class GrammarService:
    def __init__(self, store: GrammarStore, sandbox: Sandbox | None = None) -> None:
        self._store = store
        self._sandbox = sandbox
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars") if sandbox else None
        self._lock = threading.Lock()
        self._pending: dict[_Key, Future[CompiledGrammar]] = {}
        self._errors: OrderedDict[_Key, str] = OrderedDict()

    def prepare(self, constraint: Constraint) -> Future[CompiledGrammar]:
        """The compiled grammar, to be held while it is needed; or GrammarError."""
        if self._thread is None:
            return _now(self._store, constraint)
        found = self._store.find(constraint)
        if found is not None:
            return _done(found)
        with self._lock:
            known = self._errors.get(constraint.key)
            if known is not None:
                return _failed(GrammarError(known))
            if constraint.key not in self._pending:
                self._pending[constraint.key] = self._thread.submit(self._try_and_compile, constraint)
            return self._pending[constraint.key]

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _try_and_compile(self, constraint: Constraint) -> CompiledGrammar:
        assert self._sandbox is not None
        try:
            self._sandbox.check(constraint, self._store.tokenizer_info().serialize_json())
            return self._store.get(constraint)
        except NotNowError:
            raise
        except GrammarError as error:
            with self._lock:
                self._errors[constraint.key] = str(error)
                if len(self._errors) > _REMEMBERED_ERRORS:
                    self._errors.popitem(last=False)
            raise
        finally:
            with self._lock:
                del self._pending[constraint.key]


def _now(store: GrammarStore, constraint: Constraint) -> Future[CompiledGrammar]:
    try:
        return _done(store.get(constraint))
    except GrammarError as error:
        return _failed(error)


def _done(compiled: CompiledGrammar) -> Future[CompiledGrammar]:
    future: Future[CompiledGrammar] = Future()
    future.set_result(compiled)
    return future


def _failed(error: GrammarError) -> Future[CompiledGrammar]:
    future: Future[CompiledGrammar] = Future()
    future.set_exception(error)
    return future
