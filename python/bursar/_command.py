"""The command ``bursar``, as console script and as ``python -m bursar``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from . import _native

#: The folder of this package.
PACKAGE = Path(__file__).resolve().parent


def main() -> int:
    """Runs the command with the arguments of this process and returns its exit status."""
    _open_closed_descriptors()
    # The command is ended by Ctrl-C as other programs are, unless it was started to ignore it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A run starts processes of its own. They need this package and nothing else that is installed, whatever the environment
    # and the folder say in which the run was started.
    program = [sys.executable, "-I", "-S", str(PACKAGE / "__main__.py")]
    return _native.command(sys.argv[1:], program, [str(PACKAGE / "_lib")])


def _open_closed_descriptors() -> None:
    """Opens nothing in the place of standard input, output and error that are closed, so that no other file takes it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
