"""Buffers that other libraries take, over the simulated driver in the place of CUDA's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE, Card
from test_enforcement import LIBRARY, cuda  # noqa: F401

pytestmark = pytest.mark.skipif(not LIBRARY, reason="BURSAR_TEST_LIBCUDA names no libbursar_libcuda.so")

#: A library that takes capsules, and works on streams of its own.
LIBRARY_OF_OTHERS = """
import bursar, ctypes, gc

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]

class Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("owner", ctypes.c_void_p), ("delete", ctypes.c_void_p)]

class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("owner", ctypes.c_void_p),
                ("delete", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]

api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
names = {Plain: (b"dltensor", b"used_dltensor"), Versioned: (b"dltensor_versioned", b"used_dltensor_versioned")}

def take(capsule, layout=Plain):
    managed = ctypes.cast(api.PyCapsule_GetPointer(capsule, names[layout][0]), ctypes.POINTER(layout))
    api.PyCapsule_SetName(capsule, names[layout][1])
    return managed

def let_go(managed):
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.contents.delete)(ctypes.cast(managed, ctypes.c_void_p))

def blocks():
    gc.collect()
    return sum(counts.blocks for counts in bursar.statistics())

driver = ctypes.CDLL("libcuda.so.1")
def stream():
    made, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made.value
"""


@pytest.mark.parametrize("layout", ["Plain", "Versioned"])
def test_y5_a_capsule_keeps_the_memory_until_whoever_took_it_is_done(cuda: Card, layout: str) -> None:  # noqa: F811
    version = "(1, 0)" if layout == "Versioned" else "None"
    printed = cuda.run(f"""{LIBRARY_OF_OTHERS}
buffer = bursar.Buffer(300)
assert buffer.__dlpack_device__() == (2, 0) and not buffer.is_simulated
capsule = buffer.__dlpack__(max_version={version})
del buffer
assert blocks() == 1
managed = take(capsule, {layout})
tensor = managed.contents.tensor
print(tensor.ndim, tensor.shape[0], tensor.strides[0], tensor.code, tensor.bits, tensor.lanes, tensor.kind, tensor.offset)
del capsule
assert blocks() == 1, "whoever took it has it"
let_go(managed)
assert blocks() == 0
untaken = bursar.Buffer(300).__dlpack__(max_version={version})
assert blocks() == 1
del untaken
assert blocks() == 0, "nobody took it"
""")
    assert printed.split() == ["1", "300", "1", "1", "8", "1", "2", "0"]


def test_y5_the_array_interface_names_the_stream(cuda: Card) -> None:  # noqa: F811
    printed = cuda.run(f"""{LIBRARY_OF_OTHERS}
on_default = bursar.Buffer(64).__cuda_array_interface__
assert (on_default["stream"], on_default["version"], on_default["shape"], on_default["typestr"]) == (1, 3, (64,), "|u1")
handle = stream()
class Theirs:
    cuda_stream = handle
class Protocol:
    def __cuda_stream__(self): return (0, handle)
for given in (handle, Theirs(), Protocol()):
    buffer = bursar.Buffer(64, stream=given)
    assert buffer.stream == buffer.__cuda_array_interface__["stream"] == handle
for wrong in (0, -2):
    try: buffer.__dlpack__(stream=wrong)
    except ValueError: print("refused")
for wrong in (1 << 64, -(1 << 64)):
    try: buffer.__dlpack__(stream=wrong)
    except bursar.InvalidValue: print("refused")
try: buffer.__dlpack__(stream="text")
except TypeError: print("refused")
for wrong in ({{"copy": True}}, {{"dl_device": (1, 0)}}):
    try: buffer.__dlpack__(**wrong)
    except BufferError: print("refused")
""")
    assert printed.split() == ["refused"] * 7


def test_z9_memory_that_sleeps_is_handed_to_nobody(cuda: Card) -> None:  # noqa: F811
    printed = cuda.run("""
import bursar
buffer = bursar.Buffer("1MiB")
uses = (
    lambda: buffer.to_bytes(),
    lambda: buffer.record_stream(1),
    lambda: buffer.__cuda_array_interface__,
    lambda: buffer.__dlpack__(),
    lambda: buffer.__dlpack__(stream=1),
    lambda: buffer.__dlpack__(stream=-1),
)
for use in uses: use()
bursar.sleep()
for use in uses:
    try: use()
    except bursar.Asleep: print("asleep")
