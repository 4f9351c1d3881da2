"""The programs that documents show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def programs(document: str) -> list[str]:
    """Returns the Python programs of a document."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program on simulated devices."""
    environment = {**os.environ, "BURSAR_DRIVER": "sim", "BURSAR_LEDGER_DIR": str(folder)}
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize("document", ["README.md", "docs/guide/09-from-python.md", "docs/guide/10-pytorch-cupy-numba.md"])
def test_the_programs_of_a_document_run(document: str, tmp_path: Path) -> None:
    found = programs(document)
    assert found, f"{document} has no Python"
    for program in found:
        ran = run(program, tmp_path)
        assert ran.returncode == 0, f"{program}\n{ran.stderr}"


def test_the_example_runs(tmp_path: Path) -> None:
    ran = run((ROOT / "python/examples/share.py").read_text(), tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "training in 20 GiB of gpu0\nserved in 1 GiB\n" in ran.stdout
