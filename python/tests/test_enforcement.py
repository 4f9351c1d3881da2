"""``bursar run`` and the package over the simulated driver in the place of CUDA's, ``libcuda.so.1``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE, Card

LIBRARY = os.environ.get("BURSAR_TEST_LIBCUDA", "")

pytestmark = pytest.mark.skipif(not LIBRARY, reason="BURSAR_TEST_LIBCUDA names no libbursar_libcuda.so")

SCRIPT = [str(Path(sys.executable).with_name("bursar"))]

#: A program that takes memory of the driver by itself until it is refused.
TAKE = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
taken = 0
while taken < 1000 and driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0:
    taken += 1
print("took", taken, "MiB")
"""


@pytest.fixture
def cuda(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    """A card that looks like CUDA's to the processes that a test starts."""
    folder = tmp_path / "driver"
    folder.mkdir(mode=0o700)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(LIBRARY)
    card.environment |= {"LD_LIBRARY_PATH": str(folder), "BURSAR_DRIVER": "cuda"}
    for name, value in card.environment.items():
        monkeypatch.setenv(name, value)
    return card


def run(*words: str) -> str:
    """Returns what a run prints that succeeds."""
    command = [*SCRIPT, "run", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert "_lib/libbursar_enforce.so keeps each worker inside its share" in ran.stderr
    return ran.stdout


def test_e1_a_run_of_the_console_script_keeps_workers_inside_their_shares(cuda: Card) -> None:
    assert "took 300 MiB" in run("--per-worker", "300MiB", "--", sys.executable, "-c", TAKE)


@pytest.mark.parametrize("look", ["devices()", "ledger()", "share()", "share().device", "reserve('1MiB').wait()"])
def test_e7_a_worker_that_looks_at_devices_stays_inside_its_share(cuda: Card, look: str) -> None:
    program = f"import bursar; looked = bursar.{look}" + TAKE
    assert "took 300 MiB" in run("--per-worker", "300MiB", "--", sys.executable, "-c", program)


def test_d2_looking_takes_nothing_of_a_device(cuda: Card) -> None:
    cuda.environment["BURSAR_SIM_CONTEXT"] = "500MiB"
    printed = cuda.run("""
import bursar
with bursar.reserve("1GiB"):
    device, plan, ledger = bursar.devices()[0], bursar.fit("1GiB", workers=8), bursar.ledger().devices[0]
print(device.kind, plan.kind, device.free >> 30, device.unmanaged, ledger.unmanaged, device.set_aside >> 30)
""")
    assert printed == "cuda cuda 8 0 0 1\n"


def test_y3_a_forked_child_of_a_process_that_opened_cuda_is_told_so(cuda: Card) -> None:
    printed = cuda.run("""
import bursar, os
bursar.devices()
child = os.fork()
if child == 0:
    try:
        bursar.devices()
    except bursar.Forked:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert printed == "7\n"