bursar.wake()
for use in uses: use()
""")
    assert printed.split() == ["asleep"] * 6


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("named", [True, False])
def test_y5_memory_is_freed_after_the_stream_it_was_handed_over_on(
    cuda: Card,  # noqa: F811
    tmp_path: Path,
    named: bool,
    seed: str,
) -> None:
    """Streams run by a seed. Where the stream is not named, the free comes too early, and the driver notices."""
    hazards = tmp_path / "hazards"
    cuda.environment |= {"BURSAR_SEED": seed, "BURSAR_HAZARDS": str(hazards)}
    printed = cuda.run(f"""{LIBRARY_OF_OTHERS}
bursar.use_pool(limit="64MiB")
reader, read, size = stream(), ctypes.c_void_p(), 1 << 20
assert driver.cuMemHostAlloc(ctypes.byref(read), ctypes.c_size_t(size), 0) == 0
for _ in range(20):
    buffer = bursar.Buffer(size)
    buffer.copy_from(bytes([7]) * size)
    capsule = buffer.__dlpack__(stream={"reader" if named else "-1"})
    managed = take(capsule)
    source = ctypes.c_uint64(managed.contents.tensor.data)
    assert driver.cuMemcpyDtoHAsync_v2(read, source, ctypes.c_size_t(size), ctypes.c_void_p(reader)) == 0
    let_go(managed)
    del buffer, capsule
    other = bursar.Buffer(size)
    other.copy_from(bytes([9]) * size)
    del other
print("done")
""")
    assert printed == "done\n"
    found = hazards.read_text() if hazards.exists() else ""
    assert bool(found) != named, found


def in_a_share(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program as a worker that has 300 MiB."""
    words = ["run", "--per-worker", "300MiB", "--no-enforce", "--", sys.executable, "-c", program]
    command = [sys.executable, "-m", "bursar", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_a_worker_draws_on_its_share(cuda: Card) -> None:  # noqa: F811
    ran = in_a_share("""
import bursar
kept = []
try:
    while True: kept.append(bursar.Buffer("16MiB"))
except bursar.OutOfMemory as refused:
    print("took", sum(map(len, kept)) >> 20, "MiB of", refused.limit >> 20)
""")
    assert "took 288 MiB of 300" in ran.stdout, ran.stderr


def test_y3_a_worker_that_is_killed_returns_what_it_drew(cuda: Card) -> None:  # noqa: F811
    ran = in_a_share("""
import bursar, os, signal
kept = bursar.Buffer("200MiB")
print("drew", bursar.ledger().devices[0].held >> 20, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert "drew 200" in ran.stdout and ran.returncode != 0, ran.stderr
    assert cuda.run("import bursar; card = bursar.ledger().devices[0]; print(card.held, card.set_aside)") == "0 0\n"


def test_y5_memory_of_a_stream_that_was_destroyed_is_used_again(cuda: Card) -> None:  # noqa: F811
    printed = cuda.run(f"""{LIBRARY_OF_OTHERS}
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from bursar import _native
from standins import cupy_allocator, current_stream
malloc = cupy_allocator()
for round_ in range(50):
    current_stream[0] = made = stream()
    early, late = malloc(2 << 20), malloc(2 << 20)
    del early
    _native.stream_ends(made)
    assert driver.cuStreamDestroy_v2(ctypes.c_void_p(made)) == 0
    del late
assert blocks() == 0
[counts] = bursar.statistics()
print(counts.held <= 64 << 20, counts.held)
""")
    assert printed.split()[0] == "True", printed


def test_memory_that_is_freed_while_its_stream_is_captured_goes_back_after_it(cuda: Card) -> None:  # noqa: F811
    cuda.run(f"""{LIBRARY_OF_OTHERS}
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from standins import cupy_allocator, current_stream
malloc = cupy_allocator()
current_stream[0] = made = stream()
freed, graph = malloc(1000), ctypes.c_void_p()
assert driver.cuStreamBeginCapture_v2(ctypes.c_void_p(made), 2) == 0
del freed
assert blocks() == 1, "the graph may use it"
assert driver.cuStreamEndCapture(ctypes.c_void_p(made), ctypes.byref(graph)) == 0
kept = malloc(1000)
assert blocks() == 1, "it went back"
""")
