"""Signals that reach a whole group of processes end those that were started by another one through it alone."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_CHILD = """
import os, sys
from paceline.ending import leave_ending_to_parent
leave_ending_to_parent()
print("ready", flush=True)
sys.stdin.read()
print("ended by its parent", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_child_outlives_the_signal_and_ends_with_its_parent(number: signal.Signals) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    found, _ = child.communicate(timeout=30)
    assert (child.returncode, found) == (0, "ended by its parent\n")
