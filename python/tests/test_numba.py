"""Numba on the pool of this process. They need Numba and a GPU, and are skipped elsewhere."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import pytest

numpy: Any = pytest.importorskip("numpy")
cuda: Any = pytest.importorskip("numba.cuda")

import bursar  # noqa: E402
import bursar.numba  # noqa: E402


def _has_gpu() -> bool:
    program = "from numba import cuda; import sys; sys.exit(0 if len(cuda.list_devices()) else 1)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _has_gpu(), reason="Numba finds no GPU")


@pytest.fixture(scope="module", autouse=True)
def pool() -> None:
    bursar.use_driver("cuda")
    bursar.use_pool(limit="1GiB")
    bursar.numba.enable()
    bursar.numba.enable()


def blocks() -> int:
    gc.collect()
    return sum(counts.blocks for counts in bursar.statistics())


def test_arrays_are_memory_of_the_pool() -> None:
    numbers = numpy.arange(1000, dtype=numpy.float32)
    before = blocks()
    array = cuda.to_device(numbers)
    assert blocks() == before + 1
    assert (array.copy_to_host() == numbers).all()
    del array
    assert blocks() == before


def test_a_refusal_says_why() -> None:
    with pytest.raises(bursar.OutOfMemory) as raised:
        cuda.device_array(2 << 30, dtype=numpy.uint8)
    assert raised.value.limit == 1 << 30


def test_memory_is_told_as_the_driver_has_it() -> None:
    info = cuda.current_context().get_memory_info()
    assert 0 < info.free <= info.total


def test_memory_is_not_for_other_processes() -> None:
    array = cuda.device_array(10)
    with pytest.raises(bursar.Unsupported):
        array.get_ipc_handle()


def test_y5_a_buffer_lives_as_long_as_the_array_on_it() -> None:
    before, buffer = blocks(), bursar.Buffer(64)
    buffer.copy_from(bytes(range(64)))
    array = cuda.as_cuda_array(buffer)
    assert buffer.__cuda_array_interface__["stream"] == 1
    del buffer
    assert bytes(array.copy_to_host()) == bytes(range(64))
    assert blocks() == before + 1
    del array
    assert blocks() == before


def test_enabling_too_late_is_an_error() -> None:
    program = (
        "import bursar, bursar.numba\nfrom numba import cuda\nkept = cuda.device_array(1)\n"
        "try: bursar.numba.enable()\nexcept bursar.TooLate: print('too late')"
    )
    started = subprocess.run([sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True, check=False)
    assert "too late" in started.stdout, started.stderr
