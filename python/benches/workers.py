"""Processes that live at the same time and measure in turns, each when it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


class Worker:
    """A process that says ``ready``, and then answers each line with a line."""

    def __init__(self, name: str, program: str, arguments: list[str]) -> None:
        self.name = name
        self.said = tempfile.TemporaryFile("w+")
        command = [sys.executable, str(Path(__file__).parent / program), *arguments]
        pipe = subprocess.PIPE
        # Helpers that spin would take the core of whoever measures, and hashes that differ lay out memory differently.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.said, text=True, env=environment)

    def ask(self, line: str = "") -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self) -> str:
        """Returns its next line; nothing if it has ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def is_ready(self) -> bool:
        return self.answer() == "ready"

    def end(self) -> str:
        """Ends it, and returns the last line of what it said."""
        self.process.communicate(timeout=120)
        self.said.seek(0)
        return (self.said.read().strip().splitlines() or ["failed"])[-1]


def move_to_core(core: int) -> None:
    """Has every thread of this process run on one core from here on, and those that they start."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), {core})
        except ProcessLookupError:
            pass  # It has ended.
