"""Nothing between processes, and nothing from a model's folder, is ever unpickled."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "paceline"
PIPES = "multiprocessing.connection"  # for bytes: its send and recv pickle, send_bytes and recv_bytes do not
UNPICKLING = {"send", "recv", "pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing"}
ZMQ_UNPICKLING = {"recv_pyobj", "send_pyobj"}
SERVING = ("engine", "server", "worker", "structured", "runner", "hub", "models")


def names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found.add(module if module == PIPES else module.split(".")[0])
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found - ({"send", "recv"} if PIPES not in found else set())


def test_no_room_that_serves_knows_how_to_unpickle() -> None:
    files = [path for room in SERVING for path in (SOURCE / room).rglob("*.py")]
    assert len(files) > 50
    wrong = {path.name: names(path) & (UNPICKLING | ZMQ_UNPICKLING) for path in files}
    assert not {name: found for name, found in wrong.items() if found}


def test_the_check_sees_what_it_looks_for(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nfrom multiprocessing import Queue\nsocket.recv_pyobj()\n")
    assert names(bad) >= {"pickle", "multiprocessing", "recv_pyobj"}
    bad.write_text("from multiprocessing.connection import Pipe\nPipe()[0].send({})\n")
    assert "send" in names(bad)
    bad.write_text("import socket\nsocket.socket().send(b'')\n")
    assert "send" not in names(bad)
