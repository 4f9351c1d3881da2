"""Devices and ledgers of a test's own."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import bursar
import pytest

#: The time after which a test fails instead of hanging; nothing here takes as long.
PATIENCE = 60.0

_names = count()

# A shell starts what runs in the background to ignore these, and everything that is started here would, too.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

#: Files whose tests give the pool of their process to a library on a GPU. That is for good, so each has a process of its own.
APART = {"test_torch.py": "torch", "test_cupy.py": "cupy", "test_numba.py": "numba"}
_IS_APART = "BURSAR_TEST_APART"


class FileApart(pytest.Module):
    """A file whose tests run in a process of their own."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return [TestsApart.from_parent(self, name="apart")]


class TestsApart(pytest.Item):
    """All tests of a file, run in another process."""

    __test__ = False

    def runtest(self) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(self.path)]
        environment = {**os.environ, _IS_APART: "1"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        summary = (ran.stdout.strip().splitlines() or [""])[-1]
        print(ran.stdout)
        if ran.returncode:
            raise AssertionError(f"{summary}\n{ran.stdout}{ran.stderr}")
        if "passed" not in summary:
            pytest.skip(summary)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}, in a process of its own"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Has the files of libraries run apart where there is a GPU, unless one of them is all that is asked for."""
    library = APART.get(module_path.name)
    if library is None or _IS_APART in os.environ or not os.path.exists("/dev/nvidiactl"):
        return None
    asked = {argument.split("::")[0] for argument in parent.config.args}
    if importlib.util.find_spec(library) is None or len(asked) == 1 and asked.pop().endswith(module_path.name):
        return None
    made: pytest.Module = FileApart.from_parent(parent, path=module_path)
    return made


class Card:
    """One simulated device of 8 GiB that processes share, with its ledger in a folder."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            "BURSAR_DRIVER": "sim",
            "BURSAR_LEDGER_DIR": str(folder),
            "BURSAR_SIM_DEVICES": f"1x8GiB@py-{os.getpid()}-{next(_names)}",
        }

    def python(self, program: str) -> subprocess.Popen[str]:
        """Starts a Python program that sees the card."""
        environment = {**os.environ, **self.environment}
        command = [sys.executable, "-c", program]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, program: str) -> str:
        """Runs a Python program that sees the card, and returns what it prints."""
        started = self.python(program)
        printed, said = started.communicate(timeout=PATIENCE)
        assert started.returncode == 0, said
        return printed

    def ledger(self) -> bursar.DeviceLedger:
        """Reads the ledger."""
        return bursar.ledger().devices[0]


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.005)


@pytest.fixture
def devices() -> Iterator[None]:
    """A simulated device, of whose pool nothing is left from the test before."""
    gc.collect()
    bursar.use_driver("sim", sim_devices="1x8GiB")
    bursar.use_pool()
    yield
    bursar.wake()
    gc.collect()


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    """A card that this process and those it starts see."""
    made = Card(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    bursar.use_driver("sim")
    return made
