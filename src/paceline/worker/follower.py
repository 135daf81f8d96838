"""A follower: every rank but the first, a process that does what the leader tells it.

Started by `distributed.ranks` as `python -m paceline.worker.follower [MODULE:FUNCTION]` with a Setup as the first line
of standard input. It reports that it is up, meets the others, loads its share, and then follows: a plan is run as the
leader runs it, and a result is collected when the leader collects its own, because both put work on the device in the
same order. It holds no scheduler's state. When its standard input ends, so does the process, whatever it is doing.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from paceline.config import EngineConfig
from paceline.distributed import messages
from paceline.engine import wire
from paceline.engine.core_process import end_with_parent
from paceline.errors import PacelineError

DEFAULT_FACTORY = "paceline.worker.worker:Worker"

logger = logging.getLogger(__name__)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach whole groups; the leader decides, and ends us
        signal.signal(number, signal.SIG_IGN)
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=messages.Setup)
    end_with_parent(sys.stdin.fileno())
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s rank {setup.rank} %(name)s: %(message)s")
    connection = Connection(setup.reports)
    status = _serve(setup, connection, sys.argv[1] if len(sys.argv) > 1 else DEFAULT_FACTORY)
    sys.stderr.flush()
    os._exit(status)  # a device or a thread of a library that hangs must not keep the process


def _serve(setup: messages.Setup, connection: Connection, factory: str) -> int:
    def report(words: messages.Report) -> None:
        connection.send_bytes(messages.encode(words))

    try:
        worker = _make_worker(setup, factory, report)
        report(messages.Ready(worker.memory.in_words()))
        _follow(worker, connection, report, setup.check_every)
        return 0
    except (EOFError, BrokenPipeError):
        return 0  # the leader has gone
    except Exception as error:
        if not isinstance(error, PacelineError):
            logger.exception("Rank %d failed.", setup.rank)
        failed = wire.failure(error)
        report(messages.Failed(failed.kind, failed.message))
        return 1


def _make_worker(setup: messages.Setup, factory: str, report: Callable[[messages.Report], None]):  # type: ignore[no-untyped-def]
    import torch

    from paceline.distributed.world import World

    config: EngineConfig = wire.decode_config(setup.config.encode())
    torch.set_num_threads(setup.num_threads)
    device = torch.device(config.device, setup.rank) if config.device == "cuda" else torch.device("cpu")
    report(messages.Up())
    world = World.connect(setup.port, setup.rank, setup.size, setup.draft_size, device)
    module, _, function = factory.partition(":")
    make = getattr(importlib.import_module(module), function)
    return make(config, None, world, loaded=lambda: report(messages.Loaded()))


def _follow(worker, connection: Connection, report, check_every: int) -> None:  # type: ignore[no-untyped-def]
    while True:
        match messages.decode_command(connection.recv_bytes()):
            case messages.Submit(plan):
                worker.submit(plan)
            case messages.Collect():
                result = worker.collect()
                if result.step_id % check_every == 0:
                    report(messages.Digest(result.step_id, messages.digest(result)))
            case messages.Stop():
                return


if __name__ == "__main__":
    main()
