"""CuPy on the pool of this process. They need CuPy and a GPU, and are skipped elsewhere."""

from __future__ import annotations

import gc
from typing import Any

import pytest

numpy: Any = pytest.importorskip("numpy")
cupy: Any = pytest.importorskip("cupy")

import bursar  # noqa: E402
import bursar.cupy  # noqa: E402


def _has_gpu() -> bool:
    try:
        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


pytestmark = pytest.mark.skipif(not _has_gpu(), reason="CuPy finds no GPU")


@pytest.fixture(scope="module", autouse=True)
def pool() -> None:
    bursar.use_driver("cuda")
    bursar.use_pool(limit="1GiB")
    bursar.cupy.enable()
    bursar.cupy.enable()


def blocks() -> int:
    gc.collect()
    return sum(counts.blocks for counts in bursar.statistics())


def test_arrays_are_memory_of_the_pool() -> None:
    numbers = numpy.arange(1000, dtype=numpy.float32)
    before, array = blocks(), cupy.empty(1000, dtype=cupy.float32)
    array.set(numbers)
    assert blocks() == before + 1
    assert (array.get() == numbers).all()
    del array
    assert blocks() == before
    assert cupy.empty(0).size == 0


def test_y4_a_refusal_is_cupys_own_error_and_never_an_address() -> None:
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as raised:
        cupy.empty(2 << 30, dtype=cupy.uint8)
    cause = raised.value.__cause__
    assert isinstance(cause, bursar.OutOfMemory) and cause.limit == 1 << 30


def test_y5_memory_of_a_stream_that_was_destroyed_is_used_again() -> None:
    bursar.trim()
    before = sum(counts.held for counts in bursar.statistics())
    for _ in range(50):
        stream = cupy.cuda.Stream()
        with stream:
            kept = cupy.empty(4 << 20, dtype=cupy.uint8)
            kept.set(numpy.zeros(4 << 20, dtype=numpy.uint8))
        del stream
        gc.collect()
        del kept
    assert sum(counts.held for counts in bursar.statistics()) <= before + (64 << 20)


def test_y5_a_stream_of_others_may_be_destroyed_once_its_memory_is_free() -> None:
    runtime = cupy.cuda.runtime
    for _ in range(20):
        handle = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        with cupy.cuda.ExternalStream(handle):
            kept = cupy.empty(4 << 20, dtype=cupy.uint8)
            kept.set(numpy.ones(4 << 20, dtype=numpy.uint8))
        buffer = bursar.Buffer("1MiB")
        taken = buffer.__dlpack__(stream=handle)
        del kept, buffer, taken
        gc.collect()
        runtime.streamDestroy(handle)
        later = cupy.zeros(4 << 20, dtype=cupy.uint8)
        assert int(later.get().max()) == 0
        del later
    bursar.trim()


def test_y5_a_buffer_is_an_array_and_lives_as_long() -> None:
    before, buffer = blocks(), bursar.Buffer(256)
    buffer.copy_from(bytes(range(256)))
    by_dlpack, by_interface = cupy.from_dlpack(buffer), cupy.asarray(buffer)
    assert by_dlpack.data.ptr == by_interface.data.ptr == buffer.ptr
    del buffer
    assert bytes(by_dlpack.get()) == bytes(by_interface.get()) == bytes(range(256))
    del by_dlpack
    assert blocks() == before + 1
    del by_interface
    assert blocks() == before
