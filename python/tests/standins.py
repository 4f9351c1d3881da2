"""What stands in for CuPy where it is not installed: classes and functions like those that its allocators use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from bursar import _native

_values: dict[tuple[int, str], int] = {}


def _attribute(name: str) -> Any:
    def read(self: object) -> int:
        return _values[id(self), name]

    def write(self: object, value: int) -> None:
        _values[id(self), name] = value

    return property(read, write)


class BaseMemory:
    """A class of memory like CuPy's: without a dictionary, and with attributes that are set from outside."""

    __slots__ = ()

    ptr = _attribute("ptr")
    size = _attribute("size")
    device_id = _attribute("device_id")


class MemoryPointer:
    """A pointer to memory."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        assert isinstance(mem, BaseMemory)
        self.mem, self.ptr = mem, mem.ptr + offset


class Refused(Exception):
    """The error that stands in for CuPy's."""


def refusal(error: BaseException) -> BaseException:
    """Makes it of one of ours."""
    made = Refused(str(error))
    made.__cause__ = error
    return made


#: The stream that is current.
current_stream = [0]
_device = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda _: 0)
_stream_of = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(lambda _: current_stream[0])
_stream = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: current_stream[0])


def cupy_allocator(has_device: bool = True, classes: Any = None) -> Callable[[Any], Any]:
    """Returns the allocator that CuPy is given, made of these, or of CuPy's own classes."""
    device, stream = (ctypes.cast(each, ctypes.c_void_p).value for each in (_device, _stream_of if has_device else _stream))
    assert device and stream
    memory, pointer = (BaseMemory, MemoryPointer) if classes is None else (classes.BaseMemory, classes.MemoryPointer)
    return _native.cupy_allocator(memory, pointer, device, stream, has_device, refusal)
