"""A follower: every rank but the first, a process that does what the leader tells it.

Started by `distributed.ranks` as `python -m paceline.worker.follower [MODULE:FUNCTION]` with a Setup as the first line
of standard input. It reports that it is up, meets the others, loads its share, and then follows: a plan is run as the
leader runs it, and a result is collected when the leader collects its own, because both put work on the device in the
same order. It holds no scheduler's state. When its standard input ends, so does the process, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from paceline.config import EngineConfig
from paceline.distributed import messages
from paceline.ending import leave_ending_to_parent
from paceline.engine import wire
from paceline.engine.core_process import end_with_parent
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.worker.worker import Worker

DEFAULT_FACTORY = "paceline.worker.worker:Worker"
_PATIENCE_SECONDS = 10.0

logger = logging.getLogger(__name__)

Say = Callable[[messages.Report], None]


def main() -> None:
    leave_ending_to_parent()
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the leader has gone already
    setup = msgspec.json.decode(line, type=messages.Setup)
    end_with_parent(sys.stdin.fileno())
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s rank {setup.rank} %(name)s: %(message)s")
    connection = Connection(setup.reports)

    def say(report: messages.Report) -> None:
        with contextlib.suppress(OSError):  # nobody hears it: the lifeline ends this process
            connection.send_bytes(messages.encode(report))

    status = _serve(setup, connection, sys.argv[1] if len(sys.argv) > 1 else DEFAULT_FACTORY, say)
    sys.stderr.flush()
    os._exit(status)  # a device or a thread of a library that hangs must not keep the process


def _serve(setup: messages.Setup, connection: Connection, factory: str, say: Say) -> int:
    from paceline.distributed.group import CollectiveError  # torch takes seconds: the lifeline is held by now

    try:
        worker = _make_worker(setup, factory, say)
        say(messages.Ready(worker.memory.in_words()))
        _follow(worker, connection, say, setup.check_every)
        return 0
    except EOFError:
        return 0  # the leader has gone
    except CollectiveError as error:
        time.sleep(_PATIENCE_SECONDS)  # whoever is gone is the cause; the leader sees it, and ends us before this
        say(messages.Failed(CollectiveError.__name__, str(error)))
        return 1
    except Exception as error:
        if not isinstance(error, PacelineError):
            logger.exception("Rank %d failed.", setup.rank)
        failed = wire.failure(error)
        say(messages.Failed(failed.kind, failed.message))
        return 1


def _make_worker(setup: messages.Setup, factory: str, say: Say) -> Worker:
    import torch

    from paceline.distributed.world import World

    config: EngineConfig = wire.decode_config(setup.config.encode())
    torch.set_num_threads(setup.num_threads)
    device = torch.device(config.device, setup.rank) if config.device == "cuda" else torch.device("cpu")
    say(messages.Up())
    world = World.connect(setup.port, setup.rank, setup.size, setup.draft_size, device)
    module, _, function = factory.partition(":")
    make: Callable[..., Worker] = getattr(importlib.import_module(module), function)
    return make(config, None, world, loaded=lambda: say(messages.Loaded()))


def _follow(worker: Worker, connection: Connection, say: Say, check_every: int) -> None:
    while True:
        match messages.decode_command(connection.recv_bytes()):
            case messages.Submit(plan):
                worker.submit(plan)
            case messages.Collect():
                result = worker.collect()
                if result.step_id % check_every == 0:
                    say(messages.Digest(result.step_id, messages.digest(result)))
            case messages.Stop():
                return


if __name__ == "__main__":
    main()
