"""The followers, as the leader sees them: processes that it starts, speaks to, watches and ends.

Contract
- Fresh interpreters, neither forked nor multiprocessing's children: CUDA does not survive a fork, nothing is pickled,
  and the user's __main__ is not imported again.
- A thread reads what they report and notices within a moment that one has ended. From then on `check` raises an
  EngineDeadError that names the rank, and `on_failure` is called once, from that thread, to free whoever waits for it.
- `close` ends them all, whatever they are doing; it may be called twice. A leader that is killed takes them along:
  their standard input ends.
- Each digest of a follower is compared with the leader's own of the same step; a difference is a failure (p36).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait

import msgspec

from paceline.distributed import messages
from paceline.errors import ConfigurationError, EngineDeadError, PacelineError, UnsupportedModelError

_KINDS: dict[str, type[PacelineError]] = {
    kind.__name__: kind for kind in (ConfigurationError, UnsupportedModelError, EngineDeadError)
}
_LAST_WORDS_SECONDS = 1.0  # between a rank's end and what is known of it
_STOP_SECONDS = 5.0


class Follower:
    def __init__(self, setup: messages.Setup, module: Sequence[str]) -> None:
        self.rank = setup.rank
        self.connection, theirs = Pipe()
        with contextlib.closing(theirs):
            setup = msgspec.structs.replace(setup, reports=theirs.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is the leader's to handle
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: the watch says why
            self.process.stdin.write(msgspec.json.encode(setup) + b"\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Its standard input ends, and so does it; else it is killed."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def how_it_ended(self) -> str:
        """Also for one that is about to end."""
        try:
            status = self.process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


class Ranks:
    def __init__(self, setups: Sequence[messages.Setup], module: Sequence[str]) -> None:
        """`module`: what a follower runs, and its arguments."""
        self.on_failure: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._error: PacelineError | None = None
        self._closing = False
        self._said: dict[int, list[messages.Report]] = defaultdict(list)  # by rank: Up, Loaded, Ready
        self._digests: dict[int, deque[tuple[int, int]]] = defaultdict(deque)  # by rank, the leader (0) included
        self.num_checks = 0  # steps in which a follower was found to agree
        self.followers: list[Follower] = []
        try:
            self.followers += (Follower(setup, module) for setup in setups)
        except BaseException:
            self.close()
            raise
        self._watch = threading.Thread(target=self._watch_reports, name="paceline-ranks", daemon=True)
        self._watch.start()

    # What the leader calls

    def check(self) -> None:
        """Raises the first failure."""
        if self._error is not None:
            raise type(self._error)(str(self._error))

    def wait_for(self, kind: type[messages.Report]) -> list[messages.Report]:
        """One report of this kind from every follower."""
        with self._changed:
            while self._error is None:
                found = [r for f in self.followers for r in self._said[f.rank] if isinstance(r, kind)]
                if len(found) == len(self.followers):
                    return found
                self._changed.wait()
        self.check()
        return []

    def send(self, command: messages.Command) -> None:
        self.check()
        data = messages.encode(command)
        for follower in self.followers:
            try:
                follower.connection.send_bytes(data)
            except OSError:
                self.wait_for_failure()

    def wait_for_failure(self) -> None:
        """Something went wrong that a rank's end would explain: give the watch a moment to see it, then `check`."""
        deadline = time.monotonic() + 2 * _LAST_WORDS_SECONDS
        with self._changed:
            while self._error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        self.check()

    def compare(self, step_id: int, value: int) -> None:
        """The leader's own digest of a step."""
        self._note_digest(0, step_id, value)

    def fail(self, error: PacelineError) -> None:
        with self._changed:
            if self._error is not None or self._closing:
                return
            self._error = error
            self._changed.notify_all()
        for follower in self.followers:  # out of step with each other from here on
            follower.process.kill()
        self.on_failure()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            if self._error is None:
                self._error = EngineDeadError("The engine was shut down.")
            self._changed.notify_all()
        for follower in self.followers:  # all at once, then one after the other
            with contextlib.suppress(OSError):
                follower.connection.send_bytes(messages.encode(messages.Stop()))
            assert follower.process.stdin is not None
            with contextlib.suppress(OSError):
                follower.process.stdin.close()
        for follower in self.followers:
            follower.end()

    # The thread

    def _watch_reports(self) -> None:
        open_: dict[Connection, Follower] = {follower.connection: follower for follower in self.followers}
        while open_:
            for connection in wait(list(open_)):
                assert isinstance(connection, Connection)
                follower = open_[connection]
                try:
                    self._take(follower.rank, messages.decode_report(connection.recv_bytes()))
                except (EOFError, OSError):
                    del open_[connection]
                    connection.close()
                    self._lost(follower)

    def _lost(self, follower: Follower) -> None:
        if not self._closing:
            how = follower.how_it_ended()
            self.fail(
                EngineDeadError(
                    f"Rank {follower.rank} of {len(self.followers) + 1} (process {follower.process.pid}) {how}; the "
                    "engine cannot go on without it."
                )
            )

    def _take(self, rank: int, report: messages.Report) -> None:
        match report:
            case messages.Failed(kind, message):
                self.fail(_KINDS.get(kind, EngineDeadError)(f"Rank {rank} of {len(self.followers) + 1}: {message}"))
            case messages.Digest(step_id, value):
                self._note_digest(rank, step_id, value)
            case _:
                with self._changed:
                    self._said[rank].append(report)
                    self._changed.notify_all()

    def _note_digest(self, rank: int, step_id: int, value: int) -> None:
        with self._changed:
            self._digests[rank].append((step_id, value))
            difference = self._compare_digests()
        if difference is not None:
            self.fail(difference)

    def _compare_digests(self) -> EngineDeadError | None:
        """Each step once the leader and all followers have told theirs."""
        ranks = range(len(self.followers) + 1)
        while all(self._digests[rank] for rank in ranks):
            step_id, own = self._digests[0].popleft()
            others = {rank: self._digests[rank].popleft() for rank in ranks if rank}
            different = [str(rank) for rank, told in others.items() if told != (step_id, own)]
            if different:
                return EngineDeadError(
                    f"Rank {', '.join(different)} and rank 0 disagree on the tokens of step {step_id}, so what they "
                    "compute together is wrong. This is a fault of the engine or of a device: start it again, and if "
                    "it comes back, look at the devices' error counters."
                )
            self.num_checks += 1
        return None
