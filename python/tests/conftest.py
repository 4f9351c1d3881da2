"""Devices and ledgers of a test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    """A card that this process and those it starts see."""
    made = Card(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    bursar.use_driver("sim")
    return made
