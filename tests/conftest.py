"""Being here puts tests/ on sys.path, so that any test can say `from model.tiny import make_tiny`."""

import os
import signal

# Workers side by side (pytest-xdist) share the cores, and so do the servers that their tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

import hypothesis
import pytest

import paceline  # noqa: F401 - before torch: it says how long OpenMP threads spin

import torch  # isort: skip

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported; only tests/kernels runs its kernels

hypothesis.settings.register_profile("paceline", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("paceline")

_LONGEST_FIRST = ("e2e", "verify", "model")  # so that no worker is left alone with a long file at the end


def pytest_collection_modifyitems(items):
    def place(item):
        folder = item.path.parent.name
        return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=place)


@pytest.fixture
def no_signal_is_ignored():
    """As in a terminal, for this process and those that it starts: whoever runs the tests may ignore SIGHUP (nohup) or
    SIGINT (a script's job behind `&`), and commands keep to that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
