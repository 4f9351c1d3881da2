"""The pool of this process as CuPy's allocator.

::

    import bursar.cupy

    bursar.cupy.enable()
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from typing import Any

from . import _native
from .errors import OutOfMemory, Unsupported

_lock = threading.Lock()
_given: dict[str, Any] = {}


def enable() -> None:
    """Makes the pool of this process CuPy's allocator, for every device and thread. Calling it again does nothing.

    Arrays that exist stay where they are, and what CuPy's own pool keeps for later is given back. A refusal is
    ``cupy.cuda.memory.OutOfMemoryError``, with the :class:`bursar.OutOfMemory` that explains it as its cause.

    A stream that CuPy made may be destroyed at any time. One of another library (``cupy.cuda.ExternalStream``) has to stay for
    as long as arrays that were made on it.
    """
    cupy = importlib.import_module("cupy")
    streams = importlib.import_module("cupy_backends.cuda.stream")
    with _lock:
        if "malloc" in _given:
            return
        if _native.driver()[0] != "cuda":
            raise Unsupported("CuPy needs a GPU: the devices are simulated")
        if cupy.cuda.runtime.is_hip:
            raise Unsupported("this build of CuPy is for AMD's devices")
        if os.environ.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0"):
            raise Unsupported("the per-thread default stream is another on each thread: memory cannot be ordered on it")
        _given["malloc"] = _allocator(cupy, streams)
        _tell_of_ends(cupy.cuda.Stream)
        cupy.cuda.set_allocator(_given["malloc"])
        cupy.get_default_memory_pool().free_all_blocks()


def is_enabled() -> bool:
    """Returns whether the pool was made CuPy's allocator."""
    return "malloc" in _given


def _current_stream(streams: Any) -> int:
    """Returns the address of CuPy's function that returns the thread's current stream."""
    capsule = streams.__pyx_capi__["get_current_stream_ptr"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if name(capsule) != b"intptr_t (void)":
        raise Unsupported(f"this version of CuPy tells its current stream otherwise: {name(capsule)!r}")
    return int(pointer(capsule, name(capsule)))


def _allocator(cupy: Any, streams: Any) -> Any:
    allocate, free = _native.cupy_functions()
    try:
        parameter = _current_stream(streams)
    except (AttributeError, KeyError) as error:
        raise Unsupported(f"CuPy {cupy.__version__} does not tell its current stream") from error
    raw = cupy.cuda.memory.CFunctionAllocator(parameter, allocate, free, _native).malloc
    refused = cupy.cuda.memory.OutOfMemoryError

    def malloc(size: int) -> Any:
        pointer = raw(size)
        if not pointer.ptr and size:
            try:
                _native.raise_refusal()
            except OutOfMemory as error:
                used = (error.limit or 0) - error.available
                raise refused(error.requested, used, error.limit or 0) from error
        return pointer

    return malloc


def _tell_of_ends(stream_class: Any) -> None:
    """Has the pool told before CuPy destroys a stream."""
    destroy = stream_class.__del__

    def __del__(self: Any) -> None:
        handle = getattr(self, "ptr", 0)
        if handle > 2:
            _native.stream_ends(handle)
        destroy(self)

    stream_class.__del__ = __del__
