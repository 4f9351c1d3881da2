"""Importing starts nothing."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import bursar
import pytest
from conftest import PATIENCE

LOOK = """
import os, signal, sys

# What the program that started this one ignores, this one would ignore too.
for number in signal.valid_signals() - {signal.SIGINT, signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)

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
child = os.fork()
if child == 0:
    # Raises if the process that it was forked from had opened a driver.
    bursar.use_driver("sim")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert not {"asyncio", "torch", "cupy", "numba", "numpy", "ray"} & set(sys.modules)
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python imports it into no subinterpreter")
def test_y3_a_process_ends_with_a_subinterpreter_that_imported_it() -> None:
    program = "import _xxsubinterpreters as sub\nsub.run_string(sub.create(), 'import bursar')\nprint('imported')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ran.stdout == "imported\n"


def test_y2_importing_starts_nothing() -> None:
    # Nothing of this process's environment, in which the package is imported already.
    ran = subprocess.run([sys.executable, "-c", LOOK], env={}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_version_is_that_of_the_distribution() -> None:
    assert bursar.__version__ == importlib.metadata.version("bursar")
