"""Importing starts nothing."""

from __future__ import annotations

import subprocess
import sys

LOOK = """
import os, signal, sys

def state():
    tasks = sorted(os.listdir("/proc/self/task"))
    files = sorted(os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if number != "3")
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return tasks, files, dict(os.environ), handlers, signal.pthread_sigmask(signal.SIG_BLOCK, [])

before = state()
import bursar
assert state() == before, (state(), before)
with open("/proc/self/maps") as maps:
    assert "libcuda" not in maps.read()
assert not {"asyncio", "torch", "cupy", "numba", "numpy"} & set(sys.modules)
"""


def test_y2_importing_starts_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
