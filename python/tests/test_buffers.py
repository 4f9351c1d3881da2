"""The contents of buffers, from whatever has bytes."""

from __future__ import annotations

import array
import ctypes
import random

import bursar
import pytest

pytestmark = pytest.mark.usefixtures("devices")


def test_contents_are_copied_in_and_out() -> None:
    buffer = bursar.Buffer(300)
    buffer.copy_from(bytes(range(256)))
    buffer.copy_from(b"abc")
    assert buffer.to_bytes()[:256] == b"abc" + bytes(range(3, 256))
    for given in (bytes(301), bytearray(301)):
        with pytest.raises(bursar.InvalidValue, match="^301 bytes are more than the 300 of the buffer"):
            buffer.copy_from(given)


@pytest.mark.parametrize("kind", "bBhHiIlLqQfd")
def test_the_bytes_of_an_array_are_copied_whatever_its_items_are(kind: str) -> None:
    numbers = random.Random(kind)
    for length in (0, 1, 5, 1000):
        items = array.array(kind, (numbers.randrange(1, 100) for _ in range(length)))
        buffer = bursar.Buffer(8000)
        buffer.copy_from(b"\xee" * 8000)
        buffer.copy_from(items)
        expected = items.tobytes()
        assert buffer.to_bytes() == expected + b"\xee" * (8000 - len(expected)), f"{kind}, {length} items"


def test_an_array_of_several_dimensions_is_copied_in_its_order() -> None:
    numbers = bytes(range(24))
    buffer = bursar.Buffer(24)
    buffer.copy_from(memoryview(numbers).cast("B", (2, 3, 4)))
    assert buffer.to_bytes() == numbers
    row = ctypes.c_uint16 * 3
    rows = (row * 4)(*(row(first, 300, 65535) for first in range(4)))
    buffer.copy_from(rows)
    assert buffer.to_bytes() == bytes(memoryview(rows))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_is_copied_in_pieces_is_whole(more: int) -> None:
    # A piece is 4 MiB.
    length = (8 << 20) + more
    contents = random.Random(more).randbytes(length)
    memory = bursar.pinned(length)
    memoryview(memory).cast("B")[:] = contents
    buffer = bursar.Buffer(length)
    for data in (contents, bytearray(contents), memoryview(contents), memory):
        buffer.copy_from(bytes(length))
        buffer.copy_from(data)
        assert buffer.to_bytes() == contents, type(data)


def test_a_refusal_of_pinned_memory_has_its_numbers() -> None:
    with pytest.raises(bursar.OutOfMemory, match="has no room for 100 TiB more") as refused:
        bursar.pinned("100TiB")
    limit = refused.value.limit
    assert refused.value.requested == 100 << 40 and limit is not None and 0 < refused.value.available <= limit < 100 << 40
class WithObject(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("item", ctypes.py_object)]


class Offset(ctypes.Structure):
    _fields_ = [("Offset", ctypes.c_int), ("O", ctypes.c_double)]


def test_a_name_of_a_field_is_no_object() -> None:
    offsets = (Offset * 2)(Offset(1, 2.0), Offset(3, 4.0))
    buffer = bursar.Buffer(ctypes.sizeof(offsets))
    buffer.copy_from(offsets)
    assert buffer.to_bytes() == bytes(offsets)


def test_bytes_that_cannot_be_copied_are_named_and_nothing_changes() -> None:
    buffer = bursar.Buffer(100)
    buffer.copy_from(b"\xee" * 100)
    with pytest.raises(bursar.InvalidValue, match="one behind the other"):
        buffer.copy_from(memoryview(bytes(20))[::2])
    with pytest.raises(bursar.InvalidValue, match="104 bytes are more than the 100"):
        buffer.copy_from(array.array("i", range(26)))
    wrong: object
    for wrong in ((ctypes.py_object * 2)(), (WithObject * 1)()):
        with pytest.raises(TypeError, match="objects of Python"):
            buffer.copy_from(wrong)
    for wrong in ("text", 5, [1, 2, 3], None):
        with pytest.raises(TypeError):
            buffer.copy_from(wrong)  # type: ignore[arg-type]
    assert buffer.to_bytes() == b"\xee" * 100
